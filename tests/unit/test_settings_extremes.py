"""Every numeric key at extreme values: refused by name before anything is charged, or the whole
road works."""

import io
import os
import re
from itertools import product

import msgspec
import numpy as np
import pytest

from streams.kafka import REQUEST_BYTES_MAX
from streams.worker import BINS_MAX, require_records_fit
from tests.forms import PURE_ENV, long_but, long_rows
from tests.runtime.harness import CONFIG, embedded, fleet_log, frames_of
from udp_stream.cli import main as cli
from udp_stream.errors import ConfigError
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.cdf import SHARE_MIN, best_tree, level_budgets, plan_cdf
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import DRAWABLE_NANO_MIN, DiscreteLaplace, lattice_of, pure
from udp_stream.mechanisms.statistics import STATISTICS, priced
from udp_stream.mechanisms.variance import plan_variance, variance_query
from udp_stream.planning.plan import plan_hat, terms_of
from udp_stream.planning.policy import EPSILON_NANO_MAX, FIXED_NANO_MIN
from udp_stream.release import record as release
from udp_stream.release.pipeline import estimate_hats
from udp_stream.settings import DURATIONS, Settings, load
from udp_stream.settings.loading import accepted_keys
from udp_stream.units import NANO, QUANTA_PER_KMH
from udp_stream.windows.tables import PINGS_MAX

NUMBERS = (
    "0", "-0.0", "1", "2", "15", "-1", "1e-300", "1e-12", "1e-9", "1e-7", "1e-6", "0.001", "0.5", "1000", "1e6", "1e9",
    "1e12", "1e300", "nan", "inf", "-inf", "256", "4096", "268435456", "2147483648", "9223372036854775807",
    "1000000000000000000000000000000",
)  # fmt: skip
SPANS = (
    "0s", "1ms", "0.0001s", "1s", "1m", "7m", "1h", "1d", "31d", "36500d", "36501d", "1000000d", "99999999999999d",
    "9" * 400 + "w", "-1s", "x", "",
)  # fmt: skip
SHORT = (
    "0",
    "-1",
    "1e-7",
    "0.5",
    "1000",
    "1e12",
    "nan",
    "inf",
    "9223372036854775807",
    "0s",
    "1ms",
    "1h",
    "36501d",
    "x",
)
EPSILONS = ("mean_epsilon", "variance_epsilon", "cdf_epsilon")


def default(key):
    section, _, name = key.partition(".")
    return getattr(
        getattr(Settings(), section), {"from": "from_"}.get(name, name)
    )  # a word of Python's


NUMERIC = [
    key
    for key in accepted_keys()
    if isinstance(default(key), int | float) and not isinstance(default(key), bool)
]
NUMERIC += ["release.mean_epsilon", "release.bins"]


def works(tmp_path, *flags):
    """Run a small feed, and decode what comes out; ConfigError is the only error that may leave,
    before a ledger is."""
    try:
        load(None, (*CONFIG, *flags), PURE_ENV)
    except ConfigError as error:
        return str(error)
    out = io.BytesIO()
    with embedded(tmp_path / "ledger", out, flags=(*CONFIG, *flags)) as runtime:
        summary = runtime.run(frames_of(fleet_log(buses=8, hours=0.4)))
    records = [release.Release.decode(line) for line in out.getvalue().splitlines()]
    assert len(records) == summary.hats.total()
    return ""


def test_durations_are_known():
    """Each key whose default is a duration has its limits, and the interval of pings, which has no
    default."""
    texts = [
        key
        for key in accepted_keys()
        if isinstance(default(key), str) and re.fullmatch(r"\d+[a-z]+", default(key))
    ]
    assert sorted([*texts, "pings.interval"]) == sorted(DURATIONS)


@pytest.mark.parametrize("number", long_but(SHORT, NUMBERS))
@pytest.mark.parametrize("key", NUMERIC)
def test_a_number_is_refused_by_name_or_works(key, number, tmp_path):
    said = works(tmp_path, f"{key}={number}")
    assert not said or (
        said.startswith((key.partition(".")[0], "budget.epsilon")) and "got " in said
    )


