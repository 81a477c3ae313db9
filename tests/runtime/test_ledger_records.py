"""`ledger releases`: what was published, out of the ledger."""

import pytest

from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.release.record import Release

SETS = (
    "hat.slot=15m",
    "hat.resolution=7",
    "release.min_plates=4",
    "budget.accounting=pure",
    "hat.timezone=Asia/Kolkata",
)
FLAGS = [word for one in SETS for word in ("--set", one)]


def run(*arguments, cwd, status=0):
    done = run_verb([*arguments, *FLAGS], cwd=cwd)
    assert done.returncode == status, done.stderr.decode()
    return done


@pytest.fixture
def replayed(tmp_path):
    """A folder with a ledger, its releases and its estimates, of 9:00 to 11:15."""
    (tmp_path / "pings.ndjson").write_bytes(b"\n".join(fleet_log(hours=2.2)) + b"\n")
    out = ("--out", "releases.ndjson", "--smoothed", "estimates.ndjson", "--ledger", "city.ledger")
    run("replay", "pings.ndjson", *out, cwd=tmp_path)
    return tmp_path


def releases(folder, *more, status=0):
    return run(
        "ledger", "releases", "--ledger", "city.ledger", *more, cwd=folder, status=status
    ).stdout


def test_the_records_of_a_ledger_are_the_bytes_that_were_published(replayed):
    published = (replayed / "releases.ndjson").read_bytes()
    assert published.count(b"\n") > 50 and releases(replayed) == published


def test_a_span_of_time_has_its_slots_alone(replayed):
    published = (replayed / "releases.ndjson").read_bytes().splitlines(keepends=True)
    starts = [Release.decode(line).hat.slot_start for line in published]
    for zone in ("", "+05:30"):
        found = releases(
            replayed, "--from", f"2024-01-08T09:15{zone}", "--to", f"2024-01-08T09:45{zone}"
        )
        wanted = [
            line
            for line, start in zip(published, starts, strict=True)
            if "T09:15" <= start[10:16] < "T09:45"
        ]
        assert 0 < len(wanted) < len(published) and found == b"".join(wanted)
    assert releases(replayed, "--from", "2024-01-09") == b""
    assert releases(replayed, "--to", "2024-01-09") == b"".join(published)


def test_estimates_are_made_anew_from_the_records(replayed):
    assert releases(replayed, "--smoothed") == (replayed / "estimates.ndjson").read_bytes()
    later = releases(replayed, "--smoothed", "--from", "2024-01-08T10:00")
    assert later and (replayed / "estimates.ndjson").read_bytes().endswith(later)


def test_what_is_printed_was_marked_before(replayed):
    """A reader has it: a ledger that goes back behind it is refused."""
    mark = replayed / "city.ledger.key.ledger-id"
    (known, _) = mark.read_text().splitlines()
    mark.write_text(f"{known}\n")  # as if a crash had come before the mark
    releases(replayed)
    assert len(mark.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "words", [("--from", "yesterday"), ("--to", "2024-13-01"), ("--ledger", "none")]
)
def test_what_cannot_be_read_is_named(words, replayed):
    done = run("ledger", "releases", *words, *(() if "none" in words else ("--ledger", "city.ledger")),
               cwd=replayed, status=2)  # fmt: skip
    assert not done.stdout and words[1].encode() in done.stderr
