"""What goes wrong between a made-up fleet and us: pings late, out of order, repeated or spoiled, each at its own rate.

Rates are those seen in real feeds, or near to them; the sources stand beside the constants.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import msgspec
import numpy as np

from udp_stream.errors import UsageError
from udp_stream.trial.fleet.motion import PING, Records
from udp_stream.trial.fleet.routes import Floats

SHUFFLED_S = 60.0
"""A ping out of order is delivered up to a minute late; in the real file the median one is 17 s behind."""
LATE_S = (180.0, 7200.0)
REPEAT_TRIP = 1_000_000_000
"""Added to the trip of a repeat: no trip of ours is numbered that high."""
SENTINEL_KMH = 410.383
"""255 mph, as a real feed in Austin sends for "unknown"."""
FUTURE_YEAR = "2068"
"""Clocks of some Delhi buses were decades ahead."""
REQUIRED = ("license_plate", "observationDateTime", "location", "speed")

DELIVERY = np.dtype([("ping", PING), ("arrives", "f8"), ("flaw", "i1")])
"""A ping on its way: `arrives` in the seconds of `second`, `flaw` an index into `FLAWS`, -1 for none."""


@dataclass(frozen=True)
class Imperfections:
    """What goes wrong between the buses and us; each a share of pings, 0 for never.

    `out_of_order` is the share of neighbours that step back in time (below 0.5; it needs a fleet of some dozens to
    be met); `late` pings come 3 minutes to 2 hours late; `repeated` come twice, the second time under another trip_id.
    The rest spoil a ping, at most one of them each.

    >>> Imperfections.none().late, Imperfections().late
    (0.0, 0.001)
    """

    out_of_order: float = 0.45
    late: float = 0.001
    repeated: float = 0.005
    missing_field: float = 0.0005
    null_speed: float = 0.0005
    no_offset: float = 0.0005
    null_island: float = 0.0005
    sentinel_speed: float = 0.0005
    not_json: float = 0.0005
    empty_plate: float = 0.0005
    far_future: float = 0.0005

    def __post_init__(self) -> None:
        """Refuse what is no share."""
        for each in fields(self):
            rate, most = getattr(self, each.name), 0.499 if each.name == "out_of_order" else 1.0
            if not 0 <= rate <= most:
                raise UsageError(f"expected 0 <= {each.name} <= {most}, got {rate}")
        if sum(self.flaw_rates) > 1:
            raise UsageError(f"expected rates of spoiled pings that add up to 1 at most, got {sum(self.flaw_rates)}")

    @classmethod
    def none(cls) -> Imperfections:
        """Every ping arrives once, whole, and in order."""
        return cls(**{each.name: 0.0 for each in fields(cls)})

    @property
    def flaw_rates(self) -> tuple[float, ...]:
        """Rates of spoiling, in the order of `FLAWS`."""
        return tuple(getattr(self, name) for name in FLAWS)


FLAWS = tuple(each.name for each in fields(Imperfections))[3:]


def send(rng: np.random.Generator, rates: Imperfections, pings: Records) -> Records:
    """`DELIVERY` records of these pings and then their repeats, not yet in the order of arrival."""
    again = pings[rng.random(len(pings)) < rates.repeated]
    again["progress"]["trip"] += REPEAT_TRIP
    sent = np.empty(len(pings) + len(again), DELIVERY)
    sent["ping"][: len(pings)], sent["ping"][len(pings) :] = pings, again
    sent["arrives"] = sent["ping"]["second"] + _delay_s(rng, rates, len(sent))
    bounds = np.cumsum(rates.flaw_rates)
    flaw = np.searchsorted(bounds, rng.random(len(sent)), side="right")
    sent["flaw"] = np.where(flaw < len(FLAWS), flaw, -1)
    return sent


def _delay_s(rng: np.random.Generator, rates: Imperfections, count: int) -> Floats:
    """Seconds that each of `count` pings spends on its way.

    When a share q is delayed evenly and the rest less than a second, two neighbours stand in the wrong order with
    chance q (1 - q) + q^2 / 2; q is what makes that the wanted rate.
    """
    delayed = 1.0 - np.sqrt(1.0 - 2.0 * rates.out_of_order)
    shuffled = rng.random(count) * np.where(rng.random(count) < delayed, SHUFFLED_S, float(delayed > 0))
    late = LATE_S[0] + (LATE_S[1] - LATE_S[0]) * rng.random(count)
    return np.where(rng.random(count) < rates.late, late, shuffled)


def spoil(messages: list[bytes], sent: Records) -> list[bytes]:
    """The messages of these records, those with a flaw spoiled."""
    flaws = sent["flaw"]
    for at in np.flatnonzero(flaws >= 0).tolist():
        messages[at] = _spoiled(
            messages[at], FLAWS[flaws[at]], REQUIRED[int(sent["ping"]["second"][at]) % len(REQUIRED)]
        )
    return messages


def _spoiled(message: bytes, flaw: str, required: str) -> bytes:
    """One message with one flaw; `required` names the field that goes missing."""
    if flaw == "not_json":
        return message[: len(message) // 2]
    ping = msgspec.json.decode(message)
    time: str = ping["observationDateTime"]
    if flaw == "missing_field":
        del ping[required]
    elif flaw == "null_speed":
        ping["speed"] = None
    elif flaw == "no_offset":
        ping["observationDateTime"] = time[:19]
    elif flaw == "null_island":
        ping["location"]["coordinates"] = [0, 0]
    elif flaw == "sentinel_speed":
        ping["speed"] = SENTINEL_KMH
    elif flaw == "empty_plate":
        ping["license_plate"] = ""
    else:
        ping["observationDateTime"] = FUTURE_YEAR + time[4:]
    return msgspec.json.encode(ping)