@pytest.mark.parametrize("span", long_but(SHORT, SPANS))
@pytest.mark.parametrize("key", DURATIONS)
def test_a_duration_is_refused_by_name_or_works(key, span, tmp_path):
    said = works(tmp_path, f"{key}={span}")
    assert not said or (
        said.startswith((f"{key}: expected ", "budget.period: expected a multiple"))
        and "got " in said
    )


@pytest.mark.parametrize(
    "box", ["[-999,0,5,5]", "[0,0,5,91]", "[nan,0,5,5]", "[0,0,inf,5]", "[5,0,5,5]"]
)
def test_a_box_lies_on_earth(box):
    with pytest.raises(ConfigError, match=r"pings\.box:"):
        load(None, [f"pings.box={box}"], PURE_ENV)


@pytest.mark.parametrize(
    ("epsilon", "grouping"),
    long_rows(
        [("1e-6", "best-fit"), ("1000", "wrap-around")],
        product(["1e-6", "1000"], ["best-fit", "wrap-around"]),
    ),
)
@pytest.mark.parametrize("mean", ["auto", *MECHANISMS])
def test_the_least_and_the_largest_epsilon_work_with_every_mechanism(
    mean, grouping, epsilon, tmp_path
):
    flags = [f"release.{name}={epsilon}" for name in EPSILONS]
    for speed in ("1", "1000"):
        folder = tmp_path / speed
        folder.mkdir()
        speeds = f"speed.max_kmh={speed}", "speed.reject_above_kmh=2000"
        mechanism = f"release.mean={mean}", f"release.grouping={grouping}"
        assert not works(folder, *flags, *mechanism, *speeds, "budget.epsilon=1e6")


@pytest.mark.parametrize("name", EPSILONS)
def test_below_the_least_epsilon_is_refused(name):
    with pytest.raises(
        ConfigError, match=f"release.{name}: expected 0, .*1e-06 to 1000.*, got 9.99e-07"
    ):
        load(None, [*CONFIG, f"release.{name}=0.999e-6"], PURE_ENV)


@pytest.mark.parametrize("bins", [2, 3, 17, 200, 1729, 4095, 4096, 65000, 65536])
def test_the_least_epsilon_leaves_every_level_of_a_tree_noise_that_can_be_drawn(bins):
    """Four levels get 0.24 of epsilon each, at least; of a tree that was asked for, 0.04."""
    assert min(level_budgets(best_tree(bins), FIXED_NANO_MIN)) >= 0.24 * FIXED_NANO_MIN
    assert SHARE_MIN[1] * FIXED_NANO_MIN > DRAWABLE_NANO_MIN


@pytest.mark.parametrize("branching", ["[2, 2, 2, 2, 2, 2]", "[64]", "[2, 40]", "[40, 2]"])
@pytest.mark.parametrize(
    ("cdf", "accounting"), [("1e-6", "pure"), ("1000", "pure"), ("0.001", "approximate")]
)
def test_a_tree_that_was_asked_for_works_at_the_least_and_the_largest_epsilon(
    tmp_path, branching, cdf, accounting
):
    flags = (
        f"release.branching={branching}",
        f"release.cdf_epsilon={cdf}",
        f"budget.accounting={accounting}",
    )
    assert not works(tmp_path, *flags, "budget.epsilon=2000")


@pytest.mark.parametrize(
    ("branching", "bins", "got"),
    [
        ("[]", "auto", "2, got"),
        ("[1, 4]", "auto", "2, got"),
        ("[2, 2]", "5", "bins .5., got 4"),
        ("[2]", "[0, 9, 40, 65]", "bins .3., got 2"),
        ("[65536, 4]", "auto", "131072 leaves, got 262144"),
        ("[300, 300]", "auto", "leaves are the bins"),
        ("auto!", "auto", "got"),
    ],
)
def test_a_tree_that_does_not_fit_is_refused_by_name(branching, bins, got):
    with pytest.raises(ConfigError, match=f"release.(branching|bins).*{got}"):
        load(None, [f"release.branching={branching}", f"release.bins={bins}"], PURE_ENV)


