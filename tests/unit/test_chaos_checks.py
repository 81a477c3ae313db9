"""The checks after chaos: what is sound violates nothing, and each fault is named by the check that
is there for it."""

import io
from collections import Counter
from dataclasses import replace
from functools import partial
from math import inf

import msgspec
import numpy as np
import pytest

from tests.chaos.checks import (
    OF_CITY,
    Collected,
    Expected,
    Stranger,
    every_plate_is_charged_once,
    nobody_is_over_budget,
    violations,
)
from tests.chaos.city import balances_of
from tests.chaos.clips import clips_amiss
from tests.forms import PURE_ENV
from tests.runtime.harness import CONFIG, fleet_log, frames_of, ledger_at, runtime_on
from udp_stream.forecast import shape
from udp_stream.ledger.ids import CLIPS, kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release import city
from udp_stream.release import pipeline as balls
from udp_stream.release.record import Release, Smoothed
from udp_stream.settings import load

IN_RHO = (*CONFIG, "budget.accounting=approximate", "release.mean=forecast-clip")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """What there is to see after a run of the embedded runtime: both the deployment's say and the
    expectation."""
    return seen_of(tmp_path_factory.mktemp("ledger") / "ledger", CONFIG)


@pytest.fixture(scope="module")
def sound_in_rho(tmp_path_factory):
    """The same where plates share clips among their HATs."""
    return seen_of(tmp_path_factory.mktemp("ledger") / "ledger", IN_RHO)


def seen_of(ledger_file, flags):
    out, smoothed, log = io.BytesIO(), [], fleet_log(clean=True)
    with ledger_at(ledger_file, flags) as (ledger, keys):
        settings = load(None, flags, PURE_ENV)

        def smooth(some):
            smoothed.extend(map(Smoothed.encode, some))

        runtime_on(ledger, keys, out, flags, smooth=smooth).run(frames_of(log))
        entries = tuple(ledger.entries())
        balances = balances_of(ledger, entries, ())
        amiss = clips_amiss(settings, ledger, keys.hash_plate, frames_of(log))
        assert tuple(map(repr, ledger.entries())) == tuple(
            map(repr, entries)
        )  # nothing was written
    released = tuple(
        (Release.decode(line).release_id, line) for line in out.getvalue().splitlines()
    )
    charged = {
        one.release_id: dict(zip(one.plates, one.charged.tolist(), strict=True)) for one in entries
    }
    expected = {id_: Expected(Release.decode(payload), charged[id_]) for id_, payload in released}
    return Collected(
        fed=Counter(log), logged=Counter(log), expected=expected, released=released, latest=released, entries=entries,
        balances=balances, told="udp-stream: worker", plates=frozenset({"GJ05ZZ0001"}),
        smoothed=tuple((f"{at}", one) for at, one in enumerate(smoothed)), estimates=tuple(smoothed),
        clips_amiss=amiss,
    )  # fmt: skip


def without_a_balance(seen):
    lost = next(
        key for key, (spent, *_) in seen.balances.items() if spent
    )  # who was charged nothing has none to lose
    return replace(seen, balances={key: one for key, one in seen.balances.items() if key != lost})


def first_paid(seen):
    return next(at for at, entry in enumerate(seen.entries) if entry.charged.sum() > 0)


def with_entry(seen, at, **changes):
    return replace(
        seen,
        entries=(*seen.entries[:at], replace(seen.entries[at], **changes), *seen.entries[at + 1 :]),
    )


def with_record(seen, at, change):
    """Another record, everywhere, so that only what it says is wrong."""
    id_, payload = seen.released[at]
    other = Release.encode(change(Release.decode(payload)))
    swapped = tuple((i, other if i == id_ else p) for i, p in seen.released)
    entries = tuple(replace(e, payload=other) if e.release_id == id_ else e for e in seen.entries)
    return replace(seen, released=swapped, latest=swapped, entries=entries)


def with_status(seen, status):
    return with_record(seen, 0, lambda one: msgspec.structs.replace(one, status=status))


def fewer_samples(record):
    return msgspec.structs.replace(record, counts=msgspec.structs.replace(record.counts, samples=1))


def another_mean(record):
    return msgspec.structs.replace(record, mean=msgspec.structs.replace(record.mean, value_kmh=1.0))


def recharged(seen):
    entry = seen.entries[first_paid(seen)]
    balances = dict(seen.balances)
    for plate, amount in zip(entry.plates, entry.charged.tolist(), strict=True):
        charged, charges = balances[entry.period, plate]
        balances[entry.period, plate] = (charged + amount, charges + 1)
    return replace(seen, balances=balances)


