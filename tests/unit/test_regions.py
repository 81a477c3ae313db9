"""Signed distances, against brute force; they are 1-Lipschitz (Lemma 6.3); cell sets are where H3
says they are."""

import math

import h3.api.basic_int as h3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udp_stream.queries.plane import QUANTA_PER_METRE, PlanarPolygon, Plane, Rectangle, cell_set

L_SHAPE = np.array([[0, 0], [30, 0], [30, 10], [10, 10], [10, 30], [0, 30]], float)
HOLED = [
    np.array([[0, 0], [40, 0], [40, 40], [0, 40]], float),
    np.array([[10, 10], [30, 10], [30, 30], [10, 30]], float),
]
STAR = np.array([[math.cos(a * 0.8 * math.pi), math.sin(a * 0.8 * math.pi)] for a in range(5)]) * 50
REGIONS = {
    "rectangle": Rectangle(20, 10, 60, 30),
    "L": PlanarPolygon([L_SHAPE]),
    "backwards": PlanarPolygon([L_SHAPE[::-1]]),
    "hole": PlanarPolygon(HOLED),
    "two": PlanarPolygon([L_SHAPE, L_SHAPE + 100]),
    "star": PlanarPolygon([STAR]),
}


def edges_of(loops):
    return [(loop[i - 1], loop[i]) for loop in loops for i in range(len(loop))]


def brute_force(loops, place, dense=1200):
    """The distance to many points of the edge, and the winding of each loop by angles (even-odd)."""
    distance = min(
        math.dist(place, start + share * (end - start))
        for start, end in edges_of(loops)
        for share in np.linspace(0, 1, dense // len(loops[0]))
    )
    crossings = 0
    for start, end in edges_of(loops):
        if (start[1] > place[1]) != (end[1] > place[1]):
            at = start[0] + (place[1] - start[1]) / (end[1] - start[1]) * (end[0] - start[0])
            crossings += at > place[0]
    return -distance if crossings % 2 else distance


@pytest.mark.parametrize(("name", "loops"), [("L", [L_SHAPE]), ("backwards", [L_SHAPE]), ("hole", HOLED),
                                             ("two", [L_SHAPE, L_SHAPE + 100]), ("star", [STAR])])  # fmt: skip
def test_a_polygons_distance_is_that_of_many_points_of_its_edge(name, loops):
    places = np.random.default_rng(1).uniform(-60, 150, (25, 2)).round(1)
    rounded = [np.rint(loop * QUANTA_PER_METRE) for loop in loops]
    found = REGIONS[name].signed_distance(places * QUANTA_PER_METRE)
    exact = [brute_force(rounded, place * QUANTA_PER_METRE) for place in places]
    assert found == pytest.approx(exact, abs=2.5)


def test_a_rectangle_is_the_polygon_of_its_corners():
    corners = np.array([[-10, -5], [50, -5], [50, 25], [-10, 25]])
    places = np.random.default_rng(2).integers(-2000, 2000, (3000, 2)).astype(float)
    assert REGIONS["rectangle"].signed_distance(places) == pytest.approx(
        PlanarPolygon([corners]).signed_distance(places), abs=1e-9
    )


@pytest.mark.parametrize("name", REGIONS)
@given(st.tuples(*[st.integers(-3000, 3000)] * 4))
def test_signed_distances_are_one_lipschitz(name, places):
    first, second = np.array(places[:2], float), np.array(places[2:], float)
    one, other = REGIONS[name].signed_distance(np.array([first, second]))
    assert abs(one - other) <= math.dist(first, second) + 1e-9


def test_on_which_side_a_lattice_position_lies_is_exact_for_slanted_edges_far_apart():
    """A sliver 1000 km long: positions right beside its edge, by integers."""
    corners = np.array([[-500_000, -499_999], [500_000, 500_000], [500_000, 500_001]], float)
    sliver = PlanarPolygon([corners])
    (x1, y1), (x2, y2) = (corners[:2] * QUANTA_PER_METRE).astype(int).tolist()
    x = np.random.default_rng(3).integers(x1 + 10**6, x2 - 10**6, 500)
    above = np.array([-(-((y2 - y1) * (a - x1)) // (x2 - x1)) + y1 for a in x.tolist()])
    strictly = np.array([(y2 - y1) * (a - x1) % (x2 - x1) != 0 for a in x.tolist()])
    assert strictly.all()
    assert (sliver.signed_distance(np.column_stack((x, above)).astype(float)) < 0).all()
    assert (sliver.signed_distance(np.column_stack((x, above - 1)).astype(float)) > 0).all()


@pytest.mark.parametrize("resolution", [6, 7, 9])
def test_a_set_of_cells_holds_the_positions_that_h3_puts_into_them(resolution):
    plane = Plane(30.27, -97.74)
    middle = h3.latlng_to_cell(30.27, -97.74, resolution)
    cells = set(h3.grid_disk(middle, 2)) - {next(iter(h3.grid_ring(middle, 1)))}  # with a hole
    region = cell_set([h3.int_to_str(cell) for cell in cells], plane)
    reach = 4 * h3.average_hexagon_edge_length(resolution, unit="m") / 111_000
    lat, lon = np.random.default_rng(resolution).uniform(-reach, reach, (2, 4000)) + np.array(
        [[30.27], [-97.74]]
    )
    distance = region.signed_distance(plane.quanta(lat, lon).astype(float)) / QUANTA_PER_METRE
    truth = np.array(
        [h3.latlng_to_cell(a, b, resolution) in cells for a, b in zip(lat, lon, strict=True)]
    )
    clear = np.abs(distance) > 1.0  # metres
    assert 500 < truth.sum() < 3500 and clear.mean() > 0.95
    assert np.array_equal(distance[clear] < 0, truth[clear])
