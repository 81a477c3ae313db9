"""The threshold query in the embedded runtime: beside the truth, and what it charges."""

import json

import jsonschema
import msgspec
import pytest

from tests.forms import long_but
from tests.runtime.harness import fleet_log, frames_of
from tests.runtime.test_standing import asking, everyone, positions_at_moments
from udp_stream.release.record import QueryResult, described
from udp_stream.settings import queries as query_sections

FULL = """
[queries]
rho = {rho}
center = [72.83, 21.17]

[[query]]
name = "full"
kind = "threshold"
every = "15m"
box = [72.79, 21.15, 72.85, 21.21]
share = SHARE
"""


@pytest.fixture(autouse=True)
def few_rounds(limits):
    limits(query_sections, ROUNDS={"zcdp": 8, "pure": 8}, EDGE_M=100.0)


@pytest.mark.parametrize("share", long_but([0.95], [0.05, 0.95]))
def test_a_threshold_is_answered_from_the_pings_and_charges_every_plate_for_the_rounds_it_needed(
    tmp_path, share
):
    """Rho 10^5 a day: noise of 0.6 plates in a round, whose limit is far away. One round of eight
    is enough."""
    log, text = fleet_log(clean=True), FULL.replace("SHARE", str(share))
    with asking(tmp_path, "ledger", rho=1e5, text=text) as (runtime, told, _, ledger):
        runtime.run(frames_of(log))
        rounds = everyone(ledger)
        assert ledger.verify() == []
    results, truth = [QueryResult.decode(payload) for payload in told], positions_at_moments(log)
    assert len(results) == 6 == len(rounds) and json.loads(told[0])["query"]["share"] == share
    for result, entry in zip(results, rounds, strict=True):
        jsonschema.validate(json.loads(msgspec.json.encode(result)), described(QueryResult))
        near, (west, south, east, north) = truth[result.query.moment], result.query.box
        inside = sum(west < lon < east and south < lat < north for lon, lat in near.values()) / len(
            near
        )
        assert result.answer.sure and result.answer.below is (inside < share) is (share > 0.5)
        assert abs(result.answer.value - inside) < 3.5 / len(near)
        assert result.plates.rounds == 1 and result.plates.asked == len(near) == len(entry.plates)
        assert set(entry.charged.tolist()) == {round(result.privacy.charged * 1e9)}
        assert result.privacy.charged == pytest.approx(result.privacy.moment / 8)
