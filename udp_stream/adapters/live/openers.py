"""Live sources by scheme, as a deployment's settings have them."""

from __future__ import annotations

from collections.abc import Callable

from udp_stream.adapters.live.amqp import QueueOptions, QueueSource
from udp_stream.adapters.live.http_get import HttpGet, HttpOptions
from udp_stream.adapters.live.polled import PolledSource, PollOptions
from udp_stream.adapters.live.source import LiveSource
from udp_stream.adapters.settings import Settings
from udp_stream.pings.decode import PingFormat
from udp_stream.pings.json import JSON
from udp_stream.units import parse_duration
from udp_stream.version import __version__

LiveOpener = Callable[[str, object], LiveSource]
"""Makes a live source of its whole name; the second argument, for files, is not used."""


def live_sources(settings: Settings, say: Callable[[str], None], json: PingFormat = JSON) -> dict[str, LiveOpener]:
    """Openers for `open_source`. `json` reads what is JSON; `say` is given sentences for people.

    >>> sorted(live_sources(Settings(), print))
    ['amqp', 'amqps', 'http', 'https']
    """
    live = settings.live

    def polled(name: str, _progress: object) -> PolledSource:
        http = HttpOptions(
            timeout_s=parse_duration(live.timeout),
            token_file=live.token_file,
            token_header=live.token_header,
            ca_file=live.ca_file,
        )
        poll = PollOptions(
            every_s=parse_duration(live.every),
            format=live.format,
            unit=settings.speed.unit,
            json=json,
        )
        return PolledSource(HttpGet(name, http, f"udp-stream/{__version__}"), poll, say)

    def queued(name: str, _progress: object) -> QueueSource:
        options = QueueOptions(
            queue=live.queue,
            username=live.username,
            password_file=live.password_file,
            timeout_s=parse_duration(live.timeout),
            ca_file=live.ca_file,
            format=json,
        )
        return QueueSource(name, options, say)

    return {"http": polled, "https": polled, "amqp": queued, "amqps": queued}
