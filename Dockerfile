# The program, as worker, feed or any other verb. The base may be any image with glibc, GNU find and a python3 (3.11 to
# 3.13) that has venv:
#
#   docker build --build-arg BASE_IMAGE=registry/python:3.13 --tag udp-stream .
#
# Packages come from deploy/wheels if there are any (deploy/local-images puts them there), else from the package index.
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
WORKDIR /src
COPY deploy/wheels wheels
RUN python3 -m venv /opt/udp-stream \
    && if ls wheels/*.whl > /dev/null 2>&1; then \
        printf '[global]\nno-index = true\nfind-links = /src/wheels\n' > /etc/pip.conf; \
    fi
# First what it needs, by the version alone, which changes seldom; then the program.
COPY pyproject.toml README.md LICENSE ./
COPY udp_stream/__init__.py udp_stream/
COPY udp_stream/base/version.py udp_stream/base/
RUN mkdir streams lab && /opt/udp-stream/bin/python -m pip install --quiet --no-cache-dir '.[dashboard,kafka,metrics,redis,sources,zones]'
COPY streams streams
COPY lab lab
COPY udp_stream udp_stream
# Of which commit it is, where .git is here and a folder; the file beside it is there for builds without.
COPY LICENSE .gi[t] .git/
RUN /opt/udp-stream/bin/python -m pip install --quiet --no-cache-dir --no-deps --force-reinstall .

FROM ${BASE_IMAGE}
COPY --from=build /opt/udp-stream /opt/udp-stream
# The home is where a volume with the key of the plates goes, and below it one of what is released: its first user's mode
# and owner are the volume's.
RUN useradd --uid 10001 --home-dir /var/lib/udp-stream --shell /usr/sbin/nologin udp-stream \
    && install --directory --owner udp-stream --group udp-stream --mode 0700 /var/lib/udp-stream /var/lib/udp-stream/released
ENV PATH=/opt/udp-stream/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/udp-stream
# Workers and live feeds touch the file while they go on. A worker that the group does not take in ends by itself after
# two minutes, and is started again: until then it is starting, not ill.
HEALTHCHECK --interval=3s --timeout=5s --start-period=150s \
    CMD test -n "$(find /tmp/udp-stream.alive -newermt '-30 seconds')"
ENTRYPOINT ["udp-stream"]
CMD ["worker", "--alive", "/tmp/udp-stream.alive"]
