"""The city's tree: what a plate weighs, and how its noise is distributed."""

from math import isclose, sqrt

import msgspec
import numpy as np
import pytest
from scipy import stats

from udp_stream.base.units import NANO
from udp_stream.mechanisms.noise import Cost
from udp_stream.planning.slot import CityPlan
from udp_stream.release.city import (
    FULL_PINGS,
    WHOLE,
    CityRecord,
    CityTree,
    ShapeQuestion,
    sample_weights,
)
from udp_stream.testing import seeded_bits

PURE, RHO = Cost("pure", NANO // 2), Cost("zcdp", NANO // 20)
KMH = 4096
U = 7 * KMH


def test_a_plate_counts_by_ten_samples_at_most_whatever_it_sends():
    count, plate = np.array([1, 9, 40, 400, 5]), np.array([0, 1, 2, 3, 1])
    of_plate = np.bincount(plate, weights=sample_weights(count, plate) * count)
    assert of_plate.max() <= WHOLE
    assert of_plate / WHOLE == pytest.approx([1 / FULL_PINGS, 1, 1, 1], rel=0.01)


@pytest.mark.parametrize(("cost", "name"), [(PURE, "laplace"), (RHO, "norm")])
def test_noise_of_an_answer_has_the_stated_scale_and_30_percent_off_is_noticed(cost, name):
    tree = CityTree(cost, WHOLE, U)
    sums = tuple((np.arange(tree.bins.count) * 5 * WHOLE).tolist())
    plan, question, bits = (
        CityPlan(*np.zeros((2, 0), np.int64), 100, msgspec.json.encode(tree)),
        ShapeQuestion(),
        seeded_bits(4),
    )
    records = [CityRecord.of_ledger("city", question.answer(sums, plan, bits)) for _ in range(400)]
    truth = np.array(sums) / sum(sums)
    off = np.array([record.shares - truth for record in records]).ravel()
    scale = records[0].deviation / (sqrt(2) if name == "laplace" else 1)
    assert isclose(records[0].deviation, sqrt(tree.noise_variance) / sum(sums), abs_tol=1e-6)
    assert stats.kstest(off / scale, name).pvalue > 1e-6
    assert (
        stats.kstest(off / (0.7 * scale), name).pvalue
        < 1e-6
        > stats.kstest(off / (1.3 * scale), name).pvalue
    )
    for record in records:
        assert (
            list(record.cdf) == sorted(record.cdf)
            and record.cdf[-1] == 1.0
            and record.cdf[0] >= 0.0
        )
        assert record.plates == 100 and record.edges_kmh == tree.bins.edges_kmh[1:]
