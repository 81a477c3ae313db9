"""What the papers describe, asked for by settings, as `replay` releases it."""

import io
import math

import numpy as np
import pytest

from tests.runtime.harness import embedded, fleet_log, frames_of
from udp_stream.mechanisms.cdf import best_coarsening, requested_tree
from udp_stream.release.record import Release

PURE = (
    "hat.slot=1h",
    "hat.resolution=6",
    "budget.accounting=pure",
    "budget.epsilon=100",
    "release.mean=array-averaging",
)
TREES = (
    *PURE,
    "release.mean_epsilon=0",
    "release.cdf=tree",
    "release.cdf_epsilon=2",
    "release.bins=64",
)


def released(tmp_path, flags):
    out = io.BytesIO()
    with embedded(tmp_path / "ledger", out, flags) as runtime:
        runtime.run(frames_of(fleet_log(buses=30, hours=1.0, clean=True)))
    records = [Release.decode(line) for line in out.getvalue().splitlines()]
    found = [one for one in records if one.status == "released"]
    assert found
    return found


@pytest.mark.parametrize("levels", ["best", "even"])
@pytest.mark.parametrize("branching", [(2,) * 6, (4, 4, 4), (8, 8), (64,)])
def test_a_tree_that_is_asked_for_is_released_as_asked(branching, levels, tmp_path):
    asked = (f"release.branching={list(branching)}", f"release.levels={levels}")
    tree = requested_tree(branching, 64, levels=levels)
    for record in released(tmp_path, (*TREES, *asked)):
        assert record.cdf.branching == branching and len(record.cdf.budgets) == len(branching)
        assert record.cdf.budgets == pytest.approx([2 * share for share in tree.shares], rel=1e-6)
        assert math.fsum(record.cdf.budgets) == pytest.approx(2)
        assert list(record.cdf.values) == sorted(record.cdf.values) and record.cdf.values[-1] == 1
    assert best_coarsening(branching, 64).squared_error <= tree.squared_error * (1 + 1e-9)


def test_the_worst_case_cap_is_the_least_of_what_records_print(tmp_path):
    flags = (*PURE, "release.mean_epsilon=1", "release.cdf=off", "release.min_plates=1")
    by_cap = {
        cap: {
            one.release_id: one for one in released(tmp_path / cap, (*flags, f"release.cap={cap}"))
        }
        for cap in ("median", "worst-case")
        if not (tmp_path / cap).mkdir()
    }
    assert by_cap["median"].keys() == by_cap["worst-case"].keys()
    bounds = np.array(
        [
            [one.mean.bias_bound_kmh + one.mean.scale_kmh for one in of.values()]
            for of in by_cap.values()
        ]
    )
    assert (bounds[1] <= bounds[0] * (1 + 1e-3)).all() and (bounds[1] < bounds[0] * 0.99).any()
