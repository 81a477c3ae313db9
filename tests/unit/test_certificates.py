"""The end of a certificate, as another library reads it, of each form of a time and of a chain."""

import math
from datetime import UTC, datetime

import pytest
import trustme
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from tests.http_server import ok, serving
from udp_stream.settings import load
from udp_stream.sources.certificates import end_of, ends_of, first_end
from udp_stream.sources.http import HttpGet

YEARS = (1999, 2049, 2050, 2051, 9999)


@pytest.mark.parametrize("year", YEARS)
def test_the_end_is_what_another_library_says(year, tmp_path):
    end = datetime(year, 3, 2, 1, 0, 59, tzinfo=UTC)
    made = trustme.CA().issue_cert(
        "127.0.0.1", not_before=datetime(1970, 1, 1, tzinfo=UTC), not_after=end
    )
    chain = b"".join(part.bytes() for part in made.cert_chain_pems)
    (tmp_path / "c.pem").write_bytes(made.private_key_pem.bytes() + chain)
    told = [one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(chain)]
    assert ends_of(str(tmp_path / "c.pem")) == told and told[0] == end.timestamp()


@given(st.binary(max_size=200))
def test_what_is_no_certificate_is_none(some):
    with pytest.raises((ValueError, IndexError)):
        end_of(some)


def test_a_server_s_certificate_is_seen_while_it_is_polled(tmp_path):
    authority, end = trustme.CA(), datetime(2035, 1, 1, tzinfo=UTC)
    made = authority.issue_cert("127.0.0.1", not_after=end)
    (tmp_path / "s.pem").write_bytes(made.private_key_and_cert_chain_pem.bytes())
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    live = load(None, [f"live.ca_file={tmp_path / 'ca.crt'}"], {}).live
    with serving(ok(b"[]"), tls=(tmp_path / "s.pem",)) as server:
        get = HttpGet(server.url, live)
        assert (
            get.certificate_s == math.inf
            and get.get({}).body == b"[]"
            and get.certificate_s == end.timestamp()
        )


def test_the_first_end_of_the_settings_counts_and_an_authority_s_successor_counts_for_it(tmp_path):
    ends = {"old": 2031, "new": 2039, "ours": 2035}
    texts = {}
    for name, year in ends.items():
        made = trustme.CA().issue_cert("127.0.0.1", not_after=datetime(year, 1, 1, tzinfo=UTC))
        texts[name] = made.cert_chain_pems[0].bytes()
    (tmp_path / "ca.crt").write_bytes(texts["old"] + texts["new"])
    (tmp_path / "ours.crt").write_bytes(texts["ours"])
    ca = f"live.ca_file={tmp_path / 'ca.crt'}"
    assert first_end(load(None, [ca], {})) == datetime(2039, 1, 1, tzinfo=UTC).timestamp()
    ours = f"kafka.client.ssl_certfile={tmp_path / 'ours.crt'}"
    both = [
        ca,
        ours,
        f"kafka.client.ssl_keyfile={tmp_path / 'ours.key'}",
        "kafka.client.security_protocol=SSL",
    ]
    assert first_end(load(None, both, {})) == datetime(2035, 1, 1, tzinfo=UTC).timestamp()
    assert (
        first_end(load(None, ["live.ca_file=/no/such.pem"], {}))
        is None
        is first_end(load(None, [], {}))
    )
