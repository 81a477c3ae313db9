"""What the dashboard keeps of records, and how it reads files that go on."""

import json
import random
import tracemalloc
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.board import cells, estimate, hat, release, withdrawal, write
from udp_stream.base.errors import UsageError
from udp_stream.dashboard.follow import GrowingFile, feed, growing
from udp_stream.dashboard.slots import (
    CELLS_MAX,
    LINE_BYTES_MAX,
    OPEN_BYTES,
    Slots,
    milliseconds_of,
    of_cell,
)
from udp_stream.dashboard.snapshot import BLOCK, NOTHING

CELLS = cells(6)
TWO_SLOTS = [make(cell, hour) for hour in (0, 1) for make in (release, estimate) for cell in CELLS]


def shown(lines, most=48):
    slots = Slots(most)
    slots.take(lines)
    slots.show()
    return slots.shown


def versions(view):
    return [(slot.start_ms, slot.version) for slot in view.slots]


def listed(view):
    return json.loads(view.listing.opened().read())["slots"]


@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_what_is_shown_follows_from_the_records_alone_whatever_their_order_and_however_often_they_come(
    rng, pieces
):
    slots, lines = Slots(48), TWO_SLOTS + rng.sample(TWO_SLOTS, 7)
    rng.shuffle(lines)
    for piece in range(pieces):
        slots.take(lines[piece::pieces])
        slots.show()
    expected = shown(TWO_SLOTS)
    assert versions(slots.shown) == versions(expected)
    assert slots.shown.listing == expected.listing and slots.shown.outlines == expected.outlines
    for slot in slots.shown.slots:
        for kind, make in (("releases", release), ("estimates", estimate)):
            hour = (slot.start_ms - expected.slots[0].start_ms) // 3_600_000
            assert slot.parts[kind].opened().read() == b"".join(
                make(cell, hour) + b"\n" for cell in sorted(CELLS)
            )


def test_a_record_in_place_of_another_changes_its_slot_alone_and_the_same_again_changes_nothing():
    slots = Slots(48)
    slots.take(TWO_SLOTS)
    assert slots.show()
    before = slots.shown
    slots.take(TWO_SLOTS)
    assert not slots.show() and slots.shown == before
    slots.take([estimate(CELLS[0], 1, kmh=3.0)])
    assert slots.show()
    first, second = slots.shown.slots
    assert first == before.slots[0] and first.change < second.change > before.slots[1].change
    assert (
        second.version != before.slots[1].version
        and b'"value_kmh":3.0' in second.parts["estimates"].opened().read()
    )
    assert second.parts["releases"] == before.slots[1].parts["releases"]


def test_the_newest_slots_are_kept_in_whatever_order_they_come():
    hours = list(range(30))
    random.Random(1).shuffle(hours)
    view = shown([release(CELLS[0], hour) for hour in hours], most=5)
    assert [slot.start_ms for slot in view.slots] == [
        milliseconds_of(hat(CELLS[0], hour)["slot_start"]) for hour in range(25, 30)
    ]


def test_little_lies_unpacked_however_large_a_slot_is_and_however_often_it_is_packed():
    many = cells(2500)

    def line(cell, hour):
        return release(cell, hour, software="x" * 1000)

    slots = Slots(48)
    tracemalloc.start()
    try:
        slots.take(
            line(cell, hour) for part in (0, 1) for hour in range(3) for cell in many[part::2]
        )
        assert slots.show()
        assert tracemalloc.get_traced_memory()[1] < 2.5 * OPEN_BYTES
    finally:
        tracemalloc.stop()
    for hour, slot in enumerate(slots.shown.slots):
        assert slot.parts["releases"].size > OPEN_BYTES and slot.hats == {"released": len(many)}
        assert slot.parts["releases"].opened().read().splitlines() == [
            line(cell, hour) for cell in sorted(many)
        ]