def drawn_twice(seen):
    at = next(
        at
        for at, (_, payload) in enumerate(seen.released)
        if Release.decode(payload).mean is not None
    )
    id_, payload = seen.released[at]
    return replace(
        seen,
        released=(*seen.released, (id_, Release.encode(another_mean(Release.decode(payload))))),
    )


def overwritten(seen):
    at = next(
        at
        for at, entry in enumerate(seen.entries)
        if Release.decode(entry.payload).mean is not None
    )
    return with_entry(
        seen, at, payload=Release.encode(another_mean(Release.decode(seen.entries[at].payload)))
    )


def over_budget(seen):
    key = next(iter(seen.balances))
    return replace(seen, balances={**seen.balances, key: (10**12, seen.balances[key][1])})


def charged_otherwise(seen):
    at = first_paid(seen)
    return with_entry(seen, at, charged=np.roll(seen.entries[at].charged, 1) + 1)


def stranger(status=5, served=False, admitted=0, key_changed=False):
    return Stranger("a stranger", status, served, admitted, key_changed)


FAULTS = {
    "lost message": ("the log", lambda seen: replace(seen, logged=seen.logged - Counter([next(iter(seen.fed))]))),
    "foreign message": ("the log", lambda seen: replace(seen, logged=seen.logged + Counter([b"{}"]))),
    "lost HAT": ("HATs", lambda seen: replace(seen, released=seen.released[1:])),
    "unknown HAT": ("HATs", lambda seen: replace(seen, expected=dict(list(seen.expected.items())[1:]))),
    "no reason": ("records", lambda seen: with_status(seen, "withheld")),
    "record of another": ("HATs", lambda seen: replace(seen, released=((seen.released[0][0], seen.released[1][1]),))),
    "second draw": ("payloads", drawn_twice),
    "second draw, latest": ("payloads", lambda seen: replace(seen, latest=drawn_twice(seen).released)),
    "overwritten record": ("payloads", overwritten),
    "lost pings": ("counts", lambda seen: with_record(seen, 0, fewer_samples)),
    "unplanned": ("counts", lambda seen: with_status(seen, "withheld_unplanned")),
    "charged again": ("ledger", recharged),
    "admitted twice": ("ledger", lambda seen: replace(seen, entries=(*seen.entries, seen.entries[0]))),
    "never admitted": ("ledger", lambda seen: replace(seen, entries=seen.entries[1:])),
    "lost balance": ("ledger", without_a_balance),
    "stray balance": ("ledger", lambda seen: replace(seen, balances={**seen.balances, ("a day", b"x"): (5, 1)})),
    "what verify says": ("ledger", lambda seen: replace(seen, misfits=("a balance that fits nothing",))),
    "over budget": ("budgets", over_budget),
    "another budget": ("budgets", lambda seen: with_entry(seen, 0, budget=10**15)),
    "charged otherwise": ("charges", charged_otherwise),
    "charged, not recorded": ("unpublished", lambda seen: with_entry(seen, 0, payload=None)),
    "not published": ("unpublished", lambda seen: with_entry(seen, 0, published=False)),
    "waiting": ("unpublished", lambda seen: replace(seen, unpublished=("a HAT",))),
    "stranger that stays": ("strangers", lambda seen: replace(seen, strangers=(stranger(status=None),))),
    "stranger that fails": ("strangers", lambda seen: replace(seen, strangers=(stranger(status=1),))),
    "stranger that serves": ("strangers", lambda seen: replace(seen, strangers=(stranger(served=True),))),
    "stranger that charges": ("strangers", lambda seen: replace(seen, strangers=(stranger(admitted=1),))),
    "stranger with a new key": ("strangers", lambda seen: replace(seen, strangers=(stranger(key_changed=True),))),
    "lost estimate": ("estimates", lambda seen: replace(seen, smoothed=seen.smoothed[1:])),
    "another estimate": ("estimates", lambda seen: replace(seen, smoothed=(*seen.smoothed, ("an id", b"{}")))),
    "told": ("told", lambda seen: replace(seen, told="GJ05ZZ0001 was late")),
}  # fmt: skip


def test_what_is_sound_violates_nothing(sound):
    refused = replace(sound, strangers=(stranger(), stranger(status=4)))
    assert violations(refused, strictly_once=True) == []


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named(sound, name):
    kind, fault = FAULTS[name]
    assert kind in {sentence.partition(":")[0] for sentence in violations(fault(sound))}


def clips_at(seen):
    return next(at for at, entry in enumerate(seen.entries) if kind_of(entry.release_id) == CLIPS)


