"""The command line `udp-stream`: data on stdout, everything else on stderr, an exit status for each kind of trouble."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from udp_stream import __version__
from udp_stream.adapters.settings import NO_LEDGERS, Settings, load
from udp_stream.cli.stdio import let_go_of_stdout, use_standard_streams
from udp_stream.errors import DependencyUnavailable, UdpStreamError
from udp_stream.units import parse_duration

EXAMPLES = """\
examples:
  udp-stream demo --headless --slots 3             a synthetic fleet, no services, no files
  udp-stream replay pings.ndjson.gz --out releases.ndjson
  udp-stream plan --plates 30 --pings-per-plate 40 what a configuration buys
  udp-stream reproduce mean-itms --data pings.ndjson.gz
  udp-stream topics create && udp-stream worker    the deployment on Kafka
  udp-stream feed pings.ndjson.gz --bootstrap localhost:9092 --speedup 60
  udp-stream releases --follow                     what comes out of it
  udp-stream ledger show GJ05ZZ0001                what a plate has spent and has left
  udp-stream doctor                                is the deployment reachable and safe

exit status: 0 done; 1 our fault; 2 usage; 3 configuration invalid; 4 a dependency is unavailable;
5 refused to protect privacy; 130 interrupted
"""


LEDGER_EXAMPLES = (
    "udp-stream ledger show GJ05ZZ0001 --ledger city.ledger",
    "udp-stream ledger verify --ledger redis://ledger:6379/0",
    "udp-stream ledger export --ledger city.ledger > statement.json",
    "udp-stream ledger accept-older --ledger city.ledger        says what is forgotten; accepts nothing by itself",
)

OPTIONS = {"accept_overlap": "budget.accept_overlap", "bootstrap": "kafka.bootstrap", "ledger": "ledger.url"}
"""Options of verbs that are configuration keys by another name."""

BUSES_MAX = 100_000
SEED_MAX = 2**63 - 1
AGO_MAX = "31d"


class Drained(BaseException):
    """SIGTERM has arrived: stop where nothing is half done."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    use_standard_streams()
    try:
        arguments = _parser().parse_args(argv)
        signal.signal(signal.SIGTERM, _drain)
        command: Callable[[argparse.Namespace, Settings], None] = arguments.command
        command(arguments, load(arguments.config, arguments.set, options=_options(arguments)))
        sys.stdout.flush()
    except Drained:
        return 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _fail(DependencyUnavailable("the reader of our output has gone away"))
    except UdpStreamError as error:
        return _fail(error)
    except OSError as error:  # a full disk, a file taken away: of the machine, not of ours
        return _fail(DependencyUnavailable(f"{error.filename or 'a file'}: {error.strerror or error}"))
    finally:
        let_go_of_stdout()
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, str]:
    asked = {key: getattr(arguments, option, None) for option, key in OPTIONS.items()}
    return {key: value for key, value in asked.items() if value is not None}


def _fail(error: UdpStreamError) -> int:
    print(f"udp-stream: {error}", file=sys.stderr)
    return error.exit_status


def _drain(_signal: int, _frame: FrameType | None) -> None:
    raise Drained


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="udp-stream", description=__doc__.partition(":")[0] + ".", epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"udp-stream {__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    _replay(_verb(verbs, "replay", "recorded pings from files through the embedded runtime", "replay"))
    _demo(_verb(verbs, "demo", "a synthetic Surat-like fleet through the embedded runtime", "demo"))
    _plan(_verb(verbs, "plan", "what a configuration buys, from no data", "plan"))
    _reproduce(
        _verb(verbs, "reproduce", "the papers' figures and tables, with what agrees and what does not", "reproduce")
    )
    _ledger(verbs.add_parser("ledger", help="what plates have spent", description="Look into a ledger."))
    _topics(verbs.add_parser("topics", help="the topics of the deployment", description="The topics on Kafka."))
    _worker(_verb(verbs, "worker", "a worker of the deployment on Kafka", "worker"))
    _feed(_verb(verbs, "feed", "pings into Kafka, recorded ones or of a synthetic fleet", "feed"))
    _releases(_verb(verbs, "releases", "what the deployment on Kafka has released", "releases"))
    _doctor(_verb(verbs, "doctor", "is everything reachable and safely configured", "doctor"))
    _services(_verb(verbs, "services", "a real Kafka and Redis on this machine, for trials and tests", "services"))
    return parser


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: object) -> None:
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter)  # type: ignore[arg-type]


def _verb(verbs: argparse._SubParsersAction[_Parser], name: str, summary: str, module: str) -> _Parser:
    parser = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    parser.add_argument("--config", type=Path, metavar="TOML", help="configuration file")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one key")
    parser.set_defaults(command=_lazily(module, name))
    return parser


def _lazily(module: str, verb: str) -> Callable[[argparse.Namespace, Settings], None]:
    """Import a verb's code when it runs, so that `--help` and short verbs start fast."""

    def run(arguments: argparse.Namespace, settings: Settings) -> None:
        from importlib import import_module

        getattr(import_module(f"udp_stream.cli.commands.{module}"), verb.replace("-", "_"))(arguments, settings)

    return run


