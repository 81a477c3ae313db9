"""The plane of a city keeps distances as closely as it says, and takes what strangers give it."""

import math

import numpy as np
import pytest

from udp_stream.queries.plane import EDGE, QUANTA_PER_METRE, Plane, rho_per_square_metre

CITIES = {"Austin": (30.27, -97.74), "Surat": (21.17, 72.83), "Helsinki": (60.17, 24.94), "Quito": (-0.18, -78.47),
          "Wellington": (-41.29, 174.78), "Suva": (-18.14, 178.44)}  # fmt: skip


def geodesic(lat1, lon1, lat2, lon2):
    """Metres along WGS 84's ellipsoid: Vincenty's inverse formula (Survey Review 23, 1975), below a
    millimetre off."""
    a, f = 6_378_137.0, 1 / 298.257223563
    b = a * (1 - f)
    u1, u2 = (math.atan((1 - f) * math.tan(math.radians(lat))) for lat in (lat1, lat2))
    along = lam = math.radians(lon2 - lon1)
    for _ in range(100):
        sines = math.hypot(
            math.cos(u2) * math.sin(lam),
            math.cos(u1) * math.sin(u2) - math.sin(u1) * math.cos(u2) * math.cos(lam),
        )
        if sines == 0:
            return 0.0
        cosines = math.sin(u1) * math.sin(u2) + math.cos(u1) * math.cos(u2) * math.cos(lam)
        sigma = math.atan2(sines, cosines)
        alpha = math.cos(u1) * math.cos(u2) * math.sin(lam) / sines
        square = 1 - alpha * alpha
        middle = cosines - 2 * math.sin(u1) * math.sin(u2) / square if square else 0.0
        c = f / 16 * square * (4 + f * (4 - 3 * square))
        before, lam = (
            lam,
            along
            + (1 - c)
            * f
            * alpha
            * (sigma + c * sines * (middle + c * cosines * (2 * middle**2 - 1))),
        )
        if abs(lam - before) < 1e-13:
            break
    u = square * (a * a - b * b) / (b * b)
    big_a = 1 + u / 16384 * (4096 + u * (-768 + u * (320 - 175 * u)))
    big_b = u / 1024 * (256 + u * (-128 + u * (74 - 47 * u)))
    off = big_b * sines * (
        middle + big_b / 4 * (cosines * (2 * middle**2 - 1)
                              - big_b / 6 * middle * (4 * sines**2 - 3) * (4 * middle**2 - 3))
    )  # fmt: skip
    return b * big_a * (sigma - off)


def pairs_around(city, radius_m, n=200):
    rng = np.random.default_rng(int(radius_m))
    lat, lon = CITIES[city]
    north, east = rng.uniform(-radius_m, radius_m, (2, n, 2)) / math.sqrt(2)
    return lat + north / 110_600, lon + east / (111_300 * math.cos(math.radians(lat)))


@pytest.mark.parametrize("city", CITIES)
@pytest.mark.parametrize(
    ("radius_m", "off"), [(25_000, 8e-6), (50_000, 3.2e-5), (100_000, 1.24e-4)]
)
def test_distances_in_a_city_are_those_on_the_ellipsoid_as_closely_as_said(city, radius_m, off):
    lats, lons = pairs_around(city, radius_m)
    plane = Plane(*CITIES[city])
    ends = [plane.metres(lats[:, end], lons[:, end]) for end in (0, 1)]
    found = np.hypot(*(ends[0] - ends[1]).T)
    true = [
        geodesic(*here, *there)
        for *here, there in zip(
            lats[:, 0], lons[:, 0], zip(lats[:, 1], lons[:, 1], strict=True), strict=True
        )
    ]
    ratio = found / np.array(true)
    assert ratio.min() > 1 - 1e-7 and ratio.max() < 1 + off
    assert radius_m < 100_000 or ratio.max() > 1 + off / 20  # it does grow


def test_positions_are_rounded_to_sixteenths_and_east_and_north_are_where_they_are():
    plane = Plane(*CITIES["Suva"])
    where = plane.quanta(np.array([-18.14, -18.04, -18.14]), np.array([178.44, 178.44, -181.46]))
    assert where[0].tolist() == [0, 0] and where[1, 0] == 0 and where[1, 1] > 0
    assert where[2, 0] / QUANTA_PER_METRE == pytest.approx(
        10_590, rel=1e-3
    )  # across the date line, to the east


def test_positions_far_away_are_moved_nearer_and_never_fail():
    plane = Plane(*CITIES["Austin"])
    far = plane.quanta(
        np.array([0.0, 90.0, -90.0, 30.27, -30.27]), np.array([0.0, 0.0, 180.0, 0.0, 82.26])
    )
    assert np.abs(far).max() < EDGE and (np.abs(far[:4]).max(axis=1) > EDGE * 0.2).all()
    assert np.abs(far[4]).max() <= 1  # the opposite point of the earth


@pytest.mark.parametrize("centre", [*CITIES.values(), (80.0, 10.0), (-80.0, -170.0)])
def test_no_two_positions_on_earth_are_farther_apart_in_the_plane_than_said(centre):
    """Near the centre, around the circle, at the poles, the antimeridian and the opposite point,
    and anywhere."""
    rng, plane = np.random.default_rng(7), Plane(*centre)
    lat, lon = np.degrees(np.arcsin(rng.uniform(-1, 1, 600))), rng.uniform(-180, 180, 600)
    wide = 10 / max(0.2, math.cos(math.radians(centre[0])))
    for rows, (north, east) in (
        (slice(0, 300), centre),
        (slice(300, 350), (-centre[0], centre[1] + 180)),
    ):
        lat[rows] = np.clip(north + rng.uniform(-10, 10, 600)[rows], -89.9, 89.9)
        lon[rows] = east + rng.uniform(-wide, wide, 600)[rows]
    lon[350:400] = centre[1] + 180
    north, east = rng.choice([1e-4, 0.01, 1.0], 600) * rng.uniform(-1, 1, (2, 600))
    to_lat, to_lon = np.clip(lat + north, -89.95, 89.95), lon + east
    ends = plane.metres(lat, lon), plane.metres(to_lat, to_lon)
    found = np.hypot(*(ends[1] - ends[0]).T)
    true = np.array([geodesic(*row) for row in zip(lat, lon, to_lat, to_lon, strict=True)])
    assert (found <= 1.01 * true + 1e-6).all()
    assert (found > 1.005 * true).any()  # the bound is near


def test_places_that_a_query_is_about_are_never_moved():
    """Of an answer about the plane's edge nobody could tell that it is about another place."""
    plane = Plane(*CITIES["Suva"])
    near = (
        np.array([-18.14, -10.2, -18.14]),
        np.array([178.44, 178.44, -173.6]),
    )  # the last across the date line
    assert (plane.metres_of_places(*near) == plane.metres(*near)).all()
    for latitude, longitude in ((-10.1, 178.44), (-18.14, -173.0), (178.44, -18.14)):
        with pytest.raises(ValueError, match="8 degrees of the centre"):
            plane.metres_of_places(np.array([-18.14, latitude]), np.array([178.44, longitude]))


@pytest.mark.parametrize("centre", [(91.0, 0.0), (85.0, 0.0), (0.0, 181.0), (math.nan, 0.0)])
def test_a_centre_that_is_no_place_is_refused_with_the_rule(centre):
    with pytest.raises(ValueError, match="expected a centre"):
        Plane(*centre)


def test_budgets_are_rounded_down_and_taken_at_their_word():
    assert rho_per_square_metre(1e-4).nano == 10**11
    assert rho_per_square_metre("0.0000000000000019").nano == 1
