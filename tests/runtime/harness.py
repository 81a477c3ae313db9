"""Small logs of a synthetic fleet, and the embedded runtime over them."""

import shutil
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from udp_stream.embedded.runtime import EmbeddedRuntime, release_sink, smoothed_sink
from udp_stream.ledgers.keys import OsEntropy, load_or_create_key
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.settings import LedgerSection, load
from udp_stream.sources.fleet import IST, Fleet, Imperfections

CONFIG = ("hat.slot=15m", "hat.resolution=7", "release.mean_epsilon=0.4", "release.cdf=tree", "release.cdf_epsilon=0.3",
          "release.variance_epsilon=0.2",
          "release.min_plates=4", "release.mean=auto", "budget.accounting=pure", "budget.epsilon=8.0")  # fmt: skip
FEEDS = Path(__file__).parents[3] / "shared" / "data"


@cache
def fleet_log(buses=40, hours=1.5, clean=False, seed=1):
    start = datetime(2024, 1, 8, 9, 0, tzinfo=IST)
    faults = Imperfections.none() if clean else Imperfections()
    fleet = Fleet(seed=seed, buses=buses, start=start, hours=hours, imperfections=faults)
    return [message for batch in fleet.messages() for message in batch]


def without_speeds(messages):
    for message in messages:
        ping = msgspec.json.decode(message)
        yield msgspec.json.encode({name: value for name, value in ping.items() if name != "speed"})


def frames_of(messages, size=4096):
    return [messages[i : i + size] for i in range(0, len(messages), size)]


def line_writer(out):
    def write(lines):
        out.write(b"".join(line + b"\n" for line in lines))
        out.flush()

    return write


def record_writer(out):
    return release_sink(line_writer(out))


def smoothed_writer(out):
    return smoothed_sink(line_writer(out))


def ledger_at(path, flags=CONFIG):
    return ledger_and_keys(replace(load(None, flags, {}).ledger, url=str(path)))


def runtime_on(ledger, keys, out, flags=CONFIG, entropy=None, reject=None, smooth=None):
    return EmbeddedRuntime(
        load(None, flags, {}), ledger, entropy or OsEntropy(), keys.hash_plate, "udp-stream test", record_writer(out),
        reject, smooth=smooth,
    )  # fmt: skip


@contextmanager
def embedded(ledger_path, out, flags=CONFIG, entropy=None, reject=None, smooth=None):
    with ledger_at(ledger_path, flags) as (ledger, keys):
        yield runtime_on(ledger, keys, out, flags, entropy, reject, smooth)


def beside(ledger, path):
    """A file ledger beside a configured one, with the same hashes of plates: a key file has one
    ledger."""
    load_or_create_key(ledger.key_file)
    return LedgerSection(url=str(path), key_file=str(shutil.copy(ledger.key_file, f"{path}.key")))
