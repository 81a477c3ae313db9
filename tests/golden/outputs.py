"""What seeded runs put out and what their ledgers remember; `python -m tests.golden` writes the
files anew."""

import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from tests.runtime.harness import embedded, fleet_log, frames_of
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledger.ids import kind_of
from udp_stream.ledger.port import Admission, Entry, Ledger
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.release.record import QueryResult, Release
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

OUTPUTS = Path(__file__).with_name("outputs.json")
QUERIES = Path(__file__).with_name("queries.json")
WHOLE = Path(__file__).with_name("whole.json")
SEED = "golden"
BASE = (
    "hat.slot=15m",
    "hat.resolution=7",
    "release.min_plates=4",
    "budget.accounting=pure",
    "budget.epsilon=8.0",
)
ON_KAFKA = "as on Kafka"
IN_RHO = "as on Kafka, in rho"
CLEAN = ON_KAFKA, IN_RHO
"""Of a fleet without late pings: a file and a topic, whose clocks differ, do not agree on those."""

MECHANISMS = (
    "auto",
    "baseline",
    "array-averaging",
    "levy",
    "fixed-quantile",
    "eps-quantile",
    "optimal",
)

CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    **{
        f"{mean}, {grouping}": (f"release.mean={mean}", f"release.grouping={grouping}", "release.mean_epsilon=0.4")
        for mean in MECHANISMS
        for grouping in ("best-fit", "wrap-around")
    },
    "all statistics": (
        "release.mean_epsilon=0.4", "release.variance_epsilon=0.2", "release.cdf=tree", "release.cdf_epsilon=0.3",
    ),
    "automatic epsilons that run out": (
        "release.mean_epsilon=auto", "release.cdf=tree", "release.cdf_epsilon=auto", "budget.epsilon=0.5",
        "budget.period=1h",
    ),
    "variance alone": ("release.mean_epsilon=0", "release.variance_epsilon=0.5"),
    "bins by edges": ("release.mean_epsilon=0", "release.cdf_epsilon=0.5", "release.bins=[0, 0, 10, 20, 65]"),
    "sixteen bins": ("release.mean_epsilon=0", "release.cdf_epsilon=0.5", "release.bins=16"),
    "suppression": ("release.mean_epsilon=auto", "release.suppression=chop-user", "budget.epsilon=1"),
    ON_KAFKA: ("release.mean_epsilon=0.4", "release.cdf=tree", "release.cdf_epsilon=0.3", "budget.epsilon=6.0"),
    "around forecasts": ("release.mean=forecast-clip",),
    "counts left out": ("release.mean=forecast-clip", "release.counts=none"),
    IN_RHO: (
        "release.mean_epsilon=0.4", "release.cdf=tree", "release.cdf_epsilon=0.3", "budget.epsilon=6.0",
        "budget.accounting=approximate",
    ),
    "in rho, by levy": (
        "release.mean=levy", "release.mean_epsilon=0.5", "release.variance_epsilon=0.2", "budget.accounting=zcdp",
        "budget.rho=0.8",
    ),
    "few HATs a plate": ("release.mean_epsilon=0.4", "release.suppression=chop-user", "release.hats_max=2"),
}  # fmt: skip


SHOWN = (
    ("all statistics", "released"), ("all statistics", "withheld_few_plates"),
    ("automatic epsilons that run out", "released"), (ON_KAFKA, "withheld_budget"), ("around forecasts", "released"),
    ("around forecasts", "withheld_uninformative"), (IN_RHO, "released"), ("in rho, by levy", "released"),
)  # fmt: skip
"""Which records `whole.json` shows: the one in the middle of those of a run that have this status."""

BALANCES_SHOWN = "all statistics", IN_RHO


class Run(NamedTuple):
    payloads: list[bytes]
    entries: list[tuple[Entry, bytes]]


