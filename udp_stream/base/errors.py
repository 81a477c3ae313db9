"""Who was wrong: every exception that may leave this package, with the exit status it stands for.

A refusal that is expected (a broken ping, a plate without budget) is a value with a named reason,
never an exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UdpStreamError(Exception):
    """Base of all our exceptions; on its own it means that the fault is ours."""

    exit_status = 1


class UsageError(UdpStreamError):
    """The caller asked for something that cannot be done: a file that is not there, a value out of
    its range."""

    exit_status = 2


class ConfigError(UdpStreamError):
    """The configuration is invalid; the message names the key, the value and the rule."""

    exit_status = 3


class DependencyUnavailable(UdpStreamError):
    """A service or file that we depend on cannot be reached; the message says what to start or
    install."""

    exit_status = 4


class DataLoss(DependencyUnavailable):
    """Pings are deleted that were not counted yet: to start again does not help. A person decides
    whether to go on without."""

    exit_status = 6


class PackageMissing(DependencyUnavailable):
    """A package is not installed that comes with an extra."""

    def __init__(self, what: str, extra: str, otherwise: str = "") -> None:
        """`what` the package is to us; `otherwise` is another way to have it, from "or" on."""
        super().__init__(
            f"no {what}: pip install '.[{extra}]' in the folder of udp-stream{f', {otherwise}' * bool(otherwise)}"
        )


class PrivacyRefused(UdpStreamError):
    """Going on would break the guarantee, so we stop: no ledger, a foreign key, a draw that was
    never charged."""

    exit_status = 5


class Fenced(PrivacyRefused):
    """Another worker has our place since: we are refused, and must stop working on it."""


FOR_A_PERSON = tuple(
    kind.exit_status for kind in (UsageError, ConfigError, PrivacyRefused, DataLoss)
)
"""Statuses that no restart mends: a supervisor starts the program again after others alone."""


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Around the import of a package that only comes with an extra: PackageMissing, with the
    extra's name.

    >>> with needs("Kafka client", "kafka"):
    ...     import no_such_package
    Traceback (most recent call last):
    udp_stream.base.errors.PackageMissing: no Kafka client: pip install '.[kafka]' in the folder of udp-stream
    """
    try:
        yield
    except ImportError as error:
        raise PackageMissing(what, extra) from error
