"""`config`, `--version`: what a user is told before anything is read, charged or drawn."""

import pytest

from tests.secured import certificates, secret_file
from udp_stream.cli import main as cli
from udp_stream.errors import ConfigError
from udp_stream.settings import DURATIONS, faults_in, known_keys, load

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

FAULTY = """\
[hat]
resolution = 16
slto = "1h"
slot = "7h"
[budgte]
epsilon = 1
[speed]
unit = 'kph'
max_kmh = 90
reject_above_kmh = 80
[release]
bins = 1
[kafka.client]
ssl_cafile = "ca.pem"
sasl_plain_username = "me"
[ledger]
url = "redis://me:hush@ledger:6379/0"
client = { password_file = "p" }
[[query]]
name = "a"
kind = "rang"
"""


@pytest.fixture
def city(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in DURATIONS:
        monkeypatch.delenv(f"UDP_STREAM_{name.replace('.', '__').upper()}", raising=False)
    (tmp_path / "city.toml").write_text(CITY)
    (tmp_path / "faulty.toml").write_text(FAULTY)
    return tmp_path


def said(capsys, *arguments):
    """The status, and what was printed where."""
    try:
        status = cli.main(arguments)
    except SystemExit as ended:
        status = ended.code
    return status, *capsys.readouterr()


def test_what_is_shown_sets_the_same(city, capsys):
    status, out, err = said(capsys, "config", "--config", "city.toml", "--set", "source.preset=gtfs-rt",
                            "--set", "speed.unit=mps")  # fmt: skip
    assert (status, err) == (0, "")
    (city / "again.toml").write_text(out)
    ours = load(city / "city.toml", ("source.preset=gtfs-rt", "speed.unit=mps"), {})
    assert load(city / "again.toml", (), {}) == ours and f"# policy {ours.policy.fingerprint()}" in out


@pytest.mark.parametrize("url", ["redis://me:hush@ledger/0", "redis://ledger/2?password=hush", "redis:/me:hush@ledger"])
def test_no_password_of_a_ledger_is_shown(url, city, capsys, monkeypatch):
    monkeypatch.setenv("UDP_STREAM_LEDGER__URL", url)
    _, out, err = said(capsys, "config")
    assert "hush" not in out + err and "redis" in out + err


KAFKA_PASSWORD = "kafka.client.sasl_plain_password_file"
FILES = """\
[kafka.client]
security_protocol = "SASL_SSL"
sasl_plain_username = "me"
sasl_plain_password_file = "{folder}/password"
ssl_cafile = "{folder}/ca.crt"
ssl_certfile = "{folder}/client.crt"
ssl_keyfile = "{folder}/client.key"
[ledger]
url = "rediss://ledger/0"
key_file = "{folder}/plates.key"
[ledger.client]
password_file = "{folder}/ledger"
[live]
token_file = "{folder}/token"
"""


@pytest.fixture
def secrets(city):
    certificates(city)
    for name in ("ledger", "token"):
        secret_file(city / name, b"hush\n")
    secret_file(city / "plates.key", b"ab" * 32)
    (city / "files.toml").write_text(FILES.format(folder=city))
    return city


NO_PEM, NO_KEY = "expected certificates in PEM form", "expected 64 hex digits in the key file {file}"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_that_others_can_read_is_a_fault_with_the_mend(mode, secrets, capsys):
    for name in ("password", "plates.key"):
        (secrets / name).chmod(mode)
    status, out, _ = said(capsys, "config", "--config", "files.toml")
    of_kafka, of_ledger = (line for line in out.splitlines() if "chmod" in line)
    for line in (of_kafka, of_ledger):
        assert f"that only its owner can read, got mode {mode:04o}" in line and "chmod 600" in line
    assert status == 3 and "kafka.client.sasl_plain_password_file" in of_kafka and "ledger.key_file" in of_ledger


@pytest.mark.parametrize(
    "key", [KAFKA_PASSWORD, "ledger.client.password_file", "live.password_file", "live.token_file"]
)
def test_a_secret_in_the_place_of_its_file_is_shown_by_no_verb(key, capsys, tmp_path, monkeypatch):
    """A PIN is a number of TOML, and no text; a word is shown by nobody who prints the configuration either."""
    monkeypatch.chdir(tmp_path)
    url, sasl = (
        "ledger.url=redis://ledger",
        ("--set", "kafka.client.security_protocol=SASL_PLAINTEXT", "--set", "kafka.client.sasl_plain_username=me"),
    )
    flags = "--set", url, *(sasl if key.startswith("kafka") else ())
    for secret in ("483920", "4839.20", "hunter2"):
        status, out, err = said(capsys, "config", *flags, "--set", f"{key}={secret}")
        assert secret not in out + err and status == 3
    secret_file(tmp_path / "password", b"hush")
    assert f'{key.rpartition(".")[2]} = "password"' in said(capsys, "config", *flags, "--set", f"{key}=password")[1]


ODD = ("'x'", "''", "'-'", "-1", "0", "1e9", "true", "[]", "{a = 1}", "'1d'", "2024-01-08", "nan")


@pytest.mark.long
@pytest.mark.parametrize("key", known_keys())
def test_check_finds_a_fault_wherever_load_does_and_the_same_one(key, tmp_path, odd=ODD):
    """Whatever stands at a key, alone and beside another fault: nothing else comes of it, and no fault is invented."""
    section, _, name = key.partition(".")
    path = tmp_path / "odd.toml"
    for value in odd:
        path.write_text(f"[{section}]\n{name} = {value}\n")
        try:
            load(path, (), {})
            first = None
        except ConfigError as error:
            first = str(error)
        faults = faults_in(path, (), {})
        assert (first is None) is (not faults), (value, first, faults)
        assert first is None or first in {fault.message for fault in faults}
        assert len(faults_in(path, ("hat.grace=x",), {})) >= (key != "hat.grace") + (first is not None)
