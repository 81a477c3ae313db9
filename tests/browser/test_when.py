"""The page and time: another day by its date, the day by the hour, the typical week; in a real
browser."""

import json
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe

from benchmarks.made_up_city import MadeUpCity
from benchmarks.typical import published
from tests.board import get, wait_for
from tests.browser.test_page import STEPS, cells_of
from tests.forms import long_but
from udp_stream.dashboard.history import opened
from udp_stream.dashboard.server import Dashboard, serving
from udp_stream.dashboard.slots import Slots
from udp_stream.release.record import Release, Smoothed

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    """Three days of a made-up city, with a day between without records, in a history of which the
    page keeps six slots."""
    folder, city = tmp_path_factory.mktemp("week"), MadeUpCity(1, buses=150)
    slots = Slots(6, history=opened(str(folder / "history.sqlite")))
    for releases, estimates in published(city, [0, 1, 3]):
        slots.take([*map(Release.encode, releases), *map(Smoothed.encode, estimates)])
    slots.show()
    board = Dashboard(slots)
    board.announce(changed=False)
    with serving(board, "127.0.0.1:0") as address:
        wait_for(lambda: board.typical)
        yield address.rstrip("/")


def usual(address, **query):
    return [
        json.loads(line) for line in get(f"{address}/v1/typical?{urlencode(query)}")[2].splitlines()
    ]


def test_a_day_of_the_history_is_chosen_by_its_date(week, new_page):
    page = new_page(week)
    assert page.locator("#bars .bar").count() == 6
    assert page.locator("#date").get_attribute("min") == "2024-01-08"
    page.locator("#date").fill("2024-01-09")
    page.wait_for_selector('body[data-slot^="2024-01-09"]')
    assert page.locator("#bars .bar").count() == page.locator("#measured li").count() == 16
    slots = json.loads(get(f"{week}/v1/slots?from=2024-01-09&to=2024-01-10")[2])["slots"]
    told = [f"{one['slot_start'][11:16]} {one['hats'].get('released', 0)} of" for one in slots]
    page.locator("#days summary").click()
    shown = page.locator("#measured li").all_inner_texts()
    assert all(one.startswith(words) for one, words in zip(shown, told, strict=True))
    page.locator("#slot").fill("2")
    page.wait_for_selector('body[data-slot="2024-01-09T08:00:00+05:30"]')
    page.reload()  # the address holds the slot
    page.wait_for_selector('body[data-slot="2024-01-09T08:00:00+05:30"]')
    page.locator("#newest").click()
    page.wait_for_selector('body[data-slot^="2024-01-11"]')
    assert page.wrong == [] and [url for url in page.asked if not url.startswith(week)] == []


def test_the_typical_map_has_cells_that_the_shown_slot_lacks_and_a_number_in_each_that_is_measured(
    week, new_page
):
    page = new_page(week)
    before = set(cells_of(page, ""))
    page.locator("#usual").click()
    page.locator("#summary", has_text="Usual speeds").wait_for()
    assert set(cells_of(page, "")) - before
    measured = page.locator("#cells tbody .chip:not(.dotted)").all_inner_texts()
    assert sorted(page.locator("#map .over text").all_text_contents()) == sorted(measured) != []


def test_a_day_without_records_says_so_and_the_newest_comes_back(week, new_page):
    page = new_page(week)
    page.locator("#date").fill("2024-01-10")
    page.wait_for_selector('body[data-slot="2024-01-10"]')
    assert "no records" in page.locator("#summary").inner_text()
    assert "10 January" in page.locator("#when").inner_text()
    assert cells_of(page, "") == [] and page.locator("#cells tbody tr").count() == 0
    page.locator("#newest").click()
    page.wait_for_selector('body[data-slot^="2024-01-11"]')
    assert cells_of(page, "") != [] and page.wrong == []


@pytest.mark.parametrize("width", long_but([1280], [1280, 390]))
def test_the_panel_has_the_typical_week_of_its_cell_and_the_map_that_of_the_city(
    week, new_page, width
):
    rows = usual(week, day="weekday")
    row = max((one for one in rows if one["hour"] == 8), key=lambda one: one["days"])
    page = new_page(week, width=width, slot="2024-01-09T08:00:00+05:30", cell=row["cell"])
    page.wait_for_selector("#week .hour.now")
    hours = len({one["hour"] for one in usual(week, cell=row["cell"])})
    assert page.locator("#week .hour").count() == 5 * hours  # no weekend yet
    words = page.locator("#week .usually").inner_text()
    low, high = (int(row[end] + 0.5) for end in ("low_kmh", "high_kmh"))
    usually = f"usually {int(row['value_kmh'] + 0.5)} ({low} to {high})"
    assert words.startswith(f"Tuesdays at 8: {usually}, from {row['days']} day")
    assert "; today " in words
    now = page.locator(f'path[data-cell="{row["cell"]}"]').get_attribute("class")
    page.locator("#usual").click()
    page.locator("#summary", has_text="Usual speeds, Tuesdays at 8").wait_for()
    here = {one["cell"] for one in rows if one["hour"] == 8}
    assert set(cells_of(page, "")) == here
    kmh = int(row["value_kmh"] + 0.5)
    assert f"step-{sum(kmh >= start for start in STEPS)}" in page.locator(
        f'path[data-cell="{row["cell"]}"]'
    ).get_attribute("class")
    guesses = {one["cell"] for one in rows if one["hour"] == 8 and not one["days"]}
    assert (
        set(cells_of(page, ".unmeasured")) == guesses
        and set(cells_of(page, ".unmeasured.dotted")) == guesses
    )
    written = [row.locator("td").all_inner_texts() for row in page.locator("#cells tbody tr").all()]
    shown = page.locator("#cells thead th:visible").count() - 1
    assert all(len(texts) == shown for texts in written)
    assert all(any(texts[at] != "–" for texts in written) for at in range(shown))
    page.locator("#now").click()
    page.locator("#summary", has_text="are measured well").wait_for()
    assert page.locator(f'path[data-cell="{row["cell"]}"]').get_attribute("class") == now
    assert page.wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    serious = [
        one["id"]
        for one in Axe().run(page).response["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
