"""The road of a slot whose city's hour is asked dies at each call of the ledger: the next run comes
to the same, and leaves nothing behind."""

import pytest

from tests.failing import Died
from tests.unit.test_flow import a_context, run, slot
from udp_stream.ledger.ids import CITY_HOUR, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release import city
from udp_stream.release.charge import with_forecaster
from udp_stream.testing import SeededEntropy

FLAGS = ("release.mean=forecast-clip", "release.cdf=off", "budget.epsilon=80")


@pytest.fixture(autouse=True)
def asked_early(limits):
    """Twelve plates are enough to ask, and pay what lets the answer tell."""
    limits(city, HOUR_PLATES_MIN=2, HOUR_CHANGE=1e6, HOUR_PART=2000)


class Bits(SeededEntropy):
    """Bits for what is not recorded yet, and for nothing else."""

    def __init__(self, ledger):
        super().__init__(1)
        self.ledger = ledger

    def streams(self, release_ids):
        assert not any(self.ledger.recorded(list(release_ids)))
        return super().streams(release_ids)


def released(ledger, *given, **more):
    return run(
        ledger, with_forecaster(a_context(*FLAGS, entropy=Bits(ledger))), slot(), *given, **more
    )


def told(ledger):
    return [
        (one.release_id, one.payload, one.charged.tolist(), one.published)
        for one in ledger.entries()
    ]


def test_whoever_dies_at_any_call_leaves_the_next_run_the_same_outcome():
    whole, calls = MemoryLedger(), []
    published = released(whole, log=calls)
    first, *hats = whole.entries()
    assert kind_of(first.release_id) == CITY_HOUR and first.payload and first.published
    assert len(hats) == len(published) == 3
    for at in range(len(calls)):
        for answered in (False, True):
            ledger = MemoryLedger()
            with pytest.raises(Died):
                released(ledger, at, answered=answered)
            assert released(ledger) == published
            assert told(ledger) == told(whole), (calls[at], answered)
            assert ledger.verify() == []
