"""The `[live]` section of the configuration: how feeds are polled and queues are read."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class LiveSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """For sources that go on until they are stopped; files do not read it. Secrets are in files, never in here.

    `every` 10 s is how often Surat's and Delhi's buses report. HTTP: `token_header` names the header that carries the
    token, or `token_query` the parameter of the address. AMQP: `queue` is read as `username`; at most `prefetch`
    messages are on their way at once. A live run's journal may have `journal_max_bytes`.
    """

    every: str = "10s"
    timeout: str = "10s"
    max_bytes: Annotated[int, msgspec.Meta(ge=1024, le=2**30)] = 64 * 2**20
    format: Literal["auto", "json", "gtfs-rt"] = "auto"
    token_file: str = ""
    token_header: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9-]+$")] = "token"
    token_query: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]*$")] = ""
    ca_file: str = ""
    queue: str = ""
    username: str = ""
    password_file: str = ""
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1000
    journal_max_bytes: Annotated[int, msgspec.Meta(ge=2**20, le=2**50)] = 8 * 2**30
