"""Which ledger and which key a deployment works on: one of each, for all of its workers and for ever.

Two ledgers are two budgets for every plate, and two keys make every plate two. A worker alone cannot see that the
others have another ledger, so there are three checks:

* **The claim.** Before a worker joins the group, it looks at the deployment's topic. Where that is empty it writes what
  it works on, and looks again. The first claim in the log is the deployment's; a worker with another one is refused.
  Of two that start at the same moment one is first in the log, and both see which. Nothing is ever removed from there.
* **Messages.** Every message between workers names its writer's ledger and key; those between shards and the planner
  also carry the highest mark of the ledger that the writer knows (`ledger/rules.py`).
* **Commits.** So does the metadata of every commit, for the next worker of the partition.

Messages and commits hold where the claim is lost: a topic made anew, or a worker of a version that did not claim.
A charge under one ledger follows from counts that were sent under it, and those stay in the log until a commit under it
moves past them. So a worker that could charge a slot a second time, under another ledger, first reads one or the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from streams.kafka import SECONDS_MAX, KafkaError, OutgoingRecord, Producer, read_topic, records_of
from streams.topics import Topic
from udp_stream.errors import ConfigError, DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.port import Mark
from udp_stream.settings.sections import KafkaSection

HEADER = "udp-stream-ledger"
MARK = "udp-stream-mark"


@dataclass(frozen=True)
class Binding:
    """The id of the ledger, and the fingerprint of the plates' key: 32 hexadecimal digits each."""

    ledger_id: str
    key: str

    @classmethod
    def of(cls, meta: Mapping[str, str]) -> Binding:
        """Of an opened ledger, from what it knows of itself."""
        return cls(meta["ledger_id"], meta["key_fingerprint"])

    @classmethod
    def read(cls, text: str) -> Binding:
        """Undo `text`; raises ValueError for anything else."""
        ledger_id, dot, key = text.partition(".")
        if not (dot and ledger_id and key):
            raise ValueError(f"expected LEDGER.KEY, got {text!r}")
        return cls(ledger_id, key)

    @cached_property
    def text(self) -> str:
        """As it travels.

        >>> Binding.read(Binding("5eed", "cafe").text)
        Binding(ledger_id='5eed', key='cafe')
        """
        return f"{self.ledger_id}.{self.key}"

    @cached_property
    def header(self) -> tuple[str, bytes]:
        """Of a message."""
        return HEADER, self.text.encode()

    def require(self, theirs: str | None, where: str) -> None:
        """Raise PrivacyRefused unless what was found there is the same; None: it says nothing."""
        if theirs == self.text:
            return
        raise PrivacyRefused(f"{where} {self._difference(theirs)}. {ADVICE}")

    def require_in(self, headers: Sequence[tuple[str, bytes]], where: str) -> None:
        """The same, of the headers of a message.

        >>> Binding("5eed", "cafe").require_in([Binding("5eed", "cafe").header], "a message")
        """
        theirs = next((value for name, value in headers if name == HEADER), None)
        if theirs != self.header[1]:
            self.require(None if theirs is None else theirs.decode(errors="replace"), where)

    def _difference(self, theirs: str | None) -> str:
        try:
            other = Binding.read(theirs or "")
        except ValueError:
            return "does not name its ledger: another version of udp-stream wrote it"
        if other.ledger_id != self.ledger_id:
            return f"works on the ledger {other.ledger_id}, and this worker on {self.ledger_id}"
        return f"works with the plates' key {other.key}, and this worker with {self.key}"


ADVICE = (
    "All workers of a deployment need one ledger and one key file: two ledgers are two budgets for every plate. Give "
    "this worker the others' ledger.url and a copy of their key file"
)


def mark_header(mark: Mark | None) -> list[tuple[str, bytes]]:
    """The mark in the headers of a message, if one is known."""
    return [] if mark is None else [(MARK, msgspec.json.encode(mark))]


def mark_in(headers: Sequence[tuple[str, bytes]]) -> Mark | None:
    """Undo `mark_header`; a mark that cannot be read is none.

    >>> mark_in(mark_header(Mark("5eed", 0, 118, 91))), mark_in([])
    (Mark(ledger_id='5eed', era=0, admitted=118, recorded=91, release_id='', digest=b''), None)
    """
    for name, value in headers:
        if name == MARK:
            try:
                return msgspec.json.decode(value, type=Mark)
            except msgspec.DecodeError:
                return None
    return None


class _Claim(msgspec.Struct, frozen=True):
    ledger: str


async def claim(kafka: KafkaSection, topic: Topic, binding: Binding, producer: Producer) -> None:
    """Work on this ledger from now on, or raise PrivacyRefused if the deployment works on another one.

    DependencyUnavailable if the broker does not tell.
    """
    first = await _first(kafka, topic)
    if first is None:
        await producer.write([OutgoingRecord(topic.name, msgspec.json.encode(_Claim(binding.text)), partition=0)])
        first = await _first(kafka, topic)
    binding.require(first, f"the deployment ({topic.name} at {kafka.bootstrap})")


def claimed(kafka: KafkaSection, topic: Topic) -> Binding | None:
    """On what the deployment works, None if no worker has claimed anything. Raises as `read_topic`, and PrivacyRefused
    for a claim that cannot be read."""
    text = _said(read_topic(kafka, topic))
    try:
        return None if text is None else Binding.read(text)
    except ValueError as error:
        raise PrivacyRefused(f"{topic.name}: expected a claim of a ledger in its first record: {error}") from error


async def _first(kafka: KafkaSection, topic: Topic) -> str | None:
    """What the first claim says, None if there is none."""
    try:
        records = await asyncio.wait_for(records_of(kafka, topic), SECONDS_MAX)
    except (KafkaError, TimeoutError) as error:
        raise DependencyUnavailable(f"Kafka at {kafka.bootstrap}: {topic.name}: {str(error) or 'no answer'}") from error
    return _said(records)


def _said(records: Sequence[Any]) -> str | None:
    if not records:
        return None
    try:
        return msgspec.json.decode(records[0].value, type=_Claim).ledger
    except msgspec.DecodeError:
        # Not None: there is a claim, and `require` refuses one that names no ledger.
        return ""


def other_version(what: str) -> ConfigError:
    """What to raise for a message or commit that this version cannot read; nothing of it is quoted.

    >>> str(other_version("the message at bus.parts.v1[0], offset 7,"))[:82]
    'the message at bus.parts.v1[0], offset 7, is none that this version of udp-stream '
    """
    return ConfigError(
        f"{what} is none that this version of udp-stream reads: another version, or another program, has written it. "
        "All workers of a deployment need one version. After an upgrade: let the old version release every slot first, "
        "as docs/operations.md says (Upgrading)"
    )
