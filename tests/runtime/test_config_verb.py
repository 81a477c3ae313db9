"""`config show`, `config check`, `--version`: what a user is told before anything is read, charged or drawn."""

import json
import re

import pytest

from tests.secured import certificates, secret_file
from udp_stream.cli import main as cli
from udp_stream.errors import ConfigError
from udp_stream.settings import DURATIONS, faults_in, known_keys, load
from udp_stream.version import __version__

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


def test_a_path_into_one_element_of_an_array_is_warned_of_and_valid(city, capsys):
    said = ["--set", "source.plate=vehicles.0.id", "--set", "source.longitude=at.0", "--set", "source.latitude=at.1"]
    assert cli.main(["config", "check", *said]) == 0
    assert capsys.readouterr().out.startswith("warning: source.plate")
    assert cli.main(["config", "check", "--json", *said]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["valid"] and len(told["warnings"]) == 1
    assert cli.main(["config", "check", "--json", *said[2:]]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


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


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_printed(flag, capsys):
    assert said(capsys, flag) == (0, f"udp-stream {__version__}\n", "")


def test_what_is_shown_sets_the_same(city, capsys):
    status, out, err = said(capsys, "config", "show", "--config", "city.toml", "--set", "source.preset=gtfs-rt",
                            "--set", "speed.unit=mps")  # fmt: skip
    assert (status, err) == (0, "")
    (city / "again.toml").write_text(out)
    ours = load(city / "city.toml", ("source.preset=gtfs-rt", "speed.unit=mps"), {})
    assert load(city / "again.toml", (), {}) == ours and f"# policy {ours.policy.fingerprint()}" in out


def test_each_value_is_shown_with_where_it_came_from(city, capsys, monkeypatch):
    monkeypatch.setenv("UDP_STREAM_HAT__GRACE", "5m")
    flags = ("--set", "hat.resolution=6", "--set", "source.preset=mbta", "--set", "speed.unit=mps")
    _, out, _ = said(capsys, "config", "show", "--config", "city.toml", *flags)
    shown = dict(re.findall(r"^(#? ?\w+ =.*?)\s+# (.*)$", out, re.MULTILINE))
    assert shown['slot = "30m"'] == "city.toml:2" and shown['name = "north"'] == "city.toml:9"
    assert shown['grace = "5m"'] == "UDP_STREAM_HAT__GRACE" and shown["resolution = 6"] == "--set"
    assert shown['# records = "data"'] == "preset mbta" and shown['timezone = "Asia/Kolkata"'] == "default"
    _, out, _ = said(capsys, "config", "show", "--config", "city.toml", *flags, "--json")
    keys = json.loads(out)["keys"]
    assert set(known_keys()) <= set(keys)
    assert keys["hat.slot"] == {"value": "30m", "from": "file", "set": True, "name": "city.toml", "line": 2}
    assert keys["source.records"] == {"value": "data", "from": "preset", "set": False, "name": "mbta"}
    assert keys["query.1.every"]["value"] == "1h" and keys["pings.box"]["set"] is False


@pytest.mark.parametrize("url", ["redis://me:hush@ledger/0", "redis://ledger/2?password=hush", "redis:/me:hush@ledger"])
@pytest.mark.parametrize("verb", ["show", "check"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_no_password_of_a_ledger_is_shown(url, verb, form, city, capsys, monkeypatch):
    monkeypatch.setenv("UDP_STREAM_LEDGER__URL", url)
    _, out, err = said(capsys, "config", verb, *form)
    assert "hush" not in out + err and ("redis" in out + err or verb == "check")


def test_every_fault_is_named_at_once_with_its_line_and_none_that_follows_from_another(city, capsys):
    status, out, err = said(capsys, "config", "check", "--config", "faulty.toml", "--set", "hat.graec=1m", "--set", "x")
    found = [line.partition(": expected")[0].partition(": Expected")[0] for line in out.splitlines()]
    assert status == 3 and "13 faults" in err and "hush" not in out
    assert found == [
        "expected section.key=value, got 'x'",
        "--set: unknown key hat.graec; did you mean hat.grace?",
        "faulty.toml:2: hat.resolution",
        "faulty.toml:3: unknown key hat.slto; did you mean hat.slot?",
        "faulty.toml:4: hat.slot",
        "faulty.toml:5: unknown section [budgte]; did you mean [budget]?",
        "faulty.toml:8: speed.unit",
        "faulty.toml:10: speed.reject_above_kmh",
        "faulty.toml:12: release.bins",
        "faulty.toml:13: kafka.client.security_protocol",
        "faulty.toml:13: kafka.client.security_protocol",
        "faulty.toml:17: ledger.url",
        "faulty.toml:21: query.kind of a",
    ]


def test_a_configuration_without_a_fault_has_status_0_and_names_its_policy(city, capsys):
    policy = load(city / "city.toml", (), {}).policy.fingerprint()
    assert said(capsys, "config", "check", "--config", "city.toml")[:2] == (0, f"city.toml: valid, policy {policy}\n")
    status, out, _ = said(capsys, "config", "check", "--config", "city.toml", "--json")
    assert (status, json.loads(out)) == (0, {"valid": True, "policy": policy, "faults": [], "warnings": []})


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


def unreadable(file):
    file.unlink()
    file.mkdir()


NO_PEM, NO_KEY = "expected certificates in PEM form", "expected 64 hex digits in the key file {file}"
BROKEN = {
    "password": (
        lambda file: file.unlink(),
        "4: kafka.client.sasl_plain_password_file: {file} cannot be read",
    ),
    "ca.crt": (lambda file: file.write_text("hush"), f"5: kafka.client.ssl_cafile: {{file}}: {NO_PEM}"),
    "client.crt": (lambda file: file.unlink(), "6: kafka.client.ssl_certfile: {file} cannot be read (No such file"),
    "client.key": (lambda file: file.chmod(0o644), "7: kafka.client.ssl_keyfile: expected a file that only its"),
    "plates.key": (lambda file: file.write_text("hush"), f"10: ledger.key_file: {NO_KEY}"),
    "ledger": (unreadable, "12: ledger.client.password_file: {file} cannot be read (Is a directory)"),
    "token": (
        lambda file: file.write_text(" \n"),
        "14: live.token_file: expected one line of printable ASCII in {file}",
    ),
}


def test_files_of_secrets_are_tried_as_a_worker_tries_them_and_nothing_of_them_is_shown(secrets, capsys):
    asked = "config", "check", "--config", "files.toml"
    assert said(capsys, *asked)[0] == 0
    for name, (spoil, _) in BROKEN.items():
        spoil(secrets / name)
    status, out, err = said(capsys, *asked)
    assert status == 3 and "7 faults" in err and "hush" not in out + err
    for line, (name, (_, sentence)) in zip(out.splitlines(), BROKEN.items(), strict=True):
        assert line.startswith("files.toml:" + sentence.format(file=secrets / name))
    assert out.endswith(", got nothing\n")
    status, out, _ = said(capsys, *asked, "--json")
    faults = json.loads(out)["faults"]
    assert status == 3 and [fault["line"] for fault in faults] == [4, 5, 6, 7, 10, 12, 14] and "hush" not in out
    assert said(capsys, *asked, "--no-files")[0] == 0


def test_a_certificate_with_the_key_of_another_is_a_fault(secrets, capsys):
    (secrets / "client.key").write_bytes((secrets / "server.key").read_bytes())
    status, out, _ = said(capsys, "config", "check", "--config", "files.toml")
    assert status == 3 and "6: kafka.client.ssl_certfile: " in out and "its key in" in out


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_secret_that_others_can_read_is_a_fault_with_the_mend(mode, secrets, capsys):
    for name in ("password", "plates.key"):
        (secrets / name).chmod(mode)
    status, out, _ = said(capsys, "config", "check", "--config", "files.toml")
    of_kafka, of_ledger = out.splitlines()
    for line in (of_kafka, of_ledger):
        assert f"that only its owner can read, got mode {mode:04o}" in line and "chmod 600" in line
    assert status == 3 and "kafka.client.sasl_plain_password_file" in of_kafka and "ledger.key_file" in of_ledger


def test_the_plates_key_may_be_made_later_and_a_secret_in_the_place_of_its_file_is_not_shown(secrets, capsys):
    (secrets / "plates.key").unlink()
    assert said(capsys, "config", "check", "--config", "files.toml")[0] == 0
    flags = (
        "--set",
        f"ledger.key_file={secrets}/nowhere/key",
        "--set",
        "kafka.client.sasl_plain_password_file=hunter2-is-mine",
    )
    status, out, err = said(capsys, "config", "check", "--config", "files.toml", *flags)
    assert status == 3 and "hunter2" not in out + err and "might be the secret itself" in out
    assert "--set: ledger.key_file:" in out


@pytest.mark.parametrize(
    "key",
    [
        KAFKA_PASSWORD,
        "ledger.client.password_file",
        "live.password_file",
        "live.token_file",
    ],
)
def test_a_secret_in_the_place_of_its_file_is_shown_by_no_verb(key, capsys, tmp_path, monkeypatch):
    """A PIN is a number of TOML, and no text; a word is shown by nobody who prints the configuration either."""
    monkeypatch.chdir(tmp_path)
    url, sasl = (
        "ledger.url=redis://ledger",
        ("--set", "kafka.client.security_protocol=SASL_PLAINTEXT", "--set", "kafka.client.sasl_plain_username=me"),
    )
    flags = "--set", url, *(sasl if key.startswith("kafka") else ())
    for secret, *verb in (("483920", "check"), ("483920", "show"), ("4839.20", "check"), ("hunter2", "show"),
                          ("hunter2", "show", "--json"), ("hunter2", "check")):  # fmt: skip
        status, out, err = said(capsys, "config", *verb, *flags, "--set", f"{key}={secret}")
        assert secret not in out + err and status == (3 if secret != "hunter2" or verb == ["check"] else 0)
    secret_file(tmp_path / "password", b"hush")
    assert (
        f'{key.rpartition(".")[2]} = "password"'
        in said(capsys, "config", "show", *flags, "--set", f"{key}=password")[1]
    )


def test_files_of_a_section_with_a_fault_are_left_for_the_next_look(secrets, capsys):
    (secrets / "password").unlink()
    (secrets / "token").unlink()
    flags = "--set", "kafka.client.security_protocol=TSL"
    _, out, _ = said(capsys, "config", "check", "--config", "files.toml", *flags)
    assert [line.partition(": ")[2].partition(":")[0] for line in out.splitlines()] == [
        "kafka.client.security_protocol",
        "live.token_file",
    ]


def test_what_is_no_toml_or_not_there_is_one_fault_beside_those_of_flags(city, capsys):
    (city / "broken.toml").write_text("[hat\nslot = 3")
    for name, rule in (("broken.toml", "not TOML"), ("none.toml", "cannot be read")):
        status, out, _ = said(capsys, "config", "check", "--config", name, "--set", "hat.resolution=99", "--json")
        messages = [fault["message"] for fault in json.loads(out)["faults"]]
        assert status == 3 and len(messages) == 2 and rule in messages[0] and "hat.resolution" in messages[1]


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


@pytest.mark.parametrize("key", ["hat.slot", "hat.grace", "source.time", "queries.period", "ledger.url", "pings.box"])
def test_check_finds_the_fault_that_load_finds(key, tmp_path):
    test_check_finds_a_fault_wherever_load_does_and_the_same_one(key, tmp_path, odd=("'x'", "-1", "'7h'"))


@pytest.mark.parametrize("line", ["hat = 3", "query = 3", "hat.slot = 7", "[hat]\nslot = []", "[pings]\nbox = 'x'"])
def test_whatever_load_refuses_check_refuses(line, city, capsys):
    (city / "odd.toml").write_text(line)
    first = said(capsys, "plan", "--config", "odd.toml")[2].removeprefix("udp-stream: ").strip()
    status, out, _ = said(capsys, "config", "check", "--config", "odd.toml")
    assert status == 3 and first in out
