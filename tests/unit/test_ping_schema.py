"""docs/ping.schema.json says what is a ping as the decoder does; the examples keep the rules of a
feed."""

import json
from pathlib import Path

import jsonschema
import pytest

from tests.runtime.harness import fleet_log
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.settings import load

ROOT = Path(__file__).parents[2]
VALID = jsonschema.Draft202012Validator(
    json.loads((ROOT / "docs" / "ping.schema.json").read_text("utf-8"))
).is_valid


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"license_plate": " "}, "empty_plate"),
        *(
            ({"license_plate": word}, "placeholder_plate")
            for word in ("null", "NONE", " N/a", "na", "NaN", "Unknown ")
        ),
        ({"license_plate": "undefined"}, "placeholder_plate"),
        ({"license_plate": 7}, "wrong_type"),
        ({"observationDateTime": "2024-01-08T10:00:05"}, "no_utc_offset"),
        ({"speed": "fast"}, "wrong_type"),
        ({"speed": -1}, "speed_negative"),
        ({"location": {"coordinates": [72.8]}}, None),
        ({"location": {"coordinates": [72.8, 91]}}, None),
    ],
)
def test_what_the_schema_of_pings_refuses_is_refused(change, reason):
    good = json.loads(fleet_log(clean=True)[0])
    decoder = PingDecoder(load(None, (), {}).ping_rules, JSON)
    assert VALID(good) and not decoder.decode([json.dumps(good).encode()])[1]
    bad = good | change
    (refusal,) = decoder.decode([json.dumps(bad).encode()])[1]
    assert not VALID(bad) and reason in (None, str(refusal.reason))


def test_both_languages_put_a_plate_on_the_same_partition():
    """By the words of the two files: the plate without blanks, SHA-256, its first four bytes, the
    largest first."""
    texts = [
        (ROOT / "examples" / name).read_text("utf-8")
        for name in ("python/producer.py", "node/producer.mjs")
    ]
    assert 'sha256(plate.strip().encode()).digest()[:4], "big") % partitions' in texts[0]
    assert (
        'createHash("sha256").update(plate.trim()).digest().readUInt32BE(0) % partitions'
        in texts[1]
    )
