"""Experiments: repeated draws are the mechanisms' own, tables are reproducible, findings follow
from the numbers."""

import csv
import dataclasses
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from lab.data import DataSet, HatSamples, Setup, itms_counts, weights_of
from lab.experiments import EXPERIMENTS, means
from lab.means import EPSILONS, DrawnHat, repeated_means_of
from lab.reproduce import claims, sentence, slug, write_outcome, write_table
from lab.results import Finding, Row, Rows
from tests.forms import changed, long_rows
from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import pure
from udp_stream.mechanisms.variance import plan_variance
from udp_stream.planning.plan import HatPlan, Terms
from udp_stream.planning.suppression import Occupancy
from udp_stream.release.pipeline import estimate_hats
from udp_stream.testing import seeded_bits

U = 65 * 4096
ON_SPEEDS = [name for name in EXPERIMENTS if name != "cdf-trees"]


def small_hat(seed, plates):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 30, plates)
    means = np.repeat(rng.normal(20 + seed, 6, plates), counts)
    return HatSamples(
        SamplesPerPlate(counts),
        np.clip(np.round(rng.normal(means, 9) * 4096), 0, U).astype(np.int64),
    )


def small_feed(plates=(3, 12, 14, 20)):
    """HATs with so many plates, in one slot; the plates of a HAT are also in the larger ones."""
    hats = tuple(small_hat(i, n) for i, n in enumerate(plates))
    rows = [(h, p) for h, hat in enumerate(hats) for p in range(hat.counts.plates)]
    hat, plate = np.array(rows).T
    counts = np.concatenate([one.counts.by_plate for one in hats])
    who = Occupancy(np.searchsorted(hat, np.arange(len(hats) + 1)), plate, counts, max(plates))
    return DataSet("feed", True, Range(0, U), hats, who)


def setup_of(data=(), repetitions=20, seed=1):
    return Setup(tuple(data), repetitions, 10, seed, lambda name: seeded_bits(f"{seed}/{name}"))


def rows_of(experiment, setup, points=None):
    """Of the first of its points, or of all."""
    return [
        row
        for point in islice(experiment.points(setup), points)
        for row in experiment.measure(setup, *point)
    ]


def outcome_of(name, setup):
    return EXPERIMENTS[name].run(setup)


def repeated_means(plan, samples, draws, bits):
    return repeated_means_of([plan], [samples], draws, bits)[0]


