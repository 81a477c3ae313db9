"""The embedded road over the logs of a broker: what workers have to come to."""

from collections import defaultdict
from typing import Any, NamedTuple

from faust.types import TP

from streams.processors import columns_of
from streams.wire import (
    PingChunk,
    PositionChunk,
    cut_moment,
    cut_pings,
    merge_moment,
    merge_pings,
)
from tests.protocol.broker import TOPICS, context_of, queries_of, rules_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.promise import promise_of, release_slot
from udp_stream.release.record import Smoothed
from udp_stream.windows.slots import SourceCheckpoint, SourceReader
from udp_stream.windows.tables import tabulate


class Expected(NamedTuple):
    """Payloads by release id, estimates in order, answers of queries by id, ids of refusals, and
    the ledger."""

    releases: dict[bytes, bytes]
    smoothed: list[bytes]
    answers: dict[bytes, bytes]
    refused: set[bytes]
    ledger: Any


def embedded(broker, settings, city=None):
    """Each log of pings is read in one go, each slot and moment that all have closed taken once."""
    context = context_of(settings, city=city)
    promise = promise_of(settings.policy)
    if promise.learns(settings.policy):
        context = promise.with_forecaster(context)
    queries = queries_of(settings, context)
    rules = rules_of(settings, context, queries and queries.moments)
    readers = [SourceReader(rules, SourceCheckpoint(0)) for _ in range(2)]
    made = Expected({}, [], {}, set(), MemoryLedger())
    slots = defaultdict(list)
    moments = defaultdict(list)
    for source, reader in enumerate(readers):
        log = broker.logs[TP(TOPICS.pings.name, source)]
        if not log:
            continue
        found = reader.read(*columns_of(log))
        for one in found.refused:
            at = f"{TOPICS.pings.name}-{source}-{one.offset}-{one.refusal.position}"
            made.refused.add(at.encode())
        for slot in found.closed:
            chunks = cut_pings(slot, source, 1, least=int(reader.is_in_processing_time))
            slots[slot.start_ms] += [one for one in chunks if isinstance(one, PingChunk)]
        for moment in found.moments:
            chunks = cut_moment(moment, source, 0)
            moments[moment.time_ms] += [one for one in chunks if isinstance(one, PositionChunk)]
    through_ms = min(reader.through_ms or 0 for reader in readers)
    for start, parts in sorted(slots.items()):
        counts, values = tabulate(merge_pings(parts))
        if counts.end_ms > through_ms:
            break
        payloads = release_slot(counts, values, context, made.ledger, lambda _: None).payloads
        made.releases.update({id_.encode(): payload for id_, payload in payloads.items()})
        estimates = context.smoothed((start, counts.end_ms), made.ledger)
        made.smoothed.extend(map(Smoothed.encode, estimates))
    moments_ms = min(reader.moments_ms or 0 for reader in readers)
    for time_ms, chunks in sorted(moments.items()):
        if queries is None or time_ms > moments_ms or not chunks:
            continue
        recorded = queries.record(merge_moment(chunks), made.ledger)
        answers = () if recorded is None else recorded.answers
        made.answers.update({one.release_id.encode(): one.payload for one in answers})
    return made
