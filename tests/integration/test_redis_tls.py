"""A Redis that speaks TLS itself, as Debian's and the public image do; the one from packages alone
does not."""

import os

import pytest
from redis import Redis, RedisError

from lab.process import free_ports
from tests.contract.checks import ask
from tests.integration.conftest import DURABLE, REDIS_IMAGE, in_containers, wait_for_container
from tests.integration.test_secured_redis import ADMIN, USER, rights
from tests.secured import PASSWORD, certificates
from udp_stream.base.errors import DependencyUnavailable
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.settings import LedgerSection


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    from testcontainers.core.container import DockerContainer

    image = os.environ.get("UDP_STREAM_REDIS_IMAGE", REDIS_IMAGE)
    assert in_containers(image), "expected UDP_STREAM_SERVICES=containers"
    made = certificates(tmp_path_factory.mktemp("secured"))
    inside = tmp_path_factory.mktemp("inside")  # its user is another one, and reads these
    inside.chmod(0o755)
    for name in ("ca.crt", "server.crt", "server.key"):
        (inside / name).write_bytes((made.folder / name).read_bytes())
        (inside / name).chmod(0o644)
    (port,) = free_ports(1)
    container = (
        DockerContainer(image)
        .with_bind_ports(6380, port)
        .with_volume_mapping(str(inside), "/tls", "ro")
    )
    files = "--tls-cert-file /tls/server.crt --tls-key-file /tls/server.key --tls-ca-cert-file /tls/ca.crt"
    container.with_command(f"{DURABLE} --port 0 --tls-port 6380 {files} --requirepass {ADMIN}")
    with container:
        wait_for_container(container, lambda: greeted(port, made))
        yield port, made


def administrator(port, made):
    files = {
        "ssl_ca_certs": made.ca_crt,
        "ssl_certfile": made.client_crt,
        "ssl_keyfile": made.client_key,
    }
    return Redis(host="127.0.0.1", port=port, password=ADMIN, protocol=2, ssl=True, **files)


def greeted(port, made):
    with administrator(port, made) as client:
        try:
            client.ping()
        except RedisError as error:
            raise OSError(str(error)) from error


@pytest.mark.containers
def test_redis_with_tls_of_its_own_keeps_the_promises_for_a_user_of_the_page(secured):
    port, made = secured
    with administrator(port, made) as client:
        client.execute_command(
            "ACL", "SETUSER", USER, *(rule.replace("PASSWORD", PASSWORD) for rule in rights())
        )
    keys = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "client.crt", "ssl_keyfile": "client.key"}
    keys |= {"username": USER, "password_file": "password"}
    url = f"rediss://127.0.0.1:{port}/0"
    asked = LedgerSection(
        url=url, key_file=str(made.folder / "plates.key"), client=named(made, keys)
    )
    with ledger_and_keys(asked) as (ledger, _):
        assert ledger.admit("tls", 10, [b"x"], [ask("tls/hat", [3])])[0].admitted.all()
        ledger.record([("tls/hat", b"payload")])
        assert ledger.recorded(["tls/hat"]) == [b"payload"] and ledger.verify() == []
    for place, wrong, sentence in (
        (url, {"ssl_ca_certs": "other.crt"}, "a certificate that is not trusted"),
        (url, {"ssl_certfile": "", "ssl_keyfile": ""}, "it wants a certificate of ours"),
        (url, {"password_file": "wrong"}, "does not accept the user and password"),
        (f"redis://127.0.0.1:{port}/0", {"ssl_ca_certs": "", "ssl_certfile": "", "ssl_keyfile": ""},
         "Does it speak TLS on this port, and want rediss://?"),
    ):  # fmt: skip
        asked = LedgerSection(
            url=place, key_file=str(made.folder / "plates.key"), client=named(made, keys | wrong)
        )
        with pytest.raises(DependencyUnavailable) as raised, ledger_and_keys(asked):
            pass
        assert sentence in str(raised.value) and PASSWORD not in str(raised.value), str(
            raised.value
        )


def named(made, keys):
    files = "password_file", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"
    return {
        name: str(made.folder / key) if name in files else key for name, key in keys.items() if key
    }
