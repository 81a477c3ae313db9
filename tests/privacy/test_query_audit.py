"""What the ledger's rounds show of a plate's position stays below what it was charged: through the
whole runtime.

Two logs in which many plates stand at x, and at x', 100 m farther east. What was recorded is
compared with what was charged. Plates know of each other by public numbers alone: many plates are
as many runs of one.
"""

import msgspec
import numpy as np
import pytest

from tests.privacy.test_elimination_audit import renyi_of_order_2, shrunk
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledger.ids import kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.queries.plane import QUANTA_PER_METRE, Plane
from udp_stream.settings import load
from udp_stream.settings import queries as query_sections
from udp_stream.testing import SeededEntropy

PLATES, APART = 16_000, 100

QUERY = """
[queries]
rho = 200.0
center = [72.83, 21.17]

[[query]]
name = "square"
every = "15m"
{what}
budget = 20
"""
WHAT = {
    "distance": 'kind = "range"\nbox = [72.825186, 21.165484, 72.834814, 21.174516]',
    "point": 'kind = "density"\nplace = [72.83, 21.17]',
}
"""A square of a kilometre; noise of 158 m, all rounds together."""

EAST = 72.83 + 700 / 103_800


@pytest.fixture(autouse=True)
def few_rounds(request, limits):
    rounds = 2 if "sums" in request.node.name else 3
    limits(query_sections, ROUNDS={"zcdp": rounds, "pure": rounds})


def log_of(metres):
    lon = EAST + metres / 103_800
    ping = {"observationDateTime": "2024-01-08T09:05:00+05:30", "speed": 20,
            "location": {"type": "Point", "coordinates": [lon, 21.17]}}  # fmt: skip
    return [msgspec.json.encode({**ping, "license_plate": f"P{i:05}"}) for i in range(PLATES)], lon


def recorded(tmp_path, how, metres, text=QUERY):
    """Each plate's recorded values by round, nan where it was not asked; what it was charged; where
    it stands."""
    path = tmp_path / "city.toml"
    path.write_text(text.format(what=WHAT[how]))
    settings, ledger = load(path, ("release.mean_epsilon=0.1",), {}), MemoryLedger()
    messages, lon = log_of(metres)
    runtime = EmbeddedRuntime(
        settings,
        ledger,
        SeededEntropy(metres),
        str.encode,
        "udp-stream test",
        lambda _: None,
        answer=lambda _: None,
    )
    runtime.run([messages])
    (query,) = settings.standing_queries
    pie = query.asked(PLATES).pie
    names, shown = [f"P{i:05}".encode() for i in range(PLATES)], np.full((PLATES, 3), np.nan)
    for number, entry in enumerate(
        entry for entry in ledger.entries() if kind_of(entry.release_id) == "round"
    ):
        plates, values, _ = msgspec.json.decode(entry.payload)
        assert [names[i] for i in plates] == list(entry.plates)
        shown[plates, number] = np.array(values)[:, 0]
    (period,) = [period for period in ledger.periods() if period.startswith("positions")]
    charged = ledger.balances(period, names).charged / 1e9
    east = Plane(21.17, 72.83).quanta(np.array([21.17]), np.array([lon]))[0, 0] / QUANTA_PER_METRE
    steps = 2.0 ** getattr(pie.privatised, "fine_bits", 0) * QUANTA_PER_METRE
    return shown / steps + (500 if how == "distance" else 0), charged, east


def loss(tmp_path, how, text=QUERY):
    """Renyi's divergence of order 2 between what is shown of both places, in units of what was
    charged: 2 rho d^2."""
    (mine, charged, here), (theirs, other, there) = (
        recorded(tmp_path, how, metres, text) for metres in (0, APART)
    )
    assert 0 < charged.max() <= 20 and other.max() <= 20
    told = [np.nansum(shown - (here + there) / 2, axis=1) for shown in (mine, theirs)]
    most = max(charged.max(), other.max()) * ((there - here) / 1000) ** 2
    return renyi_of_order_2(*told, bins=40) / (2 * most)


HOW = ["distance", pytest.param("point", marks=pytest.mark.soak)]


@pytest.mark.parametrize("how", HOW)
def test_recorded_rounds_tell_no_more_than_the_ledger_charged_and_nearly_that(how, tmp_path):
    """The estimate's standard error is 0.05, by a likelihood ratio's moments; too small noise shows
    twice as much."""
    assert 0.7 < loss(tmp_path, how) < 1.2


