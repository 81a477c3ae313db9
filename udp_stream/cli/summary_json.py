"""The summary of a run for programs: the numbers of `report.py`, and its sentences, as one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from udp_stream.adapters.settings import Settings
from udp_stream.cli.report import from_before, worth
from udp_stream.release.facts import Summary


def print_json_summary(summary: Summary, settings: Settings, said: Sequence[str] = ()) -> None:
    """One line on standard error, where the summary for people goes; also with --quiet, as it was asked for.

    `said` are further sentences of the run, put before those of the summary.
    """
    print(json.dumps(summary_facts(summary, settings, said), ensure_ascii=False), file=sys.stderr, flush=True)


def summary_facts(summary: Summary, settings: Settings, said: Sequence[str] = ()) -> dict[str, object]:
    """The object: counts, shares from 0 to 1, km/h; null where there is no mean to expect an error of.

    >>> facts = summary_facts(Summary(pings=5, repeats=1, pings_released=3), Settings())
    >>> facts["pings"], facts["released_share"], facts["expected_error_kmh"]
    ({'accepted': 5, 'repeats': 1, 'held': 0, 'refused': {}}, 0.75, None)
    """
    queries: dict[str, dict[str, int]] = {}
    for (name, status), count in sorted(summary.answers.items()):
        queries.setdefault(name, {})[status] = count
    before = from_before(summary, settings.policy)
    pings = {"accepted": summary.pings, "repeats": summary.repeats, "held": summary.held}
    return {
        "schema": "udp-stream/summary/1",
        "policy": settings.policy.fingerprint(),
        "messages": summary.messages,
        "pings": {**pings, "refused": dict(summary.refused.most_common())},
        "slots": summary.slots,
        "hats": dict(summary.hats.most_common()),
        "queries": queries,
        "new": {"hats": summary.made, "answers": summary.answers_made},
        "unwritten": summary.unwritten,
        "released_share": summary.share(summary.pings_released),
        "mean_share": summary.share(summary.pings_of_means),
        "expected_error_kmh": summary.expected_error / summary.pings_of_means if summary.pings_of_means else None,
        "estimates": _estimates(summary),
        "said": [*said, *([before] if before else []), *worth(summary, settings)],
    }


def _estimates(summary: Summary) -> dict[str, float] | None:
    """What smoothed estimates, and the guesses by counts beside them, are expected to err by; None without any."""
    if not summary.estimated:
        return None
    errors = ("expected_error_kmh", summary.estimate_error), ("counts_error_kmh", summary.guess_error)
    return {name: error / summary.estimated for name, error in errors}
