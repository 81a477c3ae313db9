"""A recorded feed with and without 5,000 messages of one plate: what the others hand on must be the
same."""

import random
from functools import cache

import msgspec

from tests.gtfs import START_S, snapshot, vehicle
from tests.runtime.harness import fleet_log

CROWD = "CROWD"
MESSAGES = 5_000
_END = "END"
POLLS = 120

_decode, _encode = msgspec.json.decode, msgspec.json.encode


def _elsewhere(message):
    """A second ping of the same plate and time: whether it is handed on is what a memory decides."""
    ping = _decode(message)
    ping["location"]["coordinates"][0] += 0.05
    return _encode(ping | {"speed": 11})


def _crowd(dice, number):
    """What one plate may send: pings, the same again, of all times, without a field, too fast."""
    second, kind = (number if dice.random() < 0.8 else number // 7), dice.random()
    hour = 9 if kind < 0.8 else dice.choice([0, 8, 10, 23])
    ping = {
        "license_plate": CROWD,
        "observationDateTime": f"2024-01-08T{hour:02}:{second // 60 % 60:02}:{second % 60:02}+05:30",
        "location": {"type": "Point", "coordinates": [72.8 + dice.random() / 20, 21.2]},
        "speed": 20 if kind < 0.9 else 900,
    }
    if kind > 0.97:
        del ping["speed"]
    return _encode(ping)


def end(plate=_END):
    where = {"type": "Point", "coordinates": [72.8, 21.2]}
    time = "2024-01-08T09:59:00+05:30"
    return _encode(
        {"license_plate": plate, "observationDateTime": time, "location": where, "speed": 20}
    )


@cache
def feed(is_crowded):
    """Single pings. Each plate sends some of its pings a second time, soon or at the end, from
    another place."""
    dice, crowd = random.Random(1), random.Random(2)
    pings = [one for one in fleet_log(buses=40, hours=0.25, clean=True) if b"license_plate" in one][
        :3_500
    ]
    found, number = list[bytes](), 0
    for at, one in enumerate(pings):
        found.append(one)
        if dice.random() < 0.1:
            found.append(_elsewhere(pings[max(0, at - dice.choice([0, 40, 200, 400]))]))
        if is_crowded:
            until = MESSAGES * (at + 1) // len(pings)
            found += [_crowd(crowd, each) for each in range(number, until)]
            number = until
    return [*found, *map(_elsewhere, pings[:200]), *map(_elsewhere, pings[-200:]), end()]


def plate_of(message):
    return _decode(message)["license_plate"]


def others(messages):
    """What the other plates have handed on, in order."""
    return [one for one in messages if plate_of(one) != CROWD]


def has_ended(messages):
    return any(plate_of(one) == _END for one in messages[-50:])


def _fleet_at(poll):
    """Plate, second and longitude of the vehicles in a poll. They have a new ping in every sixth;
    every tenth answer is that of a server which is somewhat behind, or far; the last has a plate
    more."""
    behind = (20 if poll % 20 == 9 else 60) if poll % 10 == 9 else 0
    step = max(0, poll - behind) // 6
    found = [
        (f"BUS{bus}", 10 * step, 72.5 + bus / 100 + step / 1000)
        for bus in range(30)
        if bus % 7 != step % 7
    ]
    return [*found, *([(_END, 0, 72.5)] if poll == POLLS - 1 else [])]


def _crowd_at(poll, is_crowded):
    count = -(-MESSAGES // POLLS) if is_crowded else 0
    return [(CROWD, poll * count + each, 72.5 + each / 1000) for each in range(count)]


def json_polls(is_crowded):
    def answer(poll):
        for plate, second, lon in (*_crowd_at(poll, is_crowded), *_fleet_at(poll)):
            time = (
                f"2024-01-08T{9 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}+05:30"
            )
            where = {"type": "Point", "coordinates": [lon, 21.2]}
            yield {
                "license_plate": plate,
                "observationDateTime": time,
                "location": where,
                "speed": 20,
            }

    return [_encode({"results": list(answer(poll))}) for poll in range(POLLS)]


def gtfs_polls(is_crowded):
    """Some vehicles have no time of their own."""

    def entity(plate, second, lon):
        return vehicle(plate, time_s=None if plate.endswith("3") else START_S + second, lon=lon)

    return [
        snapshot(
            *(entity(*one) for one in (*_crowd_at(poll, is_crowded), *_fleet_at(poll))),
            header_s=START_S + 10 * (poll // 6),
        )
        for poll in range(POLLS)
    ]


def gtfs_messages(is_crowded):
    """As an archive has them: a message for each poll of the fleet, and for each vehicle of the
    crowd."""
    for poll, message in enumerate(gtfs_polls(False)):
        yield message
        for plate, second, lon in _crowd_at(poll, is_crowded):
            yield snapshot(
                vehicle(plate, time_s=START_S + second, lon=lon), header_s=START_S + second
            )