def test_an_automatic_epsilon_has_the_same_upper_limit(tmp_path):
    assert not works(
        tmp_path, "release.mean_epsilon=auto", "release.cdf_epsilon=auto", "budget.epsilon=1e6"
    )
    assert load(None, ["budget.epsilon=1e6"], PURE_ENV).policy.budget_nano == 10**6 * NANO


@pytest.mark.parametrize("max_kmh", ["65.0001", "65.3", "64.9999"])
def test_edges_end_where_the_settings_say_that_speeds_are_clamped(tmp_path, max_kmh):
    """Speeds are multiples of 1/4096 km/h, and so is the largest in plans: these numbers are not."""
    flags = (
        f"speed.max_kmh={max_kmh}",
        "release.cdf_epsilon=0.5",
        f"release.bins=[0, 30, {max_kmh}]",
    )
    assert not works(tmp_path, *flags)
    with pytest.raises(
        ConfigError, match=f"release.bins: expected edges that end at max_kmh = {max_kmh}, got 70.0"
    ):
        load(None, [*flags[:2], "release.bins=[0, 30, 70]"], PURE_ENV)


@pytest.mark.parametrize(
    ("epsilon_nano", "grouping"),
    long_rows(
        [(FIXED_NANO_MIN, "best-fit"), (EPSILON_NANO_MAX, "wrap-around")],
        product([FIXED_NANO_MIN, EPSILON_NANO_MAX], ["best-fit", "wrap-around"]),
    ),
)
@pytest.mark.parametrize("mean", ["auto", *MECHANISMS])
def test_whoever_is_halted_the_rest_can_have_its_noise(mean, grouping, epsilon_nano):
    """Counts as unequal as they come: what the small ones paid still is enough for noise once the
    largest is gone."""
    policy = load(None, [f"release.mean={mean}", f"release.grouping={grouping}"], PURE_ENV).policy
    counts = np.array([1, 1, 2, 3, 70, 5_000, 1_000_000])
    plan = plan_hat(counts, terms_of(policy, dict.fromkeys(priced(), epsilon_nano)), policy)
    for largest in range(1, counts.size + 1):
        final = plan.subset(np.arange(counts.size) < largest)
        (estimate,) = estimate_hats(
            [final], [np.zeros(int(counts[:largest].sum()), np.int64)], os.urandom
        )
        assert list(estimate) == priced()


def test_so_many_samples_of_one_plate_enter_a_cdf_that_its_noise_can_be_drawn():
    plan = plan_cdf(SamplesPerPlate(np.full(10, 10**6)), pure(FIXED_NANO_MIN), 65.0, "auto")
    assert plan.cap == min(plan.budgets_nano) // DRAWABLE_NANO_MIN and plan.kept == 10 * plan.cap


@pytest.mark.parametrize(
    "flags",
    [
        ("release.bins=32769",),
        ("release.bins=auto", "release.branching=[182, 182]"),
        (f"release.bins={[0, *np.linspace(0, 65, 32_770).tolist()]}",),
    ],
    ids=["a number", "a tree", "edges"],
)
def test_a_worker_refuses_cdfs_whose_records_no_broker_takes(flags):
    """Their plates would be charged first."""
    with pytest.raises(ConfigError, match="at most 32768 bins on Kafka, got 3"):
        require_records_fit(load(None, ["release.cdf_epsilon=1", *flags], PURE_ENV).policy)
    require_records_fit(load(None, ["release.cdf_epsilon=0", *flags], PURE_ENV).policy)


@pytest.mark.parametrize("max_kmh", [65.0, 104.6, 1000.0])
def test_the_largest_cdf_that_a_worker_takes_fits_into_a_record(max_kmh):
    require_records_fit(
        load(None, ["release.cdf_epsilon=1", f"release.bins={BINS_MAX}"], PURE_ENV).policy
    )
    plan = plan_cdf(SamplesPerPlate(np.full(10, 10)), pure(NANO), max_kmh, BINS_MAX)
    values = np.linspace(1 / 3, 1, BINS_MAX + 1).tolist()
    assert (
        len(msgspec.json.encode(STATISTICS["cdf"].record(plan, values))) < REQUEST_BYTES_MAX - 2**16
    )


