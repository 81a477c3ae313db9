"""The configuration: `load` reads it, `Settings` is what it says, a frozen value per section,
with defaults."""

from udp_stream.settings.limits import DURATIONS, EPSILON_MAX, EPSILON_MIN
from udp_stream.settings.loading import known_keys, load, query_keys, read_tables
from udp_stream.settings.rules import NO_LEDGERS
from udp_stream.settings.sections import SQLITE, LedgerSection, Settings, SourceSection, is_file

__all__ = [
    "DURATIONS",
    "EPSILON_MAX",
    "EPSILON_MIN",
    "NO_LEDGERS",
    "SQLITE",
    "LedgerSection",
    "Settings",
    "SourceSection",
    "is_file",
    "known_keys",
    "load",
    "query_keys",
    "read_tables",
]
