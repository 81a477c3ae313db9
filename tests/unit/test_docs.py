"""The pages in `docs/` name everything that they must, and their links lead somewhere. Their commands are not run."""

import ast
import html
import re
import tomllib
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from udp_stream.adapters.settings import known_keys
from udp_stream.cli.guesses import COUNTS_ERR, MEASURED_AROUND, ONE_CDF, ONE_MEAN, ONE_VARIANCE, SERVED_SHARES
from udp_stream.forecast import arrow, bank, slot
from udp_stream.mechanisms import ball_width, city_sums, clip_width, speed_spread
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.pings.decoder import PingDecoder, PingRules
from udp_stream.pings.refusals import Reason
from udp_stream.planning import around, whole_city
from udp_stream.release import intervals
from udp_stream.release.kept_back import PLATES, REST_KMH
from udp_stream.release.record import Status

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links(page):
    """The relative links of a page, outside of fenced blocks, as files."""
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target and not target.startswith(("#", "mailto:")):
            yield (page.parent / target.partition("#")[0]).resolve()


PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_the_python_on_the_first_page_runs(capsys):
    (code,) = PYTHON.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    exec(compile(code, "README.md", "exec"), {})
    assert "GJ05ZZ0001" in capsys.readouterr().out


@pytest.mark.parametrize("reason", Reason)
def test_every_refusal_reason_is_described_in_its_own_words(reason):
    rows = (DOCS / "pings.md").read_text(encoding="utf-8").splitlines()
    (row,) = [row for row in rows if row.startswith(f"| `{reason.value}` |")]
    assert reason.describe.rstrip(".") in row


def reasons_that_follow_from_a_speed():
    """All reasons that some text in the place of one speed, or none at all, gives a message."""
    ping = (
        '{"license_plate": "A", "observationDateTime": "2024-01-01T00:00:00Z", %s"location": {"coordinates": [1, 2]}}'
    )
    numbers = ["9" * 500, "0." + "1" * 4000, *re.findall(r"\S+", "0 -0.0 65 1e-400 200 201 1e308 1e999 -1 -1e999")]
    others = ["", "\0", "\ud800", "[" * 3000, *re.findall(r"\S+", 'null true "20" [20] {} NaN Infinity - 01 1. "')]
    decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200, max_message_bytes=4000, max_pings_per_message=3))
    for speed in ("", *(f'"speed": {text}, ' for text in numbers + others)):
        one = (ping % speed).encode(errors="surrogatepass")
        for message in (one, b"[%s, %s]" % (one, one), b'{"results": [%s]}' % one):
            yield from (refusal.reason.value for refusal in decoder.decode([message])[1])


@pytest.mark.parametrize(
    ("page", "start"), [("pings", "Only three reasons look"), ("privacy-model", "4. **Refusals look")]
)
def test_both_documents_name_exactly_the_reasons_that_can_follow_from_a_speed_or_its_length(page, start):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    (listed,) = [part for part in re.split(r"\n\n|\n(?=\d\. )", text) if part.startswith(start)]
    assert set(re.findall(r"`(\w+)`", listed)) & set(Reason) == set(reasons_that_follow_from_a_speed())
    assert "digits" in text and "Limits in bytes" in text


@pytest.mark.parametrize("key", known_keys())
def test_every_configuration_key_has_a_row(key):
    rows = (DOCS / "configuration.md").read_text(encoding="utf-8").splitlines()
    assert sum(row.startswith((f"| `{key}` |", f"| `{key}`* |")) for row in rows) == 1


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_has_its_page_linked(name):
    index = (DOCS / "mechanisms" / "README.md").read_text(encoding="utf-8")
    linked = re.search(rf"\[`{re.escape(name)}`\]\(([a-z-]+\.md)\)", index)
    assert linked and f"`{name}`" in index
    assert (DOCS / "mechanisms" / linked[1]).exists()


@pytest.mark.parametrize("page", sorted((DOCS / "mechanisms").glob("[!R]*.md")), ids=lambda page: page.stem)
def test_every_mechanisms_page_states_it_its_sensitivity_its_charge_and_when_to_use_it(page):
    headings = " ".join(re.findall(r"\*\*([^*]+)\*\*", page.read_text(encoding="utf-8"))).lower()
    assert re.search(r"statistic|statement", headings)
    assert all(re.search(rf"\b{part}\b", headings) for part in ("sensitivity", "charge", "when"))


