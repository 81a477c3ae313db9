"""Times read as columns are the times that msgspec reads, one by one."""

from __future__ import annotations

import datetime
import random

import msgspec
import pytest

from udp_stream.pings.times import NO_OFFSET, NO_TIME, READ, parse_timestamps

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def read_by_msgspec(text: str) -> tuple[int, int]:
    try:
        moment = msgspec.convert(text, datetime.datetime)
    except msgspec.ValidationError:
        return 0, NO_TIME
    utc = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    status = READ if moment.tzinfo else NO_OFFSET
    return (utc - EPOCH) // datetime.timedelta(milliseconds=1), status


def any_text(rng: random.Random) -> str:
    year = rng.choice([rng.randrange(10_000), rng.randrange(1990, 2110), 0, 1, 1900, 2000, 9999])
    date = f"{year:04}-{rng.choice([2, rng.randrange(14)]):02}-{rng.choice([28, 29, 30, 31, rng.randrange(33)]):02}"
    time = f"T{rng.randrange(25):02}:{rng.randrange(61):02}:{rng.randrange(61):02}"
    fraction = rng.choice(["", "", ".5", ".123", ".123456", ".9999999"])
    offset = rng.choice(
        [
            "Z",
            "+05:30",
            "-05:30",
            "+23:59",
            "+24:00",
            "+05:60",
            "-00:00",
            ",05:30",
            "z",
            "+0530",
            "",
        ]
    )
    text = date + time + fraction + offset
    if rng.random() < 0.1:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice("0 :T-+.é９/;,") + text[place + 1 :]
    return text


@pytest.mark.parametrize("size", [50, 1000])
def test_columns_and_msgspec_agree_on_mixed_and_on_uniform_batches(size: int) -> None:
    rng = random.Random(size)
    texts = [any_text(rng) for _ in range(40_000)]
    texts = texts[:20_000] + sorted(texts[20_000:], key=len)
    seen = set()
    for first in range(0, len(texts), size):
        batch = texts[first : first + size]
        time_ms, status = parse_timestamps(batch)
        expected = [read_by_msgspec(text) for text in batch]
        assert list(zip(time_ms.tolist(), status.tolist(), strict=True)) == expected
        seen |= set(status.tolist())
    assert seen == {READ, NO_TIME, NO_OFFSET}


def test_every_day_of_four_centuries_is_the_calendar_s() -> None:
    days = [datetime.date(1900, 1, 1) + datetime.timedelta(days=day) for day in range(400 * 366)]
    time_ms, status = parse_timestamps([f"{day}T00:00:00Z" for day in days])
    assert not status.any()
    assert (time_ms // 86_400_000).tolist() == [
        (day - datetime.date(1970, 1, 1)).days for day in days
    ]


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00.0019Z", 1),
        ("1969-12-31T23:59:59.9999Z", -1),
        ("1970-01-01T00:00:00.9999995Z", 1000),  # finer than a microsecond: rounded to one first
        ("1970-01-01T00:00:00.999999Z", 999),
        ("1970-01-01t05:30:00z", 19_800_000),
        ("1970-01-01 05:30:00+0530", 0),
    ],
)
def test_milliseconds_are_rounded_down(text: str, time_ms: int) -> None:
    for size in (1, 500):
        assert parse_timestamps([text] * size)[0].tolist() == [time_ms] * size
