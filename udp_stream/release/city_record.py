"""What is recorded of what a slot's plates told of the whole city. Nobody but forecasts reads it."""

from __future__ import annotations

import msgspec
import numpy as np

from udp_stream.errors import PrivacyRefused
from udp_stream.forecast.bank import Told


class CityRecord(msgspec.Struct, frozen=True):
    """What was told: the city's mean in km/h and the plates' spread, with their deviations; `cells` with their shares.

    >>> record = CityRecord(18.2, 2.5, 0.8, 0.2, plates=120, cells=(7,), shares=(1.0,))
    >>> record.told.variance, msgspec.json.decode(msgspec.json.encode(record), type=CityRecord) == record
    (6.25, True)
    """

    mean_kmh: float
    mean_deviation: float
    spread: float
    spread_deviation: float
    plates: int
    cells: tuple[int, ...]
    shares: tuple[float, ...]

    @property
    def told(self) -> Told:
        """As forecasts learn it."""
        return Told(
            np.array(self.cells, np.uint64), np.array(self.shares), self.mean_kmh, self.mean_deviation**2,
            self.spread, self.spread_deviation**2, self.plates,
        )  # fmt: skip


def decode_city(release_id: str, payload: bytes) -> CityRecord:
    """Undo `msgspec.json.encode`; PrivacyRefused for any other bytes.

    >>> decode_city("city:0-3600", b"{}")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    udp_stream.errors.PrivacyRefused: city:0-3600: expected what was told of the city in the ledger, got other bytes
    """
    try:
        return msgspec.json.decode(payload, type=CityRecord)
    except msgspec.MsgspecError as error:
        raise PrivacyRefused(
            f"{release_id}: expected what was told of the city in the ledger, got other bytes"
        ) from error
