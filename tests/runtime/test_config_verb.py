"""`config`, `--version`: what a user is told before anything is read, charged or drawn."""

import pytest

from tests.secured import secret_file
from udp_stream.cli import main as cli
from udp_stream.settings import DURATIONS

CITY = """\
[hat]
slot = "30m"
resolution = 8

[budget]
epsilon = 4

[[query]]
name = "north"
kind = "range"
every = "1h"
box = [-97.76, 30.28, -97.72, 30.31]

[queries]
rho = 100.0
center = [-97.74, 30.27]
"""


@pytest.fixture
def city(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in DURATIONS:
        monkeypatch.delenv(f"UDP_STREAM_{name.replace('.', '__').upper()}", raising=False)
    (tmp_path / "city.toml").write_text(CITY)
    return tmp_path


def said(capsys, *arguments):
    try:
        status = cli.main(arguments)
    except SystemExit as ended:
        status = ended.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize(
    "url", ["redis://me:hush@ledger/0", "redis://ledger/2?password=hush", "redis:/me:hush@ledger"]
)
def test_no_password_of_a_ledger_is_shown(url, city, capsys, monkeypatch):
    monkeypatch.setenv("UDP_STREAM_LEDGER__URL", url)
    _, out, err = said(capsys, "config")
    assert "hush" not in out + err and "redis" in out + err


KAFKA_PASSWORD = "kafka.client.sasl_plain_password_file"


@pytest.mark.parametrize(
    "key", [KAFKA_PASSWORD, "ledger.client.password_file", "live.password_file", "live.token_file"]
)
def test_a_secret_in_the_place_of_its_file_is_shown_by_no_verb(key, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url, sasl = (
        "ledger.url=redis://ledger",
        (
            "--set",
            "kafka.client.security_protocol=SASL_PLAINTEXT",
            "--set",
            "kafka.client.sasl_plain_username=me",
        ),
    )
    flags = "--set", url, *(sasl if key.startswith("kafka") else ())
    for secret in ("483920", "4839.20", "hunter2"):
        status, out, err = said(capsys, "config", *flags, "--set", f"{key}={secret}")
        assert secret not in out + err and status == (0 if secret == "hunter2" else 3)
    secret_file(tmp_path / "password", b"hush")
    assert (
        f'{key.rpartition(".")[2]} = "password"'
        in said(capsys, "config", *flags, "--set", f"{key}=password")[1]
    )
