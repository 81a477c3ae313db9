"""A worker whose noise follows from a seed, for tests alone: python seeded_worker.py CONFIG SEED INSTANCE."""

import sys
from pathlib import Path

from streams.worker import Deployment, run_worker
from udp_stream.adapters.settings import load
from udp_stream.testing import SeededEntropy


def main(config: str, seed: str, instance: str) -> None:
    run_worker(Deployment(load(Path(config), (), {}), SeededEntropy(seed), "udp-stream test", instance=instance))


if __name__ == "__main__":
    main(*sys.argv[1:])