def _replay(parser: _Parser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="ndjson, JSON array or CSV; .gz of each; - for stdin")
    parser.add_argument("--out", metavar="FILE", default="-", help="one release record a line (default: stdout)")
    _ledger_options(parser, "ledger file or URL (default: ledger.url)")
    parser.add_argument("--trial", action="store_true", help="a ledger for this run only; its records say so")
    parser.add_argument("--rejected", metavar="FILE", help="what was refused, one message a line, with its reason")
    _accept_overlap(parser)
    parser.epilog = """\
examples:
  udp-stream replay monday.ndjson.gz --trial --out first-try.ndjson
  udp-stream replay monday.ndjson.gz tuesday.ndjson.gz --ledger city.ledger --out releases.ndjson
  zcat pings.ndjson.gz | udp-stream replay - --set hat.timezone=America/Chicago --set speed.max_kmh=115

The end of the last file closes every slot: give a slot's pings in one run. A second run on the same ledger writes the
same bytes and charges nothing. --trial is for first attempts: the next run draws every HAT again, so do not publish its
records beside others. The rejected file holds raw pings: guard it as you guard the feed.
"""


def _demo(parser: _Parser) -> None:
    parser.add_argument("--headless", action="store_true", help="run as fast as it can, print a summary and exit")
    parser.add_argument(
        "--kafka", action="store_true", help="through a real Kafka and Redis and two workers, started for this run"
    )
    parser.add_argument("--slots", type=_whole(1, 10_000), default=3, metavar="N", help="how many slots (default: 3)")
    parser.add_argument(
        "--buses", type=_whole(1, BUSES_MAX), default=400, metavar="N", help="size of the fleet (default: 400)"
    )
    parser.add_argument(
        "--seed",
        type=_whole(0, SEED_MAX),
        default=1,
        metavar="N",
        help="of the fleet's movements, never of the noise (default: 1)",
    )
    parser.add_argument("--out", metavar="FILE", help="one release record a line")
    _ledger_options(parser, "keep the ledger there (default: for this run only, and records say trial)")
    _accept_overlap(parser)
    parser.epilog = """\
examples:
  udp-stream demo --headless
  udp-stream demo --headless --slots 2 --set hat.slot=1h --set hat.resolution=7 --out releases.ndjson
  udp-stream demo --kafka --slots 1                needs pip install '.[services]'
"""


def _plan(parser: _Parser) -> None:
    parser.add_argument("--plates", type=_whole(1, 100_000), metavar="N", help="plates in a typical HAT")
    parser.add_argument("--pings-per-plate", type=_whole(1, 1_000_000), default=40, metavar="N", help="(default: 40)")
    parser.add_argument(
        "--hats-per-period",
        type=_whole(1, 1_000_000),
        default=12,
        metavar="N",
        help="HATs a plate visits (default: 12)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the worst case over the cap: .png or .svg")
    parser.epilog = """\
examples:
  udp-stream plan --set budget.epsilon=5
  udp-stream plan --plates 30 --pings-per-plate 40 --set release.mean_epsilon=1
  udp-stream plan --plates 30 --plot worst.svg     needs pip install '.[plots]'
"""


def _reproduce(parser: _Parser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="mean-itms, sample-scaling, user-scaling, variance, chop-user, worst-case (default: all)",
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="FILE[,SECTION.KEY=VALUE...]",
        help="a recorded feed, with the keys in which it differs; as often as wanted",
    )
    parser.add_argument("--out", type=Path, default=Path("reproduced"), metavar="DIR", help="(default: reproduced)")
    parser.add_argument(
        "--seed", type=_whole(0, SEED_MAX), default=1, metavar="N", help="of drawn data and noise (default: 1)"
    )
    parser.add_argument(
        "--repetitions", type=_whole(1, 1_000_000), default=10_000, metavar="N", help="of each point (default: 10000)"
    )
    parser.epilog = """\
examples:
  udp-stream reproduce user-scaling --out figures
  udp-stream reproduce mean-itms --data surat.ndjson.gz --data austin.csv,speed.max_kmh=115,hat.timezone=US/Central

HATs are the papers' (H3 7, 1 h) unless --set or a feed's keys say otherwise. Needs pip install '.[plots]'.
What comes out of recorded feeds is not private: true means, and errors against them.
"""


def _ledger(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=_Parser)
    show = _verb(verbs, "show", "what a plate has spent and has left, by period", "ledger")
    show.add_argument("plate", metavar="PLATE")
    verify = _verb(verbs, "verify", "recompute every balance from the entries", "ledger")
    export = _verb(verbs, "export", "a privacy statement of the deployment, as JSON", "ledger")
    older = _verb(verbs, "accept-older", "go on with a ledger that was restored from an older copy", "ledger")
    older.add_argument("--saying", metavar="WORDS", help="what is forgotten, in the words that this verb prints")
    for parsed, example in zip((show, verify, export, older), LEDGER_EXAMPLES, strict=True):
        _ledger_options(parsed, "ledger file or URL (default: ledger.url)")
        parsed.epilog = f"examples:\n  {example}\n"
    parser.epilog = "examples:\n" + "".join(f"  {example}\n" for example in LEDGER_EXAMPLES[:3])