def test_a_cell_is_found_in_whatever_block_its_line_is():
    for number in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5):
        many = cells(number + 1)
        (slot,) = shown([release(cell) for cell in many[:-1]] + [estimate(CELLS[0])]).slots
        for cell in (*sorted(many)[:: max(1, number // 9)], *many[-3:], "0" * 15, "f" * 15):
            there = [release(cell)] if cell in many[:-1] else []
            assert of_cell(slot.parts["releases"], cell) == [line + b"\n" for line in there]


def test_one_instant_is_one_slot_in_whatever_offset_it_is_written():
    east = release(CELLS[1], 0, hat=hat(CELLS[1], 5, "+05:00"))
    (slot,) = shown([release(CELLS[0], 0), east]).slots
    assert slot.parts["releases"].lines == 2


def test_releases_are_counted_by_status_and_every_cell_has_its_outline():
    lines = [release(cell, 0, status="withheld_budget", mean=None) for cell in CELLS[:2]] + [
        release(CELLS[2], 0)
    ]
    view = shown([*lines, *(estimate(cell) for cell in CELLS)])
    assert (
        listed(view)[0]["hats"] == {"released": 1, "withheld_budget": 2}
        and listed(view)[0]["estimates"] == 6
    )
    outlines = json.loads(view.outlines.opened().read())
    assert sorted(outlines) == sorted(CELLS)
    assert all(
        ring[0] == ring[-1] and len(ring) >= 7 for rings in outlines.values() for ring in rings
    )


@pytest.mark.parametrize(
    ("costs", "kept", "share"),
    [
        ([("slot", 0.2), ("slot", 0.5), ("record", 0.25)], 9, 3 * 0.075), ([("period", 10.0)] * 3, 9, 1.0),
        ([("record", 0.0)] * 3, 9, 0.0), ([("record", 0.0)] * 3, 3, 1.0),  # of slots that are gone nothing is known
    ],
)  # fmt: skip
def test_what_a_day_has_cost_a_plate_at_most(costs, kept, share):
    """Costs of a slot's records together are the largest, others add up, from hour to hour; of ten."""
    slots, privacy = (
        Slots(kept),
        json.loads(release(CELLS[0]))["privacy"] | {"period_epsilon": 10.0},
    )
    for name in ("rho", "period_rho", "delta"):
        privacy.pop(name, None)
    for hour in range(-24, 3):
        slots.take(
            release(
                cell,
                hour,
                privacy=privacy | {"accounting": "pure", "holds_for": holds, "epsilon": epsilon},
            )
            for cell, (holds, epsilon) in zip(CELLS, costs, strict=False)
            if hour >= 0 or hour == -24
        )
    slots.show()
    assert slots.spent().share == pytest.approx(share) and slots.spent().day == "2024-01-08"


def test_withdrawals_are_beside_the_records_that_they_withdraw():
    lines = [*map(release, CELLS), *map(estimate, CELLS)]
    plain, marked = shown(lines), shown([withdrawal(CELLS[1]), *lines, withdrawal(CELLS[1])])
    (before,), (after,) = listed(plain), listed(marked)
    assert (
        after["withdrawn"] == 1
        and "withdrawn" not in before
        and after["version"] != before["version"]
    )
    assert after["hats"] == before["hats"]
    (slot,) = marked.slots
    assert slot.parts["withdrawals"].opened().read() == withdrawal(CELLS[1]) + b"\n"
    assert slot.parts["releases"] == plain.slots[0].parts["releases"]
    assert versions(shown([withdrawal(CELLS[1], hour=-30), *lines])) == versions(plain)


PING = b'{"license_plate":"GJ05ZZ0001","observationDateTime":"2024-01-08T06:00:00Z","speed":12.0}'


@pytest.mark.parametrize(
    "line",
    [
        PING, b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"schema":1}', b'{"schema":"udp-stream/query/1"}', b"[" * 10**5,
        b'{"schema":' * 10_000, release(CELLS[0]) + b"x", release(CELLS[0], plate="GJ05ZZ0001"),
        release(CELLS[0], status="told"), json.dumps(json.loads(release(CELLS[0])), indent=1).encode(),
        release(CELLS[0], software="x" * LINE_BYTES_MAX), estimate(CELLS[0], kmh=-1.0), estimate(CELLS[0], kmh="<b>"),
        release(CELLS[0], hat=hat("f" * 15, 0)), release(CELLS[0], hat=hat("0" * 15, 0)),
        release(CELLS[0], hat=hat(CELLS[0], 0) | {"slot_start": "2024-01-08T06:00:00"}),
        release(CELLS[0], hat=hat(CELLS[0], 0) | {"slot_start": "<script>"}),
        release(CELLS[0], hat=hat(CELLS[0], 0) | {"slot_end": "2024-01-08T06:00:00Z"}),
        release(CELLS[0], hat=hat(CELLS[0], 0) | {"slot_start": "0001-01-01T00:00:00+23:59"}),
        release(CELLS[0], hour=50 * 8766),
    ],
    ids=range(24),
)  # fmt: skip
def test_what_is_no_record_is_counted_and_the_rest_is_shown(line):
    slots = Slots(48)
    assert slots.take([release(CELLS[1]), line, release(CELLS[2])]).total() == 1
    slots.show()
    assert slots.refused == 1
    assert [slot.parts["releases"].lines for slot in slots.shown.slots] == [2]


WORDS = st.text(max_size=9)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
)
FIELDS = [*json.loads(TWO_SLOTS[0]), *(f"hat.{name}" for name in hat(CELLS[0], 0))]


@given(VALUES, st.sampled_from(FIELDS), st.booleans())
def test_no_value_of_a_field_is_too_much(value, path, is_release):
    record = json.loads((release if is_release else estimate)(CELLS[0]))
    holder = record["hat"] if path.startswith("hat.") else record
    holder[path.removeprefix("hat.")] = value
    slots = Slots(48)
    refused = slots.take([json.dumps(record).encode("utf-8", "surrogatepass"), release(CELLS[1])])
    slots.show()
    assert refused.total() in (0, 1)
    assert any(
        release(CELLS[1]) in slot.parts["releases"].opened().read() for slot in slots.shown.slots
    )
    assert json.loads(slots.shown.listing.opened().read()) and json.loads(
        slots.shown.outlines.opened().read()
    )


def test_cells_without_end_are_refused(limits):
    limits("udp_stream.dashboard.slots", CELLS_MAX=4)
    slots = Slots(48)
    assert slots.take(map(release, CELLS)) == {"too many cells": 2} and CELLS_MAX > 4
    assert slots.take([estimate(CELLS[0])]).total() == 0


# Files


def lines_of(file):
    found = []
    while some := file.read():
        found += some
    return found


@given(st.lists(st.binary(min_size=1, max_size=40).filter(lambda line: b"\n" not in line), max_size=12),
       st.lists(st.integers(0, 500), max_size=12))  # fmt: skip
def test_lines_come_once_and_whole_however_the_file_grows(tmp_path_factory, lines, cuts):
    path, text = (
        tmp_path_factory.mktemp("grows") / "records",
        b"".join(line + b"\n" for line in lines),
    )
    found = []
    with closing(GrowingFile(path)) as file:
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
            with path.open("ab") as out:
                out.write(text[start:end])
            found += lines_of(file)
    assert found == lines


def test_a_file_that_appears_rotates_and_is_emptied_is_read_from_each_start_on(tmp_path):
    path = tmp_path / "records"
    with closing(GrowingFile(path)) as file:
        assert lines_of(file) == []
        write(path, [b"one", b"two"])
        assert lines_of(file) == [b"one", b"two"]
        path.rename(tmp_path / "records.1")
        assert lines_of(file) == []
        write(tmp_path / "records.1", [b"three"])  # by who has it open still
        write(path, [b"four"])
        assert lines_of(file) == [b"three", b"four"]
        write(path, [b"5"], "wb")  # emptied, and shorter
        assert lines_of(file) == [b"5"]
        write(path, [b"six", b"seven", b"eight"], "wb")  # emptied, and longer than it was
        assert lines_of(file) == [b"six", b"seven", b"eight"]
        path.unlink()
        assert lines_of(file) == []
        write(path, [b"nine"])
        assert lines_of(file) == [b"nine"]


def test_half_a_line_waits_and_is_nobodys_beginning(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"one\ntw")
    with closing(GrowingFile(path)) as file:
        assert lines_of(file) == [b"one"]
        path.rename(tmp_path / "old")
        write(path, [b"three"])
        assert lines_of(file) == [b"three"]


def test_a_line_without_end_takes_no_memory_and_hides_nothing(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"x" * (5 * LINE_BYTES_MAX) + b"\n" + release(CELLS[0]) + b"\n")
    with closing(GrowingFile(path)) as file:
        (long, good), slots = lines_of(file), Slots(48)
    assert len(long) <= 3 * LINE_BYTES_MAX and good == release(CELLS[0])
    assert slots.take([long, good]).total() == 1


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UsageError):
        GrowingFile(tmp_path)


def test_what_is_refused_is_said_once_for_each_file_and_not_quoted(tmp_path, capsys):
    class Enough(Exception):
        pass

    def at_end(changed):
        ends.append(changed)
        write(tmp_path / "pings.ndjson", [PING])
        if len(ends) == 3:
            raise Enough

    write(tmp_path / "pings.ndjson", [PING, PING])
    write(tmp_path / "releases.ndjson", [release(CELLS[0])])
    slots, ends = Slots(48), []
    files = [GrowingFile(tmp_path / name) for name in ("pings.ndjson", "releases.ndjson")]
    with closing(files[0]), closing(files[1]), pytest.raises(Enough):
        feed(growing(files), slots, at_end)
    said = capsys.readouterr().err
    assert said.count("pings.ndjson") == 1 and "releases.ndjson" not in said and "GJ05" not in said
    assert (
        slots.refused == 4
        and ends == [True, False, False]
        and slots.shown.slots[0].parts["estimates"] == NOTHING
    )
