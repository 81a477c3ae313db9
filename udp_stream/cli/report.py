"""The summary of a run on standard error, beside guesses that need no release."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from statistics import mean

from rich.console import Console
from rich.table import Table

from udp_stream.base.logs import counted
from udp_stream.base.version import __version__
from udp_stream.cli.progress import Printer, console
from udp_stream.ledgers.opening import difference, named
from udp_stream.pings.decode import Reason
from udp_stream.planning.policy import Policy
from udp_stream.planning.promise import epsilon_text
from udp_stream.release.events import SlotRow, Summary, Tally, doubt_in_words
from udp_stream.settings import Settings
from udp_stream.windows.tables import SlotGrid

MEAN_COUNTS = {
    4: (0.1, 1.7),
    5: (0.7, 2.1),
    6: (1.6, 3.2),
    7: (2.1, 3.3),
    8: (3.4, 5.9),
    9: (4.2, 8.1),
}
"""Mean absolute errors, km/h, of a guess that needs no release: a line in each HAT's pings per
plate. By H3 resolution, least and most over Surat's half hour and five days of Austin, slots of 1
and 6 hours, HATs of at least 10 plates (`docs/measurements.md`)."""


def beside_guess(fineness: float) -> str:
    """The error of the guess, in cells of the nearest size that was measured.

    >>> beside_guess(7)
    '2.1 to 3.3 of a guess by counts, on the feeds we measured at H3 7'
    """
    measured = min(MEAN_COUNTS, key=lambda known: abs(known - fineness))
    least, most = MEAN_COUNTS[measured]
    return f"{least} to {most} of a guess by counts, on the feeds we measured at H3 {measured}"


SOFTWARE = f"udp-stream {__version__}"
COARSE = (
    "times are coarse, autumn's hour has no offsets, messages come again, or vehicles share a plate"
)
LATE_SHARE_SUSPICIOUS = (
    0.05  # a live feed has well under a percent; more points to files in the wrong order
)
OWN_TEXT = {"hats", "pings", "refused", "repeats", "held"}
"""Figures with rows of their own, or a remedy beside them."""
GONE = "The trial's ledger is deleted: another run draws every HAT again, so do not publish these records beside its."


def print_rows(out: Console, rows: Sequence[Sequence[tuple[str, str]]]) -> None:
    """Cells with the names of their columns: every column, even if the table is wider than the
    terminal."""
    table = Table(box=None, pad_edge=False)
    for name, _ in rows[0]:
        widest = 15 if name == "mechanism" else None
        table.add_column(
            name,
            justify="left" if name == "verdict" else "right",
            min_width=widest,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(cell for _, cell in row))
    needed = out.measure(table, options=out.options.update(width=1000)).maximum
    # A console prints nothing wider than itself, and without a height it takes 80 columns on a
    # plain terminal.
    size = max(out.width, needed)
    Printer(file=out.file, highlight=False, width=size, height=25, quiet=out.quiet).print(
        table, crop=False
    )


def print_hours(out: Console, by_slot: Mapping[int, SlotRow], grid: SlotGrid) -> None:
    """A row for each local hour in which slots begin: averages over its slots, without columns of
    what is secret. Nothing where there is one slot only."""
    hours = dict[str, list[SlotRow]]()
    for start_ms, row in sorted(by_slot.items()):
        hours.setdefault(grid.iso(start_ms)[11:13] + ":00", []).append(row)
    if len(by_slot) < 2:
        return
    cells = []
    for hour, rows in sorted(hours.items()):
        pings = sum(row.pings for row in rows)
        buses, left = ([getattr(row, name) for row in rows] for name in ("buses", "left"))
        shown = {
            "hour": hour,
            "buses": None if None in buses else f"{mean(buses):.0f}",
            "HATs": f"{mean(row.hats for row in rows):.0f}",
            "released": f"{mean(row.measured for row in rows):.0f}",
            "expected error": f"{sum(row.error for row in rows) / pings:.1f}" if pings else "-",
            "budget left": None if None in left else f"{mean(left):.0%}",
        }
        cells.append([(name, cell) for name, cell in shown.items() if cell is not None])
    print_rows(out, cells)


def print_summary(summary: Summary, settings: Settings, of_sources: Sequence[str] = ()) -> None:
    """Sentences of sources, earlier records under other settings, counts by status, and expected
    errors."""
    out = console()
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in _rows(summary):
        table.add_row(*row)
    for sentence in (*of_sources, *_from_before(summary, settings.policy)):
        out.print(sentence, markup=False, soft_wrap=True)
    out.print(table)
    print_hours(out, summary.by_slot, settings.calendar.slots)
    for sentence in (*troubles(summary), *utility_sentences(summary, settings)):
        out.print(sentence)


def _rows(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "pings", f"{summary.pings:,} accepted, {summary.repeats:,} of them repeats"
    yield from (("", text) for name, text in summary.words().items() if name not in OWN_TEXT)
    yield from (
        ("", f"{count:,} refused: {reason}") for reason, count in summary.refused.most_common()
    )
    yield "HATs", f"{summary.hats.total():,} in {counted(summary.slots, 'slot')}"
    yield from (("", f"{count:,} {status}") for status, count in summary.hats.most_common())
    yield from (
        ("query", f"{name}: {count:,} {status}")
        for (name, status), count in sorted(summary.answers.items())
    )
    yield "released", f"{summary.share(summary.pings_released):.0%} of pings lie in released HATs"


def troubles(summary: Summary) -> Iterator[str]:
    """Sentences about faults of a replay, and their remedies.

    >>> list(troubles(Summary()))
    ['No ping was accepted: the input has none.']
    """
    words = summary.words()
    if not summary.pings:
        yield f"No ping was accepted: {words['refused'] if summary.refused else 'the input has none'}."
    if not summary.pings and Reason.NOT_JSON in summary.refused:
        yield "A file of one JSON document must not have a name that ends in .ndjson or .jsonl."
    way = (
        GONE
        if summary.trial
        else "Run again with the whole log on the same ledger: no plate is charged twice."
    )
    if summary.unwritten:
        yield f"Some records are in the ledger but not in the output. {way}"
    if "held" in words:
        yield f"{words['held']}. {way}"
    if withheld := summary.hats["withheld_unit"]:
        yield f"HATs withheld: {withheld:,}, because {doubt_in_words(summary.doubt)}."
    if "repeats" in words:
        yield f"{words['repeats']}: {COARSE} (`udp-stream init FILE` says which)."
    if (late := summary.refused["late"]) > LATE_SHARE_SUSPICIOUS * summary.pings:
        yield f"Pings that came after their slot had closed: {late:,}. Are the files in the order of their times?"


def utility_sentences(summary: Summary, settings: Settings) -> Iterator[str]:
    """Sentences about the utility of releases beside a guess by counts, and about protection."""
    if (withheld := summary.hats["withheld_budget"]) and not settings.policy.automatic:
        why = 'too few of their plates had budget left: lower the fixed epsilons, or use "auto"'
        yield f"HATs withheld: {withheld:,}, because {why}."
    is_from_before = any(_from_before(summary, settings.policy))
    errors = []
    guess = beside_guess(settings.grid.fineness)
    if summary.means:
        share = f"{summary.share(summary.pings_of_means):.0%} of pings lie in HATs with one"
        errors.append(
            f"{summary.expected_error / summary.pings_of_means:.1f} km/h of a released mean ({share})"
        )
    if summary.estimated and not is_from_before:
        errors.append(
            f"{summary.estimate_error / summary.estimated:.1f} km/h of the smoothed estimates"
        )
        told = settings.policy.relation.guessed_from
        guess = f"{summary.guess_error / summary.estimated:.1f} of a guess by {told}"
    if errors:
        under = " under these settings" if is_from_before else ""
        said = f"expected error{under}, weighed by pings: {', '.join(errors)}; {guess}"
        yield f"{said} (docs/measurements.md)"
    yield f"{protected(summary, settings)} {settings.policy.relation.beyond}"
    if summary.answers:
        periods = settings.position_periods
        yield f"Answers of queries protect where each plate is, at {periods.promise}: {periods.kind}."


def _from_before(summary: Summary, policy: Policy) -> Iterator[str]:
    """A warning where earlier records were made under other settings: how many, which keys differ,
    how many are new."""
    before = Counter[str]()
    fingerprint = policy.fingerprint()
    for (made_under, *_), records in summary.promises.items():
        before[made_under] += records
    ours = before.pop(fingerprint, 0)
    if before:
        differences = [
            difference(summary.others, made_under, policy) for made_under, _ in before.most_common()
        ]
        old = before.total()
        made = summary.made
        how = f"were made earlier under other settings ({named(differences)}), and are unchanged"
        others = f"{ours - made:,} are earlier ones under these, {made:,} are new"
        yield f"warning: {old:,} of {ours + old:,} records {how}; {others}"


def protected(summary: Summary, settings: Settings) -> str:
    """At which epsilon; earlier records under other settings keep their own."""
    promise = f"Protected: {settings.policy.relation.protected}, at {settings.policy.promise}"
    ours = 0
    standing = Counter[str]()
    for (policy, period, epsilon, delta), records in summary.promises.items():
        if policy == settings.policy.fingerprint():
            ours += records
        else:
            promised = f"{epsilon_text(epsilon)} with delta {delta:g}" if delta else f"{epsilon:g}"
            standing[f"at epsilon {promised} per {period}"] += records
    if not standing:
        return f"{promise}."
    before = ", ".join(f"{records:,} {at}" for at, records in standing.most_common())
    return (
        f"{promise} in {ours:,} of {ours + standing.total():,} records. The others are older, under other "
        f"settings: {before}. `udp-stream ledger show` states what a plate can lose in all of them together."
    )


def print_json_summary(summary: Summary, settings: Settings, said: Sequence[str] = ()) -> None:
    """One line on standard error, also with --quiet: counts, shares from 0 to 1, km/h; null
    where there is no mean to expect an error of. `said` are sentences of the run, before the
    summary's."""
    queries = dict[str, dict[str, int]]()
    for (name, status), count in sorted(summary.answers.items()):
        queries.setdefault(name, {})[status] = count
    names = [figure.name for figure in fields(Tally) if figure.name not in ("hats", "pings")]
    errors = (
        ("expected_error_kmh", summary.estimate_error),
        ("counts_error_kmh", summary.guess_error),
    )
    facts = {
        "schema": "udp-stream/summary/1",
        "policy": settings.policy.fingerprint(),
        "messages": summary.messages,
        "pings": {"accepted": summary.pings} | {name: getattr(summary, name) for name in names},
        "slots": summary.slots,
        "hats": dict(summary.hats.most_common()),
        "queries": queries,
        "new": {"hats": summary.made, "answers": summary.answers_made},
        "unwritten": summary.unwritten,
        "released_share": summary.share(summary.pings_released),
        "mean_share": summary.share(summary.pings_of_means),
        "expected_error_kmh": summary.expected_error / summary.pings_of_means
        if summary.pings_of_means
        else None,
        "estimates": {name: of / summary.estimated for name, of in errors}
        if summary.estimated
        else None,
        "by_slot": {
            settings.calendar.slots.iso(start): _facts(row)
            for start, row in sorted(summary.by_slot.items())
        },
        "said": [
            *said,
            *_from_before(summary, settings.policy),
            *utility_sentences(summary, settings),
        ],
    }
    print(json.dumps(facts, ensure_ascii=False), file=sys.stderr, flush=True)


def _facts(row: SlotRow) -> dict[str, float | None]:
    left = None if row.left is None else round(row.left, 4)
    sizes = {"buses": row.buses, "hats": row.hats, "measured": row.measured, "budget_left": left}
    return {**sizes, "expected_error_kmh": round(row.error / row.pings, 3) if row.pings else None}