def test_the_guesses_that_plan_compares_with_are_the_measured_ones():
    rows = (DOCS / "measurements.md").read_text(encoding="utf-8").splitlines()
    for resolution, (least, most) in ONE_VARIANCE.errs.items():
        low, high = ONE_CDF.errs[resolution]
        served = "{:.2f}-{:.2f}".format(*SERVED_SHARES[resolution])
        assert f"| {resolution} | {least}-{most} | {low:.3f}-{high:.3f} | {served} |" in rows


def test_the_constants_and_shares_are_least_and_most_of_the_measured_table():
    text = (DOCS / "measurements.md").read_text(encoding="utf-8")
    table = text.partition("HATs of at least 10 plates, and the share")[2].partition("No noise is in these")[0]
    errs, shares = defaultdict(list), defaultdict(list)
    for resolution, cells in re.findall(r"^\| (\d), [16] h \|(.*)$", table, re.MULTILINE):
        for err, share in re.findall(r"([\d.]+) \(([\d.]+)\)", cells):
            errs[int(resolution)].append(Decimal(err).quantize(Decimal("0.1"), ROUND_HALF_UP))
            shares[int(resolution)].append(float(share))
    assert {len(found) for found in errs.values()} == {12}
    assert ONE_MEAN.errs == {at: (float(min(found)), float(max(found))) for at, found in errs.items()}
    assert {at: (min(found), max(found)) for at, found in shares.items()} == SERVED_SHARES


def test_what_constant_and_counts_err_by_is_least_and_most_of_the_measured_table():
    text = (DOCS / "measurements.md").read_text(encoding="utf-8")
    table = text.partition("**Constant + counts** over the same HATs")[2].partition("No noise is in these")[0]
    errs = defaultdict(list)
    for resolution, cells in re.findall(r"^\| (\d), [16] h \|(.*)$", table, re.MULTILINE):
        found = [Decimal(err).quantize(Decimal("0.1"), ROUND_HALF_UP) for err in re.findall(r"[\d.]+", cells)]
        errs[int(resolution)] += found
    assert {len(found) for found in errs.values()} == {12}
    assert {at: (float(min(found)), float(max(found))) for at, found in errs.items()} == COUNTS_ERR


FORECASTING = {
    name: value
    for module in (speed_spread, clip_width, ball_width, slot, arrow, bank, around, intervals, city_sums, whole_city)
    for name, value in vars(module).items()
}


def test_the_page_on_forecasts_states_the_constants_of_the_code():
    text = (DOCS / "mechanisms" / "forecast.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[A-Z_`, ]+`) \| ([\d., ]+) \|", text, re.MULTILINE)
    assert len(rows) == 34
    for names, values in rows:
        held = [FORECASTING[name] for name in re.findall(r"\w+", names)]
        assert np.hstack(held).tolist() == [float(value) for value in values.split(", ")], names


