"""The history: all slots that were read, whatever the order, also after a restart; spans of it over
HTTP."""

import json
import sqlite3
from contextlib import ExitStack, closing
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from tests.board import START, cells, estimate, get, release, write
from udp_stream.dashboard import follow, server
from udp_stream.dashboard.follow import GrowingFile, feed, growing
from udp_stream.dashboard.history import History, HistoryError, TimeRange, opened
from udp_stream.dashboard.server import Dashboard, serving
from udp_stream.dashboard.slots import Slots

HOURS, KEPT = 60, 5
CELLS = cells(3)


def lines_of(make, hours=range(HOURS)):
    return [make(cell, hour) for hour in hours for cell in CELLS]


def start_ms(hour):
    return round((START + timedelta(hours=hour)).timestamp() * 1000)


def whole(path, *readings, kept=KEPT):
    slots = Slots(kept, history=opened(str(path)))
    for lines in readings:
        slots.take(lines)
        slots.show()
    return slots


def texts(slots):
    return [
        [
            slots.slot_at(start_ms(hour)).parts[kind].opened().read()
            for kind in ("releases", "estimates")
        ]
        for hour in range(HOURS)
    ]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "history.sqlite"


def test_all_that_was_read_is_there_also_of_slots_that_are_no_longer_kept(file):
    """One file after the other: estimates come when their slots have left the memory."""
    slots = whole(file, lines_of(release), lines_of(estimate))
    assert len(slots.shown.slots) == KEPT
    known = whole(file.with_name("none"), lines_of(release), lines_of(estimate), kept=HOURS)
    assert texts(slots) == texts(known)
    assert [slots.slot_at(start_ms(hour)).version for hour in (0, 30)] == [
        known.slot_at(start_ms(hour)).version for hour in (0, 30)
    ]
    assert slots.slots_in(TimeRange(), "estimates") == [
        (start_ms(hour), 3) for hour in range(HOURS)
    ]


def test_the_records_of_slots_that_are_not_asked_for_stay_out(file):
    """Slots that are in memory are newer than the history's, and may lie between others."""
    history = whole(file, lines_of(release)).history
    asked = [start_ms(hour) for hour in (2, 3, 7)]
    assert [start for start, _ in history.parts("releases", asked)] == asked
    assert list(history.parts("releases", [])) == []


def test_after_a_restart_the_newest_are_shown_and_the_same_records_change_nothing(file):
    before = whole(file, lines_of(release), lines_of(estimate))
    before.history.close()
    again = Slots(KEPT, history=opened(str(file)))
    assert [one.version for one in again.shown.slots] == [one.version for one in before.shown.slots]
    assert json.loads(again.shown.outlines.opened().read()).keys() == set(CELLS)
    changes = again.shown.change
    again.take(lines_of(release) + lines_of(estimate))
    assert not again.show() or again.shown.change == changes
    assert texts(again) == texts(before)


def test_a_file_of_others_of_a_later_version_or_in_use_is_said_and_there_is_no_history(
    file, capsys
):
    history = History(str(file))
    with pytest.raises(HistoryError, match="another dashboard"):
        History(str(file))
    history.close()
    with sqlite3.connect(file) as later:
        later.execute("PRAGMA user_version = 9")
    later.close()
    assert opened(str(file)) is None
    other = file.with_name("other")
    other.write_bytes(b"lines of something else\n" * 100)
    assert opened(str(other)) is None
    assert opened(str(file.with_name("missing") / "history")) is None
    assert capsys.readouterr().err.count("no history is kept") == 3


def test_a_full_disk_ends_the_history_and_nothing_else(file, capsys):
    slots = whole(file, lines_of(release, range(KEPT)))
    slots.history._writing.execute("PRAGMA max_page_count = 20")
    slots.take(lines_of(release))
    assert slots.show() and slots.history is None and len(slots.shown.slots) == KEPT
    assert "full" in capsys.readouterr().err


def sql(statement):
    def damage(file):
        with closing(sqlite3.connect(file)) as history, history:
            history.execute(statement)

    return damage


def overwritten(start, many=512):
    """From this share of the file on."""

    def damage(file):
        text = bytearray(file.read_bytes())
        at = int(start * len(text))
        text[at : at + many] = b"\xa5" * many
        file.write_bytes(text)

    return damage


