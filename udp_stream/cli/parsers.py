"""The verbs of the command line, with their options and examples. A verb's code is imported when
the verb runs."""

from __future__ import annotations

import argparse
import gc
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from udp_stream.base.units import parse_duration
from udp_stream.base.version import __version__

EXAMPLES = """\
examples:
  udp-stream demo --headless --slots 3             a synthetic fleet, no services, no files
  udp-stream init pings.csv --out city.toml        a configuration for a feed of any form
  udp-stream replay pings.ndjson.gz --out releases.ndjson
  udp-stream run https://example.org/vehicles.json --ledger city.ledger --out releases.ndjson
  udp-stream topics create && udp-stream worker    the deployment on Kafka
  udp-stream ledger show --help                    the options and examples of a verb
  python -m lab --help                             the papers' figures and tables

exit status: 0 done; 1 our fault; 2 usage; 3 configuration invalid; 4 a dependency is unavailable;
5 refused to protect privacy; 130 interrupted; 141 the reader of the output has closed it before the end
"""

BUSES_MAX = 100_000
AGO_MAX = "31d"


class _Help(argparse.RawDescriptionHelpFormatter):
    """Examples line by line, as they are written; LIVE stands for the schemes of live sources."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = super()._get_help_string(action) or ""
        if "LIVE" not in text:
            return text
        from udp_stream.sources.opening import (
            LIVE,
        )  # numpy comes with it, and the help of other verbs does without

        return text.replace("LIVE", ", ".join(f"{scheme}://" for scheme in LIVE))


class Parser(argparse.ArgumentParser):
    """A parser with examples."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options, formatter_class=_Help)  # type: ignore[arg-type]


Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"
Verb: TypeAlias = "Parser | argparse._ActionsContainer"


OLDER = {
    ("config",): ("init",),
    ("releases",): ("records", "topics"),
    ("typical",): ("records", "--typical"),
    ("services",): ("demo", "--services"),
    ("ledger", "releases"): ("records",),
    ("ledger", "export"): ("ledger", "show"),
    ("ledger", "accept-older"): ("ledger", "verify", "--accept-older"),
}
"""Verbs under their older names, which stay."""


def with_newer_names(words: Sequence[str]) -> list[str]:
    """A command line with the newer name of its verb.

    >>> with_newer_names(["--quiet", "ledger", "releases", "--queries"])
    ['--quiet', 'records', '--queries']
    """
    at = next((at for at, word in enumerate(words) if not word.startswith("-")), 0)
    for older, newer in OLDER.items():
        if tuple(words[at : at + len(older)]) == older:
            return [*words[:at], *newer, *words[at + len(older) :]]
    return list(words)


def add_verb(
    verbs: Verbs,
    name: str,
    summary: str,
    module: str,
    package: str = "udp_stream.cli.commands",
    *,
    is_listed: bool = True,
) -> Parser:
    """A verb with the options of every verb; the function of its name in this module of the package
    runs it."""
    listed: dict[str, Any] = {"help": summary} if is_listed else {}
    description = summary[0].upper() + summary[1:] + "."
    parser = verbs.add_parser(name, description=description, **listed)
    parser.add_argument("--config", type=Path, metavar="TOML", help="configuration file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key"
    )

    def run(*given: object) -> None:
        verb = getattr(import_module(f"{package}.{module}"), name)
        gc.enable()
        verb(*given)

    parser.set_defaults(command=run, is_text=False)
    return parser


def _only_prints(parser: Parser) -> None:
    """A reader that closes the output early is no error."""
    parser.set_defaults(is_text=True)


def _option(parser: Verb, flag: str, metavar: str, about: str, **more: Any) -> None:
    parser.add_argument(flag, metavar=metavar, help=about, **more)


def _switch(parser: Verb, flag: str, about: str) -> None:
    parser.add_argument(flag, action="store_true", help=about)