@pytest.mark.parametrize("grouping", ["best-fit", "wrap-around"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_single_repetition_is_what_a_release_would_be_from_the_same_bits(name, grouping):
    for seed in range(6):
        hat = small_hat(seed, 7 + seed)
        plan = MECHANISMS[name].plan(hat.counts, pure(NANO // 2), Range(0, U), grouping)
        (found,) = repeated_means(plan, hat.samples, 1, seeded_bits(seed))
        whole = HatPlan(Terms(), hat.counts.by_plate, {"mean": plan}, plan.charges)
        assert found == np.clip(
            estimate_hats([whole], [hat.samples], seeded_bits(seed))[0]["mean"].value, 0, U
        )


def test_a_single_repetition_of_a_variance_is_what_a_release_would_be():
    hat = small_hat(1, 30)
    plan = plan_variance(hat.counts, pure(NANO), Range(0, U))
    whole = HatPlan(Terms(), hat.counts.by_plate, {"variance": plan}, plan.charges)
    (found,) = means.repeated_variances(plan, hat.samples, 1, seeded_bits(3))
    assert found == estimate_hats([whole], [hat.samples], seeded_bits(3))[0]["variance"].value


def test_errors_over_hats_are_weighed_by_samples():
    hats = small_feed().hats
    totals = [hat.samples.size for hat in hats]
    assert weights_of(hats) == pytest.approx([total / sum(totals) for total in totals])
    found = means.mean_error(
        np.array([0.25, 0.75]), [np.array([1.0, 3.0]), np.array([6.0, 4.0])], [0.0, 2.0]
    )
    assert found == pytest.approx((0.25 * 2 + 0.75 * 3, np.hypot(0.25, 0.75)))
    assert means.mean_error(np.array([1.0]), [np.array([3.0])], [1.0]) == (2.0, 0.0)


SHORT = [*((name, 0) for name in ON_SPEEDS if name != "worst-case"), ("worst-case", 1)]
"""Names, and how many figures are drawn: one takes as long as all other steps. That of worst cases
has all kinds."""


@pytest.mark.parametrize(
    ("name", "figures"), long_rows(SHORT, [*SHORT, *((name, None) for name in ON_SPEEDS)])
)
def test_an_experiment_is_reproducible_and_has_the_constant_beside_every_error(
    name, figures, tmp_path, limits
):
    limits(means, SAMPLES_TRIED=4)
    points, feed = None if figures is None else 5, small_feed()
    first, other = (
        rows_of(EXPERIMENTS[name], setup_of([feed], 2, seed), points) for seed in (1, 2)
    )
    assert (first != other) is (name != "worst-case")  # which reads counts alone: nothing is drawn
    outcome = outcome_of(name, setup_of([feed], 2))
    again = [repr(row) for rows in outcome.tables.values() for row in rows]
    assert {*map(repr, first)} <= {*again} and (points or sorted(again) == sorted(map(repr, first)))
    outcome = changed(outcome, figures=outcome.figures[:figures])
    names = [path.name for path in write_outcome(outcome, name, tmp_path)]
    pictures = [
        f"{slug(figure.name)}.{kind}" for figure in outcome.figures for kind in ("png", "svg")
    ]
    assert names == [*(f"{table}.csv" for table in outcome.tables), *pictures, f"{name}.txt"]
    for table, found in outcome.tables.items():
        with (tmp_path / f"{table}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(found) > 10
        constants = [column for column in rows[0] if column.startswith("constant_")]
        assert constants and any("error" in column for column in rows[0])
        assert all(float(row[constants[0]]) > 0 for row in rows)
        (served,) = {"share_of_pings", "share_of_slots_pings_served"} & rows[0].keys()
        shares = {float(row[served]) for row in rows}
        assert 0 < min(shares) <= max(shares) <= 1
    for figure in outcome.figures:
        png, svg = (
            (tmp_path / f"{slug(figure.name)}.{kind}").read_bytes() for kind in ("png", "svg")
        )
        assert_drawn(figure, png, svg.decode())
    said = (tmp_path / f"{name}.txt").read_text("utf-8").splitlines()
    for line, finding in zip(said, outcome.findings, strict=True):
        assert line.startswith("AGREES " if finding.agrees else "DIFFERS ")
        assert (" Why: " in line) is not finding.agrees


def test_a_table_has_no_text_that_a_spreadsheet_takes_for_a_formula_and_numbers_stay_numbers(
    tmp_path,
):
    write_table([Row(claim="=1+1", data="a", unit="@b", value=-3.2)], tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        (_, *written) = csv.reader(file)
    assert written == [["'=1+1", "a", "'@b", "-3.2"]]


def assert_drawn(figure, png, svg):
    """Every panel's labels and series are in the SVG, the guess among them, and the PNG has many
    colours of ink."""
    import io

    from matplotlib.image import imread

    pixels = imread(io.BytesIO(png))[..., :3]
    ink = pixels[(pixels.max(axis=2) - pixels.min(axis=2)) > 0.3]
    assert len(np.unique(ink.round(1), axis=0)) >= 2 and len(ink) > 500
    for panel in figure.panels:
        assert panel.x_label and any(
            unit in panel.y_label for unit in ("km/h", "epsilon", "samples")
        )
        for text in (panel.x_label, panel.y_label, *(curve.name for curve in panel.curves)):
            assert text.replace(">", "&gt;") in svg
        for curve in panel.curves:
            assert len(curve.x) == len(curve.y) > 0 and np.isfinite(curve.y).all()
        if "error" in panel.y_label:
            assert (
                any(curve.kind == "guess" for curve in panel.curves)
                or panel.title == "both groupings"
            )


def fabricated(errors):
    rows = Rows(
        Row(data="d", hats="the HAT", series=one.name, epsilon=at, error_kmh=error / at)
        for one, error in errors.items()
        for at in EPSILONS
    )
    return DrawnHat(DataSet("d", False, Range(0, U), (small_hat(1, 5),)), rows)


@pytest.mark.parametrize(("levy", "agrees"), [(1.0, True), (3.0, False)])
def test_the_best_mechanism_is_judged_by_the_numbers(levy, agrees):
    hat = fabricated({means.LEVY: levy, means.BASELINE: 2.0, means.AVERAGING: 4.0})
    finding = means.best_of(
        "levy-best", hat, means.LEVY, (means.BASELINE, means.AVERAGING), twice=1.0
    )
    assert finding.agrees is agrees and ("Why: its interval" in sentence(finding)) is not agrees
    assert ("baseline at epsilon 0.5" in finding.values["but"]) is not agrees
    assert finding.values["errors"].startswith("levy 1," if agrees else "baseline 2,")


def test_every_claim_has_its_texts_and_an_experiment_that_tries_it():
    tried = "".join(path.read_text("utf-8") for path in Path(means.__file__).parent.glob("*.py"))
    for name, claim in claims().items():
        assert (
            {"statement", "source", "seen"}
            <= claim.keys()
            <= {"statement", "source", "seen", "why"}
        ), name
        assert f'"{name}"' in tried


def test_a_claim_that_is_not_in_the_table_and_a_value_that_is_not_given_are_errors():
    for finding in (Finding("no-such-claim", True), Finding("arrays", True, full=160)):
        with pytest.raises(KeyError):
            sentence(finding)


def test_theorems_are_tried_against_brute_force_and_a_wrong_one_is_found():
    sensitivity, printed, corollary = means.theorem_findings()
    assert sensitivity.agrees and not printed.agrees and not corollary.agrees
    assert (printed.values["cases"], printed.values["exchanged"]) == (300, 300)
    assert corollary.values["item"] == Fraction(9, 100)
    # brute force itself, on a case small enough to see: 1 of 4 samples dropped, at U against three
    # at 0
    printed, exchanged = (means.printed_bias(4, 3, exchanged=which) for which in (False, True))
    assert means.largest_bias(4, 3) == Fraction(3, 16) == exchanged != printed


def test_suppression_is_tried_over_all_slots_together_and_for_mean_and_variance():
    feed = small_feed()
    days = [
        dataclasses.replace(feed, whole=None),
        dataclasses.replace(feed, whole=feed.busiest_slot),
    ]
    slot, whole = (outcome_of("chop-user", setup_of([one])) for one in days)
    rows = whole.tables["chop-user"]
    more = [row for row in rows if ", all slots" in row.data]
    assert len(rows) - len(slot.tables["chop-user"]) == len(more) == 2 * 9
    by_rule = {
        rule: [row for row in more if row.rule == rule]
        for rule in ("chop-user", "chop-user, mean and variance")
    }
    for rows in by_rule.values():
        assert [row.loss_after for row in rows] == [row.epsilon * row.hats_after for row in rows]
        assert all(row.worst_error <= row.threshold * (1 + 1e-12) for row in rows)
    assert [row.threshold for row in by_rule["chop-user"]] != [
        row.threshold for row in by_rule["chop-user, mean and variance"]
    ]
    assert any("all slots" in finding.values.get("name", "") for finding in whole.findings)


def test_the_papers_claims_hold_on_their_hat_in_its_likeness_but_for_those_that_the_documents_name():
    """Figures 1, 2a and 2b, and Proposition IV.2 at small caps: at Levy's outliers are too rare for
    lambda = 10."""
    setup = setup_of(repetitions=1000)
    findings = [
        one
        for name in ("mean-itms", "sample-scaling", "user-scaling")
        for one in outcome_of(name, setup).findings
    ]
    assert [one.claim for one in findings if not one.agrees] == [
        "arrays",
        "half-the-noise",
        "worst-case-cap",
        "clipping-alike",
    ]
    values = {one.claim: one.values for one in findings}
    assert (values["arrays"]["full"], values["arrays"]["packed"]) == (160, 162)
    counts = SamplesPerPlate(itms_counts())
    assert (counts.total, counts.largest, counts.median) == (17_166, 417, 46)
    assert values["exact-quantiles"]["after"].cap == 70 and values["exact-quantiles"]["exact"] < 65