def fields(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict) and name != "charged":
            yield from fields(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from fields({str(i): one for i, one in enumerate(value)}, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value


def by_field(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """For each field its value, where all records that have it agree, or a digest of values and
    places."""
    columns = defaultdict[str, list[tuple[int, Any]]](list)
    for i, record in enumerate(records):
        for path, value in fields(record):
            columns[path].append((i, value))
    told = {}
    for path, column in sorted(columns.items()):
        digest = blake2b(json.dumps(column).encode(), digest_size=8).hexdigest()
        alike = all(value == column[0][1] for _, value in column)
        told[path] = (
            f"{len(column)} x {json.dumps(column[0][1])}"
            if alike
            else f"{len(column)} values, {digest}"
        )
    return told


def remembered(ledger: Ledger) -> list[tuple[Entry, bytes]]:
    assert ledger.verify() == []
    found = []
    for entry in sorted(ledger.entries(), key=lambda one: one.release_id):
        members = np.arange(len(entry.plates), dtype=np.int64)
        again = Admission(
            entry.release_id, members, np.ones_like(members), min_admitted=0, terms=b""
        )
        (verdict,) = ledger.admit(entry.period, entry.budget, entry.plates, [again])
        assert np.array_equal(verdict.charged, entry.charged)
        found.append((entry, verdict.terms))
    return found


def shown_entry(entry: Entry, terms: bytes) -> dict[str, Any]:
    return {
        "release_id": entry.release_id,
        "period": entry.period,
        "budget": entry.budget,
        "terms": json.loads(terms) if terms.startswith(b"{") else terms.hex(),
        "charged": {plate.hex(): charged for plate, charged in by_plate(entry)},
    }


def by_plate(entry: Entry) -> list[tuple[bytes, int]]:
    return sorted(zip(entry.plates, entry.charged.tolist(), strict=True))


def ledger_fields(entries: list[tuple[Entry, bytes]]) -> dict[str, Any]:
    kinds = defaultdict[str, list[dict[str, Any]]](list)
    for entry, terms in entries:
        kinds[kind_of(entry.release_id)].append(shown_entry(entry, terms))
    return {
        f"{kind}.{path}": told
        for kind, shown in sorted(kinds.items())
        for path, told in by_field(shown).items()
    }


def balances(entries: list[tuple[Entry, bytes]]) -> dict[str, dict[str, int]]:
    sums = defaultdict[str, Counter[str]](Counter)
    for entry, _ in entries:
        for plate, charged in by_plate(entry):
            sums[entry.period][plate.hex()] += charged
    return {period: dict(sorted(plates.items())) for period, plates in sorted(sums.items())}


def told(run: Run) -> dict[str, Any]:
    assert all(Release.encode(Release.decode(payload)) == payload for payload in run.payloads)
    records = [json.loads(payload) for payload in run.payloads]
    return {
        "statuses": dict(sorted(Counter(record["status"] for record in records).items())),
        "records": by_field(records),
        "ledger": ledger_fields(run.entries),
    }


def middle(payloads: list[bytes], status: str) -> Any:
    ours = [record for record in map(json.loads, payloads) if record["status"] == status]
    return ours[len(ours) // 2]


def whole(runs: dict[str, Run], answers: dict[str, Run]) -> dict[str, Any]:
    records = []
    for name, status in SHOWN:
        record = middle(runs[name].payloads, status)
        entry = next(
            pair for pair in runs[name].entries if pair[0].release_id == record["release_id"]
        )
        records.append({"run": name, "record": record, "entry": shown_entry(*entry)})
    results: dict[str, Any] = {}
    for result in map(json.loads, answers["rho"].payloads):
        results.setdefault(result["query"]["name"], result)
    return {
        "records": records,
        "results": list(results.values()),
        "balances": {name: balances(runs[name].entries) for name in BALANCES_SHOWN},
    }


def write_key(folder: Path) -> str:
    """One key for all runs, as the order of plates follows from their hashes; gives the setting
    that names it."""
    key_file = folder / "plates.key"
    key_file.write_text("5e" * 32)
    key_file.chmod(0o600)
    return f"ledger.key_file={key_file}"


def of_embedded(folder: Path, ledger: object, name: str) -> Run:
    ours = CONFIGURATIONS[name]
    base = BASE[:-1] if "budget.accounting=zcdp" in ours else BASE  # which has no epsilon
    out, flags = io.BytesIO(), (*base, *ours, write_key(folder))
    with embedded(ledger, out, flags, SeededEntropy(SEED)) as runtime:
        runtime.run(frames_of(fleet_log(clean=name in CLEAN)))
    settings = load(None, (*flags, f"ledger.url={ledger}"), {})
    with ledger_and_keys(settings.ledger) as (again, _):
        return Run(out.getvalue().splitlines(), remembered(again))


ASKED = """
[queries]
{budget}
center = [72.83, 21.17]
[[query]]
name = "box"
kind = "range"
every = "15m"
box = [72.79, 21.15, 72.85, 21.21]
[[query]]
name = "triangle"
kind = "range"
every = "30m"
polygon = [[72.78, 21.14], [72.86, 21.15], [72.82, 21.22]]
[[query]]
name = "cells"
kind = "range"
every = "1h"
cells = ["8742d98b6ffffff", "8742d9d4cffffff"]
[[query]]
name = "density"
kind = "density"
every = "30m"
place = [72.83, 21.19]
[[query]]
name = "stop"
kind = "nearest"
every = "30m"
place = [72.83, 21.19]
k = 3
"""
BUDGETS = {"rho": "rho = 4000.0", "epsilon": "epsilon = 2000.0", ON_KAFKA: "rho = 4000.0"}
"""Of positions, by the name of a run."""


def asked(name: str) -> str:
    return ASKED.format(budget=BUDGETS[name])


def of_queries(folder: Path, name: str, url: str = "") -> Run:
    path = folder / "queries.toml"
    path.write_text(asked(name))
    flags = CONFIGURATIONS.get(name, ("release.mean_epsilon=0.4",))
    settings, results = load(path, (*BASE, *flags, write_key(folder)), {}), list[bytes]()
    with ledger_and_keys(replace(settings.ledger, url=url or str(folder / "ledger"))) as (
        ledger,
        keys,
    ):
        runtime = EmbeddedRuntime(
            settings,
            ledger,
            SeededEntropy(SEED),
            keys.hash_plate,
            "udp-stream test",
            lambda _: None,
            answer=results.extend,
        )
        runtime.run(frames_of(fleet_log(clean=name in CLEAN)))
        return Run(results, remembered(ledger))


def told_results(run: Run) -> dict[str, Any]:
    assert all(
        QueryResult.encode(QueryResult.decode(payload)) == payload for payload in run.payloads
    )
    by_query = defaultdict[str, list[dict[str, Any]]](list)
    for result in sorted(map(json.loads, run.payloads), key=lambda one: one["release_id"]):
        by_query[result["query"]["name"]].append(result)
    return {
        "results": {name: len(results) for name, results in sorted(by_query.items())},
        **{name: by_field(results) for name, results in sorted(by_query.items())},
        "ledger": ledger_fields(run.entries),
    }


def write(path: Path, found: object) -> None:
    """One field a line; a list of numbers is on one."""
    text = json.dumps(found, indent=1)
    path.write_text(
        re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda list_: f"[{' '.join(list_[1].split())}]", text)
        + "\n"
    )


def known(path: Path = OUTPUTS) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
