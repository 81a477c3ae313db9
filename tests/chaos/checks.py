"""What must hold after chaos, of the whole output: pure functions that give a sentence per
violation."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from udp_stream.base.units import nano_allowance
from udp_stream.ledger.ids import CITY, CITY_HOUR, CLIPS, Id, id_of, kind_of
from udp_stream.ledger.port import Entry
from udp_stream.release.city import CityHour, CityRecord
from udp_stream.release.record import Privacy, Release

TOLD_MAX = 5
"""Sentences of one kind that are told one by one; the rest is a number."""


@dataclass(frozen=True)
class Expected:
    """What the embedded runtime says of one HAT: its record, and each plate's charge (0: could not
    pay)."""

    record: Release
    charged: Mapping[bytes, int]


@dataclass(frozen=True)
class Stranger:
    """What became of a worker that does not belong here. `status` is None if it did not end in its
    time."""

    name: str
    status: int | None
    served: bool
    admitted: int
    key_changed: bool = False
    told: str = ""


@dataclass(frozen=True)
class Collected:
    """Everything there is to see once all is quiet. Output in the order of its topic: (release id,
    payload)."""

    fed: Counter[bytes]
    logged: Counter[bytes]
    expected: Mapping[str, Expected]
    released: tuple[tuple[str, bytes], ...]
    latest: tuple[tuple[str, bytes], ...]
    entries: tuple[Entry, ...]
    balances: Mapping[tuple[str, bytes], tuple[int, int]]
    misfits: tuple[str, ...] = ()
    unpublished: tuple[str, ...] = ()
    told: str = ""
    plates: frozenset[str] = field(default_factory=frozenset)
    strangers: tuple[Stranger, ...] = ()
    smoothed: tuple[tuple[str, bytes], ...] = ()
    estimates: tuple[bytes, ...] = ()
    clips_amiss: tuple[str, ...] = ()


def violations(seen: Collected, *, exact: bool = True, strictly_once: bool = False) -> list[str]:
    """`exact`: charges equal the embedded ones (not where epsilon is "auto"). `strictly_once`: a
    record per id."""
    if unread := list(every_record_can_be_read(seen)):
        return list(_shortened("records", unread))
    found = {
        "the log": log_holds_what_was_fed(seen),
        "HATs": every_hat_is_answered(seen),
        "payloads": one_payload_per_id(seen),
        "counts": counts_agree(seen, exact),
        "charges": charges_agree(seen) if exact else iter(()),
        "ledger": every_plate_is_charged_once(seen),
        "clips": shared_clips_are_remembered_once(seen),
        "city": what_the_city_told_is_told_once(seen),
        "budgets": nobody_is_over_budget(seen),
        "unpublished": nothing_is_unpublished(seen),
        "told": no_plate_is_told(seen),
        "strangers": strangers_are_refused(seen),
        "estimates": estimates_follow_from_releases(seen, strictly_once),
        "latest": latest_are_the_last(seen) if strictly_once else iter(()),
        "repeats": no_record_comes_twice(seen) if strictly_once else iter(()),
    }
    return [
        sentence
        for kind, sentences in found.items()
        for sentence in _shortened(kind, list(sentences))
    ]


def _shortened(kind: str, sentences: list[str]) -> Iterator[str]:
    yield from (f"{kind}: {sentence}" for sentence in sentences[:TOLD_MAX])
    if len(sentences) > TOLD_MAX:
        yield f"{kind}: and {len(sentences) - TOLD_MAX} more"


def hats_of(seen: Collected) -> list[Entry]:
    """What the ledger holds of HATs: not the clips that plates share, nor what the city told."""
    return [entry for entry in seen.entries if kind_of(entry.release_id) == "hat"]


def log_holds_what_was_fed(seen: Collected) -> Iterator[str]:
    if missing := seen.fed - seen.logged:
        yield f"{missing.total()} messages that were fed are not in the log"
    if more := seen.logged - seen.fed:
        yield f"{more.total()} messages are in the log that were not fed once more"


def every_record_can_be_read(seen: Collected) -> Iterator[str]:
    recorded = [
        (entry.release_id, entry.payload) for entry in hats_of(seen) if entry.payload is not None
    ]
    for id_, payload in (*seen.released, *seen.latest, *recorded):
        try:
            Release.decode(payload)
        except msgspec.DecodeError as error:
            yield f"{id_}: {error}"


def every_hat_is_answered(seen: Collected) -> Iterator[str]:
    answered = {id_ for id_, _ in seen.released}
    yield from (f"{id_} is not answered" for id_ in sorted(seen.expected.keys() - answered))
    yield from (
        f"{id_} is answered, and is not in the log"
        for id_ in sorted(answered - seen.expected.keys())
    )
    for id_, payload in seen.released:
        if (other := Release.decode(payload).release_id) != id_:
            yield f"{id_} holds a record of {other}"


def one_payload_per_id(seen: Collected) -> Iterator[str]:
    stands = {entry.release_id: entry.payload for entry in seen.entries}
    for name, topic in (("output", seen.released), ("latest", seen.latest)):
        for id_, payload in topic:
            if stands.setdefault(id_, payload) != payload:
                yield f"{id_} has another payload on the {name} topic than first in the ledger or the output"


def no_record_comes_twice(seen: Collected) -> Iterator[str]:
    for name, topic in (("output", seen.released), ("latest", seen.latest)):
        for id_, times in Counter(id_ for id_, _ in topic).items():
            if times > 1:
                yield f"{id_} is {times} times on the {name} topic"


def counts_agree(seen: Collected, exact: bool) -> Iterator[str]:
    for id_, payload in dict(seen.released).items():
        if id_ not in seen.expected:
            continue
        ours, theirs = Release.decode(payload), seen.expected[id_].record
        told, wanted = (
            (ours.counts.plates, ours.counts.samples),
            (theirs.counts.plates, theirs.counts.samples),
        )
        if told != wanted:
            yield f"{id_}: expected (plates, samples) {wanted}, got {told}"
        if ours.status == "withheld_unplanned":
            yield f"{id_} is not in the plan of its slot"
        if exact and (ours.status, ours.counts) != (theirs.status, theirs.counts):
            yield f"{id_}: expected {theirs.status}, {theirs.counts}, got {ours.status}, {ours.counts}"


def charges_agree(seen: Collected) -> Iterator[str]:
    for entry in seen.entries:
        wanted = seen.expected.get(entry.release_id)
        if wanted is None:
            continue
        charged = dict(zip(entry.plates, entry.charged.tolist(), strict=True))
        if charged != wanted.charged:
            sums = sum(wanted.charged.values()), sum(charged.values())
            yield f"{entry.release_id}: expected {sums[0]} nano-epsilon charged in all, got {sums[1]}, or to others"


def estimates_follow_from_releases(seen: Collected, strictly_once: bool) -> Iterator[str]:
    """What was said, by whichever planners, is what one says who reads all releases in the order of
    their slots."""
    said, wanted = Counter(payload for _, payload in seen.smoothed), frozenset(seen.estimates)
    if missing := wanted - said.keys():
        yield f"{len(missing)} of {len(wanted)} smoothed estimates are not on the topic"
    if more := said.keys() - wanted:
        yield f"{len(more)} smoothed estimates on the topic do not follow from the releases"
    if strictly_once and (twice := sum(times > 1 for times in said.values())):
        yield f"{twice} smoothed estimates are on the topic more than once"


def every_plate_is_charged_once(seen: Collected) -> Iterator[str]:
    yield from seen.misfits
    for id_, times in Counter(entry.release_id for entry in seen.entries).items():
        if times > 1:
            yield f"{id_} was admitted {times} times"
    admitted = {entry.release_id: entry for entry in seen.entries}
    for id_ in sorted({id_ for id_, _ in seen.released} - admitted.keys()):
        yield f"{id_} was released and never admitted"
    for id_, entry in admitted.items():
        if len(set(entry.plates)) != len(entry.plates):
            yield f"{id_}: a plate is twice in its admission"
        if entry.payload is not None and kind_of(id_) == "hat":
            record, paid = Release.decode(entry.payload), int((entry.charged > 0).sum())
            if record.counts.admitted_plates != paid:
                yield f"{id_}: {paid} plates were charged, its record admits {record.counts.admitted_plates}"
    yield from _sums(seen)


def _sums(seen: Collected) -> Iterator[str]:
    sums: dict[tuple[str, bytes], tuple[int, int]] = dict.fromkeys(seen.balances, (0, 0))
    for entry in seen.entries:
        for plate, amount in zip(entry.plates, entry.charged.tolist(), strict=True):
            charged, charges = sums.get((entry.period, plate), (0, 0))
            sums[entry.period, plate] = (charged + amount, charges + (amount > 0))
    for (period, plate), wanted in sums.items():
        got = seen.balances.get((period, plate), (0, 0))
        if got != wanted:
            yield f"plate {plate.hex()} in {period}: expected (charged, charges) {wanted} from its HATs, got {got}"


def shared_clips_are_remembered_once(seen: Collected) -> Iterator[str]:
    """For each slot with a release that shares clips, and no other: nobody is charged, and all
    speeds are in it."""
    yield from seen.clips_amiss
    held = {entry.release_id: entry for entry in seen.entries if kind_of(entry.release_id) == CLIPS}
    for id_, entry in held.items():
        if entry.plates or entry.payload is not None:
            yield f"{id_}: expected no charge and no payload, got {len(entry.plates)} plates and {entry.payload!r}"
    slots = {
        Id.of(id_).slot
        for id_, payload in seen.released
        if Release.decode(payload).privacy.holds_for == "slot"
    }
    wanted = {id_of(CLIPS, 1000 * start, 1000 * end) for start, end in slots}
    yield from (f"{id_} is not in the ledger" for id_ in sorted(wanted - held.keys()))
    yield from (
        f"{id_} is in the ledger, and no release shares clips"
        for id_ in sorted(held.keys() - wanted)
    )


OF_CITY = {CITY: CityRecord, CITY_HOUR: CityHour}
"""Answers of a slot's city, by kind."""


