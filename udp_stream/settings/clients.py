"""Rules between the keys that say how services are reached. No file is read: a machine that only plans has none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final
from urllib.parse import parse_qs, urlsplit

from udp_stream.errors import ConfigError
from udp_stream.settings.limits import require
from udp_stream.settings.sections import DashboardSection, KafkaSection, LedgerSection, Option, is_file

_USERNAME = re.compile(r"[!-~]+")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65_535
_PREFIX_MAX = 200
_PREFIX = re.compile(rf"[A-Za-z0-9._-]{{0,{_PREFIX_MAX}}}")
"""A topic's name has at most 249 characters, and ours have less than 49 behind the prefix."""
_DATABASE = re.compile(r"[0-9]+")

NOT_SHOWN: Final = "something else (it is not shown: it might be the secret itself)"

SCHEMES: Final = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")

_OPTIONS = ("db", "username", "password")
"""Behind the question mark. Others change what the ledger relies on: timeouts, replies, certificates."""

KAFKA_CLIENT: Final = (
    *("security_protocol", "ssl_cafile", "ssl_certfile", "ssl_keyfile"),
    *("sasl_mechanism", "sasl_plain_username", "sasl_plain_password_file"),
    *("request_timeout_ms", "metadata_max_age_ms", "connections_max_idle_ms", "retry_backoff_ms"),
)
REDIS_CLIENT: Final = (
    *("username", "password_file", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "client_name"),
)
"""Options of clients. Others change what our promises rely on: acknowledgements, isolation, replies, certificates."""

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


def check_kafka(kafka: KafkaSection) -> None:
    """ConfigError for options that contradict each other: a file of authorities beside "PLAINTEXT" asks for TLS."""
    rule = "HOST:PORT, or several of them with commas"
    require(all(map(_is_address, kafka.bootstrap.split(","))), "kafka.bootstrap", rule, repr(kafka.bootstrap))
    rule = f"at most {_PREFIX_MAX} letters, digits, dots, underscores and hyphens, as names of topics have"
    require(_PREFIX.fullmatch(kafka.prefix) is not None, "kafka.prefix", rule, repr(kafka.prefix))
    require(bool(kafka.group.strip()), "kafka.group", "a name", repr(kafka.group))
    _check_client("kafka", kafka.client, KAFKA_CLIENT)
    client, protocol, name = kafka.client, kafka.protocol, "kafka.client.security_protocol"
    if protocol not in PROTOCOLS:
        require(False, name, f"one of {', '.join(PROTOCOLS)}", repr(protocol))
        return
    for prefix, of_protocol in (("ssl_", "SSL"), ("sasl_", "SASL")):
        if (given := [key for key in client if key.startswith(prefix)]) and of_protocol not in protocol:
            require(False, name, f"one with {of_protocol}, as kafka.client.{given[0]} is set", repr(protocol))
    if protocol.startswith("SASL"):
        for key in ("sasl_plain_username", "sasl_plain_password_file"):
            require(bool(client.get(key)), f"kafka.client.{key}", f"one, as {name} is {protocol!r}", "none")
        mechanism = client.get("sasl_mechanism", MECHANISMS[0])
        rule = f"one of {', '.join(MECHANISMS)}"
        require(mechanism in MECHANISMS, "kafka.client.sasl_mechanism", rule, repr(mechanism))
        # One of the clients sends a comma or an equals sign of a SCRAM user as it is, which means something else there.
        user = str(client.get("sasl_plain_username", ""))
        plain = not user or (_USERNAME.fullmatch(user) and not set(",=") & set(user))
        rule = "printable ASCII without white space, comma or ="
        require(bool(plain), "kafka.client.sasl_plain_username", rule, repr(user))


