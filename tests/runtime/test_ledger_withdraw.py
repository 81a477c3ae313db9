"""`ledger withdraw`: a public mark on records that are wrong, of which nothing is learnt."""

import json
import shutil
from contextlib import suppress
from datetime import timedelta

import msgspec
import pytest

from tests.contract.checks import ask
from tests.failing import DyingLedger
from tests.runtime.test_ledger_archive import (
    DAYS,
    MONDAY,
    SETS,
    archived,
    pings,
    releases,
    replay,
    run,
)
from tests.runtime.test_ledger_archive import made as made
from tests.runtime.test_live_run import Clock, ids, lines, live
from tests.runtime.test_live_run import frames as frames
from udp_stream.ledger.ids import HAT, USUAL_WEEK, Id, kind_of
from udp_stream.ledgers.archive import archive
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.forecaster import Forecaster, LedgerHistory
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release, Withdrawal, schema_of
from udp_stream.release.withdrawal import noted, unpublished_withdrawals, withdraw
from udp_stream.settings import LedgerSection, load
from udp_stream.testing import a_context, two_hats

AT = "2024-01-14T10:00:00+05:30"


@pytest.fixture
def city(made, tmp_path):
    shutil.copytree(made, tmp_path / "city")
    return tmp_path / "city"


def withdrawn(folder, *more, reason="speeds were in mph", status=0):
    return run(
        "ledger",
        "withdraw",
        "--ledger",
        "city.ledger",
        "--reason",
        reason,
        *more,
        cwd=folder,
        status=status,
    )


def is_mark(line):
    return json.loads(line)["schema"] == schema_of(Withdrawal)


def starts(lines_, first, last):
    return [line for line in lines_ if first <= json.loads(line)["hat"]["slot_start"] < last]


def test_a_span_is_marked_in_public_and_the_records_stay(city):
    published = (city / "out.ndjson").read_bytes().splitlines()
    budget = run("ledger", "show", "GJ05ZZ0001", "--ledger", "city.ledger", cwd=city).stdout
    span = "--from", "2024-01-09", "--to", "2024-01-09T06:00"
    wrong = [
        Release.decode(line).release_id for line in starts(published, "2024-01-09", "2024-01-09T06")
    ]
    assert withdrawn(city, *span, "--dry-run").stdout.decode().split() == wrong and len(wrong) == 6
    assert releases(city).splitlines() == published
    assert b"6 HATs withdrawn" in withdrawn(city, *span).stdout
    assert b"0 HATs withdrawn, 6 before" in withdrawn(city, *span, reason="another").stdout
    found = releases(city).splitlines()
    marks = [Withdrawal.decode(line) for line in found if is_mark(line)]
    assert [line for line in found if not is_mark(line)] == published
    assert [one.withdraws for one in marks] == wrong and {one.reason for one in marks} == {
        "speeds were in mph"
    }
    assert all(one.release_id == f"withdrawn:{one.withdraws}" for one in marks)
    assert [one.hat for one in marks] == [
        Release.decode(line).hat for line in starts(published, "2024-01-09", "2024-01-09T06")
    ]
    assert run("ledger", "show", "GJ05ZZ0001", "--ledger", "city.ledger", cwd=city).stdout == budget
    assert b"every balance" in run("ledger", "verify", "--ledger", "city.ledger", cwd=city).stdout
    stated = json.loads(run("ledger", "export", "--ledger", "city.ledger", cwd=city).stdout)
    assert [(one["reason"], one["hats"]) for one in stated["withdrawn"]] == [
        ("speeds were in mph", 6),
        ("another", 0),
    ]
    assert stated["hats_recorded"] == len(published)
    # A file that is written anew has each mark behind its slot.
    for _ in range(2):
        replay(city)
        assert (city / "out.ndjson").read_bytes().splitlines() == found
    assert (
        releases(city, "city.ledger", "--from", "2024-01-09", "--to", "2024-01-09T02").count(b"\n")
        == 4
    )