def _files(parser: Parser, about: str, nargs: str = "*", metavar: str = "FILE") -> None:
    parser.add_argument("files", nargs=nargs, metavar=metavar, help=about)


def _ledger_option(
    parser: Parser, default: str = "ledger file or URL (default: ledger.url)"
) -> None:
    _option(parser, "--ledger", "FILE", default, type=ledger_place)


def _gtfs_option(parser: Parser, about: str) -> None:
    _option(parser, "--gtfs", "FILE", about)


def _span(parser: Parser) -> None:
    _option(parser, "--from", "TIME", "slots that start then or later, as 2026-10-01", dest="since")
    _option(parser, "--to", "TIME", "slots that start before, as 2026-10-01T06:00", dest="until")


def _of_long_runs(parser: Parser, *, has_metrics: bool = True) -> None:
    about = "touch this file while the process makes progress, for health checks"
    _option(parser, "--alive", "FILE", about, type=Path)
    if has_metrics:
        about = (
            "let Prometheus read metrics there, such as 127.0.0.1:9464; exact counts, also of what add-remove hides: "
            "for operators only"
        )
        _option(parser, "--metrics", "HOST:PORT", about, type=listening)


def _bootstrap(parser: Parser) -> None:
    _option(parser, "--bootstrap", "HOST:PORT", "address of Kafka (default: kafka.bootstrap)")


def positive(text: str) -> float:
    """A number above 0."""
    with suppress(ValueError):
        if 0 < float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0 and below 1e9, got {text!r}")


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers of that range."""

    def read(text: str) -> int:
        with suppress(ValueError):
            if least <= int(text) <= most:
                return int(text)
        raise argparse.ArgumentTypeError(
            f"expected a whole number, {least} to {most}, got {text!r}"
        )

    return read


_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([1-9][0-9]{0,4})")


def listening(text: str) -> tuple[str, int]:
    """A host and a port to listen on; the host is never left out, so that nobody listens to all by
    mistake."""
    match = _HOST_PORT.fullmatch(text)
    if match is None or int(match[3]) > 65_535:
        rule = "HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464, with a port of 1 to 65535"
        raise argparse.ArgumentTypeError(f"expected {rule}, got {text!r}")
    return match[1] or match[2], int(match[3])


def ledger_place(text: str) -> str:
    """A ledger has a name: it is neither nothing nor a standard stream."""
    from udp_stream.settings import NO_LEDGERS

    if text in NO_LEDGERS:
        raise argparse.ArgumentTypeError(
            f"expected a file or URL, got {repr(text) if text else 'nothing'}"
        )
    return text


def past(text: str) -> float:
    """Seconds ago."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds > parse_duration(AGO_MAX):
        raise argparse.ArgumentTypeError(f"expected 0s to {AGO_MAX}, got {text!r}")
    return seconds


def _init(verbs: Verbs) -> None:
    about = "write a configuration: for the feed of a recording, or the one in force"
    parser = add_verb(verbs, "init", about, "init")
    about = (
        "JSON or CSV of any form, GTFS-realtime (.pb); .gz; an hour is enough; several files of one form. "
        "Without: every key, its value and where it came from"
    )
    _only_prints(parser)
    _files(parser, about)
    _option(parser, "--out", "TOML", "a new file (default: stdout)", default="-")
    parser.epilog = """\
examples:
  udp-stream init monday.csv --out city.toml
  udp-stream init 1.pb 2.pb --out city.toml        polls that curl saved, a minute apart
  udp-stream init --config city.toml --set hat.resolution=8 > other.toml

Then: udp-stream replay monday.csv --config city.toml --trial --out first-try.ndjson
It finds the form of the messages, the zone, the unit of speed and a box around the city, and leaves U and epsilon at
public choices: they are yours to make. Nothing is charged or released.
Without a FILE, keys that are not set are comments, and a password in ledger.url is left out. Values come from the file
of --config, from variables UDP_STREAM_SECTION__KEY over it, and from --set over both. Status 3 if a key is unknown or
breaks a rule. `udp-stream doctor` checks whether the ledger and Kafka are there.
"""


