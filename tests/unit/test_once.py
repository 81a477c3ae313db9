"""The road below every release carries another kind than HATs: a toy query, of one plate's part in
a sum."""

import json

import msgspec
import numpy as np
import pytest

from streams.processors import settle
from streams.protocol import NOT_YET
from streams.wire import shard_of, shard_of_period
from tests.forms import PURE_ENV
from tests.unit.test_flow import a_context, run, slot
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.ids import ROUND, id_of, kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger
from udp_stream.ledgers.statement import statement
from udp_stream.planning.plan import Terms
from udp_stream.release.charge import charge_once, terms_from
from udp_stream.release.pipeline import draw_once
from udp_stream.release.query_pipeline import record_moment
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.testing import a_moment, a_query, a_query_context

PLATES = [b"hash0000", b"hash0001", b"hash0002"]
PERIOD = "1d from 2022-01-01T00:00:00+05:30"
QUERY = "query:near-the-station:1641011400"
HAT = "87608c4d2ffffff-1641011400-3600"


def query(nano, allowances=None):
    """Each plate pays alike; the terms say how much."""
    return Admission(QUERY, np.arange(3), np.full(3, nano), 1, str(nano).encode(), allowances)


def answered(ledger, nano, drawn, allowances=None):
    """Charge, then draw; `drawn` gets what was charged on, and stands for the noise."""
    (found,) = charge_once(
        ledger,
        PERIOD,
        10**10,
        PLATES,
        [query(nano, allowances)],
        lambda _, terms: query(int(terms), allowances),
    )
    return found, draw_once(ledger, [QUERY], lambda _: [drawn(found)])


def told(seed):
    return lambda found: f"{seed}:{found.terms.decode()}:{found.charged.tolist()}".encode()


def test_a_query_is_charged_once_and_drawn_once_on_the_terms_that_came_first(tmp_path):
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        found, first = answered(ledger, 5, told("first"))
        assert (first.payloads, first.made) == ((b"first:5:[5, 5, 5]",), {QUERY})
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        found, again = answered(ledger, 7, told("again"))
        assert found.charged.tolist() == [5, 5, 5] and (again.payloads, again.made) == (
            first.payloads,
            frozenset(),
        )
        assert ledger.verify() == [] and ledger.balances(PERIOD, PLATES).charged.tolist() == [
            5,
            5,
            5,
        ]


def test_a_ledger_that_remembers_other_terms_each_time_is_refused_and_not_charged_on_ours():
    ledger = MemoryLedger()
    ledger.admit(PERIOD, 10**10, PLATES, [query(5)])
    with pytest.raises(PrivacyRefused, match="1641011400 each time"):
        charge_once(
            ledger, PERIOD, 10**10, PLATES, [query(7)], lambda _, terms: query(int(terms) + 1)
        )


def test_a_plate_has_an_allowance_of_its_own():
    found, _ = answered(MemoryLedger(), 5, told("x"), allowances=np.array([4, 5, 6]))
    assert found.charged.tolist() == [0, 5, 5]


def test_nothing_is_drawn_that_was_not_charged():
    ledger = MemoryLedger()
    with pytest.raises(PrivacyRefused, match="expected an admission"):
        draw_once(ledger, [QUERY], lambda _: [b"17"])
    assert ledger.recorded([QUERY]) == [None]


def test_hats_and_queries_share_a_plate_s_budget_and_nobody_takes_one_for_the_other():
    ledger = MemoryLedger()
    answered(ledger, 9_600_000_000, told("q"))
    records = [Release.decode(payload) for _, payload in run(ledger, a_context(), slot())]
    assert any(0 < one.counts.admitted_plates == one.counts.plates - 3 for one in records)
    settle(ledger, 0, 1, 2**60)
    assert [id_ for id_, _ in ledger.unpublished()] == [QUERY], (
        "a query is published by somebody else"
    )
    facts = statement(load(None, (), PURE_ENV), ledger)
    assert "plates_charged" in json.dumps(facts)
    assert kind_of(QUERY) == "query" and all(kind_of(one.release_id) == "hat" for one in records)


