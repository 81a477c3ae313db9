"""Live sources hand on what they have: pipes within a second, in every form; the thread between
source and keeper."""

import gzip
import os
import sys
import threading
import time

import pytest

from udp_stream.base.errors import UsageError
from udp_stream.settings import Settings
from udp_stream.sources.files import prompt_messages, read_messages
from udp_stream.sources.live import ConnectedSource, Handover, SourceFailure
from udp_stream.sources.opening import PipeSource

LINES = [b'{"license_plate": "A%d", "speed": %d}' % (number, number) for number in range(5)]
HEADER = b"license_plate,observationDateTime,speed,location.coordinates"
ROWS = [b'A%d,2022-01-01T10:10:35Z,%d,"[72.5, 21.25]"' % (number, number) for number in range(3)]


def prompt(*blocks):
    return [one for form, some in prompt_messages("-", iter(blocks)) for one in form.as_json(some)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10**6])
@pytest.mark.parametrize(
    "data",
    [
        b"\n".join(LINES), b"\n".join(LINES) + b"\n", b"\xef\xbb\xbf" + LINES[0], b"\n\n" + b"\n\n".join(LINES), b"",
        b"[" + b", ".join(LINES) + b"]", b'{"results": [\n' + b",\n".join(LINES) + b"]}\n", b"junk\n" + LINES[0],
        b"\n".join([HEADER, *ROWS]), b"\r\n".join([HEADER, *ROWS]) + b"\r\n", gzip.compress(b"\n".join(LINES)),
        b"[1,\n2", b"\n",
    ],
    ids=range(13),
)  # fmt: skip
def test_a_pipe_has_the_messages_that_a_file_has_however_it_is_cut(tmp_path, data, size):
    (tmp_path / "file").write_bytes(data)
    expected = [one for some in read_messages(str(tmp_path / "file")) for one in some]
    assert prompt(*(data[at : at + size] for at in range(0, len(data), size))) == expected


@pytest.mark.parametrize("lines", [LINES, [HEADER, *ROWS]])
def test_each_line_is_handed_on_before_the_next_is_there(lines):
    handed_on, asked = [], []

    def blocks():
        for line in lines:
            asked.append(len(handed_on))
            yield line + b"\n"

    for _, some in prompt_messages("-", blocks()):
        handed_on += some
    headers = lines[0] is HEADER
    assert asked == [max(0, number - headers) for number in range(len(lines))]


class Pipe:
    def __init__(self, monkeypatch):
        read, self.write_end = os.pipe()
        self.file = os.fdopen(read)
        monkeypatch.setattr(sys, "stdin", self.file)

    def write(self, data):
        os.write(self.write_end, data)

    def end(self):
        if self.write_end >= 0:
            os.close(self.write_end)
        self.write_end = -1


@pytest.fixture
def pipe(monkeypatch):
    made = Pipe(monkeypatch)
    yield made
    made.end()
    made.file.close()


def taken(handover, count):
    found = []
    while len(found) < count:
        found += [one for frame in handover.take(5) for one in frame]
    return found


def test_what_is_written_into_a_slow_pipe_does_not_wait_for_more(pipe):
    with Handover(PipeSource()) as handover:
        for line in LINES[:3]:
            pipe.write(line + b"\n")
            assert taken(handover, 1) == [line]
        pipe.write(LINES[3] + b"\n" + LINES[4])
        assert taken(handover, 1) == [LINES[3]]
        pipe.end()
        assert taken(handover, 1) == [LINES[4]]
        handover.take()
        assert handover.ended


class Numbers:
    """A source that counts, fails if it is to, and remembers what was kept."""

    unit = None

    def __init__(self, frames=10**9, size=1, error=None):
        self.frames, self.size, self.error = frames, size, error
        self.given, self.was_kept, self.stopped, self.closed = 0, [], threading.Event(), False

    def messages(self):
        while self.given < self.frames and not self.stopped.is_set():
            self.given += 1
            yield [b"%d" % self.given] * self.size
        if self.error:
            raise self.error

    def kept(self, frames):
        self.was_kept.append(frames)

    def stop(self, wait=True):  # noqa: ARG002 (the protocol)
        self.stopped.set()

    def close(self):
        self.closed = True


def test_frames_come_in_order_and_only_taken_ones_count_as_kept():
    source = Numbers(7)
    with Handover(source) as handover:
        found = []
        while not handover.ended:
            found += handover.take()
            handover.kept()
    assert found == [[b"%d" % number] for number in range(1, 8)]
    assert source.was_kept[-1] == 7 and source.was_kept == sorted(source.was_kept) and source.closed


def test_what_a_source_raises_is_raised_behind_all_that_it_gave():
    source = Numbers(3, error=UsageError("the line went dead"))
    found = []
    with pytest.raises(UsageError, match="went dead"), Handover(source) as handover:
        while True:
            found += handover.take()
    assert len(found) == 3 and source.closed


def test_a_source_waits_while_its_messages_are_not_taken():
    source = Numbers(size=10)
    with Handover(source, messages_max=100) as handover:
        while source.given < 10:
            time.sleep(0.001)
        assert not source.stopped.wait(0.1) and source.given <= 11
        assert sum(map(len, handover.take())) >= 100
        while source.given < 20:
            time.sleep(0.001)
    assert source.closed


class TwoConnections(ConnectedSource):
    """The first is lost before what it gave is acknowledged; in the second messages have the same
    numbers again."""

    def __init__(self):
        super().__init__("broker", Settings(), lambda _: None)
        self.script, self.acknowledged = (
            [[(1, b"{}")], [(2, b"[]")], SourceFailure("is gone"), [(1, b"{ }")], []],
            [],
        )

    def open(self):
        pass

    def read(self):
        if not self.script:
            self.stop()
            return []
        step = self.script.pop(0)
        if isinstance(step, SourceFailure):
            raise step
        return step

    def acknowledge(self, ids):
        self.acknowledged.append(ids)


def test_numbers_of_a_lost_connection_are_not_acknowledged_in_the_next_one():
    source = TwoConnections()
    for frames, _ in enumerate(source.messages(), 1):
        source.kept(0 if frames < 3 else frames)
    assert frames == 3 and source.acknowledged == [[1]]