@pytest.mark.parametrize("pairs", [PINGS_MAX - 1, 2**40, PINGS_MAX**2 // 4])
@pytest.mark.parametrize("kmh", [1, 65, 1000])
def test_a_variance_of_the_largest_slot_fits_on_its_lattice(kmh, pairs):
    """Half of the samples at either end of the scale, at the largest epsilon: 63 bits hold that and
    its noise."""
    square = (kmh * QUANTA_PER_KMH) ** 2
    lattice = lattice_of(square * pairs, pure(EPSILON_NANO_MAX))
    assert lattice.project(square * PINGS_MAX**2 // 4) + 64 * lattice.t < 2**63


def test_a_variance_of_many_fast_samples_is_exact():
    speed, count = 1000 * QUANTA_PER_KMH, 2**20
    plan = plan_variance(
        SamplesPerPlate(np.array([count, count])), pure(NANO), Range(0, speed), cap=count
    )
    asked = variance_query(plan, np.repeat([0, speed], count))
    assert asked.statistic == speed**2 * count**2


@pytest.mark.parametrize("noise", [1e3, 1e9, 1e12, 1e14])
def test_an_expected_error_is_never_below_zero_or_above_half_of_the_scale(noise):
    assert 0 < DiscreteLaplace().clamped_error(noise, 0.0, 1000) <= 500.1
    assert DiscreteLaplace().clamped_error(1e12, 0.0, 1000) == pytest.approx(500, rel=1e-5)


def ends_of(key):
    """The least, the largest and just beyond, as a type or `DURATIONS` has them."""
    if key in DURATIONS:
        least, most = DURATIONS[key]
        return "0.5ms", least, most, "36501d"
    section, _, name = key.partition(".")
    (field,) = (one for one in msgspec.inspect.type_info(type(getattr(Settings(), section))).fields
                if one.encode_name == name)  # fmt: skip
    kinds = [field.type, *getattr(field.type, "types", ())]
    limits = {
        end: getattr(kind, end)
        for kind in kinds
        for end in ("ge", "gt", "le", "lt")
        if hasattr(kind, end)
    }
    limits = {end: limit for end, limit in limits.items() if limit is not None}
    ends = [f"{limit:.15g}" for limit in limits.values()]
    beyond = [
        f"{limit + (-1 if end[0] == 'g' else 1) * max(1, abs(limit) * 1e-6):.15g}"
        for end, limit in limits.items()
    ]
    return *ends, *beyond, "0", "9223372036854775807"


ACCOUNTED = {
    "pure": ("budget.accounting=pure",),
    "approximate": (),
    "zcdp": ("budget.accounting=zcdp", "budget.rho=1.5"),
}


@pytest.fixture(scope="module")
def small_feed(tmp_path_factory):
    feed = tmp_path_factory.mktemp("feed") / "day.ndjson"
    feed.write_bytes(b"\n".join(fleet_log(buses=8, hours=0.4)))
    return str(feed)


@pytest.mark.parametrize("accounting", ACCOUNTED)
@pytest.mark.parametrize("key", long_but(("budget.epsilon", "budget.rho", "budget.delta", "release.mean_epsilon",
                                          "speed.max_kmh"), [*NUMERIC, "budget.epsilon", *DURATIONS]))  # fmt: skip
def test_a_dry_run_at_the_ends_of_a_key_works_or_says_what_is_wrong(
    key, accounting, small_feed, capsys
):
    for value in ends_of(key):
        flags = [
            word for flag in (*ACCOUNTED[accounting], f"{key}={value}") for word in ("--set", flag)
        ]
        status = cli.main(["replay", small_feed, "--dry-run", *flags])
        said = capsys.readouterr().err
        assert status in (0, 3), (value, said)
        assert status == 0 or ("expected" in said or "would be" in said), (value, said)
