"""How often a run asks its ledger: on Redis each request is a round trip."""

from collections import Counter
from datetime import UTC, datetime

import msgspec
import pytest

from tests.failing import DyingLedger
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

HOURS = 5
REQUESTS_MAX = 8


def an_hour_of_one_hat(hour):
    start = int(datetime(2024, 1, 8, 9 + hour, tzinfo=UTC).timestamp())
    for second in range(0, 3600, 300):
        for bus in range(12):
            when = datetime.fromtimestamp(start + second + bus, UTC).isoformat()
            yield msgspec.json.encode(
                {
                    "license_plate": f"GJ05ZZ{bus:04}",
                    "observationDateTime": when,
                    "location": {"type": "Point", "coordinates": [72.83, 21.19]},
                    "speed": 10 + bus,
                }
            )


@pytest.mark.parametrize("estimates", [True, False])
def test_a_slot_of_one_hat_asks_the_ledger_eight_times_under_the_defaults(estimates):
    ledger = DyingLedger(MemoryLedger())
    settings = load(None, ("hat.timezone=UTC",), {})
    released, slots = [], []
    runtime = EmbeddedRuntime(
        settings, ledger, SeededEntropy(1), lambda plate: plate.encode().ljust(16), "udp-stream test", released.append,
        smooth=(lambda _: None) if estimates else None,
    )  # fmt: skip
    for hour in range(HOURS):
        ledger.calls.clear()
        runtime.push(list(an_hour_of_one_hat(hour)))
        slots.append(Counter(ledger.calls))
    runtime.finish()
    assert runtime.summary.hats == {"released": HOURS} and len(released) == HOURS
    # The first slots that close look for earlier ones, too.
    assert [requests.total() <= REQUESTS_MAX for requests in slots[3:]] == [True] * (HOURS - 3)
    assert all(requests["record"] == requests["published"] == 1 for requests in slots[1:])
