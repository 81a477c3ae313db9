"""The live runtime: killed at any moment and started again, it loses no acknowledged ping and
repeats no release."""

import io
import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.runtime.harness import embedded, fleet_log, frames_of
from tests.verbs import run_verb
from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.cli.outputs import Appender
from udp_stream.embedded.runtime import CHECKPOINT, LiveRuntime, Outputs
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.release.events import SlotPublished
from udp_stream.settings import LedgerSection, load
from udp_stream.sources.journal import Journal
from udp_stream.testing import SeededEntropy
from udp_stream.windows.clocks import SteadyClock

CONFIG = (
    "hat.slot=15m",
    "hat.resolution=7",
    "release.mean_epsilon=0.4",
    "release.min_plates=4",
    "hat.grace=2m",
)
FRAME = 150


@pytest.fixture(scope="module")
def frames():
    settings, messages = load(None, CONFIG, {}), fleet_log(buses=25, hours=1.0)
    decoder, now_ms, found = PingDecoder(settings.ping_rules, JSON), 0, []
    for start in range(0, len(messages), FRAME):
        some = messages[start : start + FRAME]
        pings, _ = decoder.decode(some)
        plausible = (
            pings.time_ms[pings.time_ms < pings.time_ms.min() + 7_200_000]
            if len(pings)
            else pings.time_ms
        )
        now_ms = max(now_ms, int(plausible.max(initial=now_ms)))
        found.append((some, now_ms / 1000))
    return found


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@contextmanager
def live(folder, clock, observers=(), check=lambda _messages, _read: None):
    settings = load(None, CONFIG, {})
    opened = ledger_and_keys(LedgerSection(url=f"{folder}/ledger"))
    with (
        opened as (ledger, keys),
        Journal(folder / "journal", f"the ledger {ledger.meta()['ledger_id']}") as journal,
        closing(Appender(f"{folder}/out")) as out,
        closing(Appender(f"{folder}/rejected")) as rejected,
    ):
        outputs = Outputs(
            out.write_records,
            rejected=lambda message, _: rejected.write(message.replace(b"\n", b" ") + b"\n"),
            written=out.ids(),
        )
        yield (
            LiveRuntime(
                settings,
                ledger,
                SeededEntropy(1),
                keys.hash_plate,
                "test",
                journal,
                outputs,
                observers,
                clock if isinstance(clock, SteadyClock) else SteadyClock(clock, clock),
                check,
            ),
            journal,
        )


def work(folder, frames, clock):
    with live(folder, clock) as (runtime, journal):
        take_all(runtime, journal, frames, clock)


def take_all(runtime, journal, frames, clock):
    clock.now_s = frames[0][1]
    runtime.start()
    at = 0
    for messages, arrival_s in frames:
        if at >= journal.next_offset:
            clock.now_s = arrival_s
            runtime.take(messages)
        at += len(messages)
    clock.now_s = frames[-1][1] + 7200
    runtime.close_what_is_over()
    runtime.stop()


def lines(folder, name="out"):
    return (folder / name).read_bytes().splitlines()


@pytest.fixture(scope="module")
def expected(frames, tmp_path_factory):
    folder = tmp_path_factory.mktemp("expected")
    work(folder, frames, Clock())
    found = lines(folder)
    assert len(found) > 60 and len(set(found)) == len(found)
    return found


def ids(found):
    return [json.loads(line)["release_id"] for line in found]


def child(folder, frames, dies_after_s):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, dies_after_s)
        work(folder, frames, Clock())
        status = 0
    finally:
        os._exit(status)


def copied_and_truncated(path):
    with path.open("ab") as file:
        path.with_suffix(f".{time.monotonic_ns()}").write_bytes(path.read_bytes())
        file.truncate(0)


def renamed_and_created(path):
    path.rename(path.with_suffix(f".{time.monotonic_ns()}"))
    path.touch()


def renamed(path):
    path.rename(path.with_suffix(f".{time.monotonic_ns()}"))


@pytest.mark.parametrize("rotate", [copied_and_truncated, renamed_and_created, renamed])
def test_after_logrotate_each_record_is_on_the_path_once_and_whole(
    rotate, frames, expected, tmp_path
):
    with live(tmp_path, clock := Clock()) as (runtime, journal):
        take_all(runtime, journal, rotating(frames, rotate, tmp_path / "out"), clock)
    rotated = sorted(tmp_path.glob("out.*"))
    assert len(rotated) >= 3 and (tmp_path / "out").stat().st_size
    assert sorted(
        b"".join(file.read_bytes() for file in [*rotated, tmp_path / "out"]).splitlines()
    ) == sorted(expected)


