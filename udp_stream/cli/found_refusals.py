"""Why `init` read some pings of a recording and refused others: kinds of refusals that no feed has by chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from udp_stream.cli.first_look import SAMPLE_MAX, SHARE_WORTH_ADVICE
from udp_stream.pings.advice import Refused, advise
from udp_stream.pings.decode import Refusal, originals
from udp_stream.pings.json import FeedForm

KINDS_MAX: Final = 3
"""Kinds of refusals that are said, the commonest first."""


def commonest(refusals: Sequence[Refusal]) -> str:
    """Of which kind most of the refusals are; "" if there is none.

    >>> from udp_stream.pings.decode import Reason
    >>> commonest([Refusal(at, -1, Reason.SPEED_NEGATIVE, "$.speed") for at in range(3)])
    'speed_negative at $.speed'
    """
    kinds = Counter(f"{one.reason} at {one.path}" for one in refusals)
    return max(kinds, key=lambda kind: kinds[kind], default="")


def why_none(refusals: Sequence[Refusal]) -> str:
    """The end of a sentence that says that no ping was read.

    >>> why_none([])
    ', and none was refused: it has none'
    """
    if not refusals:
        return ", and none was refused: it has none"
    kind = commonest(refusals)
    count = sum(f"{one.reason} at {one.path}" == kind for one in refusals)
    return f": {count:,} of {len(refusals):,} were refused as {kind} (docs/pings.md)"


def refused_kinds(
    pings: int, refusals: Sequence[Refusal], messages: Sequence[bytes], form: FeedForm
) -> tuple[str, ...]:
    """A sentence for each kind of which there are more than a feed's own faults, with what would help where that is
    known. `pings` were read, and `refusals` are those of `messages`.

    >>> from udp_stream.pings.json import PLAIN
    >>> from udp_stream.pings.decode import Reason
    >>> refused_kinds(9, [Refusal(0, -1, Reason.SPEED_NEGATIVE, "$.speed")], [b"{}"], PLAIN)
    ('1 of 10 pings is refused as speed_negative at $.speed',)
    >>> refused_kinds(99, [Refusal(0, -1, Reason.SPEED_NEGATIVE, "$.speed")], [b"{}"], PLAIN)
    ()
    """
    total = pings + len(refusals)
    kinds = Counter((one.reason, one.path) for one in refusals).most_common(KINDS_MAX)
    return tuple(
        ": ".join(
            [f"{count:,} of {total:,} pings {'is' if count == 1 else 'are'} refused as {reason} at {path}", *mend]
        )
        for (reason, path), count in kinds
        if count > SHARE_WORTH_ADVICE * total
        for mend in [_mend([one for one in refusals if (one.reason, one.path) == (reason, path)], messages, form)]
    )


def _mend(refusals: Sequence[Refusal], messages: Sequence[bytes], form: FeedForm) -> list[str]:
    some = refusals[:SAMPLE_MAX]
    pieces = originals(messages, some, form.format)
    said = advise([Refused(refusal, piece) for refusal, piece in zip(some, pieces, strict=True)], form)
    return [sentence.removeprefix(f"{refusals[0].path}: ") for sentence in said]
