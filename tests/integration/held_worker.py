"""`udp-stream worker` with seconds of drain: main(DRAIN_S, HANGS, *WORDS). With HANGS it never
closes its shards."""

import asyncio

from streams import worker
from streams.processors import ShardProcessor
from udp_stream.cli.main import main as program


async def never(_self):
    await asyncio.Event().wait()


def main(drain_s, hangs, *words):
    worker.DRAIN_S = float(drain_s)
    if hangs:
        ShardProcessor.close = never
    return program(words)
