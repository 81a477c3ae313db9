"""`make bench`, of the dashboard: a timetable is read, a crowd gets a slot, a Chromium draws
thousands of cells.

Beside the last a page that holds the same outlines and lines and nothing else: Leaflet's own
example of polygons, and a slot that changes each one's style. Milliseconds of wall time, the least
of seven, in turn.
"""

import functools
import http.server
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from csv import reader
from pathlib import Path
from shutil import copy
from typing import Any

from playwright.sync_api import sync_playwright

import udp_stream.dashboard
from benchmarks.__main__ import best_in_turn, say
from benchmarks.words import words
from tests.board import crowded, get, wait_for
from tests.browser import chromium
from tests.browser.big_city import many_cells, many_lines
from tests.browser.conftest import Day, replayed, served, synthetic
from tests.timetables import files_of, in_folder
from udp_stream.base.gtfs import read_network

RUNS = 7
BARE = """<!doctype html>
<link rel="stylesheet" href="leaflet.css"><style>#map { position: absolute; inset: 0 }</style><div id="map"></div>
<script src="leaflet.js"></script>
<script type="module">
const ask = async (file) => (await fetch(file)).json();
const [outlines, lines] = await Promise.all([ask('outlines.json'), ask('lines.json')]);
const turned = (line) => line.map(([lon, lat]) => [lat, lon]);
const renderer = L.svg({ padding: 0.5 });
const map = L.map('map', { renderer, zoomSnap: 0.1 });
const cells = Object.values(outlines).map((rings) => L.polygon(rings.map((ring) => [turned(ring)])));
const group = L.featureGroup(cells);
map.fitBounds(group.getBounds());
group.addTo(map);
if (lines.length) L.polyline(lines.map(turned), { renderer, interactive: false }).addTo(map);
let at = 0;
window.change = () => {
  at += 1;
  for (const [i, cell] of cells.entries()) cell.setStyle({ color: ['#111', '#33a', '#a33'][(i + at) % 3] });
};
document.body.dataset.slot = 'drawn';
</script>
"""
DRAWN = (
    "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
)
CHANGED = """async (index) => {
  const [range, before, start] = [document.getElementById('slot'), document.body.dataset.slot, performance.now()];
  if (range) {
    range.value = index;
    range.dispatchEvent(new Event('input'));
    while (document.body.dataset.slot === before) await new Promise((done) => setTimeout(done));
  } else window.change();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def bare(folder: Path, address: str) -> Iterator[str]:
    """A server of the same shapes, and of no records."""
    folder.mkdir()
    for file in ("leaflet.js", "leaflet.css"):
        copy(Path(udp_stream.dashboard.__file__).parent / "static" / "leaflet" / file, folder)
    (folder / "index.html").write_text(BARE)
    (folder / "outlines.json").write_bytes(get(f"{address}/v1/outlines")[2])
    shapes = [one["geometry"] for one in json.loads(get(f"{address}/v1/places")[2])["features"]]
    lines = [
        line for one in shapes if one["type"] == "MultiLineString" for line in one["coordinates"]
    ]
    (folder / "lines.json").write_text(json.dumps(lines))
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def took(browser: Any, address: str) -> tuple[float, float]:
    """Until all is drawn, and until a slot that is known has changed."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(f"{address}/")
    page.wait_for_selector("body[data-slot]", state="attached")
    drawn = page.evaluate(DRAWN)
    changes = []
    for index in (0, 1, 0, 1):
        page.wait_for_timeout(1500)
        changes.append(page.evaluate(CHANGED, index))
    context.close()
    return drawn, min(changes[1:])


def bench_page(browser: Any, day: Day, folder: Path, cells: int, lines: int) -> None:
    made = many_cells(day, folder / f"{cells}.ndjson", cells, day.slots[:2])
    flags = ("--gtfs", many_lines(folder / "gtfs.zip", made, lines)) if lines else ()
    with served([folder / f"{cells}.ndjson"], *flags) as address:
        wait_for(lambda: get(f"{address}/readyz")[0] == 200)
        with bare(folder / f"bare-{cells}", address) as peer:
            both = [(took(browser, address), took(browser, peer)) for _ in range(RUNS)]
    for part, what in enumerate(("drawn", "slot changed")):
        ours, theirs = (min(run[of][part] for run in both) for of in (0, 1))
        title = f"{cells:,} cells, {lines} lines, {what}"
        say(title, f"{ours:.0f} ms", f"{ours / theirs:.1f} x the shapes alone ({theirs:.0f} ms)")


def bench_timetable(folder: Path) -> None:
    files = files_of(
        trips=[("7", "daily", f"trip-number-{n}", 0, "") for n in range(50_000)], calls=[]
    )
    times = in_folder(folder / "gtfs", files) / "stop_times.txt"
    with times.open("ab") as out:
        for n in range(50_000):
            calls = ((n, b"abc"[at % 3 : at % 3 + 1], at) for at in range(50))
            out.write(
                b"".join(
                    b"trip-number-%d,%b,%d,08:00:00,08:00:00,,0,0,1\r\n" % call for call in calls
                )
            )

    def rows() -> None:
        with times.open(newline="") as file:
            for _ in reader(file):
                pass

    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: read_network(folder / "gtfs"),
        "csv": rows,
    }
    spent = best_in_turn(3, ways, lambda name: ways[name]())
    size = times.stat().st_size / 1e6
    say(
        f"a timetable of {size:.0f} MB",
        f"{spent['ours']:.1f} s",
        f"{spent['ours'] / spent['csv']:.1f} x Python's csv over its rows",
    )


def bench_crowd(folder: Path) -> None:
    """From a slot's lines in the file to its records at the last but ten of 1,000 clients, each
    with a notice first."""
    took = {}
    for clients in (100, 1000):
        (of_crowd := folder / str(clients)).mkdir()
        told = crowded(of_crowd, clients, 3000)
        took[clients] = told["p99"] - told["without"]
    say(
        "3,000 HATs to 1,000 clients",
        f"{took[1000] * 1000:.0f} ms",
        f"{took[1000] / took[100]:.1f} x the time of 100 clients",
    )


def main() -> None:
    if (path := chromium.found()) is None:
        sys.exit(chromium.ADVICE)
    with (
        tempfile.TemporaryDirectory(prefix="udp-stream-bench-") as name,
        sync_playwright() as playwright,
    ):
        folder = Path(name)
        bench_timetable(folder)
        bench_crowd(folder)
        pings, zone = synthetic(folder)
        day = Day(replayed(folder, pings, "--trial", "--set", zone, "--set", "speed.max_kmh=115"))
        environment = chromium.environment(path)
        with playwright.chromium.launch(
            executable_path=path, args=[*chromium.FLAGS], env=environment
        ) as browser:
            bench_page(browser, day, folder, 3000, 500)
            bench_page(browser, day, folder, 5000, 0)


if __name__ == "__main__":
    words(__doc__)
    main()
