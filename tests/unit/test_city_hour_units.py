"""The city's hour and the unit of speeds: while that is in doubt nothing is asked, and what a city
tells of an hour casts none on it."""

import pytest

from tests.unit.test_city_hour import RHO, SLOTS, city_of, context, hours_of, times
from udp_stream.ledger.ids import CITY_HOUR, id_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release


def statuses(payloads):
    return {Release.decode(payload).status for payload in payloads}


def watched(number, seed=1, days=2, since=0, factor=1.0):
    """Which slots of so many days are withheld, as their speeds may be in another unit, and which
    were asked; from one slot on speeds are so many times as large."""
    contents = city_of(number, days * SLOTS)
    given, ledger = context(*RHO, judges_unit=True, seed=seed), MemoryLedger()
    withheld = []
    changed = dict.fromkeys(range(since, days * SLOTS), factor)
    for counts, values in times(contents, changed):
        recorded = release_slot(counts, values.clamped(65 * 4096), given, ledger, lambda _: None)
        withheld.append("withheld_unit" in statuses(recorded.payloads.values()))
    ids = {entry.release_id for entry in hours_of(ledger)}
    asked = [id_of(CITY_HOUR, *counts.slot) in ids for counts, _ in contents]
    return withheld, asked


@pytest.mark.parametrize("factor", [1 / 3.6, 3.6], ids=["slower", "faster"])
def test_while_the_unit_is_in_doubt_nothing_is_asked(factor):
    since = 2 * SLOTS + 2
    withheld, asked = watched(0, days=3, since=since, factor=factor)
    first = withheld.index(True)
    assert since < first and all(withheld[first:])
    assert all(asked[:first]) and not any(asked[first:])


@pytest.mark.parametrize(("number", "seed"), [(1, 1), (3, 2)])
def test_rush_hours_that_the_city_tells_are_no_other_unit(number, seed):
    """A workday after a Sunday: the city slows down by half, and is as it was two hours later."""
    withheld, asked = watched(number, seed)
    assert not any(withheld) and all(asked)
