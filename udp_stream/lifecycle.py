"""The life of a slot and of a HAT, as data: every state there is, and the only ways from one to another.

A slot is a stretch of time, closed and released as a whole. A HAT is one cell in one slot; it has one release, ever.
Both runtimes go by these tables: nothing moves a slot or a HAT but `advance`, and no way leads back.

On Kafka a state is not stored anywhere. A worker that takes over finds it again: a slot is as far as the log says from
the checkpoint on, a HAT as far as the ledger says.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from udp_stream.errors import UdpStreamError


class SlotState(StrEnum):
    """How far a slot has come.

    >>> [state.value for state in SlotState]
    ['open', 'closed', 'counted', 'planned', 'recorded', 'done']
    """

    OPEN = "open"
    CLOSED = "closed"
    COUNTED = "counted"
    PLANNED = "planned"
    RECORDED = "recorded"
    DONE = "done"


class HatState(StrEnum):
    """How far a HAT has come. Withheld HATs have a release, too: it says why there is no statistic.

    >>> [state.value for state, ways in HAT_LIFE.items() if not ways]
    ['published']
    """

    NEW = "new"
    CHARGED = "charged"
    WITHHELD = "withheld"
    RECORDED = "recorded"
    PUBLISHED = "published"


State = TypeVar("State", SlotState, HatState)

Life = Mapping[State, Mapping[str, State]]
"""From each state, by what happens, to the next one."""

SLOT_LIFE: Final[Life[SlotState]] = {
    SlotState.OPEN: {"closed by all sources": SlotState.CLOSED},
    SlotState.CLOSED: {"counted": SlotState.COUNTED},
    SlotState.COUNTED: {"plan complete": SlotState.PLANNED},
    SlotState.PLANNED: {"recorded": SlotState.RECORDED},
    SlotState.RECORDED: {"published": SlotState.DONE},
    SlotState.DONE: {},
}

HAT_LIFE: Final[Life[HatState]] = {
    HatState.NEW: {
        "charged": HatState.CHARGED,
        "withheld": HatState.WITHHELD,
        "recorded": HatState.RECORDED,
    },
    HatState.CHARGED: {"recorded": HatState.RECORDED, "withheld": HatState.WITHHELD},
    HatState.WITHHELD: {"recorded": HatState.RECORDED},
    HatState.RECORDED: {"published": HatState.PUBLISHED},
    HatState.PUBLISHED: {},
}


def advance(life: Life[State], now: State, event: str) -> State:
    """The state that follows; UdpStreamError if nothing of the kind can happen to what is in this one."""
    after = life[now].get(event)
    if after is None:
        raise UdpStreamError(f"expected one of {sorted(life[now])} for what is {now.value}, got {event!r}")
    return after
