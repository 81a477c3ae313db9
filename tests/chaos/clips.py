"""Whether shared clips are those of all speeds of a slot: the log is read once more, over the
ledger of chaos."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledger.ids import CLIPS, kind_of
from udp_stream.ledger.port import Admission, Ledger, LedgerView, Verdict
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.settings import Settings


@dataclass
class DrawnAgain:
    """A ledger for one who is to draw again: what was asked before is asked again, and nothing is
    kept."""

    ledger: Ledger
    amiss: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """What is not known yet is not asked, as that would be written."""
        self.known = {entry.release_id for entry in self.ledger.entries()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    def recorded(self, release_ids: Sequence[str]) -> list[None]:
        return [None] * len(release_ids)

    def view(self, *asked: Any) -> LedgerView:
        found = self.ledger.view(*asked)
        return replace(found, payloads=(None,) * len(found.payloads))

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        return [payload for _, payload in releases]

    def published(self, release_ids: Sequence[str]) -> None:
        """Readers have had them."""

    def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> list[Verdict]:
        known = [one for one in admissions if one.release_id in self.known]
        answers = self.ledger.admit(period, budget, plates, known)
        verdicts = {one.release_id: answer for one, answer in zip(known, answers, strict=True)}
        for one in admissions:
            if kind_of(one.release_id) == CLIPS:
                self._compare(one, verdicts.get(one.release_id))
        return [verdicts.get(one.release_id, Verdict(one.charges, one.terms)) for one in admissions]

    def _compare(self, asked: Admission, held: Verdict | None) -> None:
        self.asked.add(asked.release_id)
        if held is None:
            self.amiss.append(f"{asked.release_id} is not remembered")
        elif held.terms != asked.terms:
            self.amiss.append(f"{asked.release_id} is of other norms than those of the whole slot")


def clips_amiss(
    settings: Settings,
    ledger: Ledger,
    hash_plate: Callable[[str], bytes],
    frames: Iterable[list[bytes]],
) -> tuple[str, ...]:
    if not settings.policy.has_joint_clips:
        return ()
    again = DrawnAgain(ledger)
    EmbeddedRuntime(settings, again, OsEntropy(), hash_plate, "again", lambda releases: None).run(
        frames
    )
    clips = {id_ for id_ in again.known if kind_of(id_) == CLIPS}
    return (
        *again.amiss,
        *(f"{id_} is remembered of no slot of the log" for id_ in sorted(clips - again.asked)),
    )
