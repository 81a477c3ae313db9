"""`ledger archive`: what is over is in a file of its own, and is decided for ever."""

import json
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from datetime import datetime, timedelta
from io import BytesIO
from itertools import product
from pathlib import Path
from subprocess import TimeoutExpired

import msgspec
import numpy as np
import pytest

from tests.contract.checks import ask
from tests.forked import Forked
from tests.forms import long_rows
from tests.runtime.harness import runtime_on
from tests.verbs import run_verb
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.ids import end_of
from udp_stream.ledger.rules import see
from udp_stream.ledgers import archive as module
from udp_stream.ledgers.archive import archive, open_archive, whole_periods
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.ledgers.sqlite import SqliteLedger
from udp_stream.release.record import Release
from udp_stream.settings import LedgerSection

SETS = (
    "hat.slot=2h", "hat.resolution=7", "release.min_plates=4", "hat.timezone=Asia/Kolkata", "budget.accounting=pure",
    "release.cdf=off",
)  # fmt: skip
MONDAY = datetime.fromisoformat("2024-01-08T00:00+05:30")
DAYS = 5


def flags(*more):
    return [word for one in (*SETS, *more) for word in ("--set", one)]


def run(*arguments, cwd, status=0, sets=()):
    done = run_verb([*arguments, *flags(*sets)], cwd=cwd)
    assert done.returncode == status, done.stderr.decode()
    return done


