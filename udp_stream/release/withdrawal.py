"""Withdrawals: public marks on records that are wrong, as those of a wrong setting.

A withdrawal is a record of its own. The withdrawn record keeps its bytes, its plates keep their
charge, and its HAT is never drawn again. It follows from public records and from what a person
says, so it costs nothing. The ledger keeps the first withdrawal of a HAT like a release, admitted
without a plate, also where the HAT is in an archive. Whoever publishes a deployment's releases
publishes it with those of its next slot. Forecasts and estimates learn nothing from a withdrawn
HAT, nor from what its slot told of the whole city: forecasters notice a note of the ledger, and
begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from udp_stream.base.errors import UsageError
from udp_stream.ledger.ids import WITHDRAWN, Id, kind_of
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.release.record import REASON_MAX, Hat, Release, Withdrawal

NOTE: Final = "withdrawal:"
"""Before a number: the name of a note that a person has withdrawn HATs."""


class WithdrawalNote(msgspec.Struct, frozen=True):
    """A withdrawal by a person: why, when, and how many HATs.

    >>> WithdrawalNote("unit was mph", "2022-01-02T09:00:00+00:00", 12).hats
    12
    """

    reason: str
    at: str
    hats: int


def withdrawal_id(release_id: str) -> str:
    """The id of the withdrawal of a HAT's release."""
    return f"{WITHDRAWN}:{release_id}"


def withdraw(
    ledger: Ledger,
    release_ids: Sequence[str],
    reason: str,
    at: str,
    software: str,
    archives: Sequence[Ledger] = (),
) -> int:
    """Withdraw these HATs; how many were not withdrawn before. Interrupted, it is to be called
    again.

    `archives` are all of the ledger's, where one of the HATs may be archived: they have records and
    withdrawals. UsageError for a reason of no or too much text, and for a HAT that has no record;
    nothing is withdrawn then.
    """
    if not reason.isprintable() or not 0 < len(reason.strip()) <= len(reason) <= REASON_MAX:
        raise UsageError(f"expected a reason of 1 to {REASON_MAX} characters in one line")
    marks = []
    records = recorded_in([ledger, *archives], release_ids)
    before = recorded_in(
        [ledger, *archives], [withdrawal_id(release_id) for release_id in release_ids]
    )
    for release_id in release_ids:
        payload = records.get(release_id)
        if payload is None or kind_of(release_id) != "hat":
            raise UsageError(f"{release_id}: expected a HAT with a record in this ledger")
        hat = Release.decode(payload).hat
        id_ = withdrawal_id(release_id)
        if id_ in before:
            continue
        marks.append(
            (
                id_,
                Withdrawal(id_, release_id, hat, reason, at, software).encode(),
                hat,
            )
        )
    # A period of its slot's own, so that it is archived with its HAT; nobody is charged in it.
    for period in dict.fromkeys(_period_of(id_, hat) for id_, _, hat in marks):
        of_period = [id_ for id_, _, hat in marks if _period_of(id_, hat) == period]
        ledger.admit(
            period,
            0,
            (),
            [Admission.of_nobody(id_) for id_ in of_period],
        )
    ledger.record([(id_, payload) for id_, payload, _ in marks])
    # Last: who sees the note finds all its records.
    text = msgspec.json.encode(WithdrawalNote(reason, at, len(marks))).decode()
    number = len(noted(ledger.meta()))
    while ledger.note(f"{NOTE}{number}", text) != text:
        number += 1
    return len(marks)


def recorded_in(places: Iterable[Ledger], release_ids: Sequence[str]) -> dict[str, bytes]:
    """The payloads of these ids, each of the first place that has it."""
    found: dict[str, bytes] = {}
    for place in places:
        left = [release_id for release_id in release_ids if release_id not in found]
        if not left:
            break
        payloads = zip(left, place.recorded(left), strict=True)
        found |= {release_id: payload for release_id, payload in payloads if payload is not None}
    return found


def _period_of(id_: str, hat: Hat) -> str:
    return f"{Id.of(id_).seconds}s from {hat.slot_start}"


def noted(meta: Mapping[str, str]) -> list[WithdrawalNote]:
    """Withdrawals on this ledger, oldest first, from what it knows of itself."""
    notes = (
        meta.get(f"{NOTE}{number}") for number in range(sum(name.startswith(NOTE) for name in meta))
    )
    return [msgspec.json.decode(text, type=WithdrawalNote) for text in notes if text is not None]


def unpublished_withdrawals(
    ledger: Ledger, is_ours: Callable[[str], bool] = lambda _: True
) -> dict[str, bytes]:
    """Withdrawals that readers do not have yet, by id; `is_ours` tells by the cell."""
    waiting = {id_: payload for id_, payload in ledger.unpublished() if kind_of(id_) == WITHDRAWN}
    return {
        id_: payload
        for id_, payload in waiting.items()
        if is_ours(Withdrawal.decode(payload).hat.cell)
    }


def withdrawals_of(ledger: Ledger, release_ids: Sequence[str]) -> dict[str, bytes]:
    """The withdrawals of these HATs, by id."""
    return recorded_in([ledger], [withdrawal_id(release_id) for release_id in release_ids])