def what_the_city_told_is_told_once(seen: Collected) -> Iterator[str]:
    """Charged before the HATs of its slot, then recorded: of the plates that paid, and of no slot
    without HATs."""
    earliest: dict[tuple[int, int], int] = {}
    for at, entry in enumerate(seen.entries):
        if kind_of(entry.release_id) == "hat":
            earliest.setdefault(Id.of(entry.release_id).slot, at)
    for at, entry in enumerate(seen.entries):
        record = OF_CITY.get(kind_of(entry.release_id))
        if record is None:
            continue
        id_, paid = entry.release_id, int((entry.charged > 0).sum())
        if earliest.get(Id.of(id_).slot, -1) < at:
            yield f"{id_} was charged behind a HAT of its slot, or of a slot without HATs"
        told = 0 if entry.payload is None else record.of_ledger(id_, entry.payload).plates
        if told != paid:
            yield f"{id_}: {paid} plates were charged, and its answer is of {told}"


def nobody_is_over_budget(seen: Collected) -> Iterator[str]:
    budgets = {entry.period: entry.budget for entry in seen.entries}
    told = {entry.budget for entry in seen.entries}
    stated = {nano_allowance(_budget_of(one.record.privacy)) for one in seen.expected.values()}
    if told != stated:
        yield f"the ledger was told budgets {sorted(told)}, expected {sorted(stated)}"
    for (period, plate), (charged, _) in seen.balances.items():
        if period not in budgets or charged > budgets[period]:
            yield f"plate {plate.hex()} in {period}: charged {charged} of {budgets.get(period)}"