def test_cells_and_ids_are_marked_alone(city):
    published = [Release.decode(line) for line in (city / "out.ndjson").read_bytes().splitlines()]
    cell, one = published[0].hat.cell, published[9].release_id
    withdrawn(city, "--cell", cell, "--to", "2024-01-09")
    withdrawn(city, one)
    found = [
        Withdrawal.decode(line).withdraws for line in releases(city).splitlines() if is_mark(line)
    ]
    of_cell = {
        one.release_id
        for one in published
        if one.hat.cell == cell and one.hat.slot_start < "2024-01-09"
    }
    wanted = [record.release_id for record in published if record.release_id in of_cell | {one}]
    assert found == wanted and len(found) > 4


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "--from"), (("--from", "2024-02-01"), "nothing is withdrawn"), (("none",), "none"),
        (("8742d98b6ffffff-1641009600-3600",), "8742d98b6ffffff-1641009600-3600"),
        (("--from", "2024-01-09", "--cell", "87"), "nothing"), (("x", "--from", "2024-01-09"), "--from"),
    ],
)  # fmt: skip
def test_what_is_not_meant_is_refused(words, why, city):
    assert why.encode() in withdrawn(city, *words, status=2).stderr
    assert not any(map(is_mark, releases(city).splitlines()))


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "x" * 501])
def test_a_reason_is_a_line(reason, city):
    assert b"reason" in withdrawn(city, "--from", "2024-01-09", reason=reason, status=2).stderr
    assert not any(map(is_mark, releases(city).splitlines()))


# Estimates.


def estimates_since(ledger, day, forecaster=None):
    """Of each slot from this day on."""
    settings = load(None, SETS, {})
    policy = settings.policy
    one = forecaster or Forecaster(settings.calendar.slots, policy.max_speed, "test", policy.shapes)
    since = (MONDAY + timedelta(days=day)).timestamp()
    slots = sorted(
        {
            Id.of(id_).slot
            for id_ in ledger.newest()
            if kind_of(id_) == "hat" and Id.of(id_).slot[0] >= since
        }
    )
    return [one.smoothed((1000 * start, 1000 * end), LedgerHistory(ledger)) for start, end in slots]


def copy_of(folder, leave_out=()):
    """The records of a ledger in memory, but for those of some HATs."""
    copy = MemoryLedger()
    with ledger_and_keys(LedgerSection(url=str(folder / "city.ledger"))) as (ledger, _):
        for entry in ledger.entries():
            copy.admit(entry.period, 10, [], [ask(entry.release_id, [])])
            if entry.payload is not None and entry.release_id not in leave_out:
                copy.record([(entry.release_id, entry.payload)])
    return copy


def test_estimates_are_as_if_the_hats_had_never_been(city):
    """Of a forecaster that begins, as after a restart; and of one that had learnt them."""
    whole = copy_of(city)
    ids_ = [
        id_
        for id_ in whole.newest()
        if kind_of(id_) == HAT
        and Id.of(id_).slot[0] >= (MONDAY + timedelta(days=3, hours=12)).timestamp()
    ]
    wrong = ids_[::3]
    weeks = [id_ for id_ in whole.newest() if kind_of(id_) == USUAL_WEEK]
    lacking = copy_of(city, [*wrong, *weeks])
    settings = load(None, SETS, {})
    forecaster = Forecaster(
        settings.calendar.slots, settings.policy.max_speed, "test", settings.policy.shapes
    )
    learnt = estimates_since(whole, 3, forecaster)
    withdraw(whole, wrong, "wrong", AT, "test")
    anew = estimates_since(whole, 3)
    assert anew == estimates_since(lacking, 3) != learnt
    assert estimates_since(whole, 4, forecaster) == estimates_since(lacking, 4)
    names = {one.release_id for slot in anew for one in slot}
    assert not names & set(wrong)


