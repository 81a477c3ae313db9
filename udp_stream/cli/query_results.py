"""Where results of standing queries go: a file named on the command line, or nowhere, and then nothing is asked."""

from __future__ import annotations

from udp_stream.adapters.logs import say
from udp_stream.adapters.records_out import require_form
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.text import counted
from udp_stream.errors import UsageError


def require_queries(name: str | None, settings: Settings) -> None:
    """Results and queries need each other: a query without a reader would be charged for nothing."""
    asked = len(settings.query)
    if name is None:
        if asked:
            say(
                f"{counted(asked, 'query', 'queries')} of the configuration {'is' if asked == 1 else 'are'} not asked: "
                "--queries FILE asks, and names where the results go"
            )
        return
    if not asked:
        raise UsageError("--queries: expected a configuration with [[query]], got none")
    if require_form(name)[0]:
        raise UsageError(f"--queries: expected lines of JSON, as in answers.ndjson or answers.ndjson.gz, got {name}")