def _budget_of(said: Privacy) -> float:
    """In what the ledger counts in: rho, where losses are."""
    return said.period_epsilon if said.period_rho is None else said.period_rho


def nothing_is_unpublished(seen: Collected) -> Iterator[str]:
    yield from (f"{id_} is recorded and waits to be published" for id_ in seen.unpublished)
    for entry in seen.entries:
        if kind_of(entry.release_id) == CLIPS:
            continue  # nothing is released under it; a round that somebody cannot pay is not drawn
        if kind_of(entry.release_id) in OF_CITY and not entry.charged.any():
            continue  # too few could pay
        if entry.payload is None or not entry.published:
            state = (
                "charged and not recorded" if entry.payload is None else "not marked as published"
            )
            yield f"{entry.release_id} is {state}"


def strangers_are_refused(seen: Collected) -> Iterator[str]:
    """Strangers end with status 5, or 4 if they could not ask; they serve, charge, make and change
    nothing."""
    for one in seen.strangers:
        if one.status is None:
            yield f"{one.name} did not end"
        elif one.status not in (4, 5):
            yield f"{one.name} ended with status {one.status}:\n{one.told[-1500:]}"
        if one.served:
            yield f"{one.name} was serving"
        if one.admitted:
            yield f"{one.name} has charged {one.admitted} HATs on its own ledger"
        if one.key_changed:
            yield f"{one.name} has made a key, or written one over"


def latest_are_the_last(seen: Collected) -> Iterator[str]:
    last: dict[str, str] = {}
    for one in seen.expected.values():
        hat = one.record.hat
        last[hat.cell] = max(last.get(hat.cell, ""), hat.slot_start)
    got = {
        Release.decode(payload).hat.cell: Release.decode(payload).hat.slot_start
        for _, payload in seen.latest
    }
    for cell, slot in sorted(last.items()):
        if got.get(cell) != slot:
            yield f"the latest of cell {cell} is of {got.get(cell)}, expected {slot}"


def no_plate_is_told(seen: Collected) -> Iterator[str]:
    yield from (
        f"plate {plate} is named in what a worker printed"
        for plate in seen.plates
        if plate in seen.told
    )
