"""A worker under "add-remove" on a real broker: slots close by the wall, with and without pings,
whoever dies."""

import signal
import threading
import time
from datetime import UTC, datetime

import h3
import msgspec
import pytest

from tests.integration.deployment import worker
from tests.unit.test_flow import a_context, slot
from udp_stream.ledger.ids import NOISED_SUMS, kind_of
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release

HEAD = """\
[privacy]
neighbours = "add-remove"
[hat]
domain = "{domain}"
slot = "1m"
grace = "1s"
resolution = 7
[pings]
interval = "2s"
"""
CELLS = h3.grid_disk(h3.latlng_to_cell(21.19, 72.83, 7), 3)


def pings(second):
    now = datetime.now(UTC).isoformat()
    for number in range(20):
        lat, lon = h3.cell_to_latlng(CELLS[(number + second // 20) % 10])
        where = {"type": "Point", "coordinates": [lon, lat]}
        yield msgspec.json.encode(
            {
                "license_plate": f"bus {number}",
                "observationDateTime": now,
                "location": where,
                "speed": 20 + number,
            }
        )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_worker_is_refused_on_a_day_of_counts_that_charged_nobody(city, tmp_path):
    here = city([], shards=1, partitions=2)
    (tmp_path / "cells").write_text("\n".join(CELLS))
    text = here.config.read_text()
    here.config.write_text(HEAD.format(domain=tmp_path / "cells") + text[text.index("[ledger]") :])
    hour_ms = round(time.time()) // 3600 * 3_600_000
    with here.ledger() as (ledger, _):
        release_slot(
            *slot(start=hour_ms), a_context("release.min_plates=1000"), ledger, lambda _: None
        )
        before = [entry.release_id for entry in ledger.entries()]
    with worker(here, "one") as one:
        assert one.wait(200) == 5
    assert "privacy.neighbours" in (here.folder / "one.err").read_text() and not here.releases()
    with here.ledger() as (ledger, _):
        assert [entry.release_id for entry in ledger.entries()] == before


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("presence charged", marks=pytest.mark.long),
        pytest.param("presence recorded", marks=pytest.mark.soak),
        pytest.param("with offsets", marks=pytest.mark.soak),
    ],
)
def test_a_slot_whose_worker_dies_is_released_once_and_the_next_one_without_a_ping(
    city, tmp_path, point
):
    here, ended = city([], shards=1, partitions=2), threading.Event()
    (tmp_path / "cells").write_text("\n".join(CELLS))
    text = here.config.read_text()
    here.config.write_text(HEAD.format(domain=tmp_path / "cells") + text[text.index("[ledger]") :])

    def drive():
        for second in range(0, 10**6, 2):
            if ended.wait(2):
                return
            here.feed(list(pings(second)))

    driver = threading.Thread(target=drive)
    driver.start()
    try:
        with worker(here, "one", stop=f"SIGKILL@{point}@1") as one:
            assert one.wait(150) == -signal.SIGKILL
    finally:
        ended.set()
        driver.join()
    with worker(here, "two") as two:
        while len(found := here.releases()) < 3 * len(CELLS):
            assert two.poll() is None
            time.sleep(2)
        here.wait_for_number(here.topics.smoothed, 3 * len(CELLS), two)
    slots = sorted({Release.decode(one).hat.slot_start for one in found.values()})
    starts = [datetime.fromisoformat(start).timestamp() for start in slots]
    assert [start - starts[0] for start in starts] == [60 * number for number in range(len(slots))]
    assert len(found) == len(slots) * len(CELLS) and len(here.smoothed()) == len(found)
    with here.ledger() as (ledger, _):
        assert ledger.verify() == [] and list(ledger.unpublished()) == []
        charged = {
            e.release_id: int((e.charged > 0).sum())
            for e in ledger.entries()
            if kind_of(e.release_id) == NOISED_SUMS
        }
    assert len(charged) == len(slots) and charged[min(charged)] == 20 and charged[max(charged)] == 0