def pings(first=0, days=DAYS, seed=7):
    """Six buses in two cells, a ping each five minutes, by day and night."""
    dice = np.random.default_rng(seed)
    for minute in range(1440 * first, 1440 * (first + days), 5):
        time = (MONDAY + timedelta(minutes=minute)).isoformat()
        for bus in range(6):
            place = [72.83 + 0.05 * (minute // 60 % 2), 21.17]
            yield json.dumps({
                "license_plate": f"GJ05ZZ{bus:04}", "observationDateTime": time, "speed": float(dice.uniform(5, 40)),
                "location": {"type": "Point", "coordinates": place},
            }).encode()  # fmt: skip


def replay(folder, *more, name="city.ledger", sets=(), status=0, log="pings.ndjson"):
    out = "--out", "out.ndjson", "--smoothed", "smoothed.ndjson", "--rejected", "rejected.ndjson"
    return run("replay", log, *out, "--ledger", name, *more, cwd=folder, sets=sets, status=status)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    (folder / "pings.ndjson").write_bytes(b"\n".join(pings()) + b"\n")
    replay(folder)
    return folder


@pytest.fixture
def city(made, tmp_path):
    """A folder with a ledger of Monday to Friday, and what it published."""
    shutil.copytree(made, tmp_path / "city")
    return tmp_path / "city"


def archived(folder, before="2024-01-10", *more, status=0, sets=()):
    return run("ledger", "archive", "--ledger", "city.ledger", "--before", before, *more,
               cwd=folder, status=status, sets=sets)  # fmt: skip


def releases(folder, ledger="city.ledger", *more):
    return run("ledger", "releases", "--ledger", ledger, *more, cwd=folder).stdout


def lines_of(text, until):
    """The records of slots that start before."""
    return [
        line
        for line in text.splitlines(keepends=True)
        if Release.decode(line).hat.slot_start < until
    ]


def test_the_archive_and_the_ledger_together_have_all_there_was(city):
    published = (city / "out.ndjson").read_bytes()
    estimates = releases(city, "city.ledger", "--smoothed", "--from", "2024-01-11T18:00")
    before = run("ledger", "show", "GJ05ZZ0001", "--ledger", "city.ledger", cwd=city).stdout
    size = (city / "city.ledger").stat().st_size
    done = archived(city)
    file = city / "city.ledger.before-2024-01-10"
    assert file.name in done.stdout.decode() and file.stat().st_mode & 0o777 == 0o600
    old, new = releases(city, file.name), releases(city)
    assert old + new == published and old == b"".join(lines_of(published, "2024-01-10"))
    for ledger in ("city.ledger", file.name):
        assert (
            b"every balance is the sum"
            in run("ledger", "verify", "--ledger", ledger, cwd=city).stdout
        )
    after = run("ledger", "show", "GJ05ZZ0001", "--ledger", "city.ledger", cwd=city).stdout
    assert before.endswith(after) and len(after.splitlines()) == len(before.splitlines()) - 2
    # The usual week of the archived days is kept.
    left = releases(city, "city.ledger", "--smoothed", "--from", "2024-01-11T18:00")
    assert left == estimates and left
    assert (city / "city.ledger").stat().st_size < size
    stated = [json.loads(run("ledger", "export", "--ledger", name, cwd=city).stdout)
              for name in ("city.ledger", file.name)]  # fmt: skip
    assert sum(one["hats_recorded"] for one in stated) == published.count(b"\n")
    assert stated[0]["archived"]["before"] == "2024-01-09T18:30:00+00:00"
    assert stated[0]["archived"]["entries_elsewhere"] >= old.count(b"\n")


def kept_weeks(folder, change=None):
    """The ids of the usual weeks that a ledger keeps; `change` is SQL of what becomes of them."""
    with closing(sqlite3.connect(folder / "city.ledger")) as connection:
        where = "release_id LIKE 'usual-week:%'"
        ids = [
            one for (one,) in connection.execute(f"SELECT release_id FROM releases WHERE {where}")
        ]
        if change is not None:
            for trigger in ("releases_stay", "releases_stand", "admissions_stay"):
                connection.execute(f"DROP TRIGGER {trigger}")
            for statement in change:
                connection.execute(f"{statement} WHERE {where}")
            connection.commit()
    return ids


GONE = "DELETE FROM releases", "DELETE FROM admissions"
DAMAGED = ("UPDATE releases SET payload = substr(payload, 1, length(payload) / 2)",)
OTHER = (
    'UPDATE releases SET payload = CAST(replace(CAST(payload AS TEXT), \'"sums":"eJ\', \'"sums":"eJx\') AS BLOB)',
)


def latest_estimates(folder):
    found = releases(folder, "city.ledger", "--smoothed", "--from", "2024-01-12")
    assert found.count(b"\n") > 10
    return found


@pytest.mark.parametrize("change", [GONE, DAMAGED, OTHER], ids=["gone", "damaged", "other"])
def test_a_usual_week_that_is_lost_is_made_again_from_records(city, change):
    estimates = latest_estimates(city)
    assert len(kept_weeks(city, change)) == DAYS - 1
    assert latest_estimates(city) == estimates


@pytest.mark.parametrize("day", ["2024-01-08", "2024-01-10"])
def test_a_withdrawn_hat_is_in_no_usual_week(city, tmp_path, day):
    """Estimates are those of a ledger that keeps no week, before and after the next is kept."""
    before = latest_estimates(city)
    wrong = releases(city, "city.ledger", "--from", f"{day}T08:00").splitlines()[0]
    reason = "--reason", "wrong", Release.decode(wrong).release_id
    run("ledger", "withdraw", "--ledger", "city.ledger", *reason, cwd=city)
    (city / "pings.ndjson").write_bytes(b"\n".join(pings(first=DAYS, days=1)) + b"\n")
    for weeks in (DAYS - 1, DAYS):
        plain = tmp_path / f"plain {weeks}"
        shutil.copytree(city, plain)
        assert len(kept_weeks(plain, GONE)) == weeks
        assert latest_estimates(city) == latest_estimates(plain) != before
        replay(city)
    assert [one for one in kept_weeks(city) if one.startswith("usual-week:1-")]


def test_pings_of_an_archived_time_are_late_and_the_rest_comes_out_as_before(city):
    published, estimates = (
        (city / name).read_bytes() for name in ("out.ndjson", "smoothed.ndjson")
    )
    archived(city)
    replay(city)
    again = (city / "out.ndjson").read_bytes()
    assert again + b"" == b"".join(line for line in published.splitlines(keepends=True)
                                   if Release.decode(line).hat.slot_start >= "2024-01-10")  # fmt: skip
    rejected = [json.loads(line) for line in (city / "rejected.ndjson").read_bytes().splitlines()]
    assert len(rejected) == 2 * 288 * 6 and {one["reason"] for one in rejected} == {"late"}
    assert all(one["lag_ms"] > 0 for one in rejected)
    assert estimates.endswith((city / "smoothed.ndjson").read_bytes())


def test_a_run_goes_on_after_it_with_the_estimates_of_one_without_it(made, tmp_path):
    """Of Saturday's records an archived ledger makes what its run made, and so does one that has
    all its days."""
    (tmp_path / "more.ndjson").write_bytes(b"\n".join(pings(first=DAYS, days=1)) + b"\n")
    for path in made.iterdir():
        shutil.copy(path, tmp_path)
    archived(tmp_path, "2024-01-10")
    replay(tmp_path, log="more.ndjson")
    assert (tmp_path / "out.ndjson").read_bytes().count(b"\n") >= 12
    ours = releases(tmp_path, "city.ledger", "--smoothed", "--from", "2024-01-13")
    assert ours == (tmp_path / "smoothed.ndjson").read_bytes()
    # The same records in a ledger that has all the days.
    with ledger_and_keys(LedgerSection(url=str(tmp_path / "city.ledger"))) as (ledger, _):
        new = [(entry.release_id, entry.period, entry.payload) for entry in ledger.entries()
               if end_of(entry.release_id) > (MONDAY + timedelta(days=DAYS)).timestamp()]  # fmt: skip
    whole = tmp_path / "whole"
    shutil.copytree(made, whole)
    with ledger_and_keys(LedgerSection(url=str(whole / "city.ledger"))) as (ledger, _):
        for name, period, payload in new:
            ledger.admit(period, 10, [], [ask(name, [])])
            ledger.record([(name, payload)] if payload is not None else [])
    of_all = releases(whole, "city.ledger", "--smoothed", "--from", "2024-01-13")
    assert of_all == ours


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("2024-01-11", "2024-01-10"),
        ("2030-01-01", "2024-01-10"),
        ("last week", "date"),
        ("2024-01-08", "nothing"),
    ],
)
def test_what_is_not_over_or_is_needed_stays(before, why, city):
    kept = releases(city)
    done = archived(city, before, status=2)
    assert why in done.stderr.decode() and releases(city) == kept
    assert not list(city.glob("*.before-*")) and "archived" not in meta_of(city)


