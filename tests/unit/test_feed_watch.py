"""What a run that goes on says of wrong settings: once, and nothing that is protected."""

import json

import numpy as np
import pytest

from udp_stream.cli.preflight import RefusalWatch
from udp_stream.settings import load
from udp_stream.windows.clocks import LogPlaces
from udp_stream.windows.slots import ReadingRules, SourceCheckpoint, SourceReader

PLATE = "GJ05ZZ0001"


def message(speed=23.5, time="2024-01-08T10:00:05+05:30", at=(72.83, 21.19), minute=0, plate=PLATE):
    time = time.replace("10:00", f"10:{minute:02}") if isinstance(time, str) else time
    ping = {"license_plate": plate, "observationDateTime": time, "speed": speed,
            "location": {"type": "Point", "coordinates": list(at)}}  # fmt: skip
    return json.dumps(ping).encode()


class Watched:
    """A reader of a partition that is watched, and what was said of it."""

    def __init__(self, *flags):
        self.said, self.now_ms = [], 1_704_688_500_000
        settings = load(None, flags, {})
        self.watch = RefusalWatch(
            settings, lambda text, event, figures: self.said.append((event, text, figures))
        )
        rules = ReadingRules(
            settings.decoder, settings.window_rules, settings.calendar.slots, str.encode
        )
        self.reader, self.offset = SourceReader(rules, SourceCheckpoint(0)), 0

    def read(self, *messages, tick=False):
        count = len(messages)
        offsets = np.arange(self.offset, self.offset + count)
        now_ms = np.full(count, self.now_ms)
        self.watch.check(
            messages, self.reader.read(messages, LogPlaces(offsets, now_ms, np.full(count, tick)))
        )
        self.offset += count

    @property
    def events(self):
        return [event for event, _, _ in self.said]


def test_more_refused_than_accepted_is_said_once_with_the_mend():
    watched = Watched()
    for _ in range(40):
        watched.read(*[message(time=1704688205)] * 30)
    assert watched.events == ["refused"]
    _, text, figures = watched.said[0]
    assert "wrong_type at $.observationDateTime" in text and "epoch_s" in text
    assert figures == {"refused": {"wrong_type": 30}, "accepted": 0}
    assert PLATE not in text and "23.5" not in text


@pytest.mark.parametrize("speed", [-1, 1e9])
def test_no_value_of_a_speed_decides_whether_something_is_said(speed):
    watched = Watched()
    watched.read(*[message(speed=speed)] * 200)
    watched.watch.end()
    assert watched.events == [] and not watched.watch.accepted_nothing
