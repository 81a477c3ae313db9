"""Feeds as the benchmarks take them, FILE:U:ZONE, and their HATs slot by slot."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.planning.policy import Policy
from udp_stream.settings import Settings, load
from udp_stream.sources.files import read_messages
from udp_stream.windows.slots import slots_of
from udp_stream.windows.tables import SlotCounts, SlotValues


@dataclass(frozen=True, slots=True)
class Feed:
    path: str
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].partition(".")[0]

    def policy(self, *flags: str) -> Policy:
        return load(None, (*self.flags, *flags), {}).policy

    def slots(self) -> Iterator[tuple[SlotCounts, SlotValues]]:
        """Each slot's counts and speeds, plates named as in the file; files may be in any order of
        times."""
        settings = load(None, self.flags, {})
        messages = [message for batch in read_messages(self.path) for message in batch]
        pings, _ = PingDecoder(settings.ping_rules, JSON).decode(messages)
        names, plate = np.unique(np.asarray(pings.plates)[pings.plate], return_inverse=True)
        yield from slots_of_city(
            settings, names, plate, pings.time_ms, pings.lat, pings.lon, pings.speed
        )


def slots_of_city(
    settings: Settings, names: NDArray[Any], plate: NDArray[np.int64], time_ms: NDArray[np.int64],
    lat: NDArray[np.float64], lon: NDArray[np.float64], speed: NDArray[np.integer[Any]],
) -> Iterator[tuple[SlotCounts, SlotValues]]:  # fmt: skip
    """Pings as columns, slot by slot; `plate` numbers the names, speeds are in quanta."""
    plates = [str(name).encode().ljust(32) for name in names]
    cells = settings.grid.cells_of(lat, lon)
    return slots_of(plates, plate, time_ms, cells, speed, settings.calendar.slots)


def feed_of(argument: str, *flags: str) -> Feed:
    """FILE:U:ZONE, U in km/h like the file's speeds; at H3 7, 1 h unless flags say otherwise."""
    path, speed, zone = argument.rsplit(":", 2)
    here = f"speed.max_kmh={speed}", f"hat.timezone={zone}"
    return Feed(path, ("hat.slot=1h", "hat.resolution=7", *here, *flags))