def test_what_a_slot_told_of_the_whole_city_is_not_learnt_either(monkeypatch):
    (counts, values), context, ledger = two_hats(), a_context(), MemoryLedger()
    release_slot(counts, values, context, ledger, lambda _: None)
    asked, read = [], LedgerHistory.releases_and_city

    def watched(history, slot, cells, city):
        asked.append(city)
        return read(history, slot, cells, city=city)

    monkeypatch.setattr(LedgerHistory, "releases_and_city", watched)
    slot = counts.start_ms, counts.end_ms
    for has_mark in (False, True):
        forecaster = Forecaster(
            context.calendar.slots, context.policy.max_speed, "test", shapes=True
        )
        forecaster.saw(counts)
        forecaster.smoothed(slot, LedgerHistory(ledger))
        assert asked.pop() is not has_mark
        if not has_mark:
            (first, *_) = ledger.newest()
            withdraw(ledger, [first], "wrong", AT, "test")


# The live runtime.


def test_a_run_publishes_marks_with_its_next_slot_once_also_if_it_dies_behind_it(frames, tmp_path):
    clock, half = Clock(), len(frames) // 2
    with live(tmp_path, clock) as (runtime, _):
        clock.now_s = frames[0][1]
        runtime.start()
        for messages, clock.now_s in frames[:half]:
            runtime.take(messages)
        out = lines(tmp_path)
        wrong = ids(out)[:5]
        with ledger_and_keys(LedgerSection(url=f"{tmp_path}/ledger")) as (ledger, _):
            assert withdraw(ledger, wrong, "wrong", AT, "test") == 5
        ledger = runtime._ledger
        kept = ledger.published

        def dies(release_ids):
            if any(id_.startswith("withdrawn:") for id_ in release_ids):
                raise ZeroDivisionError
            kept(release_ids)

        ledger.published = dies
        with pytest.raises(ZeroDivisionError):
            for messages, clock.now_s in frames[half:]:
                runtime.take(messages)
    with live(tmp_path, clock) as (runtime, journal):
        runtime.start()
        at = 0
        for messages, clock.now_s in frames:
            if at >= journal.next_offset:
                runtime.take(messages)
            at += len(messages)
        clock.now_s += 7200
        runtime.close_what_is_over()
        found = lines(tmp_path)
        ledger = runtime._ledger
        assert ledger.verify() == [] and not list(ledger.unpublished())
    marks = [json.loads(line)["withdraws"] for line in found if is_mark(line)]
    assert marks == wrong and len(set(found)) == len(found) > len(out) + 5
    assert found[: len(out)] == out


# The ledger.


ARCHIVE = "city.ledger.before-2024-01-10"


def marks_in(folder, ledger="city.ledger"):
    found = releases(folder, ledger).splitlines()
    return [Withdrawal.decode(line).withdraws for line in found if is_mark(line)]


def test_marks_are_archived_with_their_hats(city):
    withdrawn(city, "--to", "2024-01-08T06:00")
    archived(city)
    assert len(marks_in(city, ARCHIVE)) == 6 and marks_in(city) == []
    assert run("ledger", "verify", "--ledger", ARCHIVE, cwd=city).stdout


