"""The page in a real browser, over records that a replay has made."""

import json
import os
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests import board as made
from tests.board import get, wait_for, write
from tests.browser.big_city import many_cells, many_lines
from tests.browser.conftest import Day, replayed, served, synthetic
from tests.forms import long_but, long_rows
from tests.timetables import files_of, zipped
from udp_stream.dashboard.server import Dashboard, serving
from udp_stream.dashboard.slots import Slots
from udp_stream.sources.fleet import Fleet
from udp_stream.sources.timetable import network_of
from udp_stream.windows.grid import HEXAGONS

pytestmark = pytest.mark.browser

PICTURE = Path(__file__).parents[2] / "docs" / "dashboard.png"
STEPS = 10, 15, 20, 25, 30
FOCUSED = "document.activeElement.closest('tr')?.dataset.cell"


def cells_of(page, selector):
    return [
        path.get_attribute("data-cell")
        for path in page.query_selector_all(f"#map path.cell{selector}")
    ]


def show(page, slot):
    slots = [*hats_of(address_of(page))]
    page.locator("#slot").fill(str(slots.index(slot)))
    page.wait_for_selector(f'body[data-slot="{slot}"]')


def hats_of(address):
    """How many HATs each slot has that is there, in order."""
    listed = json.loads(get(f"{address}/v1/slots")[2])["slots"]
    return {one["slot_start"]: sum(one["hats"].values()) for one in listed}


def address_of(page):
    parts = urlsplit(page.url)
    return f"{parts.scheme}://{parts.netloc}"


def view_of(page):
    return {
        path.get_attribute("data-cell"): path.bounding_box()
        for path in page.query_selector_all("#map path.cell")
    }


def centre_of(box):
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def fullest(day):
    return max(day.slots, key=lambda slot: len(day.kinds(slot)["solid"]))


def edited(day, folder, slot, changes):
    for (start, cell), estimate in day.estimates.items():
        if start == slot and cell in changes:
            day.estimates[start, cell] = estimate | changes[cell]
    write(folder / "records.ndjson", day.lines(slot))
    return [folder / "records.ndjson"]


@pytest.fixture
def copy(day):
    return Day(day.files)


def test_no_other_host_is_asked(board, new_page):
    page = new_page(board)
    page.locator("#map").hover()
    page.wait_for_timeout(500)
    assert page.asked
    assert [url for url in page.asked if not url.startswith(board)] == []
    assert page.wrong == []


def test_a_proxy_may_have_it_under_a_path(board, day, new_page):
    page = new_page(
        board,
        under="/city/buses",
        slot=fullest(day),
        cell=sorted(day.kinds(fullest(day))["solid"])[0],
    )
    page.locator("#live.is-open").wait_for()
    page.wait_for_selector("#day .bar >> nth=0")
    links = page.eval_on_selector_all("#downloads a", "links => links.map((link) => link.href)")
    assert (
        [url for url in page.asked + links if not url.startswith(f"{board}/city/buses/")]
        == []
        == page.wrong
    )


def test_marks_are_those_of_the_records(board, day, new_page):
    page = new_page(board)
    seen = {"solid": 0, "striped": 0, "dotted": 0}
    for slot in day.slots:
        show(page, slot)
        kinds = day.kinds(slot)
        for kind in seen:
            assert sorted(cells_of(page, f".{kind}")) == sorted(kinds[kind]), (slot, kind)
            assert page.locator(f"#cells tbody .chip.{kind}").count() == len(kinds[kind])
            seen[kind] += len(kinds[kind])
        news = {
            cell
            for (start, cell), one in day.estimates.items()
            if start == slot and one["news"] > 0.5
        }
        assert set(cells_of(page, ".news")) == news - kinds["dotted"]
        for cell in kinds["solid"] | kinds["striped"]:
            kmh = int(day.estimates[slot, cell]["value_kmh"] + 0.5)
            step = sum(kmh >= start for start in STEPS)
            assert f"step-{step}" in page.locator(f'path[data-cell="{cell}"]').get_attribute(
                "class"
            )
        told = re.findall(r"\d+", page.locator("#summary").inner_text())
        counts = [
            sum(map(len, kinds.values())),
            len(kinds["solid"]),
            len(kinds["striped"]),
            len(kinds["dotted"]),
        ]
        assert [int(number) for number in told[:4]] == counts
    assert all(seen.values())
    assert page.wrong == []


