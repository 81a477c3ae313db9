"""The page where whole plates are hidden: every cell of the domain, its traffic, and which promise
holds."""

import csv
import io
import json
import re

import pytest

from tests.board import get
from tests.browser.conftest import Day, replayed, served, synthetic
from tests.browser.test_page import cells_of, fullest
from tests.forms import long_but

pytestmark = pytest.mark.browser

BOX = [[72.75, 21.1], [72.95, 21.1], [72.95, 21.3], [72.75, 21.3]]


@pytest.fixture(scope="module", params=long_but(["traffic"], ["traffic", "plates"]))
def hidden(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "city.geojson").write_text(
        json.dumps({"type": "Polygon", "coordinates": [[*BOX, BOX[0]]]})
    )
    pings, zone = synthetic(folder)
    asked = (
        zone, "privacy.neighbours=add-remove", f"hat.domain={folder / 'city.geojson'}", "pings.interval=60s",
        f"release.plates={str(request.param == 'plates').lower()}",
    )  # fmt: skip
    flags = [part for flag in asked for part in ("--set", flag)]
    day = Day(
        replayed(
            folder,
            pings,
            "--trial",
            "--from",
            "2024-01-08T07:00",
            "--until",
            "2024-01-08T10:00",
            *flags,
        )
    )
    with served(day.files) as address:
        yield request.param, day, address


def amount_in(estimate):
    """The value and its interval, as the page writes them."""
    name, digits = ("traffic", 1) if "traffic" in estimate else ("plates", 0)
    value, interval = estimate[name].values()
    return [f"{figure:.{digits}f}" for figure in (value, *interval)]


def near(said, figures, digits):
    """Halves may be rounded either way."""
    return len(said) == len(figures) and all(
        abs(float(one) - float(other)) <= 1.01 * 10**-digits
        for one, other in zip(said, figures, strict=True)
    )


def test_every_cell_of_the_domain_has_its_traffic_in_table_panel_and_tooltip(hidden, new_page):
    which, day, address = hidden
    slot, digits = fullest(day), {"traffic": 1, "plates": 0}[which]
    domain = {cell for start, cell in day.estimates if start == slot}
    kinds = {kind: set() for kind in ("solid", "striped", "dotted")}
    for (start, cell), one in day.estimates.items():
        low, high = one["interval95_kmh"]
        width = round(high - low, 3)
        if start == slot:
            kinds["solid" if width <= 10 else "striped" if width <= 20 else "dotted"].add(cell)
    page = new_page(address, slot=slot)
    for kind, cells in kinds.items():
        assert set(cells_of(page, f".{kind}")) == cells
    assert page.locator("#cells tbody tr").count() == len(domain)
    heads = page.locator("#cells thead button").all_text_contents()
    assert heads[-1] == {"traffic": "Bus-h", "plates": "Buses"}[which]
    for cell in sorted(domain)[:: max(1, len(domain) // 7)]:
        written = page.locator(f'tr[data-cell="{cell}"] td').last.inner_text()
        assert near(re.findall(r"[\d.]+", written), amount_in(day.estimates[slot, cell]), digits)
    cell = sorted(kinds["solid"] | kinds["striped"])[0]
    page.locator(f'path[data-cell="{cell}"]').hover()
    tip = page.locator(".leaflet-tooltip").inner_text()
    assert near(
        re.findall(r"[\d.]+", tip.rpartition(";")[2]), amount_in(day.estimates[slot, cell]), digits
    )
    page.locator(f'tr[data-cell="{cell}"] td').first.click()
    page.wait_for_selector("#panel .figure")
    said, one = page.locator("#panel .sentences").inner_text(), day.estimates[slot, cell]
    figures = [
        one["value_kmh"],
        *one["interval95_kmh"],
        *amount_in(one),
        one["guess"]["counts_kmh"],
    ]
    assert near([said_.rstrip(".") for said_ in re.findall(r"[\d.]*\d", said)], figures, 0)
    assert page.wrong == []


def test_the_promise_is_that_of_the_records(hidden, new_page):
    _, day, address = hidden
    privacy = next(iter(day.releases.values()))["privacy"]
    said = new_page(address).locator("#protected").inner_text()
    for name in ("neighbours", "period_rho", "swap_epsilon"):
        assert str(privacy[name]) in said
    assert re.search(r"epsilon 10 \(delta 1e-6", said) and "Not protected" not in said


def test_privacy_is_in_words_and_tells_no_charge(hidden, new_page):
    _, day, address = hidden
    privacy = next(iter(day.releases.values()))["privacy"]
    page = new_page(address)
    page.goto(f"{address}/privacy")
    page.wait_for_selector("body[data-said]")
    said = page.locator("#said").inner_text()
    for name in ("period_epsilon", "period_rho", "swap_epsilon"):
        assert f"{privacy[name]:.10g}" in said
    assert "%" not in said and "null" not in said and page.wrong == []


def test_nothing_speaks_of_releases_that_lack_or_of_counts(hidden, new_page):
    _, day, address = hidden
    slot = day.slots[0]
    for cell in sorted(cell for start, cell in day.estimates if start == slot)[::60]:
        page = new_page(address, slot=slot, cell=cell)
        body = page.locator("body").inner_text()
        for words in (
            "too few buses",
            "no budget",
            "Nothing was released",
            "No bus came",
            "release is not here",
            "withheld",
        ):
            assert words not in body


def test_exports_have_sums_and_traffic_and_no_counts(hidden):
    which, day, address = hidden
    found = {}
    for kind in ("releases", "estimates"):
        rows = csv.DictReader(
            io.StringIO(get(f"{address}/v1/{kind}?slot=latest&form=csv")[2].decode())
        )
        features = json.loads(get(f"{address}/v1/{kind}?slot=latest&form=geojson")[2])["features"]
        found[kind] = list(rows)
        for row, feature in zip(found[kind], features, strict=True):
            assert {name for name, text in row.items() if text} == {
                name for name, value in feature["properties"].items() if value is not None
            }
    slot, second = day.slots[-1], {"traffic": "weight", "plates": "plates"}[which]
    for row in found["releases"]:
        noised = day.releases[slot, row["hat.cell"]]["noised"]
        told = {
            name.partition(".")[2]: float(row[name])
            for name in row
            if name.startswith("noised.") and row[name]
        }
        assert told == noised and second in noised
        assert row["privacy.swap_epsilon"] and not any(
            row[name] for name in row if name.startswith("counts.")
        )
    for row in found["estimates"]:
        value = next(iter(day.estimates[slot, row["hat.cell"]][which].values()))
        assert (
            float(row[{"traffic": "traffic.bus_hours", "plates": "plates.value"}[which]]) == value
        )
