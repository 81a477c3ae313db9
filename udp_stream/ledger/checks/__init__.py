"""The promises of `port.py` as runnable checks; memory, SQLite and Redis are held to the same ones.

Each check takes a `LedgerFactory`, which opens the same ledger anew each time; it raises `CheckFailed` with a sentence.
Checks name their plates, periods and releases after themselves, so all may run on one ledger, in any order, each once.

    for check in ALL_LEDGER_CHECKS:
        check(lambda: open_sqlite_ledger(path))
"""

from __future__ import annotations

from collections.abc import Callable

from udp_stream.ledger.checks.charging import (
    check_admit_charges_once,
    check_allowances,
    check_malformed_is_refused,
    check_min_admitted_charges_nobody,
    check_never_over_budget,
    check_repeat_is_remembered,
)
from udp_stream.ledger.checks.crowds import (
    check_concurrent_writers,
    check_large_slots,
    check_many_at_once,
    check_rolling_crowd,
)
from udp_stream.ledger.checks.expecting import CheckFailed, ask, expect, expect_sums
from udp_stream.ledger.checks.lasting import (
    check_balances_equal_entries,
    check_newest,
    check_notes_and_progress,
    check_survives_reopen,
)
from udp_stream.ledger.checks.recording import (
    check_first_record_stands,
    check_record_needs_admission,
    check_unpublished_then_published,
)
from udp_stream.ledger.checks.rolling import check_rolling_table, check_rolling_windows
from udp_stream.ledger.checks.table import check_table
from udp_stream.ledger.port import LedgerFactory

__all__ = [
    "ALL_LEDGER_CHECKS",
    "CheckFailed",
    "ask",
    "check_admit_charges_once",
    "check_allowances",
    "check_balances_equal_entries",
    "check_concurrent_writers",
    "check_first_record_stands",
    "check_large_slots",
    "check_malformed_is_refused",
    "check_many_at_once",
    "check_min_admitted_charges_nobody",
    "check_never_over_budget",
    "check_newest",
    "check_notes_and_progress",
    "check_record_needs_admission",
    "check_repeat_is_remembered",
    "check_rolling_crowd",
    "check_rolling_table",
    "check_rolling_windows",
    "check_survives_reopen",
    "check_table",
    "check_unpublished_then_published",
    "expect",
    "expect_sums",
]

ALL_LEDGER_CHECKS: tuple[Callable[[LedgerFactory], None], ...] = (
    check_admit_charges_once,
    check_repeat_is_remembered,
    check_never_over_budget,
    check_allowances,
    check_min_admitted_charges_nobody,
    check_first_record_stands,
    check_record_needs_admission,
    check_unpublished_then_published,
    check_malformed_is_refused,
    check_table,
    check_balances_equal_entries,
    check_newest,
    check_many_at_once,
    check_large_slots,
    check_survives_reopen,
    check_notes_and_progress,
    check_rolling_table,
    check_rolling_windows,
    check_rolling_crowd,
    check_concurrent_writers,
)
"""Every promise; run each on every store."""
