"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """The number and what it counts.

    >>> counted(1, "HAT"), counted(5000, "HAT"), counted(0, "entry", "entries")
    ('1 HAT', '5,000 HATs', '0 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
