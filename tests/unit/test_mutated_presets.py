"""Mutated messages through every mapping that is known by name, and through what polls and queues make of them."""

import json
import random
import re
import zlib
from collections import Counter

import pytest

from tests.forms import long_rows
from tests.unit.test_pings_fuzz import mutated
from tests.unit.test_source_section import EXAMPLES, settings
from udp_stream.pings.decode import PingDecoder, originals
from udp_stream.pings.presets import PRESETS
from udp_stream.pings.unrepeated import Unrepeated

ROUND = 200
LARGE = 10**6


def messages_of(name):
    """The preset's message, as it is, and with its pings three times where it has an array of them."""
    yield json.dumps(EXAMPLES[name]).encode()
    text = json.dumps(EXAMPLES[name])
    ping = re.search(r"\[(\{.*\})\]", text)
    yield (text.replace(ping[1], ", ".join([ping[1], ping[1].replace("A1", "B2"), "7"])) if ping else text).encode()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *long_rows([(name, ROUND) for name in [*PRESETS][:2]], [(name, ROUND) for name in PRESETS]),
        *(pytest.param(name, 100_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)]) for name in PRESETS),
    ],
)
def test_mutated_messages_of_a_preset_raise_nothing_and_are_all_accounted_for(name, count):
    """Of what is handed on of a poll or queue each message is a ping or refused again; nothing of it is gone."""
    preset, rng = PRESETS[name], random.Random(zlib.crc32(name.encode()))
    decoder = settings(f"preset={name}", f"speed.unit={preset.unit or 'kmh'}").decoder
    seeds, total = list(messages_of(name)), Counter()
    for _ in range(count // ROUND):
        messages = [mutated(rng, rng.choice(seeds), rng.choice(seeds)) for _ in range(ROUND)]
        pings, refusals = decoder.decode(messages)
        places = [*zip(pings.message.tolist(), pings.position.tolist(), strict=True)]
        places += [(one.message, one.position) for one in refusals]
        assert len(set(places)) == len(places)
        assert len(list(originals(messages, refusals, decoder.format))) == len(refusals)
        of_each = Counter(message for message, _ in places)
        for index in range(0, ROUND, max(1, count // 10_000)):  # each of few messages, one of ten of many
            _is_handed_on(decoder, messages[index], of_each[index])
        assert ((pings.speed >= 0) & (pings.speed <= decoder.rules.max_quanta)).all()
        total.update(["accepted"] * len(pings), **Counter(str(one.reason) for one in refusals))
    assert total["accepted"] > count / 100 and total["not_json"] > count / 50, total


def _is_handed_on(decoder: PingDecoder, message: bytes, found: int) -> None:
    once = Unrepeated(decoder.format, LARGE, 100)
    handed_on = once.take(message)
    assert len(handed_on) == found - once.counts["repeats"], message
    pings, refusals = decoder.decode(handed_on)
    assert sorted([*pings.message.tolist(), *(one.message for one in refusals)]) == [*range(len(handed_on))], message
    assert once.take(message) == [], message


@pytest.mark.parametrize("piece", ["[]", "[PING]", "[PING, PING]", '{"results": [PING]}', '"[PING]"', "7"])
def test_a_piece_that_a_poll_refuses_is_refused_as_a_message_too(piece):
    """Pings within a refused piece would else be read where it is handed on alone."""
    ping = '{"license_plate":"A1","observationDateTime":"2024-01-08T09:00:00+05:30","speed":5,' \
           '"location":{"type":"Point","coordinates":[72.8,21.2]}}'  # fmt: skip
    inner = piece.replace("PING", json.dumps(ping)[1:-1] if piece.startswith('"') else ping)
    decoder = settings().decoder
    handed_on = Unrepeated(decoder.format, LARGE, 100).take(f"[{ping}, {inner}]".encode())
    pings, refusals = decoder.decode(handed_on)
    assert (pings.message.tolist(), [one.message for one in refusals]) == ([0], [1])