CLIPS_FAULTS = {
    "not remembered": lambda seen: replace(
        seen, entries=tuple(one for one in seen.entries if one is not seen.entries[clips_at(seen)])
    ),
    "remembered and not used": lambda seen: with_entry(
        seen, clips_at(seen), release_id="clips:0-900"
    ),
    "charged for": lambda seen: with_entry(
        seen, clips_at(seen), plates=(b"a plate",), charged=np.array([1])
    ),
    "released": lambda seen: with_entry(seen, clips_at(seen), payload=b"norms"),
}


@pytest.mark.parametrize("name", CLIPS_FAULTS)
def test_clips_that_plates_share_are_remembered_once_and_nobody_is_charged_for_them(
    sound_in_rho, name
):
    assert violations(sound_in_rho, strictly_once=True) == []
    assert any(one.startswith("clips: ") for one in violations(CLIPS_FAULTS[name](sound_in_rho)))


def test_clips_of_a_part_of_the_speeds_are_found(tmp_path, planted):
    whole, log = balls.slot_norms, fleet_log(clean=True)

    def of_one_shard(slot, values):
        norms = whole(slot, values)
        return replace(norms, checks=norms.checks // 2)

    with ledger_at(tmp_path / "ledger", IN_RHO) as (ledger, keys):
        planted(balls, slot_norms=of_one_shard)
        runtime_on(ledger, keys, io.BytesIO(), IN_RHO).run(frames_of(log))
        planted(balls, slot_norms=whole)
        ask = partial(clips_amiss, load(None, IN_RHO, PURE_ENV), ledger, keys.hash_plate)
        found, of_nothing = ask(frames_of(log)), ask([])
    assert found and all("other norms than those" in one for one in found)
    assert len(of_nothing) == len(found) and all(
        "remembered of no slot" in one for one in of_nothing
    )


def test_a_record_that_comes_twice_is_a_violation_only_where_it_is_to_come_once(sound):
    twice = replace(sound, released=(*sound.released, sound.released[-1]))
    assert violations(twice) == []
    assert [sentence.partition(":")[0] for sentence in violations(twice, strictly_once=True)] == [
        "repeats"
    ]


def test_a_plate_that_only_the_deployment_has_charged_has_its_balance_compared(sound):
    ledger, plates = MemoryLedger(), (b"asked", b"a hat")
    ledger.admit(
        "May", 10, plates, [Admission("a hat", np.array([0, 1]), np.array([4, 3]), 1, b"")]
    )
    entries = tuple(ledger.entries())
    in_a_hat = Expected(next(iter(sound.expected.values())).record, {b"a hat": 3, b"other": 0})
    balances = balances_of(ledger, entries, [in_a_hat])
    assert balances == {
        ("May", b"asked"): (4, 1),
        ("May", b"a hat"): (3, 1),
        ("May", b"other"): (0, 0),
    }
    assert (
        list(
            every_plate_is_charged_once(
                replace(sound, entries=entries, balances=balances, released=())
            )
        )
        == []
    )


@pytest.mark.parametrize(("rho", "found"), [(8.0, 0), (9.0, 1)])
def test_a_budget_in_rho_is_compared_in_rho(sound, rho, found):
    """The ledger was told 8 of something: records say of what."""
    in_rho = {
        "accounting": "approximate",
        "rho": 0.1,
        "period_rho": rho,
        "period_epsilon": 33.0,
        "delta": 1e-6,
    }
    expected = {
        id_: replace(one, record=msgspec.structs.replace(
            one.record, privacy=msgspec.structs.replace(one.record.privacy, **in_rho)
        ))
        for id_, one in sound.expected.items()
    }  # fmt: skip
    assert len([*nobody_is_over_budget(replace(sound, expected=expected))]) == found


@pytest.mark.parametrize("kind", OF_CITY)
def test_what_the_city_told_is_looked_at(tmp_path, limits, kind):
    limits(shape, PLATES_MIN=1.0, NOISE_MAX=99.0)
    limits(city, HOUR_PLATES_MIN=1, HOUR_DEVIATION_MAX=inf)
    seen = seen_of(tmp_path / "ledger", (*CONFIG, "release.mean=forecast-clip", "release.cdf=auto"))
    found = lambda one: {sentence.partition(":")[0] for sentence in violations(one)}  # noqa: E731
    at = next(at for at, entry in enumerate(seen.entries) if kind_of(entry.release_id) == kind)
    told = OF_CITY[kind].of_ledger("city", seen.entries[at].payload)
    assert found(seen) == set() and told.plates > 1
    fewer = seen.entries[at].charged * (np.arange(seen.entries[at].charged.size) > 0)
    assert "city" in found(with_entry(seen, at, charged=fewer))
    assert found(with_entry(seen, at, payload=None)) == {"city", "unpublished"}
    late = (*seen.entries[:at], *seen.entries[at + 1 :], seen.entries[at])
    assert found(replace(seen, entries=late)) == {"city"}