def meta_of(folder, name="city.ledger"):
    with closing(sqlite3.connect(folder / name)) as connection:
        return dict(connection.execute("SELECT name, value FROM meta"))


def test_a_period_that_goes_on_is_left_as_a_whole(made, tmp_path):
    shutil.copy(made / "pings.ndjson", tmp_path)
    replay(tmp_path, sets=["budget.period=2d"])
    done = archived(tmp_path, "2024-01-10", status=0, sets=["budget.period=2d"])
    (file,) = tmp_path.glob("*.before-*")
    shown = run("ledger", "show", "GJ05ZZ0001", "--ledger", "city.ledger", cwd=tmp_path).stdout
    periods = [line.split(b"\t")[0] for line in shown.splitlines()]
    with open_archive(file) as found:
        assert not set(found.periods()) & {one.decode() for one in periods} and found.periods()
    assert file.name in done.stdout.decode()
    day = file.name[-10:]
    start = datetime.fromisoformat(f"{day}T00:00+05:30").timestamp()
    assert whole_periods(int(start), [one.decode() for one in periods]) == start


def test_another_period_that_reaches_back_into_the_archive_is_refused(city):
    """What plates were charged there is not known: it might be lost twice. Later periods of that
    length go on."""
    archived(city)
    (city / "more.ndjson").write_bytes(b"\n".join(pings(first=DAYS, days=1)) + b"\n")
    for period in ("lifetime", "30d"):
        sets = f"budget.period={period}", "release.mean=baseline", "release.mean_epsilon=2"
        done = replay(city, log="more.ndjson", sets=sets, status=5)
        assert b"reaches back before 2024-01-09T18:30:00+00:00" in done.stderr
    (city / "later.ndjson").write_bytes(b"\n".join(pings(first=40, days=1)) + b"\n")
    replay(city, log="later.ndjson", sets=["budget.period=30d"])


