"""The unit of a recording's speeds: what they say by their movement, beside what the feed says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from udp_stream.pings.decode import Pings
from udp_stream.pings.speed_unit import FITS_NONE, unit_evidence
from udp_stream.units import KMH_PER_UNIT


class SaidUnit(NamedTuple):
    """What the feed says: the unit, which may be one that is not known here, and what says it.

    >>> SaidUnit("knots", "name").by
    'name'
    """

    unit: str
    by: str


@dataclass(frozen=True, slots=True)
class FoundUnit:
    """`by`: how `unit` was told ("movement", "specification", "name"), "" if it could not be. `fits_none`: the speeds
    move as in no unit that is known here, so that `unit` is none of theirs.

    >>> FoundUnit("kmh", "movement", SaidUnit("mph", "name"), fits_none=False).doubts
    ["the field's name says mph, and buses go about as far as they report in kmh: one of the two is wrong"]
    """

    unit: str
    by: str
    said: SaidUnit | None
    fits_none: bool

    @property
    def doubts(self) -> list[str]:
        """What a person has to check, a sentence each."""
        doubts = [f"{FITS_NONE}: convert them first"] if self.fits_none else []
        if self.said is None or self.said.unit == self.unit:
            return doubts
        says = f"the {'feed' if self.said.by == 'specification' else 'field'}'s {self.said.by} says {self.said.unit}"
        if self.by == "movement":
            return [f"{says}, and buses go about as far as they report in {self.unit}: one of the two is wrong"]
        return [*doubts, f"{says}, which is none of {', '.join(KMH_PER_UNIT)}"]


def found_unit(pings: Pings, said: SaidUnit | None) -> FoundUnit:
    """By movement, else as the feed says, else km/h; `pings` were read as km/h.

    >>> from udp_stream.pings.decode import PingDecoder, PingRules

    >>> from udp_stream.pings.json import JSON
    >>> none, _ = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON).decode([])
    >>> found_unit(none, SaidUnit("mps", "specification")).unit, found_unit(none, SaidUnit("knots", "name")).by
    ('mps', '')
    """
    evidence = unit_evidence(pings, "kmh")
    if evidence.unit is not None:
        return FoundUnit(evidence.unit, "movement", said, fits_none=False)
    if said is not None and said.unit in KMH_PER_UNIT:
        return FoundUnit(said.unit, said.by, said, evidence.fits_none)
    return FoundUnit("kmh", "", said, evidence.fits_none)