def test_what_is_archived_is_withdrawn_in_the_ledger_and_once(city):
    published = [
        Release.decode(line).release_id for line in (city / "out.ndjson").read_bytes().splitlines()
    ]
    withdrawn(city, "--to", "2024-01-08T06:00", reason="first")
    archived(city)
    estimates = releases(city, "city.ledger", "--smoothed", "--from", "2024-01-12")
    before, records = (city / ARCHIVE).read_bytes(), releases(city, ARCHIVE)
    wrong = published[0], published[7]
    assert b"1 HAT withdrawn, 1 before" in withdrawn(city, *wrong).stdout
    assert marks_in(city) == [published[7]]
    # Nothing is forecast from archived days, so no estimate changes.
    assert releases(city, "city.ledger", "--smoothed", "--from", "2024-01-12") == estimates
    span = "--from", "2024-01-08T06:00", "--to", "2024-01-10T04:00"
    hats = withdrawn(city, *span, "--dry-run").stdout.decode().split()
    assert hats == published[published.index(hats[0]) :][: len(hats)] and len(hats) > 20
    assert f"{len(hats) - 1:,} HATs withdrawn, 1 before".encode() in withdrawn(city, *span).stdout
    assert b"0 HATs withdrawn" in withdrawn(city, *span, reason="another").stdout
    assert (city / ARCHIVE).read_bytes() == before and releases(city, ARCHIVE) == records
    # The usual week lacks what is withdrawn, in whichever order its files come.
    found = releases(city).splitlines()
    marks = [line for line in found if is_mark(line)]
    assert len(marks) == len(hats)
    (city / "old.ndjson").write_bytes(records)
    (city / "new.ndjson").write_bytes(b"\n".join(found) + b"\n")
    weeks = []
    for files in (("old.ndjson", "new.ndjson"), ("new.ndjson", "old.ndjson"), ("old.ndjson",)):
        run("typical", *files, "--out", "week.ndjson", cwd=city)
        weeks.append((city / "week.ndjson").read_bytes())
    assert weeks[0] == weeks[1] != weeks[2]
    # The same archive again moves nothing; that of a later time has the marks, and knows them.
    archived(city)
    assert [line for line in releases(city).splitlines() if is_mark(line)] == marks
    (city / "more.ndjson").write_bytes(b"\n".join(pings(first=DAYS, days=1)) + b"\n")
    replay(city, log="more.ndjson")
    archived(city, "2024-01-11")
    assert (
        len(marks_in(city, "city.ledger.before-2024-01-11")) == len(marks) and marks_in(city) == []
    )
    assert b"0 HATs withdrawn" in withdrawn(city, *wrong).stdout
    for ledger in ("city.ledger", ARCHIVE, "city.ledger.before-2024-01-11"):
        assert run("ledger", "verify", "--ledger", ledger, cwd=city).stdout


def test_an_archive_that_was_moved_is_named_and_one_that_lacks_is_asked_for(city):
    published = [
        Release.decode(line).release_id for line in (city / "out.ndjson").read_bytes().splitlines()
    ]
    archived(city)
    (city / "elsewhere").mkdir()
    (city / ARCHIVE).rename(city / "elsewhere" / "old")
    for words in ((published[0],), ("--to", "2024-01-08T06:00"), ("--cell", published[0][:15])):
        assert b"--archive" in withdrawn(city, *words, status=2).stderr
    assert marks_in(city) == []
    withdrawn(
        city, "--from", "2024-01-10", "--to", "2024-01-10T03:00"
    )  # what is not archived needs no archive
    late = marks_in(city)
    assert late and all(
        Id.of(id_).slot[0] >= (MONDAY + timedelta(days=2)).timestamp() for id_ in late
    )
    assert b"1 HAT withdrawn" in withdrawn(city, published[0], "--archive", "elsewhere/old").stdout
    assert marks_in(city) == [published[0], *late]
    shutil.copytree(city, city.parent / "other")
    for name in ("pings.ndjson", "none", "city.ledger"):
        assert b"archive" in withdrawn(city, published[1], "--archive", name, status=2).stderr
    with ledger_and_keys(LedgerSection(url=str(city / "another.ledger"))):
        pass
    said = run("ledger", "withdraw", published[1], "--ledger", "another.ledger", "--reason", "wrong", "--archive",
               "elsewhere/old", cwd=city, status=2)  # fmt: skip
    assert b"expected an archive of this ledger" in said.stderr


