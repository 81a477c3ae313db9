"""What people read on stderr: the summary of a run, beside the number to beat."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from udp_stream import __version__
from udp_stream.adapters.embedded import Summary
from udp_stream.adapters.settings import Settings
from udp_stream.pings import Reason

SOFTWARE = f"udp-stream {__version__}"

CONSTANT_ERRS_KMH = {4: (0.3, 1.8), 5: (0.7, 2.6), 6: (1.4, 3.4), 7: (3.2, 5.4), 8: (5.4, 7.6), 9: (6.9, 10.4)}
"""By H3 resolution: mean absolute error, weighed by pings, of one city-wide mean guessed for every HAT of at least 10
plates; least and most over Surat's half hour and five days of Austin, slots of 1 and 6 hours (`docs/measurements.md`).
Anyone can guess that well, so a release that errs more is worth nothing."""

SERVED_SHARES = {4: (0.97, 1.0), 5: (0.94, 1.0), 6: (0.86, 0.99), 7: (0.62, 0.95), 8: (0.17, 0.88), 9: (0.03, 0.73)}
"""Which share of all pings lay in those HATs: what a release of all of them serves."""

LATE_SHARE_SUSPICIOUS = 0.05
"""A live feed has well under a percent of late pings; more points to files in the wrong order."""


def constant_errs_kmh(resolution: int) -> tuple[float, float]:
    """The range above, at the nearest resolution that was measured."""
    return CONSTANT_ERRS_KMH[_measured(resolution)]


def served_shares(resolution: int) -> tuple[float, float]:
    """The range above, at the nearest resolution that was measured."""
    return SERVED_SHARES[_measured(resolution)]


def _measured(resolution: int) -> int:
    return min(max(resolution, min(CONSTANT_ERRS_KMH)), max(CONSTANT_ERRS_KMH))


def console() -> Console:
    """Colours only on a terminal, and not with NO_COLOR."""
    return Console(stderr=True, highlight=False)


def print_summary(summary: Summary, settings: Settings) -> None:
    """Counts by status and reason, the expected error, and whether it beats a guess."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("pings", f"{summary.pings:,} accepted, {summary.repeats:,} of them repeats")
    for reason, count in summary.refused.most_common():
        table.add_row("", f"{count:,} refused: {reason}")
    table.add_row("HATs", f"{sum(summary.hats.values()):,} in {summary.slots:,} slots")
    for status, count in summary.hats.most_common():
        table.add_row("", f"{count:,} {status}")
    share = summary.pings_released / max(1, summary.pings - summary.repeats)
    table.add_row("released", f"{share:.0%} of pings lie in released HATs")
    out = console()
    out.print(table)
    if not summary.pings:
        out.print(why_nothing(summary))
    if summary.held:
        out.print(
            f"{summary.held:,} accepted pings wait in slots that were not released. Run again with the whole log on "
            "the same ledger: it goes on from here, and nothing is charged twice."
        )
    late = summary.refused["late"]
    if late > LATE_SHARE_SUSPICIOUS * summary.pings:
        out.print(f"{late:,} pings came after their slot had closed: are the files given in the order of their times?")
    if summary.means:
        error = summary.expected_error / summary.pings_of_means
        out.print(
            f"expected error of a released mean: {error:.1f} km/h, weighed by pings. "
            f"{verdict(error, settings.hat.resolution)}"
        )
    out.print(f"{protected(summary, settings)} Not protected: that a plate was in a HAT, and how often it pinged.")


def protected(summary: Summary, settings: Settings) -> str:
    """At which epsilon; records that stand from before under other settings keep the one that they were made at."""
    promise = f"Protected: each plate's speeds, at epsilon {settings.budget.epsilon:g} per {settings.policy.period}"
    ours, standing = 0, Counter[str]()
    fingerprint = settings.policy.fingerprint()
    for (policy, period, epsilon), records in summary.promises.items():
        if policy == fingerprint:
            ours += records
        else:
            standing[f"at epsilon {epsilon:g} per {period}"] += records
    if not standing:
        return f"{promise}."
    before = ", ".join(f"{records:,} {at}" for at, records in standing.most_common())
    return (
        f"{promise} in {ours:,} of {ours + standing.total():,} records. The others stand from before, under other "
        f"settings: {before}. What a plate can lose in all of them together, `udp-stream ledger export` states."
    )


def why_nothing(summary: Summary) -> str:
    """Why no ping was accepted, and what would help where that can be told."""
    if not summary.refused:
        return "No ping was accepted: there was none to read."
    ((reason, count),) = summary.refused.most_common(1)
    said = f"No ping was accepted: {count:,} of {summary.refused.total():,} were refused as {reason}."
    if reason != Reason.NOT_JSON:
        return said
    return f"{said} One JSON document over many lines is read as such if its name does not end in .ndjson or .jsonl."


def verdict(error_kmh: float, resolution: int) -> str:
    """An expected error beside the constant's."""
    low, high = constant_errs_kmh(resolution)
    beside = (
        f"One city-wide mean for every HAT errs by {low} to {high} km/h at this resolution on the feeds we measured"
    )
    if error_kmh < low:
        return f"{beside}: these releases tell more than that guess."
    if error_kmh <= high:
        return f"{beside}: these releases are about as good as that guess."
    return f"{beside}: this configuration buys less than that guess. `udp-stream plan` shows what would help."