def _check_client(section: str, client: Mapping[str, Option], known: Sequence[str]) -> None:
    """ConfigError for an unknown option, a path that is none, a certificate without its key. No value is shown."""
    for key, value in client.items():
        if key not in known:
            meant = get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"unknown key {section}.client.{key}; did you mean {section}.client.{meant}?")
        if key.endswith("_file") or key.startswith("ssl_"):
            named = isinstance(value, str) and bool(value)
            require(named, f"{section}.client.{key}", "the path of a file", NOT_SHOWN)
    pair = "ssl_certfile", "ssl_keyfile"
    for key, other in (pair, pair[::-1]):
        has_both = key in client or other not in client
        require(has_both, f"{section}.client.{key}", f"one, as {section}.client.{other} is set", "none")


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text.strip())
    return found is not None and 0 < int(found[1]) <= _PORT_MAX


def check_dashboard(dashboard: DashboardSection) -> None:
    """ConfigError for what is no address; port 0 is any free one.

    >>> check_dashboard(DashboardSection(listen="[::1]:0"))
    """
    address = _ADDRESS.fullmatch(dashboard.listen)
    rule = "HOST:PORT, as in 127.0.0.1:8321"
    require(address is not None and int(address[1]) <= _PORT_MAX, "dashboard.listen", rule, repr(dashboard.listen))


def check_redis(ledger: LedgerSection) -> None:
    """ConfigError where `[ledger.client]` is set for a file, does not fit to the URL, or says the same."""
    scheme, client = ledger.url.partition("://")[0], ledger.client
    _check_client("ledger", client, REDIS_CLIENT)
    if tls := [key for key in client if key.startswith("ssl_")]:
        rule = f"rediss:// or rediss+cluster://, as ledger.client.{tls[0]} is set"
        require(scheme.startswith("rediss"), "ledger.url", rule, f"{scheme}://...")
    if client:
        rule = f"a Redis, as ledger.client.{next(iter(client))} is set"
        require(not is_file(ledger.place), "ledger.url", rule, "a file")
    if login := [key for key in client if key in ("username", "password_file")]:
        rule = f"no user and password, as ledger.client.{login[0]} is set"
        require(not has_password(ledger.url), "ledger.url", rule, f"{scheme}://...@...")
    lacks = "username" in client and "password_file" not in client
    require(not lacks, "ledger.client.password_file", "one for ledger.client.username", "none")


def check_url(url: str) -> None:
    """ConfigError for the URL of a service that no run would take. It may have a password, so it is not repeated."""
    if is_file(url):
        return
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        rule = "sqlite:FILE or redis://HOST:PORT/DB (or rediss, redis+cluster, rediss+cluster, unix:///SOCKET)"
        require(False, "ledger.url", rule, f"{scheme}://...")
        return
    try:
        parts = urlsplit(f"redis://{rest}")
        named = parts.port != 0  # the client would take the usual one for 0
    except ValueError:
        named = False
    if not named:
        rule = "redis://HOST:PORT with a port of 1 to 65535"
        require(False, "ledger.url", rule, "something else")
        return
    if scheme == "unix":  # the client would leave out a folder in the place of a host
        is_path = len(parts.path) > 1 and not parts.netloc.rpartition("@")[2]
        require(is_path, "ledger.url", "unix:///PATH of a socket, from the root", "something else")
    else:  # the client would take database 0 for a name
        is_number = not (path := parts.path.strip("/")) or _DATABASE.fullmatch(path) is not None
        require(is_number, "ledger.url", "the number of a database behind the host", "something else")
    options = parse_qs(parts.query, keep_blank_values=True)
    once = all(name in _OPTIONS and len(values) == 1 for name, values in options.items())
    number = once and all(map(_DATABASE.fullmatch, options.get("db", ())))
    require(number, "ledger.url", "?db=NUMBER or no option", ", ".join(options))


def has_password(url: str) -> bool:
    """Whether a URL has a user or a password in it, before the host or behind it."""
    rest = url.partition("://")[2]
    return "@" in rest or "password=" in rest or "username=" in rest