def test_numbers_are_in_cells_that_are_wide_enough(board, day, new_page):
    slot = fullest(day)
    page = new_page(board, slot=slot)
    for _ in range(2):
        page.locator(".leaflet-control-zoom-in").click()
        page.wait_for_timeout(400)
    for kind, before in (("solid", ""), ("striped", "~")):
        cells = day.kinds(slot)[kind]
        numbers = {f"{before}{int(day.estimates[slot, cell]['value_kmh'] + 0.5)}" for cell in cells}
        written = page.locator(f"#map .over text.{kind}").all_text_contents()
        assert written
        assert set(written) <= numbers
    for _ in range(6):
        page.locator(".leaflet-control-zoom-out").click()
        page.wait_for_timeout(400)
    assert page.locator("#map .over text").count() == 0


def test_without_a_release_a_value_is_a_guess(copy, tmp_path, new_page):
    """However narrow its interval is; and with a release it is one, too, where the interval is
    wide."""
    slot = fullest(copy)
    measured = sorted(copy.kinds(slot)["solid"])
    edges = {10.0: "solid", 10.001: "striped", 20.0: "striped", 20.001: "dotted"}
    changes = {
        cell: {"interval95_kmh": [8.3, 8.3 + width]}
        for cell, width in zip(measured, edges, strict=False)
    }
    withheld = next(
        cell
        for (start, cell), one in copy.releases.items()
        if start == slot and one["mean"] is None
    )
    changes[withheld] = {"interval95_kmh": [14.0, 16.0], "value_kmh": 15.0}
    with served(edited(copy, tmp_path, slot, changes)) as address:
        page = new_page(address)
        for cell, kind in zip(measured, edges.values(), strict=False):
            assert cell in cells_of(page, f".{kind}")
        assert withheld in cells_of(page, ".dotted")
        assert page.locator(f'tr[data-cell="{withheld}"] .chip').inner_text() == "15?"


@pytest.mark.parametrize("way", long_but(["click", "key"], ["click", "row", "key"]))
def test_the_panel_opens_by(way, board, day, new_page):
    slot = fullest(day)
    page = new_page(board, slot=slot)
    cell = sorted(day.kinds(slot)["solid"])[0]
    if way == "click":
        page.locator(f'path[data-cell="{cell}"]').click()
    elif way == "row":
        page.locator(f'tr[data-cell="{cell}"] td').first.click()
    else:
        page.locator("#cells thead button").last.focus()
        page.keyboard.press("Tab")
        while page.evaluate(FOCUSED) != cell:
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
    page.wait_for_selector("#panel .figure")
    estimate, release = day.estimates[slot, cell], day.releases[slot, cell]
    said = page.locator("#panel .sentences").inner_text()
    figures = [estimate["value_kmh"], *estimate["interval95_kmh"], release["counts"]["plates"]]
    figures.append(estimate["guess"]["counts_kmh"])
    assert re.findall(r"\d+", said) == [str(int(kmh + 0.5)) for kmh in figures]
    assert cells_of(page, ".chosen") == [cell]
    assert page.locator("#cells tr.chosen").get_attribute("data-cell") == cell
    page.keyboard.press("Escape")
    assert page.locator("#panel .figure").count() == 0
    assert cells_of(page, ".chosen") == []
    assert page.evaluate(FOCUSED) == cell
    page.keyboard.press("Tab")  # the other rows are no stops on the way
    assert page.evaluate("document.activeElement.closest('#map-section') !== null")


def test_a_cells_day_has_a_bar_for_each_slot(board, day, new_page):
    slot = fullest(day)
    cell = sorted(day.kinds(slot)["solid"])[0]
    page = new_page(board, slot=slot, cell=cell)
    mine = [
        start for start in day.slots if start[:10] == slot[:10] and (start, cell) in day.estimates
    ]
    page.wait_for_selector("#day .bar >> nth=0")
    assert page.locator("#day .bar").count() == len(mine)
    thin = [start for start in mine if cell in day.kinds(start)["dotted"]]
    assert page.locator("#day .bar.thin").count() == len(thin)


@pytest.mark.parametrize(
    ("error", "is_drawn"),
    long_rows(
        [(0.15, True), (0.151, False)], [(0.149, True), (0.15, True), (0.151, False), (0.4, False)]
    ),
)
def test_a_cdf_is_drawn_where_it_errs_little(error, is_drawn, copy, tmp_path, new_page):
    slot = fullest(copy)
    cell = next(
        cell for (start, cell), one in copy.estimates.items() if start == slot and one["cdf"]
    )
    with served(edited(copy, tmp_path, slot, {cell: {"expected_sup_error": error}})) as address:
        page = new_page(address, cell=cell)
        assert page.locator("#cdf").count() == is_drawn
        said = page.locator("#panel .spread").inner_text()
    figure = copy.estimates[slot, cell]["share_below_kmh"]["10"] if is_drawn else error
    assert re.search(r"\d+", said)[0] == str(int(100 * figure + 0.5))


