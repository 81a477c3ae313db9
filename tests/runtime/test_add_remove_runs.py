"""`replay` and `run` under "add-remove" with their ledger: killed at any moment, and resumed on the
same log."""

import json
import os
import random
import signal
import time
from datetime import datetime, timedelta

import h3
import pytest

from tests.failing import Died, DyingLedger
from tests.forms import long_but, soaked
from tests.runtime.harness import fleet_log, frames_of, ledger_at, line_writer
from tests.runtime.test_wall_runs import START, Machine, morning, ping
from udp_stream.embedded.runtime import (
    EmbeddedRuntime,
    LiveRuntime,
    Outputs,
    release_sink,
    smoothed_sink,
)
from udp_stream.ledger.ids import DAY_SUMS, NOISED_SUMS, kind_of
from udp_stream.ledger.port import Ledger
from udp_stream.ledgers.sqlite import open_sqlite_ledger
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.sources.fleet import IST
from udp_stream.sources.journal import Journal
from udp_stream.testing import SeededEntropy

RINGS = 6
CELLS = 1 + 3 * RINGS * (RINGS + 1)
NINE = datetime(2024, 1, 8, 9, 0, tzinfo=IST)
SLOTS = [
    tuple(
        round(1000 * (NINE + timedelta(minutes=15 * at)).timestamp()) for at in (number, number + 1)
    )
    for number in range(8)
]
"""The last two are without a ping."""


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    domain = tmp_path_factory.mktemp("domain") / "cells.txt"
    domain.write_text("\n".join(h3.grid_disk(h3.latlng_to_cell(21.19, 72.83, 7), RINGS)))
    return (
        "privacy.neighbours=add-remove", f"hat.domain={domain}", "pings.interval=10s", "hat.slot=15m",
        "hat.resolution=7", "kafka.shards=1",
    )  # fmt: skip


def replayed(folder, flags, frames, dies_after_s=0.0):
    """Whether a forked replay came through, what it wrote, and its processor time, after which it
    may be killed."""
    outs = folder / f"out{time.monotonic_ns()}", folder / f"estimates{time.monotonic_ns()}"
    if not (pid := os.fork()):
        status = 1
        try:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, dies_after_s)
            with (
                ledger_at(folder / "ledger", flags) as (ledger, keys),
                outs[0].open("wb") as out,
                outs[1].open("wb") as more,
            ):
                to = release_sink(line_writer(out))
                EmbeddedRuntime(
                    load(None, flags, {}), ledger, SeededEntropy("replayed"), keys.hash_plate, "test", to,
                    smooth=smoothed_sink(line_writer(more)), slots=SLOTS,
                ).run(frames)  # fmt: skip
            status = 0
        finally:
            os._exit(status)
    _, status, used = os.wait4(pid, 0)
    assert status == 0 or os.WIFSIGNALED(status), f"a run failed by itself: {status}"
    lines = [path.read_bytes().split(b"\n")[:-1] if path.exists() else [] for path in outs]
    return status == 0, lines, used.ru_utime + used.ru_stime


@pytest.mark.timeout(300)
def test_replays_that_are_killed_at_any_moment_write_what_one_does(tmp_path, flags):
    frames, dice = (
        frames_of(fleet_log(buses=20), 512),
        random.Random(seed := random.SystemRandom().randrange(2**32)),
    )
    print(f"seed {seed}")
    (tmp_path / "key").mkdir()
    came_through, expected, took_s = replayed(tmp_path / "key", flags, frames)
    assert came_through and [len(lines) for lines in expected] == [len(SLOTS) * CELLS] * 2
    rounds = kills = 0
    while rounds < 6 or kills <= 3:
        rounds += 1
        (folder := tmp_path / str(rounds)).mkdir()
        (folder / "ledger.key").write_bytes((tmp_path / "key" / "ledger.key").read_bytes())
        (folder / "ledger.key").chmod(0o600)
        came_through = False
        while not came_through:
            came_through, found, _ = replayed(
                folder, flags, frames, dice.uniform(0.2, 1.1) * took_s
            )
            kills += not came_through
            for lines, whole in zip(found, expected, strict=True):
                assert lines == whole[: len(lines)]
        assert found == expected
        with ledger_at(folder / "ledger", flags) as (ledger, _):
            require_whole(ledger, len(SLOTS))


def require_whole(ledger, slots):
    assert ledger.verify() == [] and list(ledger.unpublished()) == []
    entries = list(ledger.entries())
    sums = [entry for entry in entries if kind_of(entry.release_id) == NOISED_SUMS]
    assert len(sums) == slots and len(entries) == slots * (1 + CELLS)
    assert all(entry.payload is not None for entry in entries)
    assert not any(entry.charged.any() for entry in entries if kind_of(entry.release_id) == "hat")


