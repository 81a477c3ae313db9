"""Mutated messages for sources, and what must come of them: each ping accepted, or refused for its
reason."""

import json
import math
import random
from collections import Counter
from contextlib import suppress

from tests.gtfs import START_S, snapshot, vehicle
from tests.unit.test_pings_fuzz import mutated
from udp_stream.pings.decode import PingDecoder, PingRules, originals
from udp_stream.pings.json import JSON

RULES = PingRules(max_kmh=65, reject_above_kmh=200)
BUSES = 49
"""No divisor of what one digit of a time is worth: no mutated time is that of another ping of the
same plate."""

FAR = 10**7
"""From a ping to the one that it is spliced with, which is sent nowhere."""


def ping(number):
    time_ = f"2024-01-08T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}+05:30"
    point = {"type": "Point", "coordinates": [72.5 + number % 90 / 1000, 21.25]}
    plate = f"GJ05ZZ{number % BUSES:04}-{number // 86_400}"
    return json.dumps(
        {
            "license_plate": plate,
            "observationDateTime": time_,
            "location": point,
            "speed": number % 60,
        }
    )


def pieces(rng, numbers):
    for number in numbers:
        text = ping(number).encode()
        yield mutated(rng, text, ping(number + FAR).encode()) if rng.random() < 0.5 else text


def json_answers(seed, count, each=100):
    """Answers with arrays of pings, about half of them mutated, and still JSON; beside every tenth
    a broken answer."""
    rng = random.Random(seed)
    for at, first in enumerate(range(0, count, each)):
        some = [
            piece for piece in pieces(rng, range(first, min(count, first + each))) if is_json(piece)
        ]
        body = b"[" + b",".join(some) + b"]"
        if at % 10 == 7:
            yield broken(rng, body)
        yield body


def broken(rng, body):
    while is_json(made := mutated(rng, body, body)):
        pass
    return made


def is_json(text):
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return b"NaN" not in text and b"Infinity" not in text and bool(facts([b"[" + text + b"]"]))
    return False


def gtfs_answers(seed, count, each=100):
    """Snapshots, each with vehicles of its own; every second one has mutated bytes, or is no
    message any more."""
    rng = random.Random(seed)
    for at, first in enumerate(range(0, count, each)):
        numbers = range(first, min(count, first + each))
        some = (
            {"speed": 400.0},
            {"lat": 95.0},
            {"speed": None},
            {"plate": ""},
            {"lon": math.nan},
            {},
            {},
            {},
        )
        buses = [
            vehicle(**{"plate": f"GJ05ZZ{n % BUSES:04}", "time_s": START_S + n, **rng.choice(some)})
            for n in numbers
        ]
        made = bytearray(snapshot(*buses, header_s=START_S + first))
        for _ in range(rng.choice([1, 1, 3, 9]) * (at % 2)):
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
        yield bytes(made)


def facts(messages, ping_format=JSON):
    pings, refusals = PingDecoder(RULES, ping_format).decode(messages)
    found = Counter(
        (pings.plates[plate], time_ms)
        for plate, time_ms in zip(pings.plate.tolist(), pings.time_ms.tolist(), strict=True)
    )
    for refusal, piece in zip(refusals, originals(messages, refusals, ping_format), strict=True):
        found[(str(refusal.reason), refusal.path, which(piece))] += 1
    return found


def which(piece):
    with suppress(ValueError, RecursionError):
        value = json.loads(
            piece.decode(errors="replace")
        )  # bytes of a field that no one reads may be no UTF-8
        if isinstance(value, dict):
            return str(value.get("license_plate")), str(value.get("observationDateTime"))
    return piece.strip()
