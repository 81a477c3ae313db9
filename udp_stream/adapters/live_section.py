"""The `[live]` section of the configuration: how feeds are polled and queues are read."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class LiveSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """For sources that go on until they are stopped; files do not read it. Secrets are in files, never in here.

    `every` 10 s is how often Surat's and Delhi's buses report. HTTP: `token_header` names the header that carries the
    token. AMQP: `queue` is read as `username`.
    """

    every: str = "10s"
    timeout: str = "10s"
    format: Literal["auto", "json", "gtfs-rt"] = "auto"
    token_file: str = ""
    token_header: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9-]+$")] = "token"
    ca_file: str = ""
    queue: str = ""
    username: str = ""
    password_file: str = ""
