"""The synthetic fleet as of now: on time, without end, at any hour; and a sign of life, seldom and
in time."""

import json
from datetime import datetime
from itertools import islice

import numpy as np

from udp_stream.sources import fleet
from udp_stream.sources.fleet import live_messages

MIDNIGHT = datetime.fromisoformat("2030-05-01T00:30:00+05:30").timestamp()


class Clock:
    def __init__(self, monkeypatch):
        self.time = MIDNIGHT
        monkeypatch.setattr(fleet.time, "time", self)
        monkeypatch.setattr(fleet.time, "sleep", self.sleep)

    def __call__(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


def times(messages):
    """Unix times of those messages that tell one in our century's first half."""
    for message in messages:
        try:
            told = datetime.fromisoformat(json.loads(message)["observationDateTime"])
        except (ValueError, KeyError):
            continue
        if told.tzinfo and told.year < 2060:
            yield told.timestamp()


def test_buses_drive_at_midnight_and_their_pings_come_within_seconds_or_a_known_delay(monkeypatch):
    clock, lags = Clock(monkeypatch), []
    for messages in islice(live_messages(30), 2000):
        lags += [clock.time - told for told in times(messages)]
    assert (
        len(lags) > 30 * (clock.time - MIDNIGHT) / 10 / 3
    )  # a ping every ten seconds, if less at stops
    assert min(lags) >= 0
    assert np.median(lags) < 30 and sorted(lags)[int(0.98 * len(lags))] < 65


def test_the_past_comes_at_once_and_then_the_present_at_its_pace(monkeypatch):
    clock = Clock(monkeypatch)
    source = live_messages(30, ago_s=600)
    past = next(source)
    assert clock.time == MIDNIGHT
    assert MIDNIGHT - 601 < min(times(past)) < MIDNIGHT - 580 and len(past) > 600
    later = [message for messages in islice(source, 40) for message in messages]
    assert 0 < len(later) < len(past) / 10 and clock.time > MIDNIGHT + 5