def test_the_page_on_forecasts_states_what_stands_for_counts_that_are_not_read_or_not_shown():
    text = (DOCS / "mechanisms" / "forecast.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_]+)` \| ([\d.]+) \| ([\d.]+) \|(?: ([\d.]+) \|)?$", text, re.MULTILINE)
    stated = {name: tuple(float(value) for value in values if value) for name, *values in rows}
    by_status = {status: (REST_KMH[status], float(PLATES[status])) for status in get_args(Status)}
    unread = {read: tuple(widths) for read, widths in intervals.UNREAD.items()}
    assert {name: tuple(intervals.Widths(*said)) if name in unread else said for name, said in stated.items()} == (
        unread | by_status
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    broken = [str(target) for target in links(page) if not target.exists()]
    assert not broken


def anchors(page):
    """What a link into a page may name: its headings, as GitHub writes them, and the places that it marks itself."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    named = {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return named | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_into_pages_lead_to_a_heading_there(page):
    broken = []
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        file, _, anchor = target.partition("#")
        into = (page.parent / file).resolve() if file else page
        if anchor and "://" not in target and into.suffix == ".md" and anchor not in anchors(into):
            broken.append(target)
    assert not broken


def test_the_first_page_names_every_extra_that_a_verb_needs():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in extras if name not in ("test", "lint", "bench") and f"'.[{name}]'" not in text]


def test_the_first_pages_picture_says_what_the_demo_says():
    """The picture is printed anew (`benchmarks/picture.py`) where the words of a summary change."""
    drawn = re.findall(r"<text [^>]*>([^<]*)</text>", (DOCS / "demo.svg").read_text(encoding="utf-8"))
    words = " ".join(html.unescape(" ".join(drawn)).split())
    assert MEASURED_AROUND in words


def test_the_glossary_has_at_most_twenty_words_a_line_each():
    """A word that one page needs is explained there."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE)
    words = [word for word in rows if word not in ("word", "---")]
    assert 15 <= len(words) <= 20 and not [word for word in words if "," in word]


def test_no_page_is_an_orphan():
    """Each page is linked from another."""
    linked = {target for page in PAGES for target in links(page) if target != page}
    assert not [page.name for page in PAGES[1:] if page not in linked]


SHOWN_ROOMS = (
    "units", "lifecycle", "pings", "windows", "mechanisms", "forecast", "planning", "queries", "ledger", "release",
    "shuffle",
)  # fmt: skip
"""Rooms in which a reader of a function or class sees it at work. Their examples run, with all doctests."""

FULLY_SHOWN = ("mechanisms", "planning", "ledger", "release")
"""Rooms in which the example is the name's own, and not that of one of its methods; protocols have one, too."""


def without_example(source, fully):
    """Public functions and classes of a file whose docstrings show no call.

    Unless `fully`, a class may have its example in a method, and a protocol, which has nothing to call, needs none.
    """
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        bases = {ast.unparse(base).partition("[")[0] for base in getattr(node, "bases", ())}
        inside = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.ClassDef)]
        shown = any(">>> " in (ast.get_docstring(part) or "") for part in [node, *([] if fully else inside)])
        if not shown and (fully or "Protocol" not in bases):
            yield node.name


@pytest.mark.parametrize("room", SHOWN_ROOMS)
def test_every_public_function_and_class_of_a_room_has_an_example(room):
    package = ROOT / "udp_stream"
    files = sorted((package / room).rglob("*.py")) or [package / f"{room}.py"]
    missing = {file.name: [*without_example(file.read_text(encoding="utf-8"), room in FULLY_SHOWN)] for file in files}
    assert not {name: names for name, names in missing.items() if names}


def test_a_function_or_class_without_an_example_is_found():
    code = """
def bare(): "Says, and does not show."
def shown(): ">>> shown()"
async def awaited(): "Says, and does not show."
def _private(): ...
class Bare: ...
class ByMethod:
    def call(self): ">>> ByMethod().call()"
class Port(Protocol): ...
class Of(Port[int]): ">>> Of()"
"""
    assert list(without_example(code, fully=False)) == ["bare", "awaited", "Bare"]
    assert list(without_example(code, fully=True)) == ["bare", "awaited", "Bare", "ByMethod", "Port"]


def test_a_published_description_is_words_alone():
    """The types that it comes from have examples in Python; readers of a schema may know none."""
    for path in DOCS.glob("*.schema.json"):
        assert ">>>" not in path.read_text(encoding="utf-8")


def test_the_first_page_and_the_settings_show_the_measured_errors_and_say_what_came_before():
    measured = (DOCS / "measurements.md").read_text(encoding="utf-8").partition("\nH3 7, ten seeds:\n")[2]
    table = [line.split("|") for line in measured.splitlines()[3:10]]
    errors = {cells[1].strip().removeprefix("Austin "): re.findall(r"(\d\.\d+) ±", cells[7]) for cells in table}
    errors["2016-11-25"] = errors["2016-11-25 after the 24th"]
    for page in (ROOT / "README.md", DOCS / "configuration.md"):
        text = page.read_text(encoding="utf-8")
        rows = re.findall(r"^\| (?:Austin )?((?:20|Surat)[^|]*) \| \d\.\d.*\| ([^|]*) \|$", text, re.MULTILINE)
        assert len(rows) == 5 and "2016-11-25 follows on the 24th" in " ".join(text.split())
        for name, shown in rows:
            stated = [Decimal(one) for one in re.findall(r"\d\.\d\d", shown)]
            assert (
                stated == [Decimal(one).quantize(Decimal("0.01"), ROUND_HALF_UP) for one in errors[name]][: len(stated)]
            )
