"""Certificates, and a broker that asks for TLS and passwords: made anew for each run, never kept."""

import asyncio
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from lab.process import HOST, on_free_ports
from lab.services import RunningKafka, start_kafka

USER, PASSWORD = "surat-worker", 'correct "horse", battery = staple'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
ELSEWHERE = "broker.elsewhere.example"
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Certificates:
    """Files of a folder: an authority, another one, a client's certificate and key, and passwords."""

    folder: Path

    def __getattr__(self, name: str) -> str:
        return str(self.folder / name.replace("_", "."))


def certificates(folder: Path) -> Certificates:
    """`server.pem` of 127.0.0.1, `elsewhere.pem` of another host, in PKCS 8; authorities `ca.crt`,
    `other.crt`."""
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    other.cert_pem.write_to_path(folder / "other.crt")
    for name, host in (
        ("server", (HOST, "localhost")),
        ("elsewhere", (ELSEWHERE,)),
        ("client", ("worker",)),
    ):
        made = authority.issue_cert(*host)
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = b"".join(part.bytes() for part in made.cert_chain_pems)
        (folder / f"{name}.crt").write_bytes(chain)
        secret_file(folder / f"{name}.key", pkcs8)
        secret_file(folder / f"{name}.pem", pkcs8 + chain)
    secret_file(folder / "password", PASSWORD.encode() + b"\n")
    secret_file(folder / "wrong", b"tr0ub4dor&3-is-wrong\n")
    return Certificates(folder)


def secret_file(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


@dataclass(frozen=True)
class Listener:
    """One more address of a broker, with a security protocol of Kafka's (`SASL_SSL`) and properties
    of its own."""

    name: str
    protocol: str
    properties: Mapping[str, str]


def listeners(made: Certificates) -> list[Listener]:
    """By name: TLS, MUTUAL (a certificate of the client's too), ELSEWHERE (of another host), SASL,
    SASLTLS."""

    def tls(name: str, client: str = "none") -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(made.folder / f"{name}.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(made.folder / "ca.crt"),
            "ssl.client.auth": client,
        }

    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\\\"')
    scram = f"{_LOGIN}.scram.ScramLoginModule required;"
    sasl = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "plain.sasl.jaas.config": f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{quoted}";',
        "scram-sha-256.sasl.jaas.config": scram,
        "scram-sha-512.sasl.jaas.config": scram,
    }
    return [
        Listener("TLS", "SSL", tls("server")),
        Listener("MUTUAL", "SSL", tls("server", "required")),
        Listener("ELSEWHERE", "SSL", tls("elsewhere")),
        Listener("SASL", "SASL_PLAINTEXT", sasl),
        Listener("SASLTLS", "SASL_SSL", {**sasl, **tls("server")}),
    ]


@dataclass
class SecuredKafka:
    """A broker, and the addresses of its further listeners by name."""

    running: RunningKafka
    addresses: Mapping[str, str]

    @property
    def bootstrap(self) -> str:
        return self.running.bootstrap


def start_secured(place: Path, more: list[Listener], ports: list[int]) -> SecuredKafka:
    """With these listeners beside the one without access control."""
    addresses = {one.name: f"{HOST}:{port}" for one, port in zip(more, ports, strict=True)}
    further = "".join(f",{name}://{address}" for name, address in addresses.items())
    protocols = "".join(f",{one.name}:{one.protocol}" for one in more)
    own = [
        f"listener.name.{one.name.lower()}.{key}={value}".replace("{", "{{").replace("}", "}}")
        for one in more
        for key, value in one.properties.items()
    ]
    lines = [
        "listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller}" + further,
        "advertised.listeners=PLAINTEXT://{host}:{broker}" + further,
        f"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT{protocols}",
        *own,
    ]
    return SecuredKafka(start_kafka(place, more="\n".join(lines) + "\n"), addresses)


@contextmanager
def secured_kafka() -> Iterator[tuple[SecuredKafka, Certificates]]:
    with TemporaryDirectory(prefix="udp-stream-secured-") as folder:
        made = certificates(Path(folder))
        place = Path(folder, "kafka")
        place.mkdir()
        more = listeners(made)
        secured = on_free_ports(len(more), lambda ports: start_secured(place, more, ports))
        try:
            make_user(secured.bootstrap)
            yield secured, made
        finally:
            secured.running.stop()


def make_user(bootstrap: str) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            # One at a time: two of one user in a request are refused, without an error here.
            said = client.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(USER, mechanism, PASSWORD)]
            )
            assert said == {USER: None}, said
    finally:
        client.close()


@contextmanager
def tls_in_front_of(
    port: int, made: Certificates, name: str = "server", client: bool = False
) -> Iterator[int]:
    """The port of a TLS server in front of this one, as stunnel. `client`: asks for the authority's
    certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.folder / f"{name}.crt", made.folder / f"{name}.key")
    if client:
        context.load_verify_locations(made.ca_crt)
        context.verify_mode = ssl.CERT_REQUIRED
    started: Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Queue()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve() -> None:
        writers: list[asyncio.StreamWriter] = []

        async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            with suppress(OSError):
                inner_reader, inner_writer = await asyncio.open_connection(HOST, port)
                writers.append(inner_writer)
                await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

        ended = asyncio.Event()
        server = await asyncio.start_server(joined, HOST, 0, ssl=context)
        started.put((asyncio.get_running_loop(), ended, server.sockets[0].getsockname()[1]))
        await ended.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for writer in writers:
            writer.transport.abort()  # at once: the other end of a TLS connection may be gone
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, ended, outside = started.get(timeout=10)
    try:
        yield outside
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
