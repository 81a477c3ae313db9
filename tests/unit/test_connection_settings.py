"""Keys that say how services are reached: what belongs together, what is refused, and no secret
among them."""

import re

import pytest

from streams.topics import client_options, faust_credentials
from tests.secured import certificates, secret_file
from udp_stream.cli.main import main
from udp_stream.cli.parsers import VERBS
from udp_stream.errors import ConfigError
from udp_stream.files import require_private, secret_of, tls_context
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.settings import LedgerSection, load
from udp_stream.settings.rules import PROTOCOLS
from udp_stream.settings.sections import KafkaSection

SASL = (
    "kafka.client.security_protocol=SASL_PLAINTEXT",
    "kafka.client.sasl_plain_username=worker",
    "kafka.client.sasl_plain_password_file=/run/secrets/kafka",
)
TLS = "kafka.client.security_protocol=SSL"


def refused(*flags):
    with pytest.raises(ConfigError) as raised:
        load(None, flags, {})
    return str(raised.value)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        *(
            ([f"kafka.bootstrap={place}"], "kafka.bootstrap: expected HOST:PORT, or several of them with commas, got")
            for place in (
                "", "kafka", "kafka:", ":9092", "kafka:nine", "kafka:99999", "http://kafka:9092", "a:9092,b",
                "::1:9092", "a:9092 b:9092",
            )
        ),
        (["kafka.prefix=my prefix/"], "kafka.prefix:"),
        (["kafka.group= "], "kafka.group:"),
        (["kafka.client.ssl_cafile=ca.pem"], "kafka.client.security_protocol:"),
        (SASL[:1], "kafka.client.sasl_plain_username:"),
        ([*SASL, "kafka.client.ssl_cafile=ca.pem"], "kafka.client.security_protocol: expected"),
        ([*SASL, "kafka.client.sasl_plain_username=a,b"], "kafka.client.sasl_plain_username:"),
        ([*SASL, "kafka.client.sasl_mechanism=GSSAPI"], "SCRAM-SHA-256"),
        ([TLS, "kafka.client.ssl_keyfile=k"], "kafka.client.ssl_certfile:"),
        ([TLS, "kafka.client.ssl_certfile=c"], "kafka.client.ssl_keyfile: expected one"),
        (["kafka.client.acks=1"], "unknown key kafka.client.acks"),
        (["kafka.client.bootstrap_servers=other:9092"], "unknown key kafka.client.bootstrap_servers"),
        (["kafka.client=5"], "kafka.client: expected"),
    ],
)  # fmt: skip
def test_keys_that_do_not_belong_together_or_break_their_rule_are_refused(flags, sentence):
    assert sentence in refused(*flags)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["ledger.client.password_file=p"], "ledger.url:"),
        (["ledger.url=redis://a", "ledger.client.ssl_ca_certs=c"], "ledger.url:"),
        (["ledger.url=redis://a", "ledger.client.username=me"], "ledger.client.password_file:"),
        (["ledger.url=redis://u:hush@a", "ledger.client.password_file=p"], "ledger.url:"),
        (
            ["ledger.url=rediss://a", "ledger.client.ssl_certfile=c"],
            "ledger.client.ssl_keyfile: expected one",
        ),
        (
            ["ledger.url=rediss+cluster://a", "ledger.client.ssl_keyfile=k"],
            "ledger.client.ssl_certfile: expected one",
        ),
        (
            ["ledger.url=rediss://a", "ledger.client.ssl_cert_reqs=none"],
            "unknown key ledger.client.ssl_cert_reqs",
        ),
        (
            ["ledger.url=redis://a", "ledger.client.decode_responses=true"],
            "unknown key ledger.client.decode_responses",
        ),
    ],
)
def test_keys_of_a_redis_that_do_not_belong_together_are_refused(flags, sentence):
    said = refused(*flags)
    assert sentence in said and "hush" not in said


@pytest.mark.parametrize(
    "key", ["kafka.password", "kafka.client.sasl_plain_password", "ledger.client.password"]
)
def test_a_password_is_no_key_and_what_was_given_as_one_is_not_repeated(key):
    said = refused(f"{key}=hush-hush")
    assert "unknown key" in said and "hush" not in said
    with pytest.raises(ConfigError) as raised:
        load(None, (), {f"UDP_STREAM_{key.replace('.', '__').upper()}": "hush-hush"})
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("security", PROTOCOLS)
def test_both_libraries_and_faust_are_told_the_same(tmp_path, security):
    from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

    made = certificates(tmp_path)
    sasl = {"sasl_plain_username": "worker", "sasl_plain_password_file": str(made.password)}
    kafka = KafkaSection(
        client={
            "security_protocol": security,
            **(sasl | {"sasl_mechanism": "SCRAM-SHA-256"} if security.startswith("SASL") else {}),
            **({"ssl_cafile": str(made.ca_crt)} if security.endswith("SSL") else {}),
        }
    )
    ours = client_options(kafka)
    fausts = credentials_to_aiokafka_auth(faust_credentials(kafka))
    assert {key: value for key, value in fausts.items() if key != "ssl_context"} == {
        key: value for key, value in ours.items() if key not in ("ssl_context", "bootstrap_servers")
    }
    for options in (ours, fausts):
        assert (options.get("ssl_context") is not None) == security.endswith("SSL")
    assert "staple" not in repr(faust_credentials(kafka)) + repr(kafka)