def hats(estimates):
    found = [json.loads(one)["hat"] for one in estimates]
    return [(hat["cell"], hat["slot_start"]) for hat in found]


def lives(folder, flags, plates, dice=None, minutes=7 * 15 + 3):
    """A live run by the minute, on one journal and ledger. With dice its process dies at some call
    of the ledger."""
    machine, sends, at, deaths, is_done = Machine(), morning(0, plates), 0, 0, False
    releases, estimates = list[bytes](), list[bytes]()
    while not is_done:
        try:
            with (
                open_sqlite_ledger(folder / "ledger") as opened,
                Journal(folder / "journal", "the ledger 5eed") as journal,
            ):
                is_long = dice is None or deaths > 60
                ledger: Ledger = (
                    opened
                    if is_long
                    else DyingLedger(opened, dice.randrange(25), answered=dice.random() < 0.5)
                )
                written = frozenset(Release.decode(one).release_id for one in releases)
                outputs = Outputs(
                    releases.extend,
                    estimates.extend,
                    written=written,
                    estimated=frozenset(hats(estimates)),
                )
                runtime = LiveRuntime(
                    load(None, (*flags, "hat.timezone=UTC"), {}), ledger, SeededEntropy(1), str.encode, "test", journal,
                    outputs, clock=machine.clock(),
                )  # fmt: skip
                runtime.start()
                while at < minutes:
                    machine.now_s = START / 1000 + 60 * at + 30
                    at += (
                        1  # a minute whose process dies is in the journal, or its pings never came
                    )
                    if messages := sends(at - 1):
                        runtime.take(messages)
                    runtime.tick()
                runtime.tick()
                runtime.stop()
                is_done = True
        except Died:
            deaths += 1
    return releases, estimates, deaths


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [*long_but([0], range(2)), *soaked(range(2, 4))])
def test_a_live_run_whose_process_dies_at_any_call_of_its_ledger_releases_every_cell_once(
    tmp_path, flags, seed
):
    folders = [tmp_path / name for name in ("whole", "dies", "empty")]
    for folder in folders:
        folder.mkdir()
    whole, estimates, _ = lives(folders[0], flags, "abc")
    assert len(whole) == len(estimates) == 6 * CELLS
    found, some, deaths = lives(folders[1], flags, "abc", random.Random(seed))
    assert deaths > 4
    ids = [Release.decode(one).release_id for one in whole]
    assert [Release.decode(one).release_id for one in found] == ids
    assert hats(some) == hats(estimates) and len(set(some)) == len(some)
    nobody, more, _ = lives(folders[2], flags, "")
    assert [Release.decode(one).release_id for one in nobody] == ids and len(more) == len(estimates)
    for folder in folders:
        with open_sqlite_ledger(folder / "ledger") as ledger:
            require_whole(ledger, 6)


def two_days(folder, flags, ends):
    """Two days of slots of six hours, live. `ends` says of a half hour whether the process ends
    after it, and whether it is killed: what it keeps by then is as old as its last checkpoint."""
    machine, at, releases = Machine(), 0, list[bytes]()
    while at < 97:
        with (
            open_sqlite_ledger(folder / "ledger") as ledger,
            Journal(folder / "journal", "the ledger 5eed") as journal,
        ):
            outputs = Outputs(
                releases.extend,
                written=frozenset(Release.decode(one).release_id for one in releases),
            )
            runtime = LiveRuntime(
                load(None, (*flags, "hat.timezone=UTC", "hat.slot=6h"), {}), ledger, SeededEntropy(1), str.encode,
                "test", journal, outputs, clock=machine.clock(),
            )  # fmt: skip
            runtime.start()
            is_over = False
            while at < 97 and not is_over:
                machine.now_s = START / 1000 + 1800 * at + 300
                now_ms = round(machine.now_s * 1000)
                runtime.take([ping(f"P{plate}", now_ms - plate * 1000) for plate in range(9)])
                runtime.tick()
                is_over = bool(ends(at))
                at += 1
            if ends(at - 1) != "killed":
                runtime.stop()
    with open_sqlite_ledger(folder / "ledger") as ledger:
        assert ledger.verify() == [] and list(ledger.unpublished()) == []
        (day,) = (one for one in ledger.entries() if kind_of(one.release_id) == DAY_SUMS)
        assert day.charged.all() and len(day.plates) == 9
        return releases, day.payload, day.charged.tolist()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_day_s_sums_are_of_all_its_slots_whenever_processes_end(tmp_path, flags, end):
    (tmp_path / "whole").mkdir()
    (tmp_path / "ends").mkdir()
    expected = two_days(tmp_path / "whole", flags, lambda _: "")
    assert two_days(tmp_path / "ends", flags, lambda at: end if at % 16 == 14 else "") == expected
    (tmp_path / "ends/journal/plate-day").unlink()