@pytest.mark.parametrize("shard", [0, 1])
def test_who_takes_a_shard_over_tells_of_no_other_shard_that_its_hats_are_published(shard):
    ledger = MemoryLedger()
    cells = np.array([0x87608C4D2FFFFFF, 0x87608C4D3FFFFFF, 0x87608C4D4FFFFFF], np.uint64)
    of_shard = shard_of(cells, 2)
    assert set(of_shard.tolist()) == {0, 1}
    hats = [f"{cell:x}-1641011400-3600" for cell in cells.tolist()]
    charges = np.arange(1), np.array([1])
    ledger.admit(PERIOD, 10, [b"a"], [Admission(hat, *charges, 1, b"") for hat in hats])
    ledger.record([(hat, b"x") for hat in hats])
    settle(ledger, shard, 2, 2**60)
    waiting = [hat for hat, at in zip(hats, of_shard.tolist(), strict=True) if at != shard]
    assert [id_ for id_, _ in ledger.unpublished()] == waiting


def test_who_takes_a_shard_over_tells_of_what_its_checkpoint_is_behind_and_of_nothing_else():
    """The rest was recorded, and its readers have nothing of it yet."""
    ledger = MemoryLedger()
    periods = a_query_context().periods
    start_s = 1641011400
    end_s = start_s + 3600
    hats = [f"87608c4d2ffffff-{at}-3600" for at in (start_s, end_s)]
    queries = [f"query:near-the-station:{at}" for at in (start_s, end_s)]
    ids = hats + queries
    charges = np.arange(1), np.array([1])
    ledger.admit(PERIOD, 10, [b"a"], [Admission(id_, *charges, 1, b"") for id_ in ids])
    ledger.record([(id_, b"x") for id_ in ids])
    other = 1 - shard_of_period(periods.start_of(1000 * start_s), 2)
    settle(ledger, other, 2, NOT_YET, 1000 * end_s, periods)
    assert [id_ for id_, _ in ledger.unpublished()] == ids
    settle(ledger, 0, 1, 1000 * end_s, 1000 * start_s, periods)
    assert [id_ for id_, _ in ledger.unpublished()] == [hats[1], queries[1]]


def test_terms_of_another_version_are_refused_and_not_read_as_something_else():
    before = b'{"mean_nano":500000000,"variance_nano":0,"cdf_nano":0,"withheld":"","accounting_detail":"individual"}'
    without_measure, later = (
        msgspec.json.encode(Terms()).replace(b"terms.3", b"terms.%d" % i) for i in (2, 4)
    )
    for terms in (before, without_measure, later):
        with pytest.raises(PrivacyRefused, match="charged by another version"):
            terms_from(terms, HAT, Terms)
    assert terms_from(msgspec.json.encode(Terms()), HAT, Terms) == Terms()


@pytest.mark.parametrize("measure", ["renyi", ""])
def test_a_round_of_another_version_is_refused_before_it_is_drawn(measure):
    """Its query is of a measure that this version does not know, or no query at all."""
    ledger, moment, context = MemoryLedger(), a_moment(), a_query_context()
    query = (
        msgspec.json.encode(a_query()).replace(b'"zcdp"', b'"%s"' % measure.encode())
        if measure
        else b"{}"
    )
    terms = b'{"query":%s,"plates":"5eed"}' % query
    charges = np.arange(8), np.full(8, 5 * 10**9)
    first = Admission(
        id_of(ROUND, moment.time_ms, key="in-the-middle", number=1), *charges, 0, terms
    )
    ledger.admit(
        context.periods.name_at(moment.time_ms), context.periods.budget_nano, moment.plates, [first]
    )
    with pytest.raises(PrivacyRefused, match="charged by another version"):
        record_moment([a_query()], moment, context, ledger)
    assert [entry.payload for entry in ledger.entries()] == [None]