DAMAGES = {
    "head": overwritten(0, 60), "schema": overwritten(0, 4096), "middle": overwritten(0.5), "end": overwritten(0.9),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "records": sql("UPDATE parts SET body = randomblob(length(body))"),
    "one record": sql("UPDATE parts SET body = substr(body, 1, 40) || x'00' || substr(body, 42)"),
    "blocks": sql("UPDATE parts SET blocks = x'5b'"), "slots": sql("UPDATE slots SET listed = x'7b'"),
    "times": sql("UPDATE slots SET listed = replace(listed, ':00', ';00')"),
    "cells": sql("INSERT INTO cells VALUES ('zzzz')"), "table": sql("DROP TABLE parts"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_set_aside_and_the_records_are_shown(damage, file, capsys):
    lines = lines_of(release), lines_of(estimate)
    before = whole(file, *lines)
    before.history.close()
    DAMAGES[damage](file)
    again = whole(file, *lines)
    said, aside = capsys.readouterr().err, file.with_name(f"{file.name}.damaged")
    if damage == "schema":  # nothing tells whose it was
        assert again.history is None and not aside.exists() and str(file) in said
        return
    assert aside.exists() and said.count("\n") == 1 and str(file) in said and str(aside) in said
    assert [one.version for one in again.shown.slots] == [one.version for one in before.shown.slots]
    if again.history is not None:
        again.history.close()
    assert texts(whole(file, *lines)) == texts(whole(file.with_name("other"), *lines, kept=HOURS))


def test_a_file_that_is_damaged_while_it_is_used_is_none_from_then_on(file, capsys):
    slots = whole(file, lines_of(release))
    board = Dashboard(slots)
    with serving(board, "127.0.0.1:0") as address:
        DAMAGES["records"](file)
        paths = f"releases?from={day(0)}", f"releases?slot={START.isoformat()}", "slots", "releases"
        assert [get(f"{address}v1/{path}")[0] for path in paths] == [503, 404, 200, 200]
    assert file.with_name(f"{file.name}.damaged").exists() and slots.history is None
    slots.take(lines_of(release, range(HOURS, HOURS + 1)))
    assert slots.show() and str(file) in capsys.readouterr().err


def test_of_large_files_the_newest_come_first_and_in_the_end_all_is_as_it_is_written(file, limits):
    class Enough(Exception):
        pass

    def at_end(_):
        ends.append([slot.start_ms for slot in slots.shown.slots])
        if len(ends) == 2:
            raise Enough

    limits(follow, NEWEST_BYTES=2**14)
    write(file.with_name("r"), [*lines_of(release), b"none"])
    write(
        file.with_name("e"),
        [*lines_of(estimate), estimate(CELLS[0], HOURS - 1, 9.0), estimate(CELLS[1], 0, 8.0)],
    )
    slots, ends = Slots(KEPT, history=opened(str(file))), []
    with ExitStack() as stack, pytest.raises(Enough):
        files = [stack.enter_context(closing(GrowingFile(file.with_name(name)))) for name in "re"]
        feed(growing(files), slots, at_end)
    assert (
        ends == [[start_ms(hour) for hour in range(HOURS - KEPT, HOURS)]] * 2 and slots.refused == 1
    )
    both = [file.with_name(name).read_bytes().splitlines() for name in "re"]
    assert texts(slots) == texts(whole(file.with_name("other"), *both, kept=HOURS))


def test_what_the_history_has_is_not_written_again(file):
    whole(file, lines_of(release), lines_of(estimate)).history.close()
    with closing(sqlite3.connect(file)) as history, history:
        history.execute("CREATE TABLE written (start_ms INTEGER)")
        history.execute(
            "CREATE TRIGGER told AFTER INSERT ON parts BEGIN INSERT INTO written VALUES (new.start_ms); END"
        )
    again = whole(file, lines_of(release), lines_of(estimate), [estimate(CELLS[0], 0, 9.0)])
    with closing(sqlite3.connect(file)) as history:
        written = {start for (start,) in history.execute("SELECT start_ms FROM written")}
    assert written - {slot.start_ms for slot in again.shown.slots} == {start_ms(0)}


@pytest.fixture
def address(file, limits):
    limits(server, RECORDS_MAX=50)
    slots = whole(file, lines_of(release), lines_of(estimate))
    board = Dashboard(slots)
    board.announce(changed=False)
    with serving(board, "127.0.0.1:0") as found:
        yield found.rstrip("/")


def day(number):
    return (START + timedelta(days=number)).date().isoformat()


def test_v1_answers_for_any_slot_and_for_spans_in_pages(address):
    status, _, body = get(f"{address}/v1/releases?slot={START.isoformat()}")
    assert status == 200 and body.count(b"\n") == 3
    found, path = [], f"/v1/releases?from={day(0)}&to={day(2)}"
    while path:
        status, headers, body = get(address + path)
        assert status == 200 and 0 < body.count(b"\n") <= 50
        found += body.splitlines()
        link = headers.get("Link", "")
        path = link[1 : link.index(">")] if link else ""
        assert not path or urlsplit(path).path == "/v1/releases"
    assert found == sorted(
        lines_of(release, range(42)), key=lambda line: json.loads(line)["hat"]["slot_start"]
    )
    of_cell = get(f"{address}/v1/estimates?cell={CELLS[1]}&from={day(0)}&to={day(1)}&form=csv")[2]
    assert of_cell.count(b"\n") == 1 + 18
    listed = json.loads(get(f"{address}/v1/slots?from={day(1)}&to={day(2)}")[2])["slots"]
    assert len(listed) == 24 and all(one["estimates"] == 3 for one in listed)
    assert json.loads(get(f"{address}/v1/slots")[2])["days"] == [day(0), day(2)]
    for query in ("from=monday", "slot=latest&from=2024-01-08", "to=2024-01-08T00:00"):
        assert get(f"{address}/v1/releases?{query}")[0] == 400


@pytest.mark.parametrize("places", [0, 1])
def test_whole_histories_have_a_lane_that_ends_in_503_and_nothing_else_waits_in_it(
    places, file, limits
):
    limits(server, BULK_MAX=places)
    with serving(
        Dashboard(whole(file, lines_of(release), lines_of(estimate))), "127.0.0.1:0"
    ) as address:
        for kind in ("releases", "estimates", "releases"):
            status, headers, _ = get(f"{address}v1/{kind}?from={day(0)}&form=csv")
            assert (status, int(headers.get("Retry-After", 0)) > 0) == (
                (200, False) if places else (503, True)
            )
        for query in (
            f"cell={CELLS[0]}",
            f"cell={CELLS[0]}&from={day(0)}",
            "slot=latest&form=csv",
            "slot=latest",
        ):
            assert get(f"{address}v1/estimates?{query}")[0] == 200
        assert get(f"{address}v1/slots?from={day(0)}")[0] == 200
