"""The command line `udp-stream`: data on stdout, everything else on stderr, an exit status for each
kind of trouble."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from udp_stream.base.errors import DependencyUnavailable, UdpStreamError
from udp_stream.base.logs import (
    ERROR,
    begin_log,
    end_log,
    fault,
    log_errors_only,
    log_message,
    trouble_of,
)
from udp_stream.cli.parsers import program, with_newer_names
from udp_stream.cli.process import STANDARD_OUTPUT, let_go_of_stdout, use_standard_streams

OPTIONS = {"bootstrap": "kafka.bootstrap", "every": "live.every", "ledger": "ledger.url"}

OUTPUT_CLOSED = 141  # as a shell reports SIGPIPE; a verb that only prints ends with 0


class Termination(SystemExit):
    """SIGTERM has arrived: stop where nothing is half done. No `except Exception` on its way takes
    it, nor does a loop of asyncio, whose callbacks may be under way in a client of Kafka."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    use_standard_streams()
    arguments = argparse.Namespace(is_text=False, hold=False, came=[])
    gc.disable()  # what is imported stays: a verb begins with it again
    try:
        words = sys.argv[1:] if argv is None else argv
        program().parse_args(with_newer_names(words), arguments)
        log_errors_only(arguments.quiet)
        begin_log(as_json=False)  # of libraries no message is written, in any verb
        signal.signal(signal.SIGTERM, _drain)
        from udp_stream.settings import load  # numpy comes with it, and `--help` does without

        asked = {key: getattr(arguments, option, None) for option, key in OPTIONS.items()}
        options = {key: value for key, value in asked.items() if value is not None}
        arguments.command(arguments, load(arguments.config, arguments.set, options=options))
        # Here, where a full disk or a closed pipe still gets a status; later it would be lost.
        sys.stdout.flush()
    except Termination:
        return 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError as error:
        if error.filename in (None, STANDARD_OUTPUT):  # no alarm: `| head` has what it asked for
            return 0 if arguments.is_text else OUTPUT_CLOSED
        return _fail(DependencyUnavailable(f"{error.filename}: its reader has closed it"))
    except UdpStreamError as error:
        status = _fail(error)
        if arguments.hold:
            from udp_stream.cli.commands.kafka import hold

            hold(arguments, error)
        return status
    except OSError as error:  # a full disk, a file taken away: of the machine, not of ours
        return _fail(DependencyUnavailable(trouble_of(error)))
    except Exception as error:  # noqa: BLE001 (it ends the process; Python would print its text, which may quote a ping)
        return _fail(UdpStreamError(f"a fault of this program: {fault(error)}"))
    finally:
        gc.enable()
        end_log()
        log_errors_only(False)  # whoever called it goes on
        let_go_of_stdout()
    return 0


def _fail(error: UdpStreamError) -> int:
    log_message(str(error), "failed", {"status": error.exit_status}, ERROR)
    return error.exit_status


def _drain(_signal: int, _frame: FrameType | None) -> None:
    raise Termination
