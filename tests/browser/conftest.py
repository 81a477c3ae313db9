"""A browser, a replayed day, and a dashboard of it."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import sync_playwright

from tests.board import WAIT_S, forked
from tests.browser import chromium
from udp_stream.sources.fleet import IST, Fleet

RECORDED = Path(os.environ.get("UDP_STREAM_DATA", "data")) / "austin-capmetro-2016-11-25.ndjson.gz"
"""A real day, where it is there: 24 slots of about 90 cells. Else three hours of a synthetic fleet."""


@pytest.fixture(
    scope="module"
)  # its loop runs in this thread: other tests start loops of their own
def browser():
    if os.environ.get(chromium.WITHOUT):
        pytest.skip(f"without a browser, as {chromium.WITHOUT} says")
    if (path := chromium.found()) is None:
        pytest.fail(chromium.ADVICE)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=path, args=[*chromium.FLAGS], env=chromium.environment(path)
        )
        yield running
        running.close()


@pytest.fixture
def new_page(browser):
    contexts = []

    def open_page(address, width=1280, height=800, waits=True, scheme="light", under="", **chosen):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        contexts.append(context)
        context.set_default_timeout(WAIT_S * 1000)
        page = context.new_page()
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        if under:  # as behind a proxy that takes the path away
            page.route(
                f"{address}{under}/**",
                lambda route: route.continue_(url=route.request.url.replace(under, "", 1)),
            )
        page.goto(f"{address}{under}/#{urlencode(chosen)}")
        if waits:
            page.wait_for_selector("body[data-slot]")
            if "cell" in chosen:
                page.wait_for_selector("#panel .figure")
        return page

    yield open_page
    for context in contexts:
        context.close()


@contextmanager
def served(files, *flags, port=0):
    listen = "--set", f"dashboard.listen=127.0.0.1:{port}"
    running, says = forked(*files, *flags, *listen, cwd=Path.cwd())
    try:
        said = next(line for line in says if "http://" in line)
        yield re.search(r"http://[^/]+", said)[0]
    finally:
        running.kill()
        running.wait(WAIT_S)
        says.close()


def replayed(folder, pings, *flags):
    files = [folder / "releases.ndjson", folder / "estimates.ndjson"]
    program = [
        sys.executable,
        "-m",
        "udp_stream",
        "replay",
        pings,
        "--out",
        files[0],
        "--smoothed",
        files[1],
    ]
    subprocess.run(
        [*program, "--set", "budget.accounting=approximate", *flags],
        check=True,
        capture_output=True,
    )
    return files


def synthetic(folder, hours=3):
    fleet = Fleet(
        buses=400, start=datetime(2024, 1, 8, 7, tzinfo=IST), hours=hours, ping_seconds=60
    )
    pings = folder / "pings.ndjson"
    pings.write_bytes(b"\n".join(message for some in fleet.messages() for message in some))
    return pings, "hat.timezone=Asia/Kolkata"


def read(file):
    return [json.loads(line) for line in file.read_bytes().splitlines()]


class Day:
    def __init__(self, files):
        self.files = files
        self.releases, self.estimates = [
            {(one["hat"]["slot_start"], one["hat"]["cell"]): one for one in read(file)}
            for file in files
        ]
        self.slots = sorted({slot for slot, _ in self.estimates})

    def kinds(self, slot):
        found = defaultdict(set)
        for (start, cell), estimate in self.estimates.items():
            if start == slot:
                release = self.releases.get((start, cell))
                low, high = estimate["interval95_kmh"]
                width = round(high - low, 3)
                is_guess = release is None or release["mean"] is None or width > 20
                found["dotted" if is_guess else "solid" if width <= 10 else "striped"].add(cell)
        return found

    def lines(self, *slots):
        both = [*self.releases.items(), *self.estimates.items()]
        return [json.dumps(record).encode() for (start, _), record in both if start in slots]


@pytest.fixture(scope="session")
def day(tmp_path_factory):
    folder = tmp_path_factory.mktemp("day")
    pings, zone = (
        (RECORDED, "hat.timezone=America/Chicago") if RECORDED.exists() else synthetic(folder)
    )
    return Day(replayed(folder, pings, "--trial", "--set", zone, "--set", "speed.max_kmh=115"))


@pytest.fixture(scope="session")
def board(day):
    with served(day.files) as address:
        yield address
