"""Both neighbour relations on one ledger: never at one time, also where nobody was charged; one
after the other."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest

from tests.runtime.harness import ledger_at
from tests.runtime.test_wall_runs import MINUTE, SLOT, START, Machine, ping, udp_stream
from tests.runtime.test_wall_runs import flags as flags
from udp_stream.base.errors import PrivacyRefused
from udp_stream.embedded.runtime import LiveRuntime, Outputs
from udp_stream.ledger.ids import NOISED_SUMS, kind_of
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.sources.journal import Journal
from udp_stream.testing import SeededEntropy

DAY = 96 * SLOT
CELLS = 37
COUNTED = ("hat.slot=15m", "hat.resolution=7", "hat.timezone=UTC")
WITHHELD = (*COUNTED, "release.min_plates=1000")


def log(folder, since=START, plates="abcdefgh"):
    """Two hours of pings."""
    lines = [ping(plate, since + minute * MINUTE) for minute in range(120) for plate in plates]
    (folder / "log.ndjson").write_bytes(b"\n".join(lines) + b"\n")


def span(since, slots):
    first, last = (
        datetime.fromtimestamp((since + at * SLOT) / 1000, UTC).isoformat() for at in (0, slots)
    )
    return "--from", first, "--until", last


def replay(folder, sets, *more, status=0):
    done = udp_stream(
        folder, sets, "replay", "log.ndjson", "--ledger", "city.ledger", "--out", "out", *more
    )
    assert done.returncode == status, done.stderr.decode()
    return (folder / "out").read_bytes().splitlines() if status == 0 else done.stderr


def ledger_verb(folder, name, *more, sets=()):
    done = udp_stream(folder, sets, "ledger", name, "--ledger", "city.ledger", *more)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def kinds_in(folder):
    with ledger_at(folder / "city.ledger", ()) as (ledger, _):
        assert ledger.verify() == []
        found = [entry for entry in ledger.entries() if entry.payload is not None]
        relations = {
            Release.decode(entry.payload).privacy.neighbours
            for entry in found
            if kind_of(entry.release_id) == "hat"
        }
        return relations, {kind_of(entry.release_id) for entry in found}


def without_notes(folder):
    """As an older version left it, which noted whole plates alone, or nothing."""
    with closing(sqlite3.connect(folder / "city.ledger")) as connection:
        found = connection.execute("DELETE FROM meta WHERE name LIKE 'asked:%'")
        connection.commit()
        assert found.rowcount > 0


@pytest.mark.parametrize("later", [0, 12], ids=["the same slots", "later that day"])
def test_whole_plates_are_not_released_at_a_time_of_counts_that_cost_nobody_anything(
    tmp_path, flags, later
):
    log(tmp_path)
    before = replay(tmp_path, WITHHELD)
    assert {Release.decode(line).status for line in before} == {"withheld_few_plates"} and len(
        before
    ) == 8
    said = replay(tmp_path, flags, *span(START + later * SLOT, 8), status=5)
    assert (
        b"privacy.neighbours" in said
        and b"another version" not in said
        and (tmp_path / "out").read_bytes() == b""
    )
    assert kinds_in(tmp_path) == ({"swap-values"}, {"hat"})
    assert replay(tmp_path, WITHHELD) == before == ledger_verb(tmp_path, "releases").splitlines()


@pytest.mark.parametrize("plates", ["abcdefgh", ""], ids=["plates", "nobody"])
@pytest.mark.parametrize("later", [0, 12], ids=["the same slots", "later that day"])
@pytest.mark.parametrize("sets", [COUNTED, WITHHELD], ids=["charged", "withheld"])
def test_counts_are_not_released_at_a_time_of_whole_plates(tmp_path, flags, plates, later, sets):
    log(tmp_path, plates=plates)
    before = replay(tmp_path, flags, *span(START, 8))
    assert len(before) == 8 * CELLS
    log(tmp_path, START + later * SLOT)
    said = replay(tmp_path, sets, status=5)
    assert (
        b"privacy.neighbours" in said
        and b"another version" not in said
        and (tmp_path / "out").read_bytes() == b""
    )
    assert kinds_in(tmp_path) == ({"add-remove"}, {"hat", NOISED_SUMS})
    assert ledger_verb(tmp_path, "releases").splitlines() == before


def test_records_that_an_older_version_let_stand_are_refused_by_the_other_promise(tmp_path, flags):
    log(tmp_path)
    before = replay(tmp_path, WITHHELD)
    without_notes(tmp_path)
    assert b"privacy.neighbours" in replay(tmp_path, flags, *span(START, 8), status=5)
    assert kinds_in(tmp_path) == ({"swap-values"}, {"hat"})
    assert replay(tmp_path, WITHHELD) == before
    (tmp_path / "city.ledger").unlink()
    (tmp_path / "city.ledger.key.ledger-id").unlink()
    replay(tmp_path, flags, *span(START, 8))
    without_notes(tmp_path)
    (tmp_path / "log.ndjson").write_bytes(ping("a", START + 3 * SLOT))
    assert b"privacy.neighbours" in replay(tmp_path, WITHHELD, status=5)


@pytest.mark.parametrize(
    "order", [(WITHHELD, None), (None, WITHHELD)], ids=["counts first", "whole plates first"]
)
def test_a_live_run_is_refused_as_well(tmp_path, flags, order):
    """Each on a journal of its own, and one ledger."""
    published = []
    for number, sets in enumerate(order):
        machine = Machine()
        with (
            ledger_at(tmp_path / "ledger", ()) as (ledger, keys),
            Journal(tmp_path / f"journal{number}", "the ledger 5eed") as journal,
        ):
            settings = load(None, flags if sets is None else sets, {})
            runtime = LiveRuntime(
                settings, ledger, SeededEntropy(1), keys.hash_plate, "test", journal, Outputs(published.extend),
                clock=machine.clock(),
            )  # fmt: skip
            runtime.start()

            def go_on(machine=machine, runtime=runtime):
                for minute in range(50):
                    machine.now_s = START / 1000 + 60 * minute + 30
                    runtime.take([ping(plate, START + minute * MINUTE) for plate in "abc"])
                    runtime.tick()

            if number == 0:
                go_on()
                first = len(published)
                assert first > 1
            else:
                with pytest.raises(PrivacyRefused, match=r"privacy\.neighbours"):
                    go_on()
    assert len(published) == first


def test_one_after_the_other_each_has_its_records_estimates_and_words_in_the_statement(
    tmp_path, flags
):
    log(tmp_path)
    counted = replay(tmp_path, COUNTED, "--smoothed", "first")
    log(tmp_path, START + DAY)
    hidden = replay(tmp_path, flags, *span(START + DAY, 8), "--smoothed", "second")
    log(tmp_path, START + 2 * DAY)
    again = replay(tmp_path, COUNTED)
    assert {Release.decode(line).privacy.neighbours for line in hidden} == {"add-remove"}
    assert {len(counted), len(again)} == {8} and len(hidden) == 8 * CELLS
    assert sorted(ledger_verb(tmp_path, "releases").splitlines()) == sorted(
        counted + hidden + again
    )
    # Nothing is estimated of a slot of the other promise, and nothing learnt of its records.
    cells = {Release.decode(line).hat.cell for line in counted}
    smoothed = ledger_verb(tmp_path, "releases", "--smoothed", sets=COUNTED).splitlines()
    days = [json.loads(line)["hat"] for line in smoothed]
    assert {hat["slot_start"][:10] for hat in days} == {"2024-01-08", "2024-01-10"}
    assert {hat["cell"] for hat in days} == cells
    smoothed = ledger_verb(tmp_path, "releases", "--smoothed", sets=flags).splitlines()
    assert {json.loads(line)["hat"]["slot_start"][:10] for line in smoothed} == {"2024-01-09"}
    assert smoothed == (tmp_path / "second").read_bytes().splitlines()
    # Whatever configuration it is asked with, it says what is not protected.
    found = [json.loads(ledger_verb(tmp_path, "export", sets=sets)) for sets in (COUNTED, flags)]
    for stated in found:
        details = stated["details"]
        assert (
            details["unprotected_quantities"] == found[0]["details"]["unprotected_quantities"] != []
        )
        adjacency = details["privacy_unit_details"]["adjacency"]
        assert "swap-values: " in adjacency and "add-remove: " in adjacency
        assert len(stated["privacy"]["privacy_loss"]["periods"]) == 3
        for text in (stated["basic"]["description"], *details["accounting"].values()):
            assert "swap-values: " in text and "add-remove: " in text
        assert stated["hats_recorded"] == 8 * CELLS + 16
    with ledger_at(tmp_path / "city.ledger", ()) as (ledger, _):
        assert ledger.verify() == []
