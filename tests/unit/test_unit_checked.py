"""Speeds in another unit than the one set end a verb that charges before it charges, until a person
has looked."""

from contextlib import nullcontext
from datetime import datetime

import numpy as np
import pytest

from tests.runtime.harness import FEEDS
from tests.verbs import run_verb
from udp_stream.base.errors import ConfigError
from udp_stream.cli.preflight import LiveFeedCheck, RefusalWatch, require_fit_files
from udp_stream.settings import load
from udp_stream.sources.fleet import IST, Fleet, Imperfections
from udp_stream.windows.slots import ReadResult
from udp_stream.windows.tables import SlotPings

ODD = "speed.unit is 'mps', and pings move about as fast as they report in 'kmh'"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    start = datetime(2024, 1, 8, 9, 0, tzinfo=IST)
    fleet = Fleet(seed=3, buses=20, start=start, hours=0.5, imperfections=Imperfections.none())
    file = tmp_path_factory.mktemp("log") / "pings.ndjson"
    file.write_bytes(b"\n".join(message for batch in fleet.messages() for message in batch) + b"\n")
    return file


def verb(name, log, folder, *flags):
    words = [word for flag in ("speed.unit=mps", *flags) for word in ("--set", flag)]
    done = run_verb([name, log, "--ledger", "ledger", "--out", "out", *words], cwd=folder)
    return done.returncode, " ".join(done.stderr.decode().split())


@pytest.mark.parametrize("name", ["replay", "run"])
def test_another_unit_ends_the_verb_before_it_charges(log, tmp_path, name):
    status, said = verb(name, log, tmp_path)
    assert status == 3 and ODD in said and "speed.unit_checked = true" in said
    assert not (tmp_path / "out").exists() or not (tmp_path / "out").read_bytes()
    assert not (tmp_path / "ledger").exists()
    status, said = verb(name, log, tmp_path, "speed.unit_checked=true")
    assert status == 0 and (tmp_path / "out").read_bytes()


def closing(*start_ms):
    columns = [np.array([], dtype=kind) for kind in ("u4", "u4", "u8", "i4")]
    return ReadResult([SlotPings(one, one + 1, (), *columns) for one in start_ms], [], 1, 1)


def test_a_live_feed_is_looked_at_before_its_first_slot_is_released(log):
    settings, messages = load(None, ("speed.unit=mps",), {}), log.read_bytes().splitlines()
    watch = RefusalWatch(settings)
    watch.check(messages[:3000], closing())
    with pytest.raises(ConfigError, match="in 'kmh'"):
        watch.check(messages[3000:], closing(1))


@pytest.mark.parametrize(
    ("then", "is_told"), [([1], True), ([0, 1], True), ([1, 2], True), ([2], False)]
)
def test_it_looks_at_each_partition_that_closes_the_first_slot(log, then, is_told):
    watch, messages = (
        RefusalWatch(load(None, ("speed.unit=mps",), {})),
        log.read_bytes().splitlines(),
    )
    watch.check(messages[:40], closing(1))  # too few to tell
    with pytest.raises(ConfigError, match="in 'kmh'") if is_told else nullcontext():
        watch.check(messages[40:], closing(*then))  # a second slot: the first may be out
    watch.check(messages, closing(3))


def test_where_plates_are_hidden_it_warns_once_and_goes_on(log, tmp_path):
    (tmp_path / "cells.txt").write_text("8742d9d65ffffff\n")
    flags = ("privacy.neighbours=add-remove", f"hat.domain={tmp_path / 'cells.txt'}", "pings.interval=10s",
             "kafka.shards=1", "speed.unit=mps")  # fmt: skip
    said, messages = [], log.read_bytes().splitlines()
    watch = RefusalWatch(
        load(None, flags, {}), lambda text, event, _figures: said.append((event, text))
    )
    for _ in range(3):  # three partitions that close the first slot
        watch.check(messages, closing(1))
    ((event, text),) = said
    assert event == "unit" and ODD in text


def test_another_zone_is_said_at_once(log):
    said = []
    look = LiveFeedCheck("http://feed", load(None, ("hat.timezone=America/Chicago", "live.max_age=5000d"), {}),
                    lambda text, event, figures, level: said.append(text))  # fmt: skip
    look.fresh(log.read_bytes().splitlines()[:30])
    assert (
        len(said) == 1
        and "hat.timezone is 'America/Chicago', and the pings lie in 'Asia/Kolkata'" in said[0]
    )


CANNOT_TELL = {"austin-capmetro-2016-11-24", "austin-capmetro-2016-11-25"}
"""Their buses send each 120 to 180 s."""


def judged(day, settings):
    require_fit_files([str(day)], settings, lambda _: None, charges=True)


@pytest.mark.skipif(not FEEDS.is_dir(), reason="recorded days are not part of the program")
@pytest.mark.parametrize("unit", ["mps", "mph", "knots"])
def test_recorded_days_are_not_stopped_and_in_another_unit_they_are(unit):
    for day in sorted(FEEDS.glob("*.ndjson.gz")):
        judged(day, load(None, (), {}))
        other = load(None, (f"speed.unit={unit}",), {})
        if day.name.removesuffix(".ndjson.gz") in CANNOT_TELL:
            judged(day, other)
            continue
        with pytest.raises(ConfigError):
            judged(day, other)