def test_what_is_not_as_usual_is_marked_and_comes_first_and_no_guess_is(copy, tmp_path, new_page):
    slot = fullest(copy)
    kinds = copy.kinds(slot)
    solid, usual = sorted(kinds["solid"])[:2]
    guess = sorted(kinds["dotted"])[0]
    changes = {cell: {"news": 0.1} for _, cell in copy.estimates}
    changes |= {solid: {"news": 0.51}, guess: {"news": 0.9}, usual: {"news": 0.5}}
    with served(edited(copy, tmp_path, slot, changes)) as address:
        page = new_page(address, cell=guess)
        assert page.locator("#map .over .mark").count() == 1
        assert cells_of(page, ".news") == [solid]
        rows = page.locator("#cells tbody tr")
        order = [rows.nth(i).get_attribute("data-cell") for i in range(rows.count())]
        assert page.locator("#panel .alert").count() == 0
        rows.first.locator("td").first.click()
        page.locator("#panel .alert").wait_for()
        assert "1 is not as usual" in page.locator("#summary").inner_text()
    assert order[0] == solid
    measured = [cell for cell in order[1:] if cell not in kinds["dotted"]]
    speeds = [copy.estimates[slot, cell]["value_kmh"] for cell in measured]
    assert speeds == sorted(speeds)
    assert order[1 : 1 + len(measured)] == measured


def test_what_is_withdrawn_is_marked_with_its_reason_and_measures_nothing(copy, tmp_path, new_page):
    slot, reason = fullest(copy), "<b>speeds</b> were in mph"
    cell = sorted(copy.kinds(slot)["solid"])[0]
    (file,), one = edited(copy, tmp_path, slot, {}), copy.releases[slot, cell]
    mark = {"schema": "udp-stream/withdrawal/1", "release_id": f"withdrawn:{one['release_id']}"}
    mark |= {"withdraws": one["release_id"], "hat": one["hat"], "reason": reason}
    mark |= {"withdrawn_at": "2024-01-09T00:00:00+00:00", "software": "test"}
    with file.open("ab") as out:
        out.write(json.dumps(mark).encode() + b"\n")
    with served([file]) as address:
        page = new_page(address, cell=cell)
        assert cell in cells_of(page, ".dotted")
        assert reason in page.locator("#panel .alert").inner_text()
        assert "withdrawn" in page.locator(f'#cells tr[data-cell="{cell}"]').inner_text()
        assert "1 is withdrawn" in page.locator("#summary").inner_text()


def test_a_column_sorts_the_table(board, day, new_page):
    slot = fullest(day)
    page = new_page(board, slot=slot)
    button = page.locator("#cells thead button").last
    orders = {}
    for _ in range(3):
        button.click()
        direction = page.locator("#cells thead th").last.get_attribute("aria-sort")
        cells = page.eval_on_selector_all(
            "#cells tbody tr", "rows => rows.map((row) => row.dataset.cell)"
        )
        orders[direction] = [
            day.releases[slot, one]["counts"]["plates"]
            for one in cells
            if (slot, one) in day.releases
        ]
    assert orders["ascending"] == sorted(orders["ascending"])
    assert orders["descending"] == sorted(orders["descending"], reverse=True)
    assert "none" in orders


def test_reasons_are_words(copy, tmp_path, new_page):
    statuses = ("withheld_few_plates", "withheld_budget", "withheld_uninformative", "withheld_unplanned",
                "withheld_partial", "withheld_unit")  # fmt: skip
    slot = fullest(copy)
    withheld = [key for key, one in copy.releases.items() if key[0] == slot and one["mean"] is None]
    for key, status in zip(withheld, statuses, strict=False):
        copy.releases[key]["status"] = status
    said = set()
    with served(edited(copy, tmp_path, slot, {})) as address:
        page = new_page(address)
        for (_, cell), _status in zip(withheld, statuses, strict=False):
            page.locator(f'#cells tr[data-cell="{cell}"] button').click()
            said.add(
                page.locator("#panel .sentences").inner_text().partition("Nothing was released")[2]
            )
            assert "withheld" not in page.locator("body").inner_text()
    assert len(said) == min(len(withheld), len(statuses))
    assert "" not in said