@pytest.mark.parametrize(
    ("ca", "certificate", "key", "sentence"),
    [
        ("none", "", "", "kafka.client.ssl_cafile:"),
        ("password", "", "", "kafka.client.ssl_cafile:"),
        ("ca.crt", "client.crt", "server.key", "kafka.client.ssl_certfile:"),
        ("ca.crt", "none", "client.key", "kafka.client.ssl_certfile: .*none"),
        ("ca.crt", "client.crt", "sealed.key", "kafka.client.ssl_certfile:"),
        ("ca.crt", "client.crt", "open.key", "kafka.client.ssl_keyfile:"),
    ],
)
def test_certificates_that_cannot_be_used_are_named(tmp_path, ca, certificate, key, sentence):
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    certificates(tmp_path)
    client = (tmp_path / "client.key").read_bytes()
    (tmp_path / "open.key").write_bytes(client)
    (tmp_path / "open.key").chmod(0o644)
    sealed = load_pem_private_key(client, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush")
    )
    secret_file(tmp_path / "sealed.key", sealed)
    with pytest.raises(ConfigError, match=sentence):
        tls_context(
            "kafka", *(str(tmp_path / name) if name else "" for name in (ca, certificate, key))
        )


def test_a_group_may_read_what_root_hands_over_and_nobody_may_what_is_ours(tmp_path, monkeypatch):
    """As Kubernetes hands secrets to a user who is not root: root's, mode 0440, a group of ours."""
    file = tmp_path / "password"
    secret_file(file, b"hush\n")
    assert secret_of("kafka.password_file", str(file)) == "hush"
    file.chmod(0o440)
    with pytest.raises(ConfigError, match="mode 0440"):
        require_private("kafka.password_file", str(file))
    monkeypatch.setattr("os.geteuid", lambda: 10001)
    if file.stat().st_uid == 0:
        require_private("kafka.password_file", str(file))
        for mode in (0o444, 0o460, 0o441):
            file.chmod(mode)
            with pytest.raises(ConfigError, match=f"mode {mode:04o}"):
                require_private("kafka.password_file", str(file))


def test_a_password_in_the_place_of_its_file_is_not_shown(tmp_path, monkeypatch):
    """A usual mistake. A path is shown, as a mistake in it is as usual."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="might be the secret itself") as raised:
        secret_of("kafka.password_file", "hunter2-is-mine")
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigError, match="/run/secrets/kafak cannot"):
        secret_of("kafka.password_file", "/run/secrets/kafak")
    secret_file(tmp_path / "hunter3", b"hush")
    assert secret_of("kafka.password_file", "hunter3") == "hush"


def test_policies_and_their_fingerprints_do_not_depend_on_how_services_are_reached(tmp_path):
    plain = load(None, (), {}).policy
    reached = load(None, [*SASL, "ledger.url=redis://u:hush@a"], {}).policy
    assert (
        reached == plain
        and reached.fingerprint() == plain.fingerprint()
        and "hush" not in repr(reached)
    )


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_help_shows_no_password_on_a_command_line(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb.__name__.removeprefix("_"), "--help"])
    said = capsys.readouterr().out
    assert said and not re.search(r"--\w*(password|secret|token)\b|://[^/ ]*@", said)


URLS = [
    ("http://ledger/0", "expected sqlite:FILE or redis://HOST:PORT/DB"),
    (
        "redis://localhost:99999/0",
        "expected redis://HOST:PORT with a port of 1 to 65535, got something else",
    ),
    (
        "redis://localhost:0/0",
        "expected redis://HOST:PORT with a port of 1 to 65535, got something else",
    ),
    (
        "redis://localhost:hush/0",
        "expected redis://HOST:PORT with a port of 1 to 65535, got something else",
    ),
    (
        "redis://localhost:1/surat",
        "expected the number of a database behind the host, got something else",
    ),
    ("redis://localhost:1?db=surat", "expected ?db=NUMBER or no option, got db"),
    ("redis://localhost:1/0?passwort=hush", "expected ?db=NUMBER or no option, got passwort"),
    (
        "rediss://localhost:1/0?ssl_cert_reqs=none",
        "expected ?db=NUMBER or no option, got ssl_cert_reqs",
    ),
    (
        "unix://run/redis.sock",
        "expected unix:///PATH of a socket, from the root, got something else",
    ),
]
"""URLs that no run takes, and why. The client would take database 0 for a name, the first of two
databases, port 6379 for port 0, and /redis.sock for the last socket but one."""


@pytest.mark.parametrize(("url", "sentence"), URLS)
@pytest.mark.parametrize("must_exist", [False, True])
def test_a_ledgers_url_is_read_before_its_key_is_asked_for(url, sentence, must_exist, tmp_path):
    """A database by name would be database 0, and an option that the client does not know ended as
    a fault of ours."""
    asked = LedgerSection(url=url, key_file=f"{tmp_path}/key")
    with (
        pytest.raises(ConfigError, match=re.escape(f"ledger.url: {sentence}")),
        ledger_and_keys(asked, must_exist=must_exist),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