def _replay(verbs: Verbs) -> None:
    parser = add_verb(
        verbs, "replay", "release the recorded pings of files, in one process", "replay"
    )
    _files(parser, "ndjson, JSON, CSV, GTFS-realtime (.pb); .gz; - for stdin", "+")
    about = "one release record a line (default: stdout); or .csv, .geojson, .parquet, and .gz, by suffix"
    _option(parser, "--out", "FILE", about, default="-")
    _ledger_option(parser)
    _switch(
        parser, "--dry-run", "read, count, warn and say what to expect; charge and write nothing"
    )
    _switch(parser, "--trial", "use a ledger for this run only; its records say so")
    about = 'where privacy.neighbours is "add-remove": release the slots that start then or later, as 2026-10-01'
    _option(parser, "--from", "TIME", about, dest="since")
    _option(
        parser, "--until", "TIME", "and before then, as 2026-10-01T06:00, with or without pings"
    )
    _option(
        parser,
        "--smoothed",
        "FILE",
        "smoothed estimates of every HAT and known cell, in the same forms",
    )
    _option(
        parser,
        "--queries",
        "FILE",
        "ask the configuration's [[query]]; their results, one a line, or .gz",
    )
    _option(parser, "--rejected", "FILE", "refused pings, one message a line, with the reason")
    _switch(parser, "--json", "print the summary as one JSON object, the last line of stderr")
    parser.epilog = """\
examples:
  udp-stream replay monday.ndjson.gz --trial --out first-try.ndjson
  udp-stream replay monday.ndjson.gz --ledger city.ledger --out releases.ndjson --smoothed estimates.ndjson
  zcat pings.ndjson.gz | udp-stream replay - --set hat.timezone=America/Chicago --set speed.max_kmh=115

The end of the last file closes every slot, so give all pings of a slot in one run. A second run on the same ledger
writes the same bytes and charges nothing. --trial is for first attempts: the next run draws every HAT again, so do not
publish its records beside others. The rejected file holds raw pings: guard it as you guard the feed.
"""


def _run(verbs: Verbs) -> None:
    parser = add_verb(
        verbs, "run", "release a live feed on one machine, without Kafka, until stopped", "run"
    )
    _option(
        parser, "source", "SOURCE", "a live source (LIVE), - for stdin, or a file as for replay"
    )
    _option(parser, "--every", "DURATION", "between polls of an address (default: live.every)")
    about = "release records, a line of JSON each, added to the file (default: stdout)"
    _option(parser, "--out", "FILE", about, default="-")
    _option(parser, "--smoothed", "FILE", "smoothed estimates, a line of JSON each")
    _option(parser, "--queries", "FILE", "ask the configuration's [[query]]; a result a line")
    _option(parser, "--rejected", "FILE", "refused pings, one message a line, with the reason")
    _ledger_option(parser)
    _option(
        parser,
        "--journal",
        "FOLDER",
        "what arrived, until it is released (default: LEDGER.journal)",
        type=Path,
    )
    _reset_clock(parser)
    _of_long_runs(parser)
    parser.epilog = """\
examples:
  udp-stream run https://example.org/vehicles.pb --ledger city.ledger --out releases.ndjson --set speed.unit=mps
  udp-stream run mqtts://mqtt.hsl.fi --config hsl.toml --out releases.ndjson
  udp-stream run amqps://broker.example.org/vhost --config city.toml --out releases.ndjson
  my-program | udp-stream run - --ledger city.ledger

Records are added to the files. Stop it (SIGTERM, Ctrl-C) or kill it at any moment, and start it again with the same
ledger: what had arrived is in the journal, and what was released is released once. Open slots wait in the journal. Only
one run can use a journal at a time. The last line of the log says what this run read and released.
"""


