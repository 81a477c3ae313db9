"""Rules between the keys that say how services are reached. No file is read: a machine that only plans has none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import SplitResult, parse_qs, urlsplit

from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.adapters.settings.ledger_section import LedgerSection, is_file
from udp_stream.adapters.settings.limits import breach
from udp_stream.errors import ConfigError

_USERNAME = re.compile(r"[!-~]+")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65_535
_PREFIX_MAX = 200
_PREFIX = re.compile(rf"[A-Za-z0-9._-]{{0,{_PREFIX_MAX}}}")
"""A topic's name has at most 249 characters, and ours have less than 49 behind the prefix."""
_DATABASE = re.compile(r"[0-9]+")

SCHEMES: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
"""Of a ledger that is no file."""

_OPTIONS = ("db", "username", "password")
"""Behind the question mark. What else the client would take changes what the ledger relies on: how long it waits, what
it makes of replies, whether it looks at certificates."""


def kafka_faults(kafka: KafkaSection) -> Iterator[ConfigError]:
    """A fault where a key is missing that `kafka.security` needs, or one is set that it does not read: a file of
    authorities beside "plaintext" shows that TLS was meant.

    >>> list(kafka_faults(KafkaSection(security="sasl-tls", username="worker", password_file="/run/secrets/kafka")))
    []
    """
    # What is none of this would be a fault of a client, in the middle of its work.
    rule = "HOST:PORT, or several of them with commas"
    yield from breach(all(map(_is_address, kafka.bootstrap.split(","))), "kafka.bootstrap", rule, repr(kafka.bootstrap))
    rule = f"at most {_PREFIX_MAX} letters, digits, dots, underscores and hyphens, as names of topics have"
    yield from breach(_PREFIX.fullmatch(kafka.prefix) is not None, "kafka.prefix", rule, repr(kafka.prefix))
    yield from breach(bool(kafka.group.strip()), "kafka.group", "a name", repr(kafka.group))
    for key in ("ca_file", "certificate_file", "certificate_key_file"):
        rule = f'"tls" or "sasl-tls", as kafka.{key} is set'
        yield from breach(kafka.has_tls or not getattr(kafka, key), "kafka.security", rule, repr(kafka.security))
    for key in ("username", "password_file"):
        given = getattr(kafka, key)
        rule = f'"sasl" or "sasl-tls", as kafka.{key} is set'
        yield from breach(kafka.has_sasl or not given, "kafka.security", rule, repr(kafka.security))
        rule = f"one, as kafka.security is {kafka.security!r}"
        yield from breach(bool(given) or not kafka.has_sasl, f"kafka.{key}", rule, "none")
    # One of the clients sends a comma or an equals sign of a SCRAM user as it is, which means something else there.
    plain = not kafka.username or (_USERNAME.fullmatch(kafka.username) and not set(",=") & set(kafka.username))
    yield from breach(
        bool(plain), "kafka.username", "printable ASCII without white space, comma or =", repr(kafka.username)
    )
    yield from pair_faults("kafka", kafka.certificate_file, kafka.certificate_key_file)


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text.strip())
    return found is not None and 0 < int(found[1]) <= _PORT_MAX


def redis_faults(ledger: LedgerSection) -> Iterator[ConfigError]:
    """A fault where keys of `[ledger]` that a Redis reads are set for a file, or say the same as its URL.

    >>> list(redis_faults(LedgerSection(url="rediss://ledger:6379/0", ca_file="/etc/udp-stream/ca.pem")))
    []
    """
    scheme = ledger.url.partition("://")[0]
    for key in ("ca_file", "certificate_file", "certificate_key_file"):
        rule = f"rediss:// or rediss+cluster://, as ledger.{key} is set"
        yield from breach(
            scheme.startswith("rediss") or not getattr(ledger, key), "ledger.url", rule, f"{scheme}://..."
        )
    for key in ("username", "password_file"):
        given = bool(getattr(ledger, key))
        yield from breach(
            not (given and is_file(ledger.place)), "ledger.url", f"a Redis, as ledger.{key} is set", "a file"
        )
        twice = given and has_password(ledger.url)
        yield from breach(
            not twice, "ledger.url", f"no user and password, as ledger.{key} is set", f"{scheme}://...@..."
        )
    yield from breach(
        bool(ledger.password_file) or not ledger.username, "ledger.password_file", "one for ledger.username", "none"
    )
    yield from pair_faults("ledger", ledger.certificate_file, ledger.certificate_key_file)


def url_faults(url: str) -> Iterator[ConfigError]:
    """A fault of a ledger's URL that names no file and that no run would take; nothing is connected. What may be a
    password is not repeated.

    >>> [str(fault) for fault in url_faults("redis://ledger:6379/surat")]
    ['ledger.url: expected the number of a database behind the host, got something else']
    >>> list(url_faults("rediss+cluster://ledger:7000")), list(url_faults("sqlite:city.ledger"))
    ([], [])
    """
    if is_file(url):
        return
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        rule = "sqlite:FILE or redis://HOST:PORT/DB (or rediss, redis+cluster, rediss+cluster, unix:///SOCKET)"
        yield from breach(False, "ledger.url", rule, f"{scheme}://...")
        return
    try:
        parts = urlsplit(f"redis://{rest}")
        named = parts.port != 0  # the client would take the usual one for 0
    except ValueError:
        named = False
    if not named:
        rule = "redis://HOST:PORT with a port of 1 to 65535"
        yield from breach(False, "ledger.url", rule, "something else")
        return
    yield from _socket_faults(parts) if scheme == "unix" else _database_faults(parts.path.strip("/"))
    options = parse_qs(parts.query, keep_blank_values=True)
    once = all(name in _OPTIONS and len(values) == 1 for name, values in options.items())
    number = once and all(map(_DATABASE.fullmatch, options.get("db", ())))
    yield from breach(number, "ledger.url", "?db=NUMBER or no option", ", ".join(options))


def _socket_faults(parts: SplitResult) -> Iterator[ConfigError]:
    """The client would leave out a folder that stands in the place of a host."""
    is_path = len(parts.path) > 1 and not parts.netloc.rpartition("@")[2]
    yield from breach(is_path, "ledger.url", "unix:///PATH of a socket, from the root", "something else")


def _database_faults(path: str) -> Iterator[ConfigError]:
    """The client would take database 0 for a name."""
    is_number = not path or _DATABASE.fullmatch(path) is not None
    yield from breach(is_number, "ledger.url", "the number of a database behind the host", "something else")


def has_password(url: str) -> bool:
    """Whether a URL has a user or a password in it, before the host or behind it.

    >>> has_password("redis://:secret@ledger"), has_password("redis://ledger/2?password=a"), has_password("sqlite:a@b")
    (True, True, False)
    """
    rest = url.partition("://")[2]
    return "@" in rest or "password=" in rest or "username=" in rest


def pair_faults(section: str, certificate_file: str, certificate_key_file: str) -> Iterator[ConfigError]:
    """A fault for a certificate without its key, or a key without its certificate."""
    pair = {f"{section}.certificate_file": certificate_file, f"{section}.certificate_key_file": certificate_key_file}
    for key, other in (tuple(pair), tuple(pair)[::-1]):
        yield from breach(bool(pair[key]) or not pair[other], key, f"one, as {other} is set", "none")
