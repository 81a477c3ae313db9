"""The configuration: `load` reads it, `Settings` is what it says, one frozen value per section, with defaults."""

from udp_stream.adapters.settings.limits import DURATIONS, EPSILON_MAX, EPSILON_MIN
from udp_stream.adapters.settings.loading import known_keys, load, query_keys
from udp_stream.adapters.settings.rules import NO_LEDGERS
from udp_stream.adapters.settings.sections import SQLITE, LedgerSection, Settings, is_file
from udp_stream.adapters.settings.source_section import SourceSection

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
]
