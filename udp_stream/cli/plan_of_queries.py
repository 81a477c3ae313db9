"""`plan`, of standing queries: how blurred a plate's place is in an answer, from the configuration alone."""

from __future__ import annotations

from rich.table import Table

from udp_stream.adapters.settings import Settings
from udp_stream.cli.report import printer
from udp_stream.planning.position_periods import amount_by_distance
from udp_stream.queries.asked import AskedTogether
from udp_stream.queries.standing import StandingQuery
from udp_stream.units import NANO, duration_name


def facts_of_queries(settings: Settings) -> list[dict[str, object]]:
    """The same for programs."""
    return [_facts(query) for query in settings.standing_queries]


def _facts(query: StandingQuery) -> dict[str, object]:
    asked = query.asked(plates=1)
    of_all = {"deviation_plates": asked.deviation_plates} if isinstance(asked, AskedTogether) else {}
    return {
        "name": query.name,
        "kind": query.kind,
        "every": duration_name(query.every_s),
        "measure": query.measure,
        "budget": query.budget_nano / NANO,
        "rounds": query.rounds,
        "deviation_m": asked.deviation_m,
        **of_all,
    }


def print_queries(settings: Settings) -> None:
    """A row for each query; nothing where there is none."""
    queries = settings.standing_queries
    if not queries:
        return
    table = Table(box=None, pad_edge=False)
    for name in ("query", "kind", "every", "at most, for a moment", "rounds", "noise, m"):
        table.add_column(name, justify="left" if name in ("query", "kind") else "right")
    for query in queries:
        amount = amount_by_distance(query.measure, query.budget_nano)
        asked = query.asked(plates=1)
        noise = f"{asked.deviation_m:,.0f}"
        if isinstance(asked, AskedTogether):
            noise = f"{asked.deviation_plates:,.2g} plates"
        every = duration_name(query.every_s)
        table.add_row(query.name, query.kind, every, amount, f"{query.rounds} {query.split}", noise)
    out = printer(100)
    out.print(table)
    out.print(
        f"Each plate's positions have {settings.position_periods.kind}: {settings.position_periods.promise}. Noise is "
        "one standard deviation, in one direction, of all rounds of a moment together, for a plate that is in all of "
        "them; of a threshold, that of its count. An answer is of use where what is asked is several times as large."
    )
