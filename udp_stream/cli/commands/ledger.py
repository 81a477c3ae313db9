"""`ledger`: what plates were charged and have left, sums checked, a privacy statement; and
`accept-older`."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from udp_stream.base.errors import PrivacyRefused, UsageError
from udp_stream.base.logs import WARNING, counted, log_message
from udp_stream.base.units import NANO
from udp_stream.ledger.filters import Loss
from udp_stream.ledger.port import Ledger, Mark
from udp_stream.ledger.rules import (
    AcceptedRollback,
    RollingSums,
    behind,
    forget,
    largest_budgets,
    see,
    span_of,
)
from udp_stream.ledgers.archive import is_archive, open_archive
from udp_stream.ledgers.keys import PlateKeys
from udp_stream.ledgers.opening import (
    counted_charges,
    has_mark,
    ledger_and_keys,
    ledger_place,
    log_ledger,
    mark_beside,
    named,
    other_budgets,
    replace_mark_of,
    slot_start,
    slots_of,
)
from udp_stream.ledgers.statement import disagreement, statement
from udp_stream.pings.decode import plate_name
from udp_stream.planning.policy import (
    Policy,
    amount_by_distance,
    is_of_positions,
    length_of,
    loss_in,
    measure_of,
    noted,
    of_same_time,
    time_of,
    without_measure,
)
from udp_stream.planning.promise import epsilon_text
from udp_stream.settings import Settings, is_file


def lines_of_plate(ledger: Ledger, plate_key: bytes, settings: Settings) -> tuple[str, ...]:
    """Speeds by period and rolling window, oldest first; positions; both, where they share a
    budget."""
    charged = ledger.charged_by_period(plate_key)
    speeds = {period: nano for period, nano in charged.items() if not is_of_positions(period)}
    return (
        *(_of_period(period, nano, settings.policy) for period, nano in sorted(speeds.items())),
        *_of_windows(speeds, settings.policy),
        *(
            _of_positions(period, nano, settings)
            for period, nano in sorted(charged.items())
            if period not in speeds
        ),
        *_of_one_budgets(ledger, charged),
    )


def _of_period(period: str, nano: int, policy: Policy) -> str:
    text = f"{period}\tcharged {nano / NANO:.9f}"
    measure = measure_of(period)
    if measure.name != policy.measure:
        return f'{text}\tbudget.accounting is now "{policy.accounting}"'
    if span_of(period) is not None:
        return text
    return f"{text}\t{_left(period, nano, policy)}"


def _of_windows(charged: Mapping[str, int], policy: Policy) -> Iterator[str]:
    for account, (latest, worst) in in_windows(charged).items():
        if measure_of(account).name == policy.measure:
            of_latest = f"charged {latest / NANO:.9f} in the latest window\t{_left(account, latest, policy)}"
            yield f"{account}\t{of_latest}\tat most {worst / NANO:.9f} in any window"


def in_windows(charged: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """A plate's charges by rolling budget: those of the latest window that holds a charge, and the
    most of any window.

    >>> hours = [f"rolling 1h from 2024-01-08T0{h}:00:00+05:30 to 2024-01-08T0{h + 1}:00:00+05:30" for h in (1, 2, 5)]
    >>> in_windows({"lifetime": 3} | dict(zip(hours, (4, 5, 6))))
    {'rolling 1h': (6, 9)}
    """
    sums = RollingSums()
    found = dict[str, tuple[int, int]]()
    spans = [(span.start, name) for name in charged if (span := span_of(name)) is not None]
    for _, name in sorted(spans):
        (latest,) = sums.charge(name, [b""], [charged[name]])
        found[length_of(name)] = latest, max(latest, found.get(length_of(name), (0, 0))[1])
    return found


def _of_positions(period: str, nano: int, settings: Settings) -> str:
    measure = measure_of(period).name
    periods = settings.position_periods
    text = f"{period}\tcharged {amount_by_distance(measure, nano)}"
    if not periods.budget_nano or measure != periods.measure:
        return f"{text}\tby queries that [queries] does not ask now"
    if _plain_length(time_of(period)) != periods.length:
        return f'{text}\tbudget.period is now "{periods.length}"'
    left = max(0, periods.budget_nano - nano)
    budget = periods.budget_nano
    return f"{text}\tleft {amount_by_distance(measure, left)}\tof {amount_by_distance(measure, budget)}"


def _of_one_budgets(ledger: Ledger, charged: Mapping[str, int]) -> Iterator[str]:
    for time, budget in noted(ledger.meta()).items():
        if not (names := of_same_time(time, charged)):
            continue
        in_all = sum((loss_in(name, budget.nano_of(name, charged[name])) for name in names), Loss())
        most = budget.most_in(largest_budgets(ledger, names), time)
        yield f"{time}\tspeeds and positions: charged {in_all} in all\tof at most {most} in all\t{budget.said}"


def _plain_length(period: str) -> str:
    return without_measure(length_of(period))


def _left(period: str, nano: int, policy: Policy) -> str:
    if _plain_length(period) != policy.named_period:
        return f'budget.period is now "{policy.named_period}"'
    left = max(0, policy.budget_nano - nano)
    budget = f"{policy.budget_nano / NANO:.10g}"
    spent = f"{epsilon_text(policy.accounted.measure.implied_epsilon(nano, policy.delta))} with delta {policy.delta:g}"
    return f"left {left / NANO:.9f}\tof {budget}" + (
        f"\tepsilon {spent}" if policy.accounted.has_delta else ""
    )


def show(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print a plate's charges and what it has left, a line for each period; without a plate, the
    deployment's statement."""
    if arguments.plate is None:
        export(arguments, settings)
        return
    with open_existing(settings) as (ledger, keys):
        lines = lines_of_plate(ledger, keys.hash_plate(plate_name(arguments.plate)), settings)
        others = other_budgets(ledger.meta(), settings.policy)
    if others:  # as where --config was forgotten
        text = f"the ledger was charged under another budget ({named(others)}): what is left follows the configuration"
        log_message(text, "ledger", level=WARNING)
    if not lines:
        whole = f"it has its whole budget: {settings.policy.promise}"
        log_message(f"no charge is recorded for this plate, so {whole}. Spelling and case matter")
    for line in lines:
        print(line)


