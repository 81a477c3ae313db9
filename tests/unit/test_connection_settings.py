"""Keys that say how services are reached: what belongs together, what is refused, and no secret
among them."""

import re

import pytest

from streams.topics import client_options, faust_credentials
from tests.secured import certificates, secret_file
from udp_stream.base.errors import ConfigError
from udp_stream.base.files import require_private, secret_of, tls_context
from udp_stream.cli.main import main
from udp_stream.cli.parsers import VERBS
from udp_stream.settings.rules import PROTOCOLS
from udp_stream.settings.sections import KafkaSection


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


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_help_shows_no_password_on_a_command_line(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb.__name__.removeprefix("_"), "--help"])
    said = capsys.readouterr().out
    assert said and not re.search(r"--\w*(password|secret|token)\b|://[^/ ]*@", said)