def _ledger_options(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--ledger", type=_ledger_place, metavar="FILE", help=default)
    parser.add_argument(
        "--allow-volatile-ledger",
        action="store_true",
        help="for trials: accept a Redis that can lose writes, and with them the privacy statement",
    )


def _accept_overlap(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept-overlap",
        metavar="WORDS",
        help="charge in a budget period that overlaps one of another zone or length; WORDS are those of the refusal, "
        'such as "epsilon 20 in all", what a plate can lose then',
    )


def _topics(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", parser_class=_Parser)
    create = _verb(verbs, "create", "make the topics that are missing", "topics")
    _bootstrap(create)
    create.epilog = parser.epilog = """\
examples:
  udp-stream topics create
  udp-stream topics create --bootstrap kafka:9092 --set kafka.partitions=16
"""


def _worker(parser: _Parser) -> None:
    _bootstrap(parser)
    parser.add_argument("--instance", metavar="NAME", help="of this worker for ever: restarted, it goes on at once")
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="continue even if the topics no longer hold all the data that is needed",
    )
    _alive(parser)
    _ledger_options(parser, "ledger file or URL (default: ledger.url)")
    _accept_overlap(parser)
    parser.epilog = """\
examples:
  udp-stream worker --config city.toml --instance worker-1
  udp-stream worker --set ledger.url=redis://ledger:6379/0 --set kafka.bootstrap=kafka:9092

Start as many as wanted, on any machines, on one ledger and one key file; kill any of them at any time.
"""


def _feed(parser: _Parser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="as for replay; - for stdin")
    _bootstrap(parser)
    parser.add_argument(
        "--fleet",
        type=_whole(1, BUSES_MAX),
        metavar="BUSES",
        help="no files: a synthetic fleet, as of now, until stopped",
    )
    parser.add_argument(
        "--ago", type=_past, metavar="DURATION", default="0s", help="the fleet set out so long ago (default: now)"
    )
    _alive(parser)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=_positive, metavar="N", help="messages a second (default: as fast as it can)")
    pace.add_argument("--speedup", type=_positive, metavar="N", help="times the pings' own pace")
    parser.add_argument(
        "--batch",
        type=_whole(1, 10_000),
        default=1,
        metavar="N",
        help="pings in an array: cut by this number alone (default: 1)",
    )
    parser.epilog = """\
examples:
  udp-stream feed pings.ndjson.gz --bootstrap localhost:9092 --speedup 60
  udp-stream feed --fleet 300 --ago 30m
"""


def _doctor(parser: _Parser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="recorded pings to judge speed.unit by, and not Kafka")
    parser.add_argument("--ledger", type=_ledger_place, metavar="FILE", help="ledger file or URL (default: ledger.url)")
    _bootstrap(parser)
    parser.epilog = """\
examples:
  udp-stream doctor --config city.toml
  udp-stream doctor pings.ndjson.gz --ledger city.ledger

Checks the configuration; the ledger, its key, and whether a Redis would forget; the topics' settings; and whether the
latest pings move as fast as they report, which tells kmh, mps and mph apart. Changes nothing. One line for each check;
the exit status is that of the first failure. What it says of speeds is a verdict on raw speeds, not a release.
"""


def _releases(parser: _Parser) -> None:
    _bootstrap(parser)
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until stopped")
    parser.epilog = """\
examples:
  udp-stream releases > releases.ndjson
  udp-stream releases --bootstrap kafka:9092 --follow
"""


def _alive(parser: _Parser) -> None:
    parser.add_argument(
        "--alive", type=Path, metavar="FILE", help="touch this file while work goes on, for health checks"
    )


def _bootstrap(parser: _Parser) -> None:
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="of Kafka (default: kafka.bootstrap)")


def _services(parser: _Parser) -> None:
    parser.add_argument("--folder", type=Path, metavar="DIR", help="keep the data there (default: temporary)")
    parser.epilog = """\
examples:
  udp-stream services
  udp-stream services --folder trial-data
"""


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and below 1e9, got {text!r}")
    return number


def _whole(least: int, most: int) -> Callable[[str], int]:
    """What reads a whole number of that range."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number, {least} to {most}, got {text!r}")
        return number

    return read


def _ledger_place(text: str) -> str:
    """A ledger has a name: it is neither nothing nor a standard stream."""
    if text in NO_LEDGERS:
        raise argparse.ArgumentTypeError(f"expected a file or URL, got {repr(text) if text else 'nothing'}")
    return text


def _past(text: str) -> float:
    """Seconds ago."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds > parse_duration(AGO_MAX):
        raise argparse.ArgumentTypeError(f"expected 0s to {AGO_MAX}, got {text!r}")
    return seconds
