"""The long run: `python -m tests.chaos --kills 300`, as `make chaos` does. Status 1 if anything was
violated."""

import argparse
import gzip
import random
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from tests.chaos.city import (
    AMPLE,
    AUTOMATIC,
    FORECASTS,
    IN_RHO,
    REPLICATED,
    SCARCE,
    SHARED,
    SHARED_CLIPS,
    ground,
)
from tests.chaos.run import play, synthetic_day

PROFILES = {
    "forecasts": FORECASTS, "ample": AMPLE, "replicated": REPLICATED, "scarce": SCARCE, "shared": SHARED,
    "automatic": AUTOMATIC, "in-rho": IN_RHO, "shared-clips": SHARED_CLIPS,
}  # fmt: skip


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # so that nothing of ours is left running
    asked = _arguments()
    dice, kills, rounds, total, failed = random.Random(asked.seed), 0, 0, Counter(), []
    profiles = [PROFILES[name] for name in asked.profile or PROFILES]
    print(f"seed {asked.seed}", flush=True)
    while kills < asked.kills:
        profile, seed = profiles[rounds % len(profiles)], dice.randrange(2**32)
        messages = synthetic_day(seed, asked.buses)
        if asked.feed and (rounds + rounds // len(profiles)) % 2:
            messages = gzip.decompress(asked.feed.read_bytes()).splitlines()
            profile = replace(
                profile,
                name=f"{profile.name}, {asked.feed.name}",
                timezone=asked.zone,
                max_kmh=115.0,
            )
        folder = Path(mkdtemp(prefix="udp-stream-chaos-", dir=asked.folder))
        with ground(profile.replicas) as on:
            done = play(on, folder, messages, profile, seed=seed, seconds=asked.seconds)
        print(f"{done.told()}\n  kept in {folder}", flush=True)
        kills, rounds, total = kills + done.kills, rounds + 1, total + done.done
        failed += done.violations
    told = ", ".join(f"{name} {times}" for name, times in sorted(total.items()))
    print(f"{rounds} rounds, {kills} kills ({told}): {len(failed)} violations")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=300, help="of serving workers, in all (default: 300)"
    )
    parser.add_argument("--seconds", type=float, default=240, help="of a round (default: 240)")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(2**32),
        help="(default: a new one)",
    )
    parser.add_argument("--buses", type=int, default=60, help="of the made-up fleet (default: 60)")
    parser.add_argument(
        "--profile",
        action="append",
        choices=PROFILES,
        help="repeat for more (default: all in turn)",
    )
    parser.add_argument(
        "--feed", type=Path, help="a recorded day (ndjson.gz) for every other round"
    )
    parser.add_argument("--zone", default="America/Chicago", help="of the recorded day")
    parser.add_argument(
        "--folder", type=Path, help="where to keep configurations and logs (default: temporary)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
