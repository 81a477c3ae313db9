"""How every client of ours reaches the brokers, and why one did not: Faust's consumer, aiokafka, kafka-python.

kafka-python tries a refused connection again until its time is over, and keeps the reason to itself; aiokafka writes
it to a log. So we connect ourselves, with aiokafka's connection, and look at what happens: after a failure, and where
brokers ask for more than an address also before, since a wrong password that is tried again may lock a user out.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import suppress
from typing import Any

from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.adapters.secret_files import tls_context, with_secrets
from udp_stream.adapters.settings.connection_rules import MECHANISMS
from udp_stream.errors import DependencyUnavailable, needs

_OF_CONSUMERS = "metadata_max_age_ms", "connections_max_idle_ms"

PROBE_S = 5.0
"""For one address: to connect, to log in, and for one answer."""

CLOSE_S = 0.2

RIGHTS = {29: "a topic", 30: "the group", 31: "the cluster", 53: "a transactional id"}
"""What the broker gives no rights on, by the number of its answer in Kafka's protocol."""

SAID_MAX = 300
"""Characters of what a broker says that are shown."""

_SAID = re.compile(r"""error_message=(?:'([^']+)'|"([^"]+)")""")
"""The broker's own words in the answer that the client quotes."""


def client_options(kafka: KafkaSection) -> dict[str, Any]:
    """What both client libraries take under the same names. ConfigError for a file that cannot be used.

    >>> client_options(KafkaSection(bootstrap="kafka:9092", client={"request_timeout_ms": 20_000}))
    {'bootstrap_servers': 'kafka:9092', 'security_protocol': 'PLAINTEXT', 'request_timeout_ms': 20000}
    """
    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "security_protocol": kafka.protocol}
    options |= with_secrets("kafka", kafka.client)
    files = [options.pop(name, "") for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile")]
    if kafka.protocol.endswith("SSL"):
        options["ssl_context"] = tls_context("kafka", *files)
    if kafka.protocol.startswith("SASL"):
        options.setdefault("sasl_mechanism", MECHANISMS[0])
    return options


def _security(kafka: KafkaSection) -> dict[str, Any]:
    options = client_options(kafka).items()
    return {name: value for name, value in options if name.startswith(("security", "ssl", "sasl"))}


def faust_credentials(kafka: KafkaSection) -> Any:
    """The same for Faust; None where brokers ask for nothing.

    >>> faust_credentials(KafkaSection()) is None
    True
    """
    import faust

    options = _security(kafka)
    context = options.get("ssl_context")
    if kafka.protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            ssl_context=context,
            mechanism=options["sasl_mechanism"],
        )
    return faust.SSLCredentials(context) if context else None


def faust_options(kafka: KafkaSection) -> dict[str, Any]:
    """Timeouts of `[kafka.client]` for Faust's consumer, which has no name for the pause between two attempts.

    >>> faust_options(KafkaSection(client={"request_timeout_ms": 20_000}))
    {'broker_request_timeout': 20.0}
    """
    client = kafka.client
    found = {f"consumer_{name}": client[name] for name in _OF_CONSUMERS if name in client}
    if "request_timeout_ms" in client:
        found["broker_request_timeout"] = float(client["request_timeout_ms"]) / 1000
    return found


def require_reachable(kafka: KafkaSection) -> None:
    """Raise DependencyUnavailable, with the reason, if no broker talks to us by TLS or with our password; does nothing
    where neither is asked for. Not within a running loop."""
    if kafka.protocol != "PLAINTEXT" and (reason := asyncio.run(why_not(kafka))):
        raise DependencyUnavailable(f"Kafka at {kafka.bootstrap}: {reason}")


def unreachable(kafka: KafkaSection, error: BaseException) -> DependencyUnavailable:
    """What to raise for this error of a client, outside of a running loop."""
    return asyncio.run(unreachable_in_loop(kafka, error))


async def unreachable_in_loop(kafka: KafkaSection, error: BaseException) -> DependencyUnavailable:
    """The same within one."""
    found = await why_not(kafka)
    return DependencyUnavailable(f"Kafka at {kafka.bootstrap}: {found or refusal(error)}")