@pytest.mark.parametrize("at", range(4))
def test_an_archive_that_was_interrupted_keeps_what_is_withdrawn_meanwhile(city, at):
    """Before its file, before its note, and in the middle of what is dropped: a mark is made once."""
    published = [
        Release.decode(line).release_id for line in (city / "out.ndjson").read_bytes().splitlines()
    ]
    before_s = int((MONDAY + timedelta(days=2)).timestamp())
    with ledger_and_keys(LedgerSection(url=str(city / "city.ledger"))) as (ledger, _):
        dying = DyingLedger(ledger)
        left = iter(range(at))
        for name in ("note", "drop"):
            real = getattr(ledger, name)
            setattr(
                dying,
                name,
                lambda *given, real=real: real(*given) if next(left, None) is not None else 1 / 0,
            )
        with suppress(ZeroDivisionError):
            archive(dying, before_s, city / ARCHIVE)
    assert (
        b"2 HATs withdrawn"
        in withdrawn(city, published[0], published[20], "--archive", ARCHIVE).stdout
    )
    archived(city)
    assert marks_in(city) == [published[0], published[20]]
    assert b"0 HATs withdrawn, 2 before" in withdrawn(city, published[0], published[20]).stdout
    for ledger in ("city.ledger", ARCHIVE):
        assert run("ledger", "verify", "--ledger", ledger, cwd=city).stdout


def test_a_run_publishes_a_mark_of_an_archived_hat_with_its_next_slot(city):
    published = [
        Release.decode(line).release_id for line in (city / "out.ndjson").read_bytes().splitlines()
    ]
    archived(city)
    withdrawn(city, published[3])
    with ledger_and_keys(LedgerSection(url=str(city / "city.ledger"))) as (ledger, _):
        assert list(unpublished_withdrawals(ledger)) == [f"withdrawn:{published[3]}"]


@pytest.mark.parametrize(
    "sets", [("release.min_plates=1000",), ()], ids=["nobody charged", "charged"]
)
def test_hats_are_withdrawn_whether_or_not_somebody_was_charged(made, tmp_path, sets):
    shutil.copy(made / "pings.ndjson", tmp_path)
    replay(tmp_path, sets=sets)
    published = [
        Release.decode(line).release_id
        for line in (tmp_path / "out.ndjson").read_bytes().splitlines()
    ]
    span = "--from", "2024-01-09", "--to", "2024-01-09T06:00"
    assert b"6 HATs withdrawn" in withdrawn(tmp_path, *span).stdout
    assert set(marks_in(tmp_path)) < set(published)
    assert b"1 HAT withdrawn" in withdrawn(tmp_path, published[0]).stdout


@pytest.mark.parametrize("call", ["admit", "record", "note"])
def test_interrupted_it_is_to_be_called_again(call, made, tmp_path, monkeypatch):
    ledger = copy_of(made)
    wrong = [id_ for id_ in ledger.newest() if kind_of(id_) == "hat"][:4]
    with monkeypatch.context() as patch:
        patch.setattr(ledger, call, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            withdraw(ledger, wrong, "wrong", AT, "test")
    withdraw(ledger, wrong, "wrong", AT, "test")
    assert all(
        LedgerHistory(ledger).withdrawn(
            tuple(1000 * s for s in Id.of(id_).slot), [int(id_[:15], 16)]
        )
        for id_ in wrong
    )
    assert len(noted(ledger.meta())) == 1 and ledger.verify() == []


def test_the_mark_costs_nothing_and_draws_nothing(made):
    ledger = copy_of(made)
    wrong = [id_ for id_ in ledger.newest() if kind_of(id_) == "hat"]
    before = ledger.recorded(wrong)
    withdraw(ledger, wrong, "wrong", AT, "test")
    assert ledger.recorded(wrong) == before
    marks = [entry for entry in ledger.entries() if kind_of(entry.release_id) == "withdrawn"]
    assert len(marks) == len(wrong) and not any(
        entry.plates or entry.charged.size for entry in marks
    )
    for entry in marks[:3]:
        assert set(msgspec.json.decode(entry.payload)) == {
            "schema", "release_id", "withdraws", "hat", "reason", "withdrawn_at", "software",
        }  # fmt: skip


def test_the_ledger_is_told_by_its_latest_hat_and_counts_marks_beside_them(city):
    withdrawn(city, "--to", "2024-01-08T06:00")
    said = run("ledger", "verify", "--ledger", "city.ledger", cwd=city).stderr.decode()
    assert "HATs and withdrawals" in said and "the latest of 2024-01-12T22:00:00+05:30" in said
