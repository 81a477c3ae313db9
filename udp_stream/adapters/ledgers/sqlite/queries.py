"""What a SQLite ledger asks of its tables."""

from __future__ import annotations

CHARGE = """
INSERT INTO balances (period, plate, spent, charges) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET spent = excluded.spent, charges = excluded.charges
"""
REMEMBER = """
INSERT INTO admissions (release_id, period, budget, terms, plates, charged) VALUES (?, ?, ?, ?, ?, ?)
"""
_SOME_PERIODS = """
WITH RECURSIVE periods (period) AS (
    SELECT min(period) FROM balances WHERE period >= :first
    UNION ALL
    SELECT (SELECT min(period) FROM balances WHERE period > periods.period) FROM periods WHERE period < :last
)
"""
"""One look-up for each; the last may be one too many."""

PERIODS = f"{_SOME_PERIODS} SELECT period FROM periods WHERE period <= :last"
PERIODS_OF_PLATE = (
    f"{_SOME_PERIODS} SELECT period, spent FROM periods JOIN balances USING (period) WHERE plate = :plate"
)
ONLY_ADDED = ("admissions", "releases")
ENTRIES = """
SELECT admissions.sequence, release_id, period, budget, plates, charged, payload, published
FROM admissions LEFT JOIN releases USING (release_id)
WHERE admissions.sequence > ? ORDER BY admissions.sequence LIMIT ?
"""