def refusal(error: BaseException) -> str:
    """What a broker that can be talked to has said, in words: a client's error may quote its whole request and answer.

    >>> refusal(RuntimeError("Request 'CreateTopicsRequest(...)' failed with response 'CreateTopicsResponse(topics=["
    ...     "CreatableTopicResult(name='pings', error_code=44, error_message='at least 3 copies')])'."))
    'it refuses: at least 3 copies (RuntimeError)'
    """
    name, number = type(error).__name__, getattr(error, "errno", None)
    if number in RIGHTS:
        return f"it does not give us the rights on {RIGHTS[number]} ({name}): its user needs them"
    said = dict.fromkeys(one or other for one, other in _SAID.findall(str(error)))
    if said:
        return f"it refuses: {_cut('; '.join(said))} ({name})"
    return _cut(str(error) or name)


def _cut(text: str) -> str:
    return text if len(text) <= SAID_MAX else f"{text[:SAID_MAX]}..."


async def why_not(kafka: KafkaSection) -> str:
    """In words without secrets why no broker can be talked to; "" if one can. Takes `PROBE_S` for each address."""
    options, found = _security(kafka), []
    addresses = [address.strip() for address in kafka.bootstrap.split(",")]
    for address in addresses:
        host, _, port = address.rpartition(":")
        reason = await _why_not(host.strip("[]"), int(port), options) if host and port.isdigit() else "is no HOST:PORT"
        if not reason:
            return ""
        found.append(f"{address} {reason}" if len(addresses) > 1 else f"it {reason}")
    return "; ".join(found)


async def _why_not(host: str, port: int, options: dict[str, Any]) -> str:
    with needs("Kafka client", "kafka"):
        from aiokafka.conn import AIOKafkaConnection
        from aiokafka.errors import KafkaError
        from aiokafka.protocol.metadata import MetadataRequest
    connection = AIOKafkaConnection(host, port, request_timeout_ms=round(PROBE_S * 1000), **options)
    try:
        await asyncio.wait_for(connection.connect(), PROBE_S)
        await asyncio.wait_for(connection.send(MetadataRequest([])), PROBE_S)
    except (KafkaError, OSError, TimeoutError, ValueError) as error:
        return _words(error, options)
    finally:
        with suppress(TimeoutError):  # of one that never was there
            await asyncio.wait_for(connection.close(), CLOSE_S)
    return ""


def _words(error: Exception, options: dict[str, Any]) -> str:
    from aiokafka import errors as kafka_errors

    protocol = options["security_protocol"]
    tls = protocol.endswith("SSL")
    match error:
        # The order counts: a certificate's error is an SSLError and a ValueError, too.
        case ssl.SSLCertVerificationError() if error.verify_code in (62, 64):
            return "shows a certificate of another host: kafka.bootstrap needs a name that is in it"
        case ssl.SSLCertVerificationError():
            said = error.verify_message or "verification failed"
            return f"shows a certificate that is not trusted ({said}): kafka.client.ssl_cafile names who is"
        case kafka_errors.SaslAuthenticationFailed():
            return "does not accept the user and password of kafka.client"
        case kafka_errors.UnsupportedSaslMechanismError():
            return f"does not offer {options['sasl_mechanism']}, which is kafka.client.sasl_mechanism"
        case kafka_errors.IllegalSaslStateError():
            return 'asks for no password: kafka.client.security_protocol is to be "SSL" or "PLAINTEXT"'
        case ssl.SSLError():
            return "does not speak TLS on this port, or not with us: kafka.client.security_protocol says that it does"
        case ConnectionRefusedError():
            return "refuses connections: is the broker running, and is this its port?"
        case TimeoutError():
            return f"does not answer within {PROBE_S:g} s"
        case ValueError():
            return "answers a login as no broker does"
    if isinstance(error, OSError) and not isinstance(error, ConnectionError) and not tls:
        return f"cannot be reached ({error.strerror or type(error).__name__})"
    if tls:
        return "ends the connection: does it speak TLS on this port, and does it want kafka.client.ssl_certfile?"
    asked = f"kafka.client.security_protocol is {protocol}"
    return f"ends the connection: does it want TLS or a password on this port? {asked}"