def _demo(verbs: Verbs) -> None:
    parser = add_verb(verbs, "demo", "try it on a synthetic fleet like Surat's", "demo")
    _switch(parser, "--headless", "run as fast as it can, print a summary and exit")
    _switch(
        parser, "--kafka", "use a real Kafka, a real Redis and two workers, started for this run"
    )
    about = "only start a real Kafka and Redis, for other verbs and tests, until stopped"
    _switch(parser, "--services", about)
    _option(parser, "--slots", "N", "how many slots (default: 3)", type=whole(1, 10_000), default=3)
    _option(
        parser,
        "--buses",
        "N",
        "size of the fleet (default: 400)",
        type=whole(1, BUSES_MAX),
        default=400,
    )
    _option(
        parser, "--out", "FILE", "one release record a line; or another form by suffix, as replay"
    )
    _ledger_option(parser, "keep the ledger there (default: for this run only; records say trial)")
    parser.epilog = """\
examples:
  udp-stream demo                                  on a terminal: a page in the browser, until stopped
  udp-stream demo --headless
  udp-stream demo --headless --slots 2 --set hat.slot=1h --set hat.resolution=7 --out releases.ndjson
  udp-stream demo --kafka --slots 1                needs the extra [services]
  udp-stream demo --services                       the same extra

--services prints KAFKA_BOOTSTRAP=HOST:PORT, for kafka.bootstrap, and REDIS_URL=redis://HOST:PORT/0, for ledger.url.
The tests read variables of these names. The data of both is deleted when they end.
"""


def _plan(verbs: Verbs) -> None:
    parser = add_verb(verbs, "plan", "what to expect of a configuration; charges nothing", "plan")
    _files(
        parser,
        "recorded pings: resolutions and slots side by side, from counts; several are counted together",
    )
    sizes = parser.add_argument_group("without a FILE: HATs of typical sizes")
    _option(sizes, "--plates", "N", "plates in a typical HAT", type=whole(1, 100_000))
    _option(sizes, "--pings-per-plate", "N", "(default: 40)", type=whole(1, 1_000_000))
    _only_prints(parser)
    parser.epilog = """\
examples:
  udp-stream plan monday.ndjson.gz --config city.toml
  udp-stream plan polls/*.pb --config city.toml    several files, counted together
  udp-stream plan --plates 30 --pings-per-plate 40 --set release.mean_epsilon=1

With a FILE it counts where and when plates pinged. It invents speeds on these counts, releases them, and measures the
error; the file's speeds are not in it. What your city's error will be may differ: on the recorded feeds most rows were
within 30 %. At the end it compares what may be hidden: speeds (swap-values) or whole plates (add-remove).
"""


def _reproduce(verbs: Verbs) -> None:
    about = "compute the papers' figures and tables, and say what agrees"
    parser = add_verb(verbs, "reproduce", about, "reproduce", "lab", is_listed=False)
    about = (
        "mean-itms, sample-scaling, user-scaling, variance, chop-user, worst-case, cdf-trees (default: all of these); "
        "savings-range, savings-kde, savings-knn, multi-query, threshold, which take long"
    )
    _option(parser, "names", "NAME", about, nargs="*")
    about = "a recorded feed, with its own values of keys; repeat for more feeds"
    feed = "FILE[,SECTION.KEY=VALUE...]"
    _option(parser, "--data", feed, about, action="append", default=[])
    about = "the papers' data, if you have them: T-Drive (a folder), NYMVC, MNIST's images; repeat for more"
    _option(parser, "--theirs", "PATH", about, action="append", default=[])
    about = "as many points as the papers have, and repetitions for ten minutes"
    _switch(parser, "--full", about)
    _option(parser, "--out", "DIR", "(default: reproduced)", type=Path, default=Path("reproduced"))
    about = "runs for each point (default: 10000)"
    _option(parser, "--repetitions", "N", about, type=whole(1, 1_000_000), default=10_000)
    parser.epilog = """\
examples:
  udp-stream reproduce user-scaling --out figures
  udp-stream reproduce mean-itms --data surat.ndjson.gz --data austin.csv,speed.max_kmh=115,hat.timezone=US/Central
  udp-stream reproduce savings-range threshold --data austin.csv --repetitions 100

HATs are the papers' (H3 7, 1 h) unless --set or a feed's keys say otherwise. Needs the extra [plots].
Results for recorded feeds are not private: they contain true means, and errors against them.
"""


