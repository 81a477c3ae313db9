"""`config show`, `config check`, `help`, `--version`: what a user is told before anything is read, charged or drawn."""

import json
import re

import pytest

from udp_stream import __version__
from udp_stream.adapters.settings import DURATIONS, faults_in, known_keys, load
from udp_stream.cli import main as cli
from udp_stream.errors import ConfigError

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
[kafka]
ca_file = "ca.pem"
username = "me"
[ledger]
url = "redis://me:hush@ledger:6379/0"
password_file = "p"
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


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_printed(flag, capsys):
    assert said(capsys, flag) == (0, f"udp-stream {__version__}\n", "")


@pytest.mark.parametrize("words", [(), ("replay",), ("ledger", "show"), ("config",)], ids=str)
def test_help_says_what_the_option_says(words, capsys, monkeypatch):
    monkeypatch.setenv("UDP_STREAM_HAT__SLOT", "a broken configuration is no obstacle")
    asked = said(capsys, "help", *words)
    assert asked == said(capsys, *words, "--help") and "usage: udp-stream" in asked[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("frobnicate",), "expected a verb, got 'frobnicate'; known are init, replay, "),
        (("replay", "now"), "expected a verb, got 'now'; udp-stream replay has no verbs below it"),
    ],
)
def test_help_of_no_verb_names_those_that_there_are(words, sentence, capsys):
    status, out, err = said(capsys, "help", *words)
    assert (status, out) == (2, "") and sentence in err


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
    assert status == 3 and err == "udp-stream: 13 faults in the configuration\n" and "hush" not in out
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
        "faulty.toml:13: kafka.security",
        "faulty.toml:13: kafka.security",
        "faulty.toml:17: ledger.url",
        "faulty.toml:21: query.kind of a",
    ]


def test_a_configuration_without_a_fault_has_status_0_and_names_its_policy(city, capsys):
    policy = load(city / "city.toml", (), {}).policy.fingerprint()
    assert said(capsys, "config", "check", "--config", "city.toml")[:2] == (0, f"city.toml: valid, policy {policy}\n")
    status, out, _ = said(capsys, "config", "check", "--config", "city.toml", "--json")
    assert (status, json.loads(out)) == (0, {"valid": True, "policy": policy, "faults": []})


def test_what_is_no_toml_or_not_there_is_one_fault_beside_those_of_flags(city, capsys):
    (city / "broken.toml").write_text("[hat\nslot = 3")
    for name, rule in (("broken.toml", "not TOML"), ("none.toml", "cannot be read")):
        status, out, _ = said(capsys, "config", "check", "--config", name, "--set", "hat.resolution=99", "--json")
        messages = [fault["message"] for fault in json.loads(out)["faults"]]
        assert status == 3 and len(messages) == 2 and rule in messages[0] and "hat.resolution" in messages[1]


ODD = ("'x'", "''", "'-'", "-1", "0", "1e9", "true", "[]", "{a = 1}", "'1d'", "2024-01-08", "nan")


@pytest.mark.long
@pytest.mark.parametrize("key", [key for key in known_keys() if key != "budget.schedule"])
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