def test_a_grey_cell_says_why(copy, tmp_path, new_page):
    """One for each status, one whose range is too wide; in the tooltip and, counted, above the
    table."""
    statuses = ("withheld_few_plates", "withheld_budget", "withheld_uninformative", "withheld_unplanned",
                "withheld_partial", "withheld_unit")  # fmt: skip
    slot = fullest(copy)
    wide, *cells = sorted(cell for kind in ("solid", "striped") for cell in copy.kinds(slot)[kind])[
        : 1 + len(statuses)
    ]
    for cell, status in zip(cells, statuses, strict=True):
        copy.releases[slot, cell] |= {"status": status, "mean": None, "cdf": None, "variance": None}
    said = {}
    with served(edited(copy, tmp_path, slot, {wide: {"interval95_kmh": [2.0, 45.0]}})) as address:
        page = new_page(address)
        assert set(cells) <= set(cells_of(page, ".dotted.unmeasured"))
        assert wide in cells_of(page, ".dotted") and wide not in cells_of(page, ".unmeasured")
        counted = page.locator("#grey").inner_text()
        for cell in (wide, *cells):
            page.locator(f'path[data-cell="{cell}"]').hover()
            tip = page.locator(".leaflet-tooltip").inner_text()
            said[cell] = tip.rpartition("(")[2].removesuffix(")")
            assert re.search(rf"\d {re.escape(said[cell])}", counted)
    assert len(set(said.values())) == len(said) and "" not in said.values()


@pytest.mark.parametrize(
    ("scheme", "width"), long_rows([("dark", 390)], [("dark", 390), ("light", 1280)])
)
def test_privacy_is_in_words(scheme, width, board, day, new_page):
    page = new_page(board, width=width, scheme=scheme)
    page.locator("#downloads a", has_text="privacy").click()
    page.wait_for_selector("body[data-said]")
    said, told = page.locator("#said").inner_text(), json.loads(get(f"{board}/v1/privacy")[2])
    assert f"epsilon {told['newest_release']['period_epsilon']:g}" in said
    assert f"epsilon {told['year_epsilon']}" in said
    percent = re.search(r"(\d+) %|at most all", said)
    share = told["spent"]["share"]
    assert share - 1e-9 <= int(percent[1] or 100) / 100 <= share + 0.01
    assert "null" not in said and "{" not in said and page.locator("#said li").count() > 0
    found = Axe().run(page).response["violations"]
    assert (
        [one["id"] for one in found if one["impact"] in ("serious", "critical")] == [] == page.wrong
    )
    page.locator("header a").click()
    page.wait_for_selector("body[data-slot]")


def test_where_an_incident_would_not_show_the_panel_says_so(copy, tmp_path, new_page):
    """A measured cell whose interval holds two fifths of its value, one that is no more than a guess, and one
    that an incident would leave."""
    slot = fullest(copy)
    held, guessed, seen = sorted(copy.kinds(slot)["solid"])[:3]
    as_usual = {"value_kmh": 20.0, "news": 0.1}
    changes = {
        held: as_usual | {"interval95_kmh": [8.0, 26.0]},
        guessed: as_usual | {"interval95_kmh": [9.0, 30.0]},
        seen: as_usual | {"interval95_kmh": [14.0, 26.0]},
    }
    found = {}
    with served(edited(copy, tmp_path, slot, changes)) as address:
        page = new_page(address)
        for cell in changes:
            page.locator(f'path[data-cell="{cell}"]').click()
            page.wait_for_selector("#panel .sentences")
            found[cell] = "incident" in page.locator("#panel .sentences").inner_text()
    assert found == {held: True, guessed: True, seen: False}


def test_records_are_text_never_markup(copy, tmp_path, new_page):
    slot = fullest(copy)
    hostile = "<img src=x onerror=alert(1)>"
    for key, release in copy.releases.items():
        copy.releases[key] = release | {
            "privacy": release["privacy"] | {"caveats": [hostile], "period": hostile}
        }
    with served(edited(copy, tmp_path, slot, {})) as address:
        page = new_page(address)
        assert hostile in page.locator("#banner").inner_text()
        assert hostile in page.locator("#protected").inner_text()
        assert page.locator("img").count() == 0


# --- places ---

HOSTILE = "<img src=x onerror=alert(1)>"