def _ledger_verb(inner: Verbs, name: str, about: str, example: str, module: str) -> Parser:
    parser = add_verb(inner, name, about, module)
    _ledger_option(parser)
    parser.epilog = f"examples:\n  udp-stream ledger {name} {example}\n"
    return parser


def _ledger(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "ledger", help="inspect what plates were charged", description="Inspect a ledger."
    )
    inner = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=Parser)
    about = "what a plate was charged and has left, by period; or the statement of the deployment"
    show = _ledger_verb(inner, "show", about, "GJ05ZZ0001 --ledger city.ledger", "ledger")
    about = "without: a privacy statement of the deployment, as JSON"
    show.add_argument("plate", metavar="PLATE", nargs="?", help=about)
    about = "recompute every balance from the entries"
    verify = _ledger_verb(inner, "verify", about, "--ledger redis://ledger:6379/0", "ledger")
    about = "continue with a ledger that was restored from an older copy; without --saying it prints what is forgotten"
    _switch(verify, "--accept-older", about)
    about = "the words about what is forgotten, as --accept-older prints them"
    _option(verify, "--saying", "WORDS", about)
    about = "move budget periods that are over into a file of their own"
    example = "--ledger city.ledger --before 2026-10-01"
    archive = _ledger_verb(inner, "archive", about, example, "records")
    about = "nothing before is charged or drawn any more"
    _option(archive, "--before", "DATE", about, required=True)
    about = "a new file (default: the ledger's name and the date, here for a Redis)"
    _option(archive, "--out", "FILE", about)
    about = "mark records as withdrawn, in public and for ever"
    example = "--ledger city.ledger --from 2026-10-01 --to 2026-10-08 --reason 'speeds were in mph'"
    withdraw = _ledger_verb(inner, "withdraw", about, example, "records")
    withdraw.add_argument("ids", nargs="*", metavar="ID", help="release_id of a record")
    _span(withdraw)
    about = "only of this cell; repeatable"
    _option(withdraw, "--cell", "CELL", about, action="append", default=[])
    about = "an archive that was moved; repeatable"
    _option(withdraw, "--archive", "FILE", about, action="append", default=[])
    _option(withdraw, "--reason", "TEXT", "why; readers see it", required=True)
    _switch(withdraw, "--dry-run", "print what would be withdrawn; change nothing")
    _only_prints(show)
    statement = "  udp-stream ledger show --ledger city.ledger > statement.json\n"
    parser.epilog = f"{show.epilog}{statement}"