class rotating(list):  # noqa: N801 (a list of frames that rotates a file as it is read)
    def __init__(self, frames, rotate, path):
        super().__init__(frames)
        self.rotate, self.path = rotate, path

    def __iter__(self):
        for number, frame in enumerate(super().__iter__()):
            if number % 15 == 14 and self.path.exists():
                self.rotate(self.path)
            yield frame


def test_after_a_removal_later_records_are_on_the_path(frames, expected, tmp_path):
    with live(tmp_path, clock := Clock()) as (runtime, journal):
        take_all(runtime, journal, rotating(frames, Path.unlink, tmp_path / "out"), clock)
    found = lines(tmp_path)
    assert 0 < len(found) < len(expected) and found == expected[-len(found) :]


def from_minute(frames, minute):
    """Of the fleet's hour, which begins with a slot."""
    return [frame for frame in frames if frame[1] >= frames[0][1] // 900 * 900 + 60 * minute]


def statuses(folder):
    """The statuses of each slot, in order of time, and the most that any of its HATs cost."""
    found = {}
    for line in lines(folder):
        one = json.loads(line)
        of_slot = found.setdefault(one["hat"]["slot_start"], (set(), []))
        of_slot[0].add(one["status"])
        of_slot[1].append(one["privacy"]["epsilon"])
    return [(some, max(costs)) for _, (some, costs) in sorted(found.items())]


@pytest.mark.parametrize(("minute", "is_partial"), [(6, False), (9, True), (14.5, True)])
def test_the_first_slot_of_a_run_is_withheld_without_a_charge_if_less_than_half_of_it_was_read(
    minute, is_partial, frames, tmp_path
):
    work(tmp_path, from_minute(frames, minute), Clock())
    (first, cost), *others = statuses(tmp_path)
    assert (first == {"withheld_partial"}) == is_partial and (cost == 0) == is_partial
    assert len(others) == 3 and "released" in others[0][0]
    assert not any("withheld_partial" in some for some, _ in others)


@pytest.mark.parametrize("killed", [False, True])
def test_so_is_a_slot_in_which_nobody_read_for_more_than_half(killed, frames, tmp_path):
    """Also if the run that reads on is killed before the slot closes."""
    (tmp_path / "a").mkdir()
    before, behind = (
        [frame for frame in frames if frame not in from_minute(frames, 19)],
        from_minute(frames, 28),
    )
    for some in [before, behind[:3], behind] if killed else [before, behind]:
        with live(tmp_path, clock := Clock()) as (runtime, _):
            clock.now_s = some[0][1]
            runtime.start()
            for messages, clock.now_s in some if some is not behind or not killed else behind[3:]:
                runtime.take(messages)
            if some is behind:
                clock.now_s += 7200
                runtime.close_what_is_over()
    found = [some == {"withheld_partial"} for some, _ in statuses(tmp_path)]
    assert found == [False, True, False, False]


@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_killed_at_any_moment_it_loses_nothing_and_repeats_nothing(
    kills, frames, expected, tmp_path
):
    rng, died, rounds = random.Random(20261122), 0, 0
    began = time.monotonic()
    os.waitpid(child(tmp_path / "0", frames, 60.0), 0) if (tmp_path / "0").mkdir() is None else None
    whole_s = time.monotonic() - began
    while died < kills:
        rounds += 1
        folder = tmp_path / str(rounds)
        folder.mkdir()
        came_through = False
        while not came_through:
            _, status = os.waitpid(child(folder, frames, rng.uniform(0.02, whole_s / 2)), 0)
            came_through = status == 0
            died += not came_through
            assert came_through or os.WIFSIGNALED(status), status
        found = lines(folder)
        assert len(set(ids(found))) == len(found), "a release was written twice"
        # The speed of a day that follows on released slots does not depend on where it was cut.
        assert sorted(found) == sorted(expected)
        if rounds == 1:
            # What was refused just before a kill can be told twice, but never be lost.
            told, once = (
                Counter(lines(folder, "rejected")),
                Counter(lines(tmp_path / "0", "rejected")),
            )
            assert once and told >= once and set(told) == set(once)


def test_a_restart_reads_on_from_its_checkpoint_and_old_segments_are_deleted(
    frames, tmp_path, limits
):
    limits("udp_stream.sources.journal", SEGMENT_BYTES=100_000)
    half, clock = len(frames) // 2, Clock()
    with live(tmp_path, clock) as (runtime, journal):
        clock.now_s = frames[0][1]
        runtime.start()
        for messages, arrival_s in frames[:half]:
            clock.now_s = arrival_s
            runtime.take(messages)
        runtime.stop()
        read = journal.next_offset
        assert journal.first_offset > 0 and len(list((tmp_path / "journal").glob("*.journal"))) > 1
    facts = []
    with live(tmp_path, clock, [facts.append]) as (runtime, journal):
        runtime.start()
        assert journal.next_offset == read
    assert not any(isinstance(event, SlotPublished) for event in facts)
    assert (tmp_path / "journal" / CHECKPOINT).exists()


def test_at_night_a_tick_closes_what_is_over_once_nothing_came_for_a_while(frames, tmp_path):
    clock = Clock()
    with live(tmp_path, clock) as (runtime, journal):
        messages, clock.now_s = frames[0]
        runtime.start()
        runtime.take(messages)
        before = journal.next_offset
        clock.now_s += 30
        runtime.tick()
        assert journal.next_offset == before  # nothing has been silent long enough
        clock.now_s += 3600
        runtime.tick()
        assert journal.next_offset == before + 1 and lines(tmp_path)
        runtime.tick()
        assert journal.next_offset == before + 1  # a second tick would close nothing more


@pytest.mark.parametrize("junk", ["late", "broken"])
def test_who_sends_nothing_but_what_is_refused_does_not_hold_up_the_night_s_last_slots(
    junk, frames, tmp_path
):
    clock = Clock()
    with live(tmp_path, clock) as (runtime, _):
        runtime.start()
        for messages, arrival_s in frames:
            clock.now_s = arrival_s
            runtime.take(messages)
        assert runtime.reader.open_pings
        repeated = [frames[0][0][0]] if junk == "late" else [b"keep-alive"]
        for _ in range(60):
            clock.now_s += 30
            runtime.take(repeated)
            runtime.tick()
        assert not runtime.reader.open_pings


def test_a_frame_that_was_cut_off_is_gone_and_a_damaged_middle_is_refused(tmp_path, limits):
    with Journal(tmp_path / "j", "me") as journal:
        journal.append([b"whole"], 1)
        journal.append([b"cut"], 2)
        journal.sync()
    (segment,) = (tmp_path / "j").glob("*.journal")
    segment.write_bytes(segment.read_bytes()[:-1])
    limits("udp_stream.sources.journal", SEGMENT_BYTES=1)
    with Journal(tmp_path / "j", "me") as journal:
        assert [one.messages for one in journal.frames(0)] == [
            [b"whole"]
        ] and journal.next_offset == 1
        journal.append([b"next"], 3)
        journal.append([b"last"], 4)
        journal.sync()
        assert [one.messages for one in journal.frames(1)] == [[b"next"], [b"last"]]
    first, *_ = sorted((tmp_path / "j").glob("*.journal"))
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    with (
        Journal(tmp_path / "j", "me") as journal,
        pytest.raises(DependencyUnavailable, match="is damaged"),
    ):
        list(journal.frames(0))


def test_a_journal_has_one_run_one_ledger_and_a_size(tmp_path):
    with Journal(tmp_path / "j", "the ledger 5eed", max_bytes=100) as journal:
        assert (tmp_path / "j").stat().st_mode & 0o077 == 0
        with pytest.raises(DependencyUnavailable, match="in use by another run"):
            Journal(tmp_path / "j", "the ledger 5eed")
        journal.append([b"x" * 50], 1)
        with pytest.raises(DependencyUnavailable, match="more than 100 bytes"):
            journal.append([b"x" * 50], 1)
    with pytest.raises(PrivacyRefused, match="this run has"):
        Journal(tmp_path / "j", "the ledger cafe")


def test_the_name_of_a_journals_ledger_is_on_disk_before_it_has_its_place(tmp_path, monkeypatch):
    synced, real = {}, os.fsync

    def watched(descriptor):
        file = Path(f"/proc/self/fd/{descriptor}").resolve()
        if file.name.startswith(".owner."):
            assert not (tmp_path / "j" / "owner").exists()
            synced[file.name] = file.read_text()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with Journal(tmp_path / "j", "the ledger 5eed"):
        assert (
            list(synced.values()) == ["the ledger 5eed"] == [(tmp_path / "j" / "owner").read_text()]
        )


def udp_stream(folder, *arguments, stdin=None):
    return run_verb(arguments, cwd=folder, stdin=stdin, env={**os.environ, "NO_COLOR": "1"})


def test_the_verb_releases_what_is_piped_in_once_and_says_so(tmp_path):
    log = b"\n".join(fleet_log(buses=25, hours=0.6, clean=True)) + b"\n"
    flags = [word for flag in CONFIG for word in ("--set", flag)]
    first = udp_stream(
        tmp_path, "run", "-", *flags, "--ledger", "city.ledger", "--out", "out.ndjson", stdin=log
    )
    assert first.returncode == 0, first.stderr
    records = [json.loads(line) for line in lines(tmp_path, "out.ndjson")]
    assert {record["status"] for record in records} > {"released"}
    said = [json.loads(line) for line in first.stderr.splitlines()]
    assert [entry["event"] for entry in said if entry["event"] in ("begun", "ended")] == [
        "begun",
        "ended",
    ]
    assert sum(entry["event"] == "slot" for entry in said) >= 2
    incoming = [entry for entry in said if entry["event"] == "incoming"]
    assert incoming and all(entry.get("by") != "clock" for entry in incoming if entry["pings"])
    ended = next(entry for entry in said if entry.get("event") == "ended")
    statuses = Counter(record["status"] for record in records)
    assert (
        ended["hats"] == statuses
        and f"{len(records)} HATs, {statuses['released']} released" in ended["message"]
    )
    again = udp_stream(
        tmp_path,
        "--quiet",
        "run",
        "-",
        *flags,
        "--ledger",
        "city.ledger",
        "--out",
        "out.ndjson",
        stdin=b"",
    )
    assert (
        again.returncode == 0
        and not again.stderr
        and len(lines(tmp_path, "out.ndjson")) == len(records)
    )
    assert (tmp_path / "city.ledger.journal").stat().st_mode & 0o077 == 0


KILLS = 6


@pytest.fixture(scope="module")
def killed(frames, tmp_path_factory):
    folder, dice, died = tmp_path_factory.mktemp("killed"), random.Random(15), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "drop_before", lambda _journal, _offset: None)
        while True:
            _, status = os.waitpid(
                child(folder, frames, dice.uniform(0.01, 0.06) if died < KILLS else 60.0), 0
            )
            if status == 0:
                break
            assert os.WIFSIGNALED(status), status
            died += 1
    assert died > 0  # a fast machine may end the run before the last of the kills
    with ledger_and_keys(LedgerSection(url=f"{folder}/ledger")) as (ledger, _):
        owner = f"the ledger {ledger.meta()['ledger_id']}"
    with Journal(folder / "journal", owner) as journal:
        took = [arrived.messages for arrived in journal.frames(0) if arrived.messages]
    return hats(lines(folder)), Counter(set(lines(folder, "rejected"))), took


