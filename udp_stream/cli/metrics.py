"""Metrics for Prometheus: an observer that turns facts into series, and the port where they are
read. A field of a fact names its series (`Metric`, `release/events.py`); ages are made here.

Beside `/metrics` it says how the process is: `/healthz` is 503 if the runtime hangs, `/readyz` also
while the source of a run or the broker of a worker is away.

For operators alone: counts are exact, also where releases hide whole plates. No series has a plate,
a cell or a speed. Ages are computed when they are read, in the server's thread: so they grow also
where the runtime hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    make_wsgi_app,
    start_http_server,
)

from udp_stream.base.errors import DependencyUnavailable
from udp_stream.release.events import (
    Backlog,
    BatchRead,
    Metric,
    RunEvent,
    SlotCounted,
    SlotPublished,
    SlotsDropped,
    SourceStatus,
)

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

SECONDS = 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0
"""Buckets. A slot of 3,000 HATs takes a second; a worker that gets nothing done ends after two
minutes."""

HANGS_S = 120.0
"""A runtime that has given no sign of life for so long hangs; the longest step that was measured
took seven seconds."""

CLIENT_S = 10.0
"""A client that is silent so long is dropped: each has a thread."""


class Metrics:
    """The series of a process, in a registry of their own.

    >>> metrics = Metrics("udp-stream 0.1.0", policy="5eed")
    >>> from udp_stream.pings.decode import Reason
    >>> metrics.observe(BatchRead(messages=3, pings=2, refused={Reason.LATE: 1}, newest_ms=1_704_700_800_000))
    >>> metrics.registry.get_sample_value("udp_stream_pings_refused_total", {"reason": "late"})
    1.0
    """

    def __init__(
        self,
        software: str,
        policy: str,
        zone: tzinfo = UTC,
        clock: Callable[[], float] = time.monotonic,
        certificate_s: float | None = None,
    ) -> None:
        """`certificate_s`: when the first of the certificates ends that the settings name."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each, which nobody reads
        self._clock = clock
        self._waiting = Backlog(0, 0, 0, 0, of_partitions=0)
        self._reported_s = clock()
        self._newest_ms = 0
        self._is_begun = False
        self._totals = dict[str, int]()
        self._source = SourceStatus(0.0, 0, is_away=True)
        self._seen_s = clock()
        self._zone = zone
        self._certificate_s = certificate_s
        self._closing: dict[
            int, tuple[float, int]
        ] = {}  # start -> first count, and parts that are not out
        self._oldest_s: float | None = None
        self.registry = registry = CollectorRegistry()
        text = "The program, and the settings that change privacy. Counts are exact: for operators."
        about = Info("udp_stream", text, registry=registry)
        about.info({"software": software, "policy": policy})
        self._metrics = {event: list(self._series(event)) for event in get_args(RunEvent)}
        self._seconds = Histogram(
            "udp_stream_release_seconds",
            "From a slot's count to its publication.",
            buckets=SECONDS,
            registry=registry,
        )
        self._gauge(
            "source_silent_seconds",
            "Since the source's last good answer; the broker's.",
            lambda: self._source.silent_s + self._clock() - self._seen_s,
        )
        self._gauge(
            "certificate_end_timestamp_seconds",
            "When the first certificate ends; 0: none.",
            self._ends_s,
        )
        self._gauge(
            "clock_ahead_seconds", "The log's clock less the wall's; 0: none yet.", self._ahead_s
        )
        self._gauge("zone_offset_seconds", "What hat.timezone is ahead of UTC now.", self._offset_s)
        self._gauge("started_timestamp_seconds", "When the process began.").set_to_current_time()
        self._published = self._gauge(
            "published_timestamp_seconds", "When a slot was published last; 0: never."
        )
        self._in_doubt = self._gauge(
            "unit_in_doubt", "1 if the last slot was withheld, its unit of speed in doubt."
        )
        self._gauge(
            "newest_ping_timestamp_seconds",
            "The latest time of a ping; 0: none yet.",
            lambda: self._newest_ms / 1000,
        )
        self._gauge(
            "closing_seconds",
            "Since the oldest slot that is not published was counted.",
            self._closing_s,
        )
        self._gauge(
            "stuck_seconds",
            "Without progress, though there is work.",
            lambda: self._waiting.still_s + self._clock() - self._reported_s,
        )

    def _series(self, event: type[RunEvent]) -> Iterator[tuple[str, Metric, Any]]:
        """The fields of a fact that are metrics, each with its series."""
        for name, hint in get_type_hints(event, include_extras=True).items():
            for metric in getattr(hint, "__metadata__", ()):
                of: Any = Gauge if metric.kind == "latest" else Counter
                labels = [metric.label] if metric.label else []
                full = f"udp_stream_{metric.name}"
                series = of(full, metric.text, labels, registry=self.registry)
                if metric.initially:
                    series.set(metric.initially)
                for value in metric.values:
                    series.labels(value)  # from the start, at 0
                yield name, metric, series

    def _gauge(self, name: str, text: str, value: Callable[[], float] | None = None) -> Gauge:
        gauge = Gauge(f"udp_stream_{name}", text, registry=self.registry)
        if value is not None:
            gauge.set_function(value)
        return gauge

    def observe(self, event: RunEvent) -> None:
        for name, metric, series in self._metrics[type(event)]:
            value = getattr(event, name)
            if metric.label:
                for key, count in value.items():
                    series.labels(str(key)).inc(count)
            elif metric.kind == "latest":
                series.set(value)
            elif metric.kind == "sum":
                series.inc(value)
            else:
                series.inc(max(0, value - self._totals.get(metric.name, 0)))
                self._totals[metric.name] = value
        match event:
            case BatchRead():
                self._newest_ms = max(self._newest_ms, event.newest_ms or 0)
            case SlotCounted():
                since_s, parts = self._closing.get(event.start_ms, (self._clock(), 0))
                self._closing[event.start_ms] = since_s, parts + 1
            case SlotPublished():
                self._publish(event)
            case SlotsDropped():
                self._closing = {}
            case Backlog():
                self._waiting, self._reported_s, self._is_begun = event, self._clock(), True
            case SourceStatus():
                self._source, self._seen_s = event, self._clock()
        self._oldest_s = min((since_s for since_s, _ in self._closing.values()), default=None)

    def _publish(self, slot: SlotPublished) -> None:
        """Count a published slot. On Kafka it has a part for each shard: its seconds are from the
        first to the last, as in the log."""
        self._published.set_to_current_time()
        self._in_doubt.set("withheld_unit" in slot.hats)
        if slot.start_ms not in self._closing:  # counted before a rebalance
            return
        since_s, parts = self._closing.pop(slot.start_ms)
        if parts > 1:
            self._closing[slot.start_ms] = since_s, parts - 1
        else:
            self._seconds.observe(self._clock() - since_s)

    def _closing_s(self) -> float:
        oldest_s = self._oldest_s  # once: another thread sets it
        return 0.0 if oldest_s is None else self._clock() - oldest_s

    def _ahead_s(self) -> float:
        return (
            0.0 if self._waiting.clock_ms is None else self._waiting.clock_ms / 1000 - time.time()
        )

    def _offset_s(self) -> float:
        offset = datetime.now(self._zone).utcoffset()
        return 0.0 if offset is None else offset.total_seconds()

    def _ends_s(self) -> float:
        ends = [end for end in (self._certificate_s, self._source.certificate_s) if end is not None]
        return min(ends, default=0.0)

    def _ill(self) -> str:
        """Why a supervisor should start the process again; empty if it need not."""
        silent_s = self._clock() - max(self._reported_s, self._seen_s)
        return (
            f"no sign of life for {silent_s:.0f} s" if self._is_begun and silent_s > HANGS_S else ""
        )

    def _unready(self) -> str:
        if self._source.is_away:
            return "the source does not answer, or the broker" if self._is_begun else "it starts"
        return self._ill()

    def answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer a request: the metrics, unless it is about health."""
        asked = {"/healthz": self._ill, "/readyz": self._unready}.get(environ.get("PATH_INFO", ""))
        if asked is None:
            metrics: Iterable[bytes] = make_wsgi_app(self.registry)(environ, start)
            return metrics
        why = asked()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")]
        start("503 Service Unavailable" if why else "200 OK", headers)
        return [f"{why or 'ok'}\n".encode()]

    @contextmanager
    def served(self, host: str, port: int) -> Iterator[None]:
        """A thread answers while the block runs. DependencyUnavailable if it cannot listen."""
        try:
            server, thread = start_http_server(port, host, self.registry)
        except (OSError, UnicodeError) as error:  # the latter: a name that no host can have
            why = getattr(error, "strerror", None) or "no name of a host"
            raise DependencyUnavailable(
                f"--metrics: cannot listen on {host}, port {port}: {why}"
            ) from error
        server.set_app(self.answer)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # else a traceback for a lost client
        server.RequestHandlerClass.timeout = CLIENT_S  # type: ignore[attr-defined]
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
