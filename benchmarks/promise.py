"""`python -m benchmarks.promise`: what it costs to notice an older ledger and another one, beside the same without.

The high-water mark is raised once a slot, before it is published: its time stands beside what the ledger does for the
slot anyway (admit, record, published), on SQLite and on a Redis with fsync always, in one run. The binding is 82 bytes
on every message between workers: its time stands beside reading the message without it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.__main__ import say
from benchmarks.words import words
from streams.binding import Binding, require_same
from udp_stream.adapters.ledgers.opening import ledger_and_keys
from udp_stream.adapters.settings import LedgerSection
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.shuffle.ping_chunks import PingChunk, PingsEnd, cut
from udp_stream.shuffle.wire import decode_message, encode_message
from udp_stream.trial.services.both import services
from udp_stream.windows.slot_tables import SlotPings

SLOTS = 15
PAYLOAD = b"r" * 1500
OURS = Binding("5e" * 16, "ca" * 16)


def slot(number: int, hats: int, plates: int) -> list[Admission]:
    """HATs that share their plates."""
    members = np.arange(plates)
    return [Admission(f"{number}-{hat}", members, np.full(plates, 1000), 1, b"terms") for hat in range(hats)]


def bench_mark(name: str, ledger: Ledger, hats: int, plates: int) -> None:
    """A city's slot, with the mark and its parts timed apart."""
    keys = [b"%016d" % plate for plate in range(plates)]
    without, marks = [], []
    for number in range(SLOTS):
        asked = slot(time.monotonic_ns() + number, hats, plates)
        ids = [one.release_id for one in asked]
        start = time.perf_counter()
        ledger.admit("period", 10**15, keys, asked)
        ledger.record([(id_, PAYLOAD + id_.encode()) for id_ in ids])
        recorded = time.perf_counter()
        ledger.mark(ids[-1])
        marked = time.perf_counter()
        ledger.published(ids)
        without.append(recorded - start + time.perf_counter() - marked)
        marks.append(marked - recorded)
    slow, mark = statistics.median(without), statistics.median(marks)
    say(
        f"{name}, {hats:,} HATs a slot",
        f"{mark * 1000:.1f} ms for the mark",
        f"{mark / slow:.1%} of the slot's {slow * 1000:.1f} ms without it",
    )


def messages() -> Iterator[tuple[str, bytes]]:
    """The largest and the smallest that workers send each other."""
    rows = 24_000
    rng = np.random.default_rng(1)
    pings = SlotPings(
        0,
        3_600_000,
        tuple(b"%016d" % plate for plate in range(1000)),
        rng.integers(0, 1000, rows).astype(np.uint32),
        np.arange(rows).astype(np.uint32),
        np.full(rows, 0x87608C4D2FFFFFF, np.uint64),
        rng.integers(0, 2**17, rows).astype(np.int32),
    )
    (part,) = (one for one in cut(pings, 0, 1) if isinstance(one, PingChunk))
    yield "a part of 24,000 pings", encode_message(part)
    yield "a marker", encode_message(PingsEnd(0, 0, 3_600_000))


def bench_binding(name: str, data: bytes) -> None:
    """Reading a message, with and without the look at its header."""
    headers = [OURS.header]
    runs = max(200, 40_000_000 // (len(data) + 2000))

    def seconds(work: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(runs):
            work()
        return (time.perf_counter() - start) / runs

    plain = min(seconds(lambda: decode_message(data)) for _ in range(3))
    look = min(seconds(lambda: require_same(OURS, headers, "here")) for _ in range(3))
    size = len(headers[0][0]) + len(headers[0][1])
    say(
        f"binding of {name}",
        f"{look * 1e6:.2f} us and {size} B",
        f"beside {plain * 1e6:.2f} us and {len(data):,} B to read it without",
    )


@contextmanager
def ledgers() -> Iterator[list[tuple[str, LedgerSection]]]:
    with tempfile.TemporaryDirectory(prefix="udp-stream-bench-") as folder, services() as running:
        yield [
            ("SQLite", LedgerSection(url=f"{folder}/ledger")),
            ("Redis", LedgerSection(url=running.redis.url, key_file=str(Path(folder) / "redis.key"))),
        ]


def main() -> None:
    with ledgers() as places:
        for name, place in places:
            with ledger_and_keys(place) as (ledger, _):
                for hats, plates in ((40, 30), (3000, 50)):
                    bench_mark(name, ledger, hats, plates)
    for name, data in messages():
        bench_binding(name, data)


if __name__ == "__main__":
    words(__doc__)
    main()
