"""A stage behind publishing fits: a toy one over what shards have published, on the same log as the planner's."""

from dataclasses import dataclass

from udp_stream.shuffle.barrier import SlotBarrier, SlotStage


@dataclass(frozen=True)
class Published:
    """A toy chunk: what one shard has published of a slot."""

    slot_start: int
    slot_end: int
    sender: int
    value: float
    digest: bytes = b"d"
    number: int = 0


@dataclass(frozen=True)
class PublishedEnd:
    """Its end marker."""

    sender: int
    through_ms: int
    slot_start: int | None
    digest: bytes = b"d"
    chunks: int = 1


def log(slots=2, shards=2):
    for slot in range(slots):
        for shard in range(shards):
            yield Published(slot * 10, slot * 10 + 10, shard, value=float(slot + shard))
            yield PublishedEnd(shard, slot * 10 + 10, slot * 10)


class Smoother:
    """Toy work: the running mean of all that was published, slot after slot."""

    def __init__(self, start=None):
        self.stage = SlotStage(SlotBarrier(Published, PublishedEnd, 2, start))

    def run(self, messages, first=0, until=None):
        out = []
        for offset, message in enumerate(messages):
            if offset >= first:
                self.stage.add(offset, message)
            while (due := self.stage.due()) is not None:
                start, chunks = due
                out.append((start, sum(one.value for one in chunks) / len(chunks)))
                self.stage.worked(start)
                if until == len(out):
                    return out  # died before its output was sent
                self.stage.sent()
        return out


def test_each_slot_is_worked_on_once_all_senders_have_ended_it():
    assert Smoother().run(log()) == [(0, 0.5), (10, 1.5)]


def test_a_crash_before_the_output_is_sent_repeats_the_work_and_nothing_else():
    first = Smoother()
    assert first.run(log(), until=2) == [(0, 0.5), (10, 1.5)]
    checkpoint = first.stage.checkpoint()
    assert checkpoint.offset == 4 and checkpoint.done_ms == 10
    assert Smoother(checkpoint).run(log(), first=checkpoint.offset) == [(10, 1.5)]
