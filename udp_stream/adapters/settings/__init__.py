"""The configuration: `load` reads it, `Settings` is what it says, one frozen value per section, with defaults."""

from udp_stream.adapters.settings.checking import Fault, faults_in, located
from udp_stream.adapters.settings.known import known_keys, query_keys
from udp_stream.adapters.settings.ledger_section import SQLITE, LedgerSection, is_file
from udp_stream.adapters.settings.limits import DURATIONS, EPSILON_MAX, EPSILON_MIN
from udp_stream.adapters.settings.loading import load, load_with_origins
from udp_stream.adapters.settings.rules import NO_LEDGERS
from udp_stream.adapters.settings.sections import Settings
from udp_stream.adapters.settings.source_section import SourceSection
from udp_stream.adapters.settings.tables import Origin

__all__ = [
    "DURATIONS",
    "EPSILON_MAX",
    "EPSILON_MIN",
    "NO_LEDGERS",
    "SQLITE",
    "Fault",
    "LedgerSection",
    "Origin",
    "Settings",
    "SourceSection",
    "faults_in",
    "is_file",
    "known_keys",
    "load",
    "load_with_origins",
    "located",
    "query_keys",
]
