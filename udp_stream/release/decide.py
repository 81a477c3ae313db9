"""What a HAT's plan and charges come to: charged, with the plan for the plates that paid; or withheld."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from udp_stream.errors import PrivacyRefused
from udp_stream.planning.hat_plan import HatPlan, plan_admitted, plan_hat
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_plan import SlotPlan, row_digests
from udp_stream.planning.terms import Terms
from udp_stream.release.outcome import HatOutcome
from udp_stream.windows.tables import SlotCounts


def terms_from(remembered: bytes, id_: str) -> Terms:
    """The terms that a ledger remembers; PrivacyRefused if another version of the software wrote them.

    >>> terms_from(b'{"withheld": "few_plates"}', "hat").withheld
    'few_plates'
    >>> terms_from(b'{"withheld": "whim"}', "hat")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    udp_stream.errors.PrivacyRefused: hat was charged by another version of udp-stream, on terms that ...
    """
    try:
        return msgspec.json.decode(remembered, type=Terms)
    except msgspec.DecodeError as error:
        raise PrivacyRefused(
            f"{id_} was charged by another version of udp-stream, on terms that this one cannot read, and is not "
            "recorded yet: finish its slot with the version that charged it"
        ) from error


def unplanned(policy: Policy) -> Terms:
    """The terms of a HAT that no plan knows.

    >>> from udp_stream.testing import a_context
    >>> unplanned(a_context().policy).withheld
    'unplanned'
    """
    return Terms(withheld="unplanned").within(policy)


def decide(hats: Sequence[HatOutcome], counts: SlotCounts, plan: SlotPlan, policy: Policy) -> list[HatOutcome]:
    """Each HAT as the plan has it: charged, with the plan for its plates that were charged; or withheld.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.release.charge import plan_slot
    >>> from udp_stream.release.outcome import hats_of
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), context = two_hats(), a_context()
    >>> plan = plan_slot(counts, context, MemoryLedger())
    >>> [hat.state.value for hat in decide(hats_of(counts), counts, plan, context.policy)]
    ['charged', 'withheld']
    """
    found = plan.find_all(counts.cells, row_digests(counts))
    return [_decided(hat, counts, found[hat.number], plan, policy) for hat in hats]


def _decided(hat: HatOutcome, counts: SlotCounts, at: int | None, plan: SlotPlan, policy: Policy) -> HatOutcome:
    """`at` is the HAT's number in the slot's plan."""
    if at is None:
        return hat.withheld(unplanned(policy))
    terms, charged = plan.terms[at], plan.charged_rows(at)
    offered = terms.of_kept(charged)
    if terms.withheld or not offered.size:
        return hat.withheld(terms)
    priced = (plan.priced[at] if plan.priced is not None else None) or _priced(hat, counts, terms, policy)
    # Charges are remembered, counts are read again: a plate whose charge is below its part by now stays out.
    paid = (offered > 0) & (offered >= priced.charges)
    paying = int(np.count_nonzero(paid))
    paid_rows = terms.to_rows(offered if paying == paid.size else offered * paid, charged.size)
    # The ledger charged enough plates, or none; of those that it charged, some may stay out by now.
    if paying < max(1, policy.min_plates):
        return hat.withheld(terms, paid_rows)
    return hat.ready(terms, paid_rows, plan_admitted(priced, paid))


def _priced(hat: HatOutcome, counts: SlotCounts, terms: Terms, policy: Policy) -> HatPlan:
    return plan_hat(terms.of_kept(counts.count[hat.rows]), terms, policy)