def timetable(path, cells):
    """A stop in the middle of each of these cells; a route of the first half, and one of all."""
    stops = [
        (str(at), f"Crossing {at}", *reversed(HEXAGONS.center_of(int(cell, 16))))
        for at, cell in enumerate(cells)
    ]
    stops[0] = (stops[0][0], HOSTILE, *stops[0][2:])
    calls = [(trip, stop[0], at) for trip in ("out", "back") for at, stop in enumerate(stops)]
    calls += [("half", stop[0], at) for at, stop in enumerate(stops[: len(stops) // 2])]
    trips = [
        ("7", "daily", "out", 0, ""),
        ("7", "daily", "back", 1, ""),
        ("10", "daily", "half", 0, ""),
    ]
    return zipped(path, files_of(stops, [("7", "7", ""), ("10", "10N", "")], trips, calls))


@pytest.fixture(scope="module")
def named(day, tmp_path_factory):
    """The day with names, and the cells of its fullest slot."""
    cells = sorted(cell for start, cell in day.estimates if start == fullest(day))
    path = timetable(tmp_path_factory.mktemp("named") / "gtfs.zip", cells)
    with served(day.files, "--gtfs", path) as address:
        yield address, cells


@pytest.mark.parametrize("width", [1280, 390])
def test_names_are_in_table_tooltip_and_panel_and_are_text(width, named, day, new_page):
    address, cells = named
    page = new_page(address, width=width, slot=fullest(day), cell=cells[0])
    heading, where = page.locator("#panel h2"), page.locator("#panel .where")
    assert heading.inner_text() == HOSTILE and page.locator("img").count() == 0
    assert where.inner_text() == f"Busiest routes 7 and 10N · H3 cell {cells[0].rstrip('f')}"
    for at in (1, len(cells) - 1):
        assert (
            page.locator(f'tr[data-cell="{cells[at]}"] th button').inner_text() == f"Crossing {at}"
        )
    shape = page.locator(f'path[data-cell="{cells[-1]}"]')
    shape.dispatch_event("mouseover")
    assert page.locator(".leaflet-tooltip").inner_text().startswith(f"Crossing {len(cells) - 1}: ")
    wide = page.evaluate(
        "[document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth]"
    )
    assert wide[0] <= wide[1] and page.wrong == []
    assert [url for url in page.asked if not url.startswith(address)] == []


def test_a_cell_is_found_by_its_name_its_route_or_its_id(named, day, new_page):
    address, cells = named
    page = new_page(address, slot=fullest(day))
    find, rows = page.get_by_role("searchbox"), page.locator("#cells tbody tr")
    find.fill("10n cros")
    assert rows.count() == len(cells) // 2 - 1
    assert f"{len(cells) // 2 - 1} of {len(cells)}" in page.get_by_role("status").inner_text()
    find.fill(cells[3][:9])
    assert cells[3] in page.eval_on_selector_all(
        "#cells tbody tr", "rows => rows.map((row) => row.dataset.cell)"
    )
    find.fill("no such place")
    assert rows.count() == 0
    find.fill("crossing 2")
    first = rows.first.get_attribute("data-cell")
    find.press("Enter")
    page.wait_for_selector("#panel .figure")
    assert cells_of(page, ".chosen") == [first]
    page.keyboard.press("Tab")  # to the columns, and on into the table
    for _ in range(6):
        if page.evaluate(FOCUSED):
            break
        page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) in {
        cell for at, cell in enumerate(cells) if str(at).startswith("2")
    }
    find.fill("")
    assert rows.count() == len(cells) and page.wrong == []


def test_lines_lie_beneath_the_cells_and_take_no_click(named, day, new_page):
    page = new_page(named[0], slot=fullest(day))
    line = page.locator("#map path.network")
    assert line.count() == 1 and line.get_attribute("d").count("M") >= 2
    panes = "path => Number(getComputedStyle(path.closest('.leaflet-pane')).zIndex)"
    assert line.evaluate(panes) < page.locator("#map path.cell").first.evaluate(panes)
    assert line.evaluate("path => getComputedStyle(path).pointerEvents") == "none"


def test_without_a_timetable_a_cell_is_named_by_its_id(board, day, new_page):
    slot = fullest(day)
    cell = sorted(day.kinds(slot)["solid"])[0]
    page = new_page(board, slot=slot, cell=cell)
    assert page.locator("#panel h2").inner_text() == f"Cell {cell.rstrip('f')}"
    assert page.locator(f'tr[data-cell="{cell}"] th button').inner_text() == cell.rstrip("f")
    assert page.locator("#map path.network").count() == 0 and page.wrong == []


def test_tiles_come_from_their_host_alone_and_the_page_says_so(day, new_page):
    host = "https://tiles.example.org"
    words = {
        "tiles": f"{host}/{{z}}/{{x}}/{{y}}.png",
        "tiles_credit": HOSTILE,
        "title": HOSTILE,
        "note": HOSTILE,
    }
    flags = [flag for name, said in words.items() for flag in ("--set", f"dashboard.{name}={said}")]
    with served(day.files, *flags) as address:
        page = new_page(address)
        page.locator("#map img.leaflet-tile").first.wait_for(state="attached")
        page.wait_for_timeout(500)
        others = [url for url in page.asked if not url.startswith(address)]
        assert others and all(url.startswith(f"{host}/") for url in others)
        assert (
            host in page.locator("#tiles").inner_text()
            and HOSTILE in page.locator("#tiles").inner_text()
        )
        assert (
            page.locator("h1").inner_text()
            == page.locator("#note").inner_text()
            == page.title()
            == HOSTILE
        )
        assert page.locator("img:not(.leaflet-tile)").count() == 0 and page.wrong == []


@pytest.mark.parametrize(
    ("ago", "said"),
    long_rows(
        [(2.5, "Live"), (3.5, "Recorded, until")],
        [(0.5, "Live"), (2.5, "Live"), (3.5, "Recorded, until")],
    ),
)
def test_a_page_is_live_while_its_newest_slot_is_new(ago, said, tmp_path, new_page):
    ends = datetime.now(UTC) - timedelta(hours=ago)
    hours = (ends - made.START) // timedelta(minutes=1) / 60 - 1
    lines = [make(cell, hours) for cell in made.cells(3) for make in (made.release, made.estimate)]
    write(tmp_path / "r.ndjson", lines)
    with served([tmp_path / "r.ndjson"]) as address:
        page = new_page(address)
        page.locator("#live.is-open").wait_for()
        page.wait_for_function("document.getElementById('live').textContent !== 'Connected'")
        told = page.locator("#live").inner_text()
        assert told.startswith(said) and (said == "Live" or str(ends.year) in told)
        assert page.locator("#live.is-live").count() == (said == "Live")


def test_nobody_is_told_to_give_a_command(copy, tmp_path, new_page):
    slot = fullest(copy)
    for key, one in copy.releases.items():
        copy.releases[key] = one | {"mean": None}
    with served(edited(copy, tmp_path, slot, {})) as address:
        page = new_page(
            address, cell=sorted(cell for start, cell in copy.estimates if start == slot)[0]
        )
        assert (
            "udp-stream" not in page.locator("body").inner_text()
            and page.locator("code").count() == 0
        )


def test_bars_have_a_legend(board, new_page):
    page = new_page(board)
    colour = "what => getComputedStyle(document.querySelector(what)).backgroundColor"  # at once: bars are drawn anew
    for name in ("all", "released"):
        shown, said = (
            page.evaluate(colour, f"{of} .{name}")
            for of in ("#bars .bar:not(.now)", "#bars-legend")
        )
        assert shown == said
    assert re.fullmatch(
        r"cells with buses\s+with a release", page.locator("#bars-legend").inner_text()
    )


def test_a_trial_is_said_to_be_one(board, copy, tmp_path, new_page):
    page = new_page(board)
    assert page.locator("#banner").is_visible()
    assert "10" in page.locator("#protected").inner_text()
    for records in (copy.releases, copy.estimates):
        for record in records.values():
            record.pop("trial")
    with served(edited(copy, tmp_path, fullest(copy), {})) as address:
        assert not new_page(address).locator("#banner").is_visible()


def test_synthetic_buses_are_said_to_be_synthetic_from_the_first_moment_on_and_no_others_are(
    board, day, new_page
):
    made_up = Dashboard(Slots(48, is_synthetic=True))
    with serving(made_up, "127.0.0.1:0") as address:
        made_up.announce(False)
        page = new_page(address.rstrip("/"), waits=False)
        page.locator("#synthetic").wait_for()
        made_up.slots.take(day.lines(day.slots[0]))
        made_up.announce(made_up.slots.show())
        page.wait_for_selector("body[data-slot]")
        assert page.locator("#synthetic").is_visible() and page.wrong == []
    assert not new_page(board).locator("#synthetic").is_visible()


def test_releases_alone_and_estimates_alone(copy, day, tmp_path, new_page):
    with served(day.files[:1]) as address:
        page = new_page(address)
        show(page, fullest(day))
        widths = {
            cell: round(one["mean"]["interval95_kmh"][1] - one["mean"]["interval95_kmh"][0], 3)
            for (slot, cell), one in day.releases.items() if slot == fullest(day) and one["mean"]
        }  # fmt: skip
        assert set(cells_of(page, ".solid")) == {
            cell for cell, width in widths.items() if width <= 10
        }
        assert set(cells_of(page, ".striped")) == {
            cell for cell, width in widths.items() if 10 < width <= 20
        }
    with served(day.files[1:]) as address:
        page = new_page(address)
        assert len(cells_of(page, ".dotted")) == len(cells_of(page, "")) > 0


def test_downloads_are_the_slot(board, day, new_page):
    slot = fullest(day)
    page = new_page(board, slot=slot)
    links = page.eval_on_selector_all(
        "#downloads a[download]", "links => links.map((link) => link.href)"
    )
    assert len(links) == 6
    for link in links:
        status, _, body = get(link)
        records = day.releases if "/releases" in link else day.estimates
        assert status == 200
        assert body.count(b"\n") >= sum(start == slot for start, _ in records)


def test_the_page_outlives_its_server(day, tmp_path, new_page):
    file, (*before, last) = tmp_path / "records.ndjson", day.slots[:3]
    write(file, day.lines(*before))
    with served([file]) as address:
        page = new_page(address)
        page.evaluate("window.isTheSame = true")
        page.locator("#live.is-open").wait_for()
    page.locator("#live:not(.is-open)").wait_for()
    assert len(cells_of(page, "")) == sum(map(len, day.kinds(before[-1]).values()))
    write(
        file, day.lines(before[-1], last)
    )  # the runtime, too, writes again what it is not sure of
    with served([file], port=urlsplit(address).port):
        page.wait_for_selector(f'body[data-slot="{last}"]')
        page.locator("#live.is-open").wait_for()
        assert page.evaluate("window.isTheSame")
        cells = cells_of(page, "")
        assert sorted(cells) == sorted({cell for start, cell in day.estimates if start == last})
        assert page.locator("#cells tbody tr").count() == len(cells)
        assert page.locator("#bars .bar").count() == len(day.slots[:3])
    assert page.wrong == []


def test_a_new_slot_does_not_move_the_view(day, tmp_path, new_page):
    file, (first, second, third, *_) = tmp_path / "records.ndjson", [*day.slots[-4:], ""]
    write(file, day.lines(first))
    with served([file]) as address:
        page = new_page(address)
        page.locator(".leaflet-control-zoom-in").click()
        page.wait_for_timeout(500)
        before = view_of(page)
        write(file, day.lines(second))
        page.wait_for_selector(f'body[data-slot="{second}"]')
        after = view_of(page)
        both = before.keys() & after.keys()
        assert both
        for cell in both:  # an outline may have another width
            assert centre_of(after[cell]) == pytest.approx(centre_of(before[cell]), abs=0.2)
        show(page, first)
        write(file, day.lines(third))
        page.wait_for_selector(f"#bars .bar >> nth={2}")
        page.wait_for_timeout(500)
        assert page.get_attribute("body", "data-slot") == first
        page.locator("#newest").click()
        page.wait_for_selector(f'body[data-slot="{third}"]')


def test_before_the_first_slot_it_waits(tmp_path, day, new_page):
    file = tmp_path / "records.ndjson"
    file.touch()
    with served([file]) as address:
        page = new_page(address, waits=False)
        page.locator("#live.is-open").wait_for()
        assert page.locator("#map path.cell").count() == 0
        write(file, day.lines(day.slots[0]))
        page.wait_for_selector("body[data-slot]")
    assert page.wrong == []


def test_a_phone_scrolls_one_way(board, day, new_page):
    slot = fullest(day)
    page = new_page(
        board, width=390, height=844, slot=slot, cell=sorted(day.kinds(slot)["solid"])[0]
    )
    wide = page.evaluate(
        "[document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth]"
    )
    assert wide[0] <= wide[1]
    boxes = [page.locator(name).bounding_box() for name in ("#map", "#legend", "#panel", "#cells")]
    for above, below in pairwise(boxes):
        assert above["y"] + above["height"] <= below["y"] + 1


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_stand_out(scheme, board, new_page):
    page = new_page(board, scheme=scheme)
    style = "node => [getComputedStyle(node).backgroundColor, getComputedStyle(node).color]"
    steps = [one.evaluate(style) for one in page.locator("#legend .steps li").all()]
    assert len({ground for ground, _ in steps}) == len(STEPS) + 1
    for colours in steps:
        dark, light = sorted(map(luminance, colours))
        assert (light + 0.05) / (dark + 0.05) >= 5.1
    paper = luminance(page.locator("body").evaluate(style)[0])
    assert paper < 0.05 if scheme == "dark" else paper > 0.8


@pytest.mark.parametrize(
    ("scheme", "width"),
    long_rows([("dark", 1280), ("light", 390)], [("light", 1280), ("dark", 1280), ("light", 390)]),
)
def test_axe_finds_no_serious_fault(scheme, width, board, named, day, new_page):
    slot = fullest(day)
    for address in (board, named[0]) if width == 390 else named[:1]:
        page = new_page(
            address, width=width, scheme=scheme, slot=slot, cell=sorted(day.kinds(slot)["solid"])[0]
        )
        found = Axe().run(page).response["violations"]
        assert [
            (one["id"], one["nodes"][0]["html"])
            for one in found
            if one["impact"] in ("serious", "critical")
        ] == []


def changed_by(page, slot):
    """What the browser is told to do when the slot changes: see WATCHED."""
    before = looks(page)
    page.evaluate(WATCHED)
    show(page, slot)
    return page.evaluate("watched"), before, looks(page)


def looks(page):
    paths = "paths => paths.map((path) => [path.dataset.cell, path.getAttribute('class')])"
    return dict(page.locator("#map path.cell").evaluate_all(paths))


WATCHED = """() => {
  window.watched = { moved: 0, drawn: 0, styled: [] };
  const pane = document.querySelector('#map .leaflet-overlay-pane');
  new MutationObserver((changes) => changes.forEach(({ type, attributeName, target }) => {
    if (type === 'childList') watched.moved += 1;
    else if (attributeName === 'd') watched.drawn += 1;
    else if (attributeName === 'class') watched.styled.push(target.dataset.cell);
  })).observe(pane, { subtree: true, childList: true, attributes: true });
  new MutationObserver(() => { watched.rows ??= document.querySelectorAll('#cells tbody tr').length; })
    .observe(document.body, { attributeFilter: ['data-slot'] });
}"""


@pytest.mark.parametrize(
    ("number", "lines"), long_rows([(400, 20)], [(400, 20), (3000, 500), (5000, 0)])
)
def test_of_many_cells_what_differs_alone_is_drawn_anew(number, lines, day, tmp_path, new_page):
    """How long it takes: `make bench`."""
    cells = many_cells(day, tmp_path / "records.ndjson", number, day.slots[:2])
    flags = ("--gtfs", many_lines(tmp_path / "gtfs.zip", cells, lines)) if lines else ()
    with served([tmp_path / "records.ndjson"], *flags) as address:
        # It is ready before: the end of a large file comes first.
        wait_for(lambda: hats_of(address) == dict.fromkeys(day.slots[:2], number))
        page = new_page(address)
        page.wait_for_selector(f"#cells tbody tr:nth-child({number})", state="attached")
        watched, before, after = changed_by(page, day.slots[0])
        assert len(before) == len(after) == number and watched["moved"] == watched["drawn"] == 0
        assert (
            sorted(watched["styled"])
            == sorted(cell for cell in before if before[cell] != after[cell])
            != []
        )
        assert watched["rows"] == 100
        if lines:
            assert page.locator("path.network").get_attribute("d").count("M") >= 0.8 * lines
            assert page.locator("#cells tbody th button").first.inner_text().startswith("Crossing")


@pytest.mark.skipif(
    "UDP_STREAM_PICTURES" not in os.environ, reason="pictures are made with UDP_STREAM_PICTURES=1"
)
def test_the_readmes_picture(tmp_path, new_page):
    from PIL import Image

    pings, zone = synthetic(tmp_path, hours=10)
    flags = "--set", zone, "--ledger", str(tmp_path / "city.ledger")
    made = Day(replayed(tmp_path, pings, *flags))
    slot = made.slots[-4]
    known = [made.estimates[slot, cell] for cell in made.kinds(slot)["solid"]]
    drawn = [one for one in known if (one["expected_sup_error"] or 1) < 0.14]
    cell = max(drawn, key=lambda one: one["interval95_kmh"][1] - one["interval95_kmh"][0])["hat"][
        "cell"
    ]
    network = network_of(Fleet(seed=1))  # as the demo has it
    stops = [(at, stop.name, stop.lat, stop.lon) for at, stop in enumerate(network.stops)]
    ways = [(name, *place[::-1], at) for name, way in network.lines for at, place in enumerate(way)]
    names = [name for name, _ in network.lines]
    files = files_of(
        stops,
        [(name, name, "") for name in names],
        [(name, "daily", name, 0, name) for name in names],
        [(name, at, at) for at, stop in enumerate(network.stops) for name in stop.routes],
        shapes=ways,
    )
    with served(made.files, "--gtfs", zipped(tmp_path / "gtfs.zip", files)) as address:
        page = new_page(address, height=840, slot=slot, cell=cell)
        page.wait_for_selector("#day .bar >> nth=0")
        page.wait_for_selector("path.network")
        page.screenshot(path=PICTURE)
    Image.open(PICTURE).convert("RGB").quantize(200).save(PICTURE, optimize=True)
    assert PICTURE.stat().st_size < 200_000