def hats(records):
    found = {}
    for record in map(json.loads, records):
        key = record["hat"]["cell"], record["hat"]["slot_start"]
        assert key not in found, "a HAT twice"
        found[key] = record["counts"]["plates"], record["counts"]["samples"]
    return found


def replayed(folder, log):
    out, refused = io.BytesIO(), []
    ledger, reject = folder / "replayed", lambda message, one: refused.append((one.reason, message))
    with embedded(ledger, out, CONFIG, reject=reject) as runtime:
        runtime.run(log)
    return hats(out.getvalue().splitlines()), refused


def test_in_the_frames_in_which_it_arrived_every_hat_is_the_same(killed, tmp_path):
    live, rejected, took = killed
    found, refused = replayed(tmp_path, took)
    assert len(live) > 60 and found == live
    assert sum(reason == "late" for reason, _ in refused) > 3  # the case that could differ is there
    assert {message.replace(b"\n", b" ") for _, message in refused} == set(rejected)


def test_in_the_frames_of_a_file_late_pings_alone_differ(killed, tmp_path):
    live, rejected, took = killed
    messages = [message for frame in took for message in frame]
    found, refused = replayed(tmp_path, frames_of(messages))
    late = {message for reason, message in refused if reason == "late"}
    others = {message.replace(b"\n", b" ") for reason, message in refused if reason != "late"}
    late_live = [message for message in rejected if message not in others]
    more = len(late_live) - len(late)
    assert late and more > 0 and late <= set(late_live)
    assert set(live) <= set(found)
    assert (
        sum(samples for _, samples in found.values()) - sum(samples for _, samples in live.values())
        == more
    )
    assert all(found[hat][1] >= samples for hat, (_, samples) in live.items())


def test_a_run_that_was_not_killed_has_the_same_hats(killed, frames, tmp_path):
    work(tmp_path, frames, Clock())
    assert hats(lines(tmp_path)) == killed[0]
