"""What seeded runs put out: every mechanism, grouping, statistic and status, as digests to hold a version to.

`python -m tests.golden` writes them anew. Do so only in a commit that is to change what is released, and say so there.
"""

import io
import json
from collections import Counter
from hashlib import blake2b
from pathlib import Path

from msgspec.structs import replace

from tests.runtime.harness import embedded, fleet_log, frames_of
from udp_stream.adapters.embedded import Embedded
from udp_stream.adapters.ledgers.opening import ledger_and_keys
from udp_stream.adapters.settings import load
from udp_stream.release.query_record import decode_result
from udp_stream.release.record import decode
from udp_stream.testing import SeededEntropy

FILE = Path(__file__).with_name("outputs.json")
SEED = "golden"
BASE = ("hat.slot=15m", "hat.resolution=7", "release.min_plates=4", "budget.epsilon=8.0")
QUERIES_FILE = Path(__file__).with_name("queries.json")
"""What standing queries answer, in rho and in epsilon: in a file of its own, as results are no releases."""

ON_KAFKA = "as on Kafka"
IN_RHO = "as on Kafka, in rho"
CLEAN = ON_KAFKA, IN_RHO
"""Of a fleet without late pings: a file and a topic, whose clocks differ, do not agree on those."""

MECHANISMS = ("auto", "baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile", "optimal")

CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    **{
        f"{mean}, {grouping}": (f"release.mean={mean}", f"release.grouping={grouping}", "release.mean_epsilon=0.4")
        for mean in MECHANISMS
        for grouping in ("best-fit", "wrap-around")
    },
    "all statistics": ("release.mean_epsilon=0.4", "release.variance_epsilon=0.2", "release.cdf_epsilon=0.3"),
    "automatic epsilons that run out": (
        "release.mean_epsilon=auto", "release.cdf_epsilon=auto", "budget.epsilon=0.5", "budget.period=1h",
    ),
    "variance alone": ("release.mean_epsilon=0", "release.variance_epsilon=0.5"),
    "bins by edges": ("release.mean_epsilon=0", "release.cdf_epsilon=0.5", "release.bins=[0, 0, 10, 20, 65]"),
    "sixteen bins": ("release.mean_epsilon=0", "release.cdf_epsilon=0.5", "release.bins=16"),
    "uniform accounting": ("release.mean_epsilon=0.4", "budget.accounting_detail=uniform", "budget.epsilon=2"),
    "suppression": ("release.mean_epsilon=auto", "release.suppression=chop-user", "budget.epsilon=1"),
    ON_KAFKA: ("release.mean_epsilon=0.4", "release.cdf_epsilon=0.3", "budget.epsilon=6.0"),
    "around forecasts": ("release.mean=forecast-clip", "forecast.counts=published"),
    "the whole city asked": ("release.mean=forecast-clip", "forecast.city=on", "budget.epsilon=25"),
    "counts kept back": ("release.mean=forecast-clip", "forecast.counts=off", "release.counts=none"),
    IN_RHO: (
        "release.mean_epsilon=0.4", "release.cdf_epsilon=0.3", "budget.epsilon=6.0", "budget.accounting=approximate",
    ),
    "in rho, by levy": (
        "release.mean=levy", "release.mean_epsilon=0.5", "release.variance_epsilon=0.2", "budget.accounting=zcdp",
        "budget.rho=0.8",
    ),
    "few HATs a plate": ("release.mean_epsilon=0.4", "release.suppression=chop-user", "release.hats_max=2"),
}  # fmt: skip


def told(payloads: list[bytes]) -> dict[str, object]:
    """The digest of some records in this order, and how many there are of each status."""
    statuses = Counter(decode(payload).status for payload in payloads)
    digest = blake2b(b"\n".join(payloads), digest_size=16).hexdigest()
    return {"digest": digest, **dict(sorted(statuses.items()))}


def write_key(folder: Path) -> str:
    """One key for all runs, as the order of plates follows from their hashes; gives the setting that names it."""
    key_file = folder / "plates.key"
    key_file.write_text("5e" * 32)
    key_file.chmod(0o600)
    return f"ledger.key_file={key_file}"


def of_embedded(folder: Path, ledger: object, name: str) -> dict[str, object]:
    """What the embedded runtime releases of the fleet under this configuration, on a new ledger at this place."""
    ours = CONFIGURATIONS[name]
    base = BASE[:-1] if "budget.accounting=zcdp" in ours else BASE  # which has no epsilon
    out, flags = io.BytesIO(), (*base, *ours, write_key(folder))
    with embedded(ledger, out, flags, SeededEntropy(SEED)) as runtime:
        runtime.run(frames_of(fleet_log(clean=name in CLEAN)))
    return told(out.getvalue().splitlines())


QUERIES = """
[queries]
{budget}
center = [72.83, 21.17]
[[query]]
name = "box"
kind = "range"
every = "15m"
box = [72.79, 21.15, 72.85, 21.21]
rounds = 8
[[query]]
name = "triangle"
kind = "range"
every = "30m"
polygon = [[72.78, 21.14], [72.86, 21.15], [72.82, 21.22]]
rounds = 4
split = "doubling"
[[query]]
name = "cells"
kind = "range"
every = "1h"
cells = ["8742d98b6ffffff", "8742d9d4cffffff"]
privatisation = "point"
rounds = 4
[[query]]
name = "density"
kind = "density"
every = "30m"
place = [72.83, 21.19]
rounds = 4
[[query]]
name = "stop"
kind = "nearest"
every = "30m"
place = [72.83, 21.19]
k = 3
rounds = 4
"""
BUDGETS = {"rho": "rho = 4000.0", "epsilon": "epsilon = 2000.0"}


def of_queries(folder: Path, name: str, url: str = "") -> dict[str, object]:
    """What the embedded runtime answers of the fleet under this budget, on a new ledger, in the folder if no other."""
    path = folder / "queries.toml"
    path.write_text(QUERIES.format(budget=BUDGETS[name]))
    settings, told = load(path, (*BASE, "release.mean_epsilon=0.4", write_key(folder)), {}), list[bytes]()
    with ledger_and_keys(replace(settings.ledger, url=url or str(folder / "ledger"))) as (ledger, keys):
        runtime = Embedded(
            settings, ledger, SeededEntropy(SEED), keys.key_of, "udp-stream test", lambda _: None, answer=told.extend
        )
        runtime.run(frames_of(fleet_log()))
    digest = blake2b(b"\n".join(told), digest_size=16).hexdigest()
    return {"digest": digest, **dict(sorted(Counter(decode_result(one).query.name for one in told).items()))}


def known_queries() -> dict[str, dict[str, object]]:
    """What was answered when the file was written."""
    found: dict[str, dict[str, object]] = json.loads(QUERIES_FILE.read_text())
    return found


def known() -> dict[str, dict[str, object]]:
    """What was put out when the file was written."""
    found: dict[str, dict[str, object]] = json.loads(FILE.read_text())
    return found
