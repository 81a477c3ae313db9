"""Speeds change their unit on the way: releases tell, and slots after that are withheld until a
person has acted."""

import gzip
import json
import re
import shlex
from collections import Counter, defaultdict

import pytest

from tests.forms import long_but
from tests.runtime.harness import FEEDS
from tests.verbs import run_verb
from udp_stream.ledgers.sqlite import open_sqlite_ledger
from udp_stream.release.record import Release

pytestmark = pytest.mark.skipif(
    not FEEDS.is_dir(), reason="recorded days are not part of the program"
)

TOLD_WITHIN = 8
"""Slots, of about 150 buses; two to five were measured (docs/operations.md)."""


def days(*names):
    for name in names:
        with gzip.open(FEEDS / f"austin-capmetro-{name}.ndjson.gz") as lines:
            yield from map(json.loads, lines)


def two_days():
    return days("2016-11-24", "2016-11-25")


def a_day_twice():
    for date in ("06", "07"):
        for ping in days("2015-06-07"):
            yield ping | {
                "observationDateTime": f"2015-06-{date}{ping['observationDateTime'][10:]}"
            }


def written(file, factor, pings=two_days, since="2016-11-25T12", until="2016-11-26"):
    """With speeds so many times as large from one local time to another."""
    with file.open("w") as out:
        for ping in pings():
            if since <= ping["observationDateTime"] < until and ping["speed"] is not None:
                ping["speed"] *= factor
            out.write(json.dumps(ping) + "\n")
    return file


def cut(file, until):
    """The pings before a time."""
    part = file.with_name(f"until-{until}")
    kept = (
        line
        for line in file.read_text().splitlines(True)
        if json.loads(line)["observationDateTime"] < until
    )
    part.write_text("".join(kept))
    return part


def replay(file, folder, *flags):
    """How many HATs of each status each slot has."""
    words = [word for flag in ("hat.timezone=America/Chicago", *flags) for word in ("--set", flag)]
    done = run_verb(["replay", file, "--ledger", "ledger", "--out", "out", *words], cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    found = defaultdict(Counter)
    for line in (folder / "out").read_bytes().splitlines():
        if b'"withdraws"' in line:
            found[json.loads(line)["hat"]["slot_start"][:13]]["withdrawn"] += 1
            continue
        record = Release.decode(line)
        found[record.hat.slot_start[:13]][record.status] += 1
        assert record.status != "withheld_unit" or (
            record.privacy.epsilon == 0 and record.mean is None
        )
    return found, " ".join(done.stderr.decode().split())


def after(noon, found):
    return [statuses for slot, statuses in sorted(found.items()) if slot >= noon]


@pytest.fixture(scope="module")
def slower(tmp_path_factory):
    return written(tmp_path_factory.mktemp("slower") / "pings.ndjson", 1 / 3.6)


@pytest.mark.parametrize(
    ("factor", "pings", "noon", "looks"),
    [
        (1 / 3.6, two_days, "2016-11-25T12", "'mps'"),
        pytest.param(3.6, a_day_twice, "2015-06-07T12", "another unit", marks=pytest.mark.long),
    ],
)
def test_a_unit_that_changes_at_noon_is_told_and_then_nothing_is_released_or_charged(
    factor, pings, noon, looks, tmp_path
):
    found, said = replay(written(tmp_path / "pings.ndjson", factor, pings, noon), tmp_path)
    slots = after(noon, found)
    told = next(at for at, statuses in enumerate(slots) if "withheld_unit" in statuses)
    assert 2 <= told <= TOLD_WITHIN and len(slots) > 9
    assert all(statuses.keys() == {"withheld_unit"} for statuses in slots[told:])
    assert not any("withheld_unit" in one for slot, one in found.items() if slot < noon)
    assert "speed.unit_checked" in said
    (out,) = re.findall(
        f"look like speeds in {looks}.*? ([0-9,]+) releases of them are out: `udp-stream (.*?)`",
        said,
    )
    done = run_verb([*shlex.split(out[1]), "--ledger", "ledger"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    withdrawn = {
        slot: some["withdrawn"]
        for slot, some in replay(tmp_path / "pings.ndjson", tmp_path)[0].items()
    }
    since = min(slot for slot, count in withdrawn.items() if count)
    assert since[:-2] == noon[:-2] and abs(int(since[-2:]) - 12) <= 1
    wrong = [slot for slot in sorted(found) if slot >= since and "withheld_unit" not in found[slot]]
    assert int(out[0].replace(",", "")) == sum(found[slot]["released"] for slot in wrong) > 20
    assert {slot for slot, count in withdrawn.items() if count} == set(wrong)
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        assert ledger.verify() == []
        for entry in ledger.entries():
            if entry.payload is not None and b'"withheld_unit"' in entry.payload:
                assert not entry.charged.any()


@pytest.mark.long
def test_the_doubt_follows_from_the_ledger_and_a_person_ends_it(slower, tmp_path):
    for until in ("2016-11-25T14", "2016-11-25T22"):  # before it is told, and while it lasts
        found, _ = replay(cut(slower, until), tmp_path)
    told = [statuses.keys() == {"withheld_unit"} for statuses in after("2016-11-25T12", found)]
    found, _ = replay(slower, tmp_path)
    again = [statuses.keys() == {"withheld_unit"} for statuses in after("2016-11-25T12", found)]
    assert (
        True in told
        and again == told + [True] * (len(again) - len(told))
        and len(again) > len(told)
    )
    for flag in ("speed.unit_checked=true", "speed.unit=mps"):
        folder = tmp_path / flag
        folder.mkdir()
        replay(cut(slower, "2016-11-25T18"), folder)
        slots = after("2016-11-25T12", replay(slower, folder, flag)[0])
        assert "withheld_unit" in slots[5] and not any("withheld_unit" in one for one in slots[7:])
        assert sum(one["released"] for one in slots[7:]) > 20


@pytest.mark.parametrize(
    "name", long_but(["2017-03-21"], ["2015-06-07", "2016-03-22", "2017-03-21"])
)
def test_an_ordinary_day_is_not_doubted(name, tmp_path):
    file = tmp_path / "pings.ndjson"
    file.write_text("".join(json.dumps(ping) + "\n" for ping in days(name)))
    found, said = replay(file, tmp_path)
    assert (
        not any("withheld_unit" in statuses for statuses in found.values())
        and "speed.unit_checked" not in said
    )


@pytest.mark.parametrize(
    ("factor", "until"),
    [pytest.param(1.0, "2016-11-26", marks=pytest.mark.long), (0.4, "2016-11-25T13")],
)
def test_neither_two_ordinary_days_nor_a_storm_of_an_hour_is_doubted(factor, until, tmp_path):
    found, _ = replay(written(tmp_path / "pings.ndjson", factor, until=until), tmp_path)
    assert not any("withheld_unit" in statuses for statuses in found.values())
