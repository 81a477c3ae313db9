"""A question to the whole city, as `release/charge.py` takes one: the plates' mean speed, at a
price."""

import dataclasses

import msgspec
import numpy as np

from udp_stream.mechanisms.base import Query, noisy_integers
from udp_stream.mechanisms.noise import Cost, charges_of, lattice_of, noise_of
from udp_stream.planning.slot import CityPlan
from udp_stream.release.city import weights_of_plates

WHOLE = 2**20
"""All samples of a plate together weigh as much, less what rounding takes."""


class About(msgspec.Struct, frozen=True):
    cost: Cost
    sensitivity: int
    high: int


class Answered(msgspec.Struct, frozen=True):
    quanta: float
    plates: int


@dataclasses.dataclass(frozen=True)
class MeanSpeed:
    """Two sums: of the plates' mean speeds, and of 0, which has no noise; a plate can move the
    first by U."""

    thousandths: int = 30
    plates_min: int = 1

    def ask(self, counts, policy, known=None):  # noqa: ARG002
        members = np.unique(counts.plate)
        if members.size < self.plates_min:
            return None
        of_plate = np.bincount(
            counts.plate, weights=counts.count, minlength=len(counts.plates)
        ).astype(np.int64)
        weights = (WHOLE // np.maximum(1, of_plate))[counts.plate]
        moves = weights_of_plates(counts, weights) * policy.max_speed
        about = About(
            Cost(policy.measure, policy.budget_nano * self.thousandths // 1000),
            int(moves.max()),
            policy.max_speed,
        )
        charges = charges_of(moves, about.sensitivity, about.cost)
        return CityPlan(weights, charges[counts.plate], members.size, msgspec.json.encode(about))

    def charges(self, weights, plan):
        about = msgspec.json.decode(plan.about, type=About)
        return charges_of(weights * about.high, about.sensitivity, about.cost)

    def sums(self, counts, values, plan):
        if not counts.count.size:
            return 0, 0
        high = msgspec.json.decode(plan.about, type=About).high
        of_row = np.add.reduceat(values.clamped(high).speed.astype(np.int64), values.starts[:-1])
        return int(plan.weights @ of_row), 0

    def answer(self, sums, plan, bits):
        about = msgspec.json.decode(plan.about, type=About)
        query = Query.of_one(sums[0], lattice_of(about.sensitivity, about.cost))
        (noisy,) = noisy_integers([query], noise_of(about.cost), bits)
        return msgspec.json.encode(
            Answered(query.noisy_value(noisy) / WHOLE / plan.plates, plan.plates)
        )


def answered(payload):
    return msgspec.json.decode(payload, type=Answered)
