"""All HATs and plates of a slot while plates are being suppressed: which rows are kept, and what E that leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udp_stream.planning.worst_case import Floats, HatErrors, Integers, Occupancy


@dataclass(frozen=True, slots=True)
class Suppression:
    """What is left: `keep[r]` says whether row r still counts; errors are shares of U.

    `hats_before` and `hats_after` (the papers' K) are the most HATs that one plate is in; `threshold` is E_thresh, the
    largest noise error before; `errors[h]` is E of HAT h now.

    >>> left = Suppression(np.array([True, False]), 2, 1, threshold=0.5, errors=np.array([0.25, 0.5]))
    >>> left.worst_error
    0.5
    """

    keep: NDArray[np.bool_]
    hats_before: int
    hats_after: int
    threshold: float
    errors: Floats

    @property
    def worst_error(self) -> float:
        """The largest of the errors; 0 without HATs."""
        return float(self.errors.max(initial=0.0))


class City:
    """All HATs and all plates, while plates are being suppressed.

    >>> city = City(Occupancy(np.array([0, 2, 3]), np.array([0, 1, 0]), np.array([2, 2, 5]), plates=2), 10**9)
    >>> city.in_hats, city.kept_rows(0), city.least_loss(0)
    ([2, 1], [0, 2], 0)
    >>> city.suppress(0), city.in_hats, city.outcome().keep.tolist()
    (True, [1, 1], [False, True, True])
    """

    def __init__(self, occupancy: Occupancy, epsilon_nano: int, plates_min: int = 1) -> None:
        """Nothing is suppressed yet; ValueError as in `HatErrors`."""
        self.errors = HatErrors(occupancy, epsilon_nano, plates_min)
        self.hats, self.plates = occupancy.hats, occupancy.plates
        self.threshold = max(map(self.errors.error, range(self.hats)), default=0.0)
        # Stable, so that each plate's rows are in ascending order.
        self.by_plate = np.argsort(occupancy.plate, kind="stable")
        self.in_hats: list[int] = np.bincount(occupancy.plate, minlength=self.plates).tolist()
        self.rows_from: list[int] = np.append(0, np.cumsum(self.in_hats)).tolist()
        self.before = max(self.in_hats, default=0)
        self.plate_of = occupancy.plate
        self.plate: list[int] = occupancy.plate.tolist()
        self._rows: dict[int, list[int]] = {}  # of a plate: the kept ones, and perhaps some suppressed since

    def suppress(self, row: int) -> bool:
        """Take a kept row out; whether that may make E without others of its HAT fall."""
        self.in_hats[self.plate[row]] -= 1
        return self.errors.suppress(row)

    def restore(self, row: int) -> None:
        """Take a suppressed row back."""
        plate = self.plate[row]
        # Ascending again, as ties go to the lowest row.
        self._rows[plate] = sorted([*self.kept_rows(plate), row])
        self.in_hats[plate] += 1
        self.errors.restore(row)

    def kept_rows(self, plate: int) -> list[int]:
        """The kept rows of one plate, in ascending order."""
        rows = self._rows.get(plate)
        if rows is None:
            rows = self.by_plate[self.rows_from[plate] : self.rows_from[plate + 1]].tolist()
        self._rows[plate] = [row for row in rows if self.errors.rows.kept[row]]
        return self._rows[plate]

    def least_loss(self, plate: int) -> int:
        """The kept row of a plate in the HAT with the fewest samples left, the lowest on ties."""
        return min(self.kept_rows(plate), key=lambda row: self.errors.hats.kept[self.errors.rows.hat[row]])

    def kept_by_plate(self, plates: Integers) -> Integers:
        """The kept rows of these plates, plate by plate in ascending order, each plate's in ascending order."""
        asked = np.zeros(self.plates, dtype=bool)
        asked[plates] = True
        kept = np.frombuffer(self.errors.rows.kept, dtype=bool)
        return self.by_plate[(kept & asked[self.plate_of])[self.by_plate]]

    def outcome(self) -> Suppression:
        """What is left by now."""
        # A copy, as the buffer itself changes with every row that goes or comes back.
        keep = np.frombuffer(bytes(self.errors.rows.kept), dtype=bool)
        errors = np.array([self.errors.error(hat) for hat in range(self.hats)])
        return Suppression(keep, self.before, max(self.in_hats, default=0), self.threshold, errors)