def verify(arguments: argparse.Namespace, settings: Settings) -> None:
    """Recompute every balance; any discrepancy is a refusal to go on (exit status 5)."""
    if arguments.accept_older:
        accept_older(arguments, settings)
        return
    if arguments.saying is not None:
        raise UsageError("--saying: expected --accept-older beside it")
    with open_to_read(settings) as ledger:
        found = ledger.verify()
        entries = sum(1 for _ in ledger.entries())
    if found:
        print("\n".join(map(str, found)))
        raise PrivacyRefused(f"the ledger contradicts itself in {counted(len(found), 'place')}")
    print(
        f"{counted(entries, 'entry', 'entries')}: every balance is the sum of its charges, none is over its budget"
    )


def export(_arguments: argparse.Namespace, settings: Settings) -> None:
    """The statement as JSON on stdout; on stderr, where the configuration is not what the ledger
    was charged under."""
    with open_to_read(settings) as ledger:
        stated = statement(settings, ledger)
    if difference := disagreement(settings, stated):
        log_message(difference, level=WARNING)
    print(json.dumps(stated, indent=2, ensure_ascii=False))


def accept_older(arguments: argparse.Namespace, settings: Settings) -> None:
    """Say what an older ledger has forgotten; with the very words, remember that for ever and let
    it be used. PrivacyRefused while the words were not given; nothing is changed then."""
    with ledger_and_keys(settings.ledger, must_exist=True, accept_older=True) as (ledger, _):
        log_ledger(settings.ledger, ledger, settings)
        knows = has_mark(settings.ledger)
        kept = mark_beside(settings.ledger) or see(ledger).mark()
        progress = ledger.progress()
        missing = kept.admitted - progress.admitted
        number = (
            counted_charges(missing, ledger.meta()) if missing > 0 else "an unknown number of HATs"
        )
        since = (
            slot_start(progress.newest, slots_of(ledger, settings))
            or progress.newest
            or "its beginning"
        )
        words = f"charges of {number} since {since} are forgotten"
        if arguments.saying != words:
            why = _why_older(ledger, kept if knows else None)
            raise PrivacyRefused(
                f"{why}. The forgotten charges give plates that budget again, and the forgotten "
                "HATs are drawn a second time: a plate can lose up to its budget once more in these periods. Restore a "
                "newer copy if there is one. To continue with this one, stop every worker and run this command again "
                f"with --saying {shlex.quote(words)}"
            )
        if not forget(
            ledger, AcceptedRollback(words, datetime.now(UTC).isoformat(timespec="seconds"), kept)
        ):
            raise PrivacyRefused(
                "another command has just accepted something on this ledger: run again to see what"
            )
        replace_mark_of(settings.ledger, ledger)
    print(f"accepted; the ledger keeps these words for ever: {words}")


def _why_older(ledger: Ledger, kept: Mark | None) -> str:
    if kept is None:
        return "the ledger's high-water mark is gone: it may be an older copy"
    how = behind(see(ledger, kept.release_id), kept)
    return (
        f"the ledger went back in time: {how}"
        if how
        else "the ledger is not behind its high-water mark"
    )


@contextmanager
def open_existing(settings: Settings) -> Iterator[tuple[Ledger, PlateKeys]]:
    """An existing ledger and its keys; it is named on stderr."""
    with ledger_and_keys(settings.ledger, must_exist=True) as (ledger, keys):
        log_ledger(settings.ledger, ledger, settings)
        yield ledger, keys


@contextmanager
def open_to_read(settings: Settings) -> Iterator[Ledger]:
    """An existing ledger, or an archive, which needs no key."""
    path = Path(ledger_place(settings.ledger.place))
    if is_file(settings.ledger.place) and path.is_file() and is_archive(path):
        with open_archive(path) as archived:
            log_ledger(settings.ledger, archived, settings)
            yield archived
        return
    with open_existing(settings) as (ledger, _):
        yield ledger
