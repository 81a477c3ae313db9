"""What `doctor` says of speeds is a verdict: nothing in it was measured on them."""

import msgspec
import pytest

from streams import topics
from tests.runtime.harness import fleet_log
from udp_stream.base.errors import ConfigError, DependencyUnavailable
from udp_stream.cli import main as cli
from udp_stream.cli.commands.doctor import NO_RELEASE, _speeds
from udp_stream.cli.preflight import look_by
from udp_stream.pings.data_quality import unit_evidence
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.settings import load


def swapped(messages, speed):
    """The log with all speeds of one plate replaced."""
    pings = [msgspec.json.decode(message) for message in messages]
    plate = pings[0]["license_plate"]
    return [
        msgspec.json.encode(ping | {"speed": speed} if ping["license_plate"] == plate else ping)
        for ping in pings
    ]


def said(messages, unit):
    try:
        settings = load(None, (f"speed.unit={unit}",), {})
        return _speeds(lambda: look_by(settings, messages, JSON), settings)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize(
    ("unit", "pings"), [("kmh", 3000), ("mps", 3000), ("mph", 3000), ("kmh", 60)]
)
def test_one_plates_speeds_change_no_letter_of_the_verdict(unit, pings):
    """Right unit, wrong unit, too few to say: though the pairs that count, and their ratio, are
    others."""
    log = fleet_log(clean=True)[:pings]
    logs = [log, swapped(log, 0), swapped(log, 6), swapped(log, 64.25)]
    assert len({said(each, unit) for each in logs}) == 1
    decoder = PingDecoder(load(None, (f"speed.unit={unit}",), {}).ping_rules, JSON)
    assert (
        pings < 100
        or len({unit_evidence(decoder.decode(each)[0], unit).pairs for each in logs}) > 1
    )


@pytest.mark.parametrize("factor", [0.4, 10])
def test_speeds_in_no_unit_that_is_known_fail_and_no_unit_is_told(factor):
    pings = [msgspec.json.decode(message) for message in fleet_log(clean=True)[:6000]]
    text = said(
        [msgspec.json.encode(ping | {"speed": ping["speed"] * factor}) for ping in pings], "kmh"
    )
    assert "fit no unit" in text
    assert text.endswith(f"({NO_RELEASE})") and not any(map(str.isdigit, text))


@pytest.mark.parametrize(
    "address",
    ["https://feed/x?key=hunter2", "amqps://me:hunter2@broker/vhost", "HTTPS://a/hunter2"],
)
def test_an_address_in_the_place_of_a_file_is_refused_and_not_shown(address, capsys):
    """What doctor prints is sent to those who are asked for help."""
    assert cli.main(["doctor", __file__, address]) == 2
    out, err = capsys.readouterr()
    assert "hunter2" not in out + err and not out and "got an address of" in err


@pytest.mark.parametrize(
    ("flags", "status", "word"),
    [
        (["kafka.client.security_protocol=SSL", "kafka.client.ssl_cafile=nowhere.pem"], 3, "FAIL"),
        (["kafka.idle_timeout=2m", "kafka.bootstrap=localhost:9092"], 0, "unknown"),
    ],
    ids=["a file of certificates that is not there", "a key that `run` reads"],
)
def test_other_checks_are_made_where_kafka_is_not_set_up(
    flags, status, word, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    if status == 0:
        monkeypatch.setattr(topics, "require_reachable", none_answers)
    words = ["ledger.url=city", *flags]
    assert cli.main(["doctor", *(each for one in words for each in ("--set", one))]) == status
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "ok", word]


def none_answers(kafka):
    raise DependencyUnavailable(f"Kafka at {kafka.bootstrap}: it refuses connections")


def test_a_ledger_that_others_can_read_is_said_with_the_mend(tmp_path, monkeypatch, capsys):
    """It is made for its owner alone; a copy that was put back is not, and neither is its
    write-ahead log then."""
    monkeypatch.chdir(tmp_path)
    pings = tmp_path / "pings.ndjson"
    pings.write_bytes(b"\n".join(fleet_log(clean=True)[:3000]))
    asked = "--ledger", str(tmp_path / "the ledger")
    assert (
        cli.main(
            [
                "replay",
                str(pings),
                *asked,
                "--out",
                "out.ndjson",
                "--set",
                "hat.timezone=Asia/Kolkata",
            ]
        )
        == 0
    )

    def of_ledger():
        capsys.readouterr()
        cli.main(
            [
                "doctor",
                str(pings),
                "--set",
                f"ledger.url={asked[1]}",
                "--set",
                "hat.timezone=Asia/Kolkata",
            ]
        )
        return next(line for line in capsys.readouterr().out.splitlines() if " ledger: " in line)

    assert "chmod" not in of_ledger()
    for mode in (0o644, 0o640):
        (tmp_path / "the ledger").chmod(mode)
        assert of_ledger().endswith(
            f"; others can read it, as after a copy: chmod 600 '{tmp_path}/the ledger'"
        )