def _records(verbs: Verbs) -> None:
    about = "print records of files, of a ledger or of Kafka; or the typical week"
    parser = add_verb(verbs, "records", about, "records")
    about = (
        "lines of JSON that `run` or `replay` wrote, - for stdin; a ledger, as a file or URL; or topics, for those "
        "on Kafka (default: ledger.url)"
    )
    _files(parser, about, metavar="SOURCE")
    _ledger_option(parser)
    _bootstrap(parser)
    _span(parser)
    kinds = parser.add_mutually_exclusive_group()
    about = "the smoothed estimates of every HAT instead; of a ledger, made anew"
    _switch(kinds, "--smoothed", about)
    _switch(kinds, "--queries", "the answers of standing queries instead")
    about = "instead, from files: usual speeds by cell, class of day and hour"
    _switch(kinds, "--typical", about)
    _switch(parser, "--follow", "of topics: wait for further records, until stopped")
    about = "a file, .csv, .geojson or .parquet by suffix (default: lines of JSON on stdout)"
    _option(parser, "--out", "FILE", about, default="-")
    _gtfs_option(
        parser, "of --typical: the city's timetable, for the names of places (dashboard.gtfs)"
    )
    _only_prints(parser)
    parser.epilog = """\
examples:
  udp-stream records city.ledger --from 2026-10-01 --to 2026-10-02T06:00 > releases.ndjson
  udp-stream records releases.ndjson --out releases.csv
  udp-stream records topics --bootstrap kafka:9092 --follow
  udp-stream records topics --smoothed > estimates.ndjson
  udp-stream records releases.ndjson estimates.ndjson --typical --gtfs gtfs.zip --out week.csv
  udp-stream records releases.ndjson --typical --out week.geojson --set 'dashboard.holidays=["2024-01-26"]'

Records of a ledger and of Kafka are byte for byte as published. A typical week costs no budget: low_kmh to high_kmh is
a 95 % interval; on so many days the cell was released in that hour; changed is the day from which on a street is
another, if there is one.
"""


def _topics(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "topics", help="make the topics of the deployment", description="The topics on Kafka."
    )
    inner = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=Parser)
    create = add_verb(inner, "create", "make the topics that are missing", "kafka")
    create.epilog = parser.epilog = """\
examples:
  udp-stream topics create
  udp-stream topics create --set kafka.bootstrap=kafka:9092 --set kafka.partitions=16
"""


def _reset_clock(parser: Verb) -> None:
    _switch(
        parser,
        "--reset-clock",
        "once: a log's clock that is ahead goes back to this machine's; no charge is lost",
    )


def _worker(verbs: Verbs) -> None:
    parser = add_verb(verbs, "worker", "run a worker of the deployment on Kafka", "kafka")
    _option(
        parser,
        "--instance",
        "NAME",
        "permanent name of this worker; after a restart it continues at once",
    )
    _switch(
        parser,
        "--accept-loss",
        "continue even if the topics no longer hold all the data that is needed",
    )
    _reset_clock(parser)
    _switch(
        parser,
        "--hold",
        "stay, instead of ending with 2, 3, 5 or 6: for a supervisor that restarts whatever ends",
    )
    _of_long_runs(parser)
    parser.epilog = """\
examples:
  udp-stream worker --config city.toml --instance worker-1 --metrics 127.0.0.1:9464
  udp-stream worker --set ledger.url=redis://ledger:6379/0 --set kafka.bootstrap=kafka:9092

Start as many as you like, on any machines, with one ledger and one key file. You may kill any of them at any time.
"""


def _feed(verbs: Verbs) -> None:
    parser = add_verb(
        verbs, "feed", "send pings to Kafka: files, a live source or a synthetic fleet", "kafka"
    )
    _files(
        parser,
        "files as for replay; - for stdin; or one live source (LIVE), until stopped",
        metavar="SOURCE",
    )
    _bootstrap(parser)
    about = "instead of files: a synthetic fleet, from now on, until stopped"
    _option(parser, "--fleet", "BUSES", about, type=whole(1, BUSES_MAX))
    _option(
        parser,
        "--ago",
        "DURATION",
        "how long ago the fleet started (default: 0s)",
        type=past,
        default="0s",
    )
    _of_long_runs(parser, has_metrics=False)
    pace = parser.add_mutually_exclusive_group()
    _option(pace, "--rate", "N", "messages a second (default: as fast as it can)", type=positive)
    _option(pace, "--speedup", "N", "N times as fast as the pings' own times", type=positive)
    about = "pings in an array; only this number limits it (default: 1)"
    _option(parser, "--batch", "N", about, type=whole(1, 10_000), default=1)
    parser.epilog = """\
examples:
  udp-stream feed pings.ndjson.gz --bootstrap localhost:9092 --speedup 60
  udp-stream feed https://example.org/vehicles.pb --set live.every=10s --set speed.unit=mps
  udp-stream feed --fleet 300 --ago 30m
"""


