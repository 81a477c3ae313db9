"""Whatever befalls workers, what is charged and published is what one machine says."""

from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec import structs

from streams import wire
from streams.protocol import NOT_YET, PlannerState, PlanSlot, SlotBarrier
from streams.wire import cut_moment, cut_pings
from tests.protocol.broker import Once
from tests.protocol.world import KINDS, Violation, World
from udp_stream.forecast import shape
from udp_stream.release import city
from udp_stream.settings import queries as query_sections


@pytest.fixture(autouse=True)
def small(limits):
    """Workers die between the chunks of a slot; few plates are enough to ask the city, and few
    rounds to answer."""
    limits(shape, PLATES_MIN=1.0, NOISE_MAX=99.0)
    limits(query_sections, ROUNDS={"zcdp": 3, "pure": 3}, EDGE_M=2000.0)
    limits(
        wire, cut_pings=partial(cut_pings, rows_max=5), cut_moment=partial(cut_moment, rows_max=3)
    )


@pytest.fixture
def as_asked(limits):
    """Where the city's hour is asked, few plates are enough, and they pay what lets it tell."""

    def of_kind(kind):
        if kind == "city's hour":
            limits(city, HOUR_PLATES_MIN=2, HOUR_DEVIATION_MAX=1e6, HOUR_PART=2000)

    return of_kind


def lives(kind, examples, **more):
    given = settings(
        max_examples=examples,
        stateful_step_count=20,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        **more,
    )
    run_state_machine_as_test(type("OfKind", (World,), {"kinds": (kind,)}), settings=given)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_befalls_workers_they_do_as_one_machine(kind, as_asked):
    as_asked(kind)
    lives(kind, 1 if kind == "queries" else 2)


@pytest.mark.parametrize(
    "examples",
    [pytest.param(8, marks=pytest.mark.long), pytest.param(400, marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(3600)
def test_whatever_befalls_workers_for_long_they_do_as_one_machine(kind, examples, as_asked):
    as_asked(kind)
    lives(kind, examples)


async def unfenced(self, messages, checkpoint, publish=Once.publish):
    self.epoch = self.broker.epochs[self.shard]
    await publish(self, messages, checkpoint)


def without_done(self, done=None, checkpoint=SlotBarrier.checkpoint):
    return structs.replace(checkpoint(self, done), done_ms=NOT_YET)


def without_waiting(self):
    for start in self.counts.due()[:1]:
        return PlanSlot(start, self.counts.collect(start))
    return None


@pytest.mark.parametrize(
    ("kind", "owner", "wrong"),
    [
        pytest.param("runs out", Once, {"publish": unfenced}, marks=pytest.mark.long),
        ("forecasts", SlotBarrier, {"checkpoint": without_done}),
        ("forecasts", PlannerState, {"slot_to_plan": without_waiting}),
    ],
)
def test_planted_faults_are_found(kind, owner, wrong, planted):
    planted(owner, **wrong)
    with pytest.raises(Violation):
        lives(kind, 100, phases=[Phase.generate])
