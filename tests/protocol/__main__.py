"""`make explore FAULTS=3`: every order with so many faults, to its end; how many states there were,
and of what."""

import argparse
import resource
import time

from tests.protocol.whole import Whole


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol", description=__doc__)
    parser.add_argument("--faults", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2, choices=(1, 2))
    parser.add_argument(
        "--reads", type=int, default=1, choices=(1, 2), help="2: sources send the slots one by one"
    )
    parser.add_argument(
        "--sources", type=int, default=2, choices=(1, 2), help="1: has all pings, on one partition"
    )
    parser.add_argument(
        "--many",
        action="store_true",
        help="the checkpoint is committed after publishing, not with it",
    )
    parser.add_argument(
        "--follows",
        action="store_true",
        help="each slot is planned after the one before is released",
    )
    args = parser.parse_args()
    whole = Whole(
        args.slots, args.reads, once=not args.many, follows=args.follows, sources=args.sources
    )
    found = whole.explore(args.faults, lambda text: print(text, flush=True))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{sum(found.states):,} states, {len(found.ends)} end, {time.process_time():.0f} CPU s, ",
        end="",
    )
    print(f"{usage.ru_maxrss // 1024:,} MB")


if __name__ == "__main__":
    main()