class Stopped(Exception):
    pass


def steps(monkeypatch, ledger_type, at, how):
    """Count the calls of an archive that change something; at one of them something happens, before
    or behind it."""
    calls = []

    def watched(name, call):
        def run_(*given, **more):
            calls.append(name)
            if len(calls) - 1 == at and how == "before":
                raise Stopped
            found = call(*given, **more)
            if len(calls) - 1 == at and how == "behind":
                raise Stopped
            return found

        return run_

    for name in ("close_before", "drop", "shrink"):
        if hasattr(ledger_type, name):
            monkeypatch.setattr(ledger_type, name, watched(name, getattr(ledger_type, name)))
    for name in ("link_first", "_fill", "_require_copied"):
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    return calls


STEPS = ["close_before", "_fill", "link_first", "_require_copied", "drop", "drop", "shrink"]


@pytest.mark.parametrize(
    ("at", "how"),
    long_rows(
        [(at, "before") for at in (1, 4, 6)] + [(3, "behind")],
        product(range(len(STEPS)), ("before", "behind")),
    ),
)
def test_a_crash_at_each_step_loses_nothing_and_the_same_command_goes_on(
    at, how, city, monkeypatch
):
    published = (city / "out.ndjson").read_bytes()
    file = city / "city.ledger.before-2024-01-10"
    with (
        monkeypatch.context() as patch,
        ledger_and_keys(LedgerSection(url=str(city / "city.ledger"))) as (ledger, _),
    ):
        calls = steps(patch, SqliteLedger, at, how)
        with pytest.raises(Stopped):
            archive(ledger, int((MONDAY + timedelta(days=2)).timestamp()), file)
        assert calls == STEPS[: at + 1]
    run("ledger", "verify", "--ledger", "city.ledger", cwd=city)
    replay(city)  # a run in between: it draws nothing anew
    again = (city / "out.ndjson").read_bytes().splitlines()
    assert set(again) <= set(published.splitlines()) and not list(city.glob("*.draft*"))
    archived(city)
    assert releases(city, file.name) + releases(city) == published
    for name in ("city.ledger", file.name):
        run("ledger", "verify", "--ledger", name, cwd=city)
    archived(city)  # again: nothing is left to do
    assert releases(city, file.name) + releases(city) == published


def test_a_kill_at_any_moment_loses_nothing(city):
    published = (city / "out.ndjson").read_bytes()
    for pause in (0.02, 0.05, 0.1, 0.15):
        words = "ledger", "archive", "--ledger", "city.ledger", "--before", "2024-01-10", *flags()
        with Path(os.devnull).open("r+b") as nothing:
            child = Forked("udp_stream.cli.main", words, [nothing.fileno()] * 3, city)
            with suppress(TimeoutExpired):
                child.wait(pause)
            child.kill()
            child.wait()
    archived(city)
    assert releases(city, "city.ledger.before-2024-01-10") + releases(city) == published


def test_the_same_file_is_not_written_twice(city):
    """Another file is never written over: an archive of another time, of another ledger, or
    anything else."""
    archived(city, "2024-01-09", "--out", "old")
    assert b"--out" in archived(city, "2024-01-10", "--out", "old", status=2).stderr
    (city / "notes").write_text("mine")
    assert b"--out" in archived(city, "2024-01-10", "--out", "notes", status=2).stderr
    assert (city / "notes").read_text() == "mine"
    (city / "other").mkdir()
    shutil.copy(city / "pings.ndjson", city / "other")
    replay(city / "other")
    shutil.copy(city / "old", city / "other")
    assert b"--out" in archived(city / "other", "2024-01-09", "--out", "old", status=2).stderr
    archived(city, "2024-01-10", "--out", "new")
    assert len(releases(city, "old")) > 0 and len(releases(city, "new")) > 0


