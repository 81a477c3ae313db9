"""The synthetic fleet as if it drove now, day and night.

Its buses sleep at night, which would leave a trial with nothing to see. So its busy hours are moved to the present, one
made-up day after the other; plates, places and speeds are those of `Fleet`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import count

import numpy as np

from udp_stream.trial.fleet.fleet import IST, Fleet
from udp_stream.trial.fleet.routes import Floats

FIRST_MORNING = datetime(2024, 1, 8, 8, tzinfo=IST)
BUSY_HOURS = 12
PAUSE_S = 0.25
"""Messages that arrive within it are handed on together."""


def live_messages(
    buses: int,
    seed: int = 1,
    ago_s: float = 0.0,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[list[bytes]]:
    """Messages without end, each list when the last of it has arrived; first, at once, those of the last `ago_s`.

    A list may be empty: nothing has arrived for a while. What is still on its way when a made-up day ends is lost.
    """
    began = math.floor(now() - ago_s)
    for day in count():
        begins = began + day * BUSY_HOURS * 3600
        fleet = Fleet(seed, buses, FIRST_MORNING + timedelta(days=day), BUSY_HOURS)
        for arrives, messages in fleet.deliveries(shift_s=begins - round(fleet.start.timestamp())):
            today = int(np.searchsorted(arrives, begins + BUSY_HOURS * 3600))
            yield from _as_they_arrive(arrives[:today], messages[:today], now, sleep)
            if today < len(messages):
                break


def _as_they_arrive(
    arrives: Floats, messages: list[bytes], now: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[list[bytes]]:
    sent = 0
    while sent < len(messages):
        here = int(np.searchsorted(arrives, now(), side="right"))
        yield messages[sent:here]
        sent = max(sent, here)  # the clock on the wall may step back
        if sent < len(messages):
            sleep(PAUSE_S)
