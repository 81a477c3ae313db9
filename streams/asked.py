"""All workers of a deployment ask the same standing queries: what a worker does where others ask something else.

A source sends the moments of its own queries alone, and a shard answers a moment from what all sources have sent. So a
source with other queries, or none, would leave its plates out of the answers. Three things are against that:

* **Reports.** Before a worker joins the group it reads the reports of those that run, and refuses to start beside one
  with other queries. `udp-stream status` and `doctor` read the same.
* **Messages.** The end marker of a moment says for which queries it was sent. A worker that reads a marker for others,
  written since it has the partition, stops. Markers that were there before are of a configuration that was changed:
  the moments up to them are never answered (`shuffle/barrier.py`).
* **Commits.** A source's commit says the same. Who takes the partition over with other queries tells the shards up to
  when its moments are not whole (`shuffle/source_protocol.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from udp_stream.adapters.work_reports import ASKED
from udp_stream.errors import ConfigError
from udp_stream.release.worker_health import SILENT_AFTER, Seen

OTHER_QUERIES = (
    "asks other standing queries than this worker. All workers of a deployment need the same [queries], [[query]] and "
    "hat.timezone: stop all of them, give them one configuration, and start them again"
)


def require_asked_alike(asked: str, name: str | None, reports: Iterable[Seen]) -> None:
    """ConfigError if a running worker, other than the one of our name, reports queries with another digest than this.

    >>> from udp_stream.testing import a_report
    >>> require_asked_alike("", "two", [Seen(a_report("one"), 1.0)])
    >>> require_asked_alike("5eed", "two", [Seen(a_report("one"), 1.0)])
    Traceback (most recent call last):
    udp_stream.errors.ConfigError: the worker one asks other standing queries than this worker. All workers of a ...
    """
    for seen in reports:
        theirs = seen.report.about.rules.get(ASKED, "")
        if seen.is_running and seen.name != name and theirs != asked:
            silent_s = SILENT_AFTER * seen.report.about.every_seconds
            raise ConfigError(
                f"the worker {seen.name} {OTHER_QUERIES}. (One that was killed counts as running for {silent_s:.0f} s)"
            )