def test_an_entry_that_the_file_has_otherwise_stays(city):
    file = city / "city.ledger.before-2024-01-10"
    before_s = int((MONDAY + timedelta(days=2)).timestamp())
    with ledger_and_keys(LedgerSection(url=str(city / "city.ledger"))) as (ledger, _):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SqliteLedger, "drop", lambda *_: (_ for _ in ()).throw(Stopped))
            with pytest.raises(Stopped):
                archive(ledger, before_s, file)
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("DROP TRIGGER releases_stand")
            connection.execute("UPDATE releases SET payload = x'00' WHERE sequence = 3")
            connection.commit()
        with pytest.raises(PrivacyRefused, match="Nothing is dropped"):
            archive(ledger, before_s, file)
    assert releases(city) == (city / "out.ndjson").read_bytes()


def test_a_run_on_the_ledger_meanwhile_goes_on(made, tmp_path):
    """It is open before the archive, and releases the next day after it; what is archived it cannot
    draw any more."""
    for path in made.iterdir():
        shutil.copy(path, tmp_path)
    out = BytesIO()
    with ledger_and_keys(LedgerSection(url=str(tmp_path / "city.ledger"))) as (ledger, keys):
        runtime = runtime_on(ledger, keys, out, list(SETS))
        archived(tmp_path)
        runtime.push([json.dumps(json.loads(line)).encode() for line in pings(first=DAYS, days=1)])
        runtime.finish()
        assert out.getvalue().count(b"\n") >= 12
        old = runtime_on(ledger, keys, BytesIO(), list(SETS))
        old._windows._rules = runtime._settings.window_rules  # a run that does not know of it
        with pytest.raises(PrivacyRefused, match="Start again"):
            old.push(list(pings(days=1)))
    run("ledger", "verify", "--ledger", "city.ledger", cwd=tmp_path)


def test_an_older_copy_of_the_ledger_is_as_it_was_or_is_refused(city):
    """Right before the archive a copy has all that there is; once more was published, it is
    refused."""
    (city / "copy").mkdir()
    with (
        closing(sqlite3.connect(city / "city.ledger")) as from_,
        closing(sqlite3.connect(city / "copy/l")) as to,
    ):
        from_.backup(to)
    archived(city)
    (city / "more.ndjson").write_bytes(b"\n".join(pings(first=DAYS, days=1)) + b"\n")

    def restore():
        for suffix in ("-wal", "-shm"):
            Path(f"{city / 'city.ledger'}{suffix}").unlink(missing_ok=True)
        shutil.copy(city / "copy/l", city / "city.ledger")

    restore()
    run("ledger", "verify", "--ledger", "city.ledger", cwd=city)
    archived(city)  # the same file: what it has is dropped again
    replay(city, log="more.ndjson")
    restore()
    for verb in ("verify", "releases"):
        assert (
            b"went back in time"
            in run("ledger", verb, "--ledger", "city.ledger", cwd=city, status=5).stderr
        )


def test_a_mark_whose_record_is_archived_is_no_sign_of_an_older_copy(city):
    """As of a machine that has not published for long."""
    mark = city / "city.ledger.key.ledger-id"
    known, line = mark.read_text().splitlines()
    old = json.loads(line)
    first = Release.decode((city / "out.ndjson").read_bytes().splitlines()[0]).release_id
    with ledger_and_keys(LedgerSection(url=str(city / "city.ledger"))) as (ledger, _):
        now = see(ledger, first).mark(first)
    mark.write_text(f"{known}\n{msgspec.json.encode(now).decode()}\n")
    assert old[4] != first
    archived(city)
    run("ledger", "verify", "--ledger", "city.ledger", cwd=city)


def test_no_run_takes_an_archive_for_a_ledger(city):
    archived(city)
    name = "city.ledger.before-2024-01-10"
    kept = (city / name).read_bytes()
    for verb in (
        ("replay", "pings.ndjson"),
        ("ledger", "show", "A"),
        ("ledger", "archive", "--before", "2024-01-09"),
    ):
        assert run(*verb, "--ledger", name, cwd=city, status=5).stderr
    assert (
        b"may be overwritten"
        in run("replay", "pings.ndjson", "--out", name, cwd=city, status=2).stderr
    )
    assert (city / name).read_bytes() == kept