RAMP = QUERY.replace("budget = 20\n", "").replace("rho = 200.0", 'rho = 60.0\nschedule = "ramp"')
"""By a quarter past nine 36 parts of 0.625 are saved, of which a plate is given 0.84: 19.5 in all."""


def test_rounds_under_a_ramp_tell_no_more_than_the_ledger_charged_and_nearly_that(tmp_path):
    assert 0.7 < loss(tmp_path, "distance", RAMP) < 1.2


@pytest.mark.parametrize(
    "text", [QUERY, pytest.param(RAMP, marks=pytest.mark.long)], ids=["even", "ramp"]
)
def test_noise_that_is_30_percent_too_small_is_caught(text, planted, tmp_path):
    shrunk(planted)
    assert loss(tmp_path, "distance", text) > 1.5


THRESHOLD = """
[queries]
rho = 1e6
center = [72.83, 21.17]

[[query]]
name = "full"
kind = "threshold"
every = "1m"
box = [72.825186, 21.165484, 72.834814, 21.174516]
share = 0.38
budget = 200
"""
"""The square again. The first of two rounds has rho 100: noise of 71 m on the sum, 0.14 plates."""


def sums_recorded(tmp_path, metres, minutes):
    """The sum in metres that each minute's rounds recorded of three plates, nan if none, and each
    plate's charges."""
    (path := tmp_path / "city.toml").write_text(THRESHOLD)
    settings, ledger, messages = (
        load(path, ("release.mean_epsilon=0.1", "hat.timezone=UTC"), {}),
        MemoryLedger(),
        [],
    )
    places = {"edge": 500 + metres, "core": 0, "away": 2000}
    for minute in range(minutes):
        at = f"2024-01-08T{minute // 60:02}:{minute % 60:02}:30Z"
        for plate, east in places.items():
            point = {"type": "Point", "coordinates": [72.83 + east / 103_800, 21.17]}
            ping = {
                "license_plate": plate,
                "observationDateTime": at,
                "speed": 20,
                "location": point,
            }
            messages.append(msgspec.json.encode(ping))
    entropy = SeededEntropy(f"sums {metres}")
    runtime = EmbeddedRuntime(
        settings, ledger, entropy, str.encode, "test", lambda _: None, answer=lambda _: None
    )
    runtime.run([messages])
    pie, shown = settings.standing_queries[0].asked(3).pie, {}
    for entry in ledger.entries():
        if kind_of(entry.release_id) == "round":
            assert (
                set(entry.plates) == {b"edge", b"core", b"away"}
                and len(set(entry.charged.tolist())) == 1
            )
            _, _, moment, number = entry.release_id.split(":")
            ((value,),) = msgspec.json.decode(entry.payload)[1]
            steps = QUANTA_PER_METRE * 2.0**pie.privatised.fine_bits
            shown.setdefault(moment, [np.nan, np.nan])[int(number) - 1] = value / steps
    (period,) = [period for period in ledger.periods() if period.startswith("positions")]
    charged = ledger.balances(period, [name.encode() for name in places]).charged / 1e9
    return np.array(list(shown.values())), charged


def losses_of_sums(tmp_path, minutes):
    """Of each round, Renyi's divergence of Gaussian noise between both places, in units of what it
    was charged."""
    (here, charged), (there, other) = (
        sums_recorded(tmp_path, metres, minutes) for metres in (0, APART)
    )
    asked = [(~np.isnan(one)).sum(axis=0) for one in (here, there)]
    for rounds, whole in zip(asked, (charged, other), strict=True):
        assert (
            rounds[0] == minutes and 0.1 < rounds[1] / minutes < 1
        )  # some moments end after the first round
        assert np.allclose(
            whole, 100 * rounds[0] + 100 * rounds[1]
        )  # and charge nobody for the second
    apart = np.nanmean(here, axis=0) - np.nanmean(there, axis=0)
    variance = (np.nanvar(here, axis=0) + np.nanvar(there, axis=0)) / 2
    return apart**2 / (2 * variance) / (100 * (APART / 1000) ** 2)


def test_recorded_sums_tell_no_more_of_a_plate_than_it_was_charged_for_each_round(tmp_path):
    """The central model, through the whole runtime. The standard errors are 0.15 and, of the second
    round, 0.2."""
    first, second = losses_of_sums(tmp_path, 200)
    assert 0.6 < first < 1.4 and 0.5 < second < 1.5


def test_sums_with_noise_that_is_30_percent_too_small_are_caught(planted, tmp_path):
    shrunk(planted)
    first, second = losses_of_sums(tmp_path, 200)
    assert first > 1.5 and second > 1.5
