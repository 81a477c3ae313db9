"""A worker with one part broken on purpose, for tests alone: python broken_worker.py FAULT worker ...

It shows that the checks after chaos see what they are there to see.
"""

import sys

from udp_stream.adapters import redis_ledger, redis_steps
from udp_stream.adapters.cli import main
from udp_stream.reading import Frontier, SourceReader


def last_writer_wins() -> None:
    """A ledger that keeps the last payload of an id, whoever sends it."""
    kept, given = "KEYS[3 + 2 * i]", "ARGV[3 + 2 * i]"
    _rewrite(
        "record",
        ("  if payload then", "  if false then"),
        ("  refused = stale()", "  refused = nil"),
        (f"redis.call('SETNX', {kept}, {given}) == 1", f"redis.call('SET', {kept}, {given})"),
    )


def charges_again() -> None:
    """A ledger that does not look whether it was asked before."""
    _rewrite("admit", ("if known then return {'known', known} end", ""))


def commits_what_is_read() -> None:
    """Offsets as Faust's acks would have them: past the pings of open slots."""

    def frontier(self: SourceReader) -> Frontier:
        return Frontier(self.next_offset, self._clock.now_ms, self.next_offset)

    SourceReader.frontier = frontier  # type: ignore[method-assign]


def _rewrite(name: str, *changes: tuple[str, str]) -> None:
    scripts = redis_steps.load_scripts()
    texts = {each: script.text for each, script in scripts.items()}
    for sound, broken in changes:
        assert texts[name].count(sound) == 1, sound
        texts[name] = texts[name].replace(sound, broken)
    rewritten = redis_steps.scripts_of(texts)
    redis_ledger.load_scripts = lambda: rewritten  # type: ignore[assignment]


if __name__ == "__main__":
    {fault.__name__: fault for fault in (last_writer_wins, charges_again, commits_what_is_read)}[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
