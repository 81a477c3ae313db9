"""The statement of a deployment: what was spent, and the bound that composition gives without shares."""

import numpy as np

from udp_stream.adapters.settings import load
from udp_stream.adapters.statement import statement
from udp_stream.memory_ledger import MemoryLedger
from udp_stream.ports import Admission


def test_the_largest_loss_stands_beside_the_bound_of_composition():
    """Plate a is in three releases for small shares, plate b in two at full price; c is halted throughout."""
    ledger, plates = MemoryLedger(), [b"a", b"b", b"c"]
    for name, members, charges in (
        ("one", [0, 1], [200, 1000]),
        ("two", [0, 1, 2], [100, 1000, 9000]),
        ("three", [0], [400]),
    ):
        ledger.admit("day", 5000, plates, [Admission(name, np.array(members), np.array(charges), 1, b"{}")])
    text = statement(load(None, (), {}), ledger)
    assert text["privacy"]["privacy_loss"]["periods"] == [
        {
            "period": "day",
            "plates_charged": 2,
            "epsilon_max_over_plates": 2000 / 1e9,
            "epsilon_max_of_a_release": 1000 / 1e9,
            "releases_max_over_plates": 3,
            "epsilon_bound_by_composition": 3000 / 1e9,
        }
    ]


def test_a_period_in_which_nobody_was_charged_has_zeros():
    ledger, nobody = MemoryLedger(), np.array([], dtype=np.int64)
    ledger.admit("day", 10, [], [Admission("one", nobody, nobody, 1, b"{}")])
    (period,) = statement(load(None, (), {}), ledger)["privacy"]["privacy_loss"]["periods"]
    assert set(period.values()) == {"day", 0}
