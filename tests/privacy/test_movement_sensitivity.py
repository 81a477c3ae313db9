"""Speeds by movement, by a distribution test: what a plate tells that stands, or goes to and fro, within
its cell. Exact losses are in `test_sensitivity.py`."""

import numpy as np
import pytest

from tests.privacy.test_distributions import COUNTS, U, plan_of, seen_of
from tests.privacy.test_sensitivity import CELLS, GRIDS, derived
from tests.unit.test_movement import values_of
from udp_stream.base.units import NANO
from udp_stream.mechanisms.noise import pure


@pytest.mark.parametrize(("epsilon", "is_seen"), [(1.0, False), (1 / 0.7, True)])
def test_an_audit_of_a_plate_that_stands_or_goes_to_and_fro_within_its_cell(epsilon, is_seen):
    grid, cell = GRIDS["movement"], CELLS[0]
    centre = np.array(grid.center_of(cell))[::-1]
    corners = [0.9 * np.array(grid.rings_of(cell)[0][at])[::-1] + 0.1 * centre for at in (0, 3)]
    rows = [(0, 20 * at, cell) for at in range(COUNTS[0])]
    ends = []
    for path in ([centre, centre], corners):
        places = [tuple(path[at % 2]) for at, _ in enumerate(rows)]
        ends.append(values_of(derived(rows, places, grid))[cell, b"0"])
    assert [set(end) for end in ends] == [{0}, {U}]
    plan = plan_of("baseline", pure(round(epsilon * NANO)))
    assert (seen_of("baseline", plan, 0, ends) > 1.0) == is_seen