def _dashboard(verbs: Verbs) -> None:
    parser = add_verb(
        verbs, "dashboard", "show released records in a browser, until stopped", "dashboard"
    )
    _files(
        parser,
        "lines of JSON that `run` or `replay` writes (--out, --smoothed); they may grow (default: Kafka)",
    )
    _gtfs_option(
        parser, "the city's timetable, a zip or a folder, for names and lines (dashboard.gtfs)"
    )
    parser.epilog = """\
examples:
  udp-stream dashboard releases.ndjson estimates.ndjson --gtfs gtfs.zip
  udp-stream dashboard --config city.toml          from the topics of [kafka]
  udp-stream dashboard releases.ndjson --set dashboard.listen=0.0.0.0:8321

It reads released records and nothing else: no ledger, no key, no ping. Needs the extra [dashboard].
"""


def _status(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "status",
        "say what the deployment is doing: workers, lag, last slot, ledger",
        "status",
    )
    _switch(parser, "--json", "one JSON object instead of a page")
    _ledger_option(parser)
    _option(
        parser,
        "--journal",
        "FOLDER",
        "of a live `run` (default: LEDGER.journal, if it is there)",
        type=Path,
    )
    _bootstrap(parser)
    parser.epilog = """\
examples:
  udp-stream status --config city.toml
  udp-stream status --config city.toml --json
  udp-stream status --ledger city.ledger

On Kafka (--bootstrap, or where the ledger has no journal) it asks the consumer group and reads the last releases;
otherwise it reads the journal of a `run`. The page has exact counts, no noise: it is for operators, not for readers of
releases. It holds no plate, no speed and no position.

exit status: 0 all is well; 3 the workers' settings differ from each other; 4 the broker or the ledger does not answer,
no worker or run goes on, or a partition has none; 5 the ledger is refused. If several apply, the highest is returned.
"""


def _doctor(verbs: Verbs) -> None:
    parser = add_verb(
        verbs, "doctor", "check that everything is reachable and safely configured", "doctor"
    )
    _files(parser, "check speed.unit by these pings, instead of Kafka's")
    _ledger_option(parser)
    _gtfs_option(parser, "also check that this timetable, a zip or a folder, can be read")
    parser.epilog = """\
examples:
  udp-stream doctor --config city.toml
  udp-stream doctor pings.ndjson.gz --ledger city.ledger --gtfs gtfs.zip

Checks the configuration, the ledger and its key, the durability of a Redis, and the topics' settings. Checks whether
the latest pings move as fast as they report, which tells kmh, mps and mph apart, and whether the running workers have
the settings of this configuration. Changes nothing. Prints one line for each check: ok, FAIL, or unknown where it could
not be made. The exit status is that of the first failure; unknown is none. The verdict on speed.unit uses raw speeds:
it is no release.
"""


VERBS = (
    _init,
    _replay,
    _run,
    _demo,
    _plan,
    _records,
    _dashboard,
    _ledger,
    _topics,
    _worker,
    _feed,
    _status,
    _doctor,
    _reproduce,
)
"""The last is the lab's: `python -m lab`."""


def program() -> Parser:
    """The parser of the whole command line."""
    about = "Continual, user-level differentially private bus speeds."
    parser = Parser(prog="udp-stream", description=about, epilog=EXAMPLES)
    parser.add_argument("-V", "--version", action="version", version=f"udp-stream {__version__}")
    parser.add_argument(
        "--quiet", action="store_true", help="before the verb: print results and errors only"
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for add in VERBS:
        add(verbs)
    return parser
