"""Withdrawals: public marks on records that are wrong, as those of a wrong setting.

A withdrawal is a record of its own. The withdrawn record keeps its bytes, its plates keep their charge, and its HAT is
never drawn again. It follows from public records and from what a person says, so it costs nothing. The ledger keeps the
first withdrawal of a HAT like a release, admitted without a plate; whoever publishes a deployment's releases publishes
it with those of its next slot. Forecasts and estimates learn nothing from a withdrawn HAT, nor from what its slot told
of the whole city: forecasters notice a note of the ledger, and begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from udp_stream.errors import UsageError
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.release.record import WITHDRAWN, Hat, decode, kind_of, slot_of

SCHEMA: Final = "udp-stream/withdrawal/1"
NOTE: Final = "withdrawal:"
"""Before a number: the name of a note that a person has withdrawn HATs."""

REASON_MAX: Final = 500
_NOBODY = np.zeros(0, np.int64)


class Withdrawal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The public mark on one record, for ever.

    >>> hat = Hat("8742d98b6ffffff", 7, (72.83, 21.17), "2022-01-01T04:00:00+00:00", "2022-01-01T05:00:00+00:00")
    >>> id_ = "8742d98b6ffffff-1641009600-3600"
    >>> Withdrawal(SCHEMA, f"withdrawn:{id_}", id_, hat, "unit was mph", "2022-01-02T09:00:00+00:00", "1.0").reason
    'unit was mph'
    """

    schema: Literal["udp-stream/withdrawal/1"]
    release_id: str
    withdraws: str
    hat: Hat
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_MAX)]
    withdrawn_at: str
    software: str


class Noted(msgspec.Struct, frozen=True):
    """What a person has withdrawn at once: why, when, and how many HATs.

    >>> Noted("unit was mph", "2022-01-02T09:00:00+00:00", 12).hats
    12
    """

    reason: str
    at: str
    hats: int


_decode = msgspec.json.Decoder(Withdrawal).decode


def withdrawal_id(release_id: str) -> str:
    """The id of the withdrawal of a HAT's release."""
    return f"{WITHDRAWN}:{release_id}"


def withdraw(ledger: Ledger, release_ids: Sequence[str], reason: str, at: str, software: str) -> int:
    """Withdraw these HATs; how many were not withdrawn before. Interrupted, it is to be called again.

    UsageError for a reason of no or too much text, and for a HAT that has no record; nothing is withdrawn then.
    PrivacyRefused for one of an archived time.
    """
    if not reason.isprintable() or not 0 < len(reason.strip()) <= len(reason) <= REASON_MAX:
        raise UsageError(f"expected a reason of 1 to {REASON_MAX} characters in one line")
    marks = []
    for release_id, payload in zip(release_ids, ledger.recorded(release_ids), strict=True):
        if payload is None or kind_of(release_id) != "hat":
            raise UsageError(f"{release_id}: expected a HAT with a record in this ledger")
        hat, id_ = decode(payload).hat, withdrawal_id(release_id)
        marks.append((id_, msgspec.json.encode(Withdrawal(SCHEMA, id_, release_id, hat, reason, at, software)), hat))
    # A period of its slot's own, so that it is archived with its HAT; nobody is charged in it.
    for period in dict.fromkeys(_period_of(id_, hat) for id_, _, hat in marks):
        of_period = [id_ for id_, _, hat in marks if _period_of(id_, hat) == period]
        ledger.admit(period, 0, (), [Admission(id_, _NOBODY, _NOBODY, 0, b"") for id_ in of_period])
    before = ledger.recorded([id_ for id_, *_ in marks])
    ledger.record([(id_, payload) for id_, payload, _ in marks])
    # Last: who sees the note finds all its records.
    new = before.count(None)
    _note(ledger, msgspec.json.encode(Noted(reason, at, new)).decode())
    return new


def _period_of(id_: str, hat: Hat) -> str:
    start, end = slot_of(id_)
    return f"{end - start}s from {hat.slot_start}"


def _note(ledger: Ledger, text: str) -> None:
    number = len(noted(ledger.meta()))
    while ledger.note(f"{NOTE}{number}", text) != text:
        number += 1


def noted(meta: Mapping[str, str]) -> list[Noted]:
    """What was withdrawn on this ledger, oldest first, from what it knows of itself."""
    notes = (meta.get(f"{NOTE}{number}") for number in range(sum(name.startswith(NOTE) for name in meta)))
    return [msgspec.json.decode(text, type=Noted) for text in notes if text is not None]


def unpublished_withdrawals(ledger: Ledger, is_ours: Callable[[int], bool] = lambda _: True) -> dict[str, bytes]:
    """Withdrawals that readers do not have yet, by id; `is_ours` tells by the cell."""
    waiting = {id_: payload for id_, payload in ledger.unpublished() if kind_of(id_) == WITHDRAWN}
    return {id_: payload for id_, payload in waiting.items() if is_ours(int(_decode(payload).hat.cell, 16))}


def withdrawals_of(ledger: Ledger, release_ids: Sequence[str]) -> dict[str, bytes]:
    """The withdrawals of these HATs, by id."""
    ids = [withdrawal_id(release_id) for release_id in release_ids]
    return {id_: payload for id_, payload in zip(ids, ledger.recorded(ids), strict=True) if payload is not None}


def decode_withdrawal(payload: bytes) -> Withdrawal:
    """The record of some bytes; raises msgspec.ValidationError if they are not one."""
    return _decode(payload)
