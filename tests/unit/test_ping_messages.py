"""A good ping in each form of the table `tests/feeds/messages.toml`: what means the same is the same
ping, a fault is refused where it is and costs no other ping, by every road."""

import json
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from udp_stream.pings.decode import PingDecoder, PingRules, originals
from udp_stream.pings.json import single_ping
from udp_stream.pings.snapshots import RepeatFilter
from udp_stream.settings.sections import SourceSection
from udp_stream.sources.files import prompt_messages, read_messages

TABLE = tomllib.loads((Path(__file__).parents[1] / "feeds" / "messages.toml").read_text())
ONE = 1641012035000, 72.5, 21.25, 51200


def rules_of(case):
    """The box ends at the good ping; a message has at most six pings."""
    preset = SourceSection(**case["source"]).unit
    return PingRules(
        unit=preset or "kmh",
        max_kmh=65,
        reject_above_kmh=200,
        box=(72.5, 21.0, 73.0, 21.25),
        max_pings_per_message=6,
    )


def made(case, plate="", field="", value=""):
    text = case["template"]
    values = case["values"] | ({field: value} if field else {})
    if value == "...":
        text = re.sub(rf'"\w+": {field},? ?', "", text)
    for name, one in values.items():
        text = re.sub(rf"\b{name}\b", lambda _, one=one: one, text)
    return text


def enveloped(case, pings, field="", value=""):
    text = case.get("joint", ", ").join(pings)
    quoted = json.dumps(f"[{text}]")
    sent = value if field == "SENT" else case["values"].get("SENT", "")
    return case["envelope"].replace("PINGS", text).replace("QUOTED", quoted).replace("SENT", sent)


def rows(case, form, messages):
    """The columns of the pings with their places, and (message, position, reason, path)."""
    pings, refused = PingDecoder(rules_of(case), form.format).decode(messages)
    names = [pings.plates[plate] for plate in pings.plate.tolist()]
    columns = pings.time_ms, pings.lon, pings.lat, pings.speed, pings.message, pings.position
    found = list(zip(names, *(column.tolist() for column in columns), strict=True))
    return (
        found,
        [(one.message, one.position, str(one.reason), one.path) for one in refused],
        refused,
    )


def of_kind(kind):
    return [
        pytest.param(name, *row, id=f"{name}: {row[0]} {row[1]}"[:70])
        for name, case in TABLE.items()
        for row in case[kind]
    ]


def roads(case, form, texts, tmp_path, *sent):
    """Messages of these pings as a topic, a file, a pipe and a polled source have them."""
    whole = enveloped(case, texts, *sent)
    if whole[0] in "[{":
        yield [whole.encode()]
        yield [("\ufeff \r\n" + whole + "\n").encode()]
    if not case.get("only_in_its_envelope"):
        yield list(map(str.encode, texts))
        yield [f"[{', '.join(texts)}]".encode()]
        (tmp_path / "feed.ndjson").write_text("\n".join(texts))
        yield list(chain(*read_messages(str(tmp_path / "feed.ndjson"), form=form)))
    if whole.startswith("{"):
        yield [json.dumps(whole).encode()]
    (tmp_path / "feed").write_text(whole)
    yield list(chain(*read_messages(str(tmp_path / "feed"), form=form)))
    prompt = list(prompt_messages("-", iter([whole.encode()]), form))
    yield [one for by, some in prompt for one in by.as_json(some)]
    if whole[0] in "[{<":
        yield RepeatFilter(form.format, 10**6, 100).take(whole.encode())


@pytest.mark.parametrize(("name", "field", "value"), of_kind("same"))
def test_what_means_the_same_is_the_same_ping_by_every_road(name, field, value, tmp_path):
    case = TABLE[name]
    form = SourceSection(**case["source"]).form
    ping = made(case, field=field, value=value)
    for messages in roads(case, form, [ping], tmp_path, field, value):
        found, refused, _ = rows(case, form, messages)
        assert [row[:5] for row in found] == [(case.get("plate", "A1"), *ONE)], messages
        assert not refused
        if found[0][6] == -1 and name != "contract":
            alone = single_ping(messages[0], form.mapping)
            assert alone is None or alone.plate.strip() == found[0][0]


@pytest.mark.parametrize(("name", "field", "value", "reason", "path"), of_kind("faults"))
def test_a_fault_is_refused_where_it_is_and_costs_no_other_ping(
    name, field, value, reason, path, tmp_path
):
    case = TABLE[name]
    form = SourceSection(**case["source"]).form
    later = made(case).replace("A1", "B2").replace('"A"', '"B"')
    bad = made(case, field=field, value=value).replace("A1", "C3")
    for messages in roads(case, form, [made(case), bad, later], tmp_path):
        found, refused, all_of_it = rows(case, form, messages)
        assert [row[1:5] for row in found] == [ONE] * 2 and len({row[0] for row in found}) == 2
        ((message, position, *said),) = refused
        assert said == [reason, path], messages
        assert (message, position) in ((0, 1), (1, -1)), messages
        (kept,) = originals(messages, all_of_it, form.format)
        if position == 1 and messages[0][:1] in b"[{" and "QUOTED" not in case["envelope"]:
            assert bad[:-1].encode() in bytes(kept)


@pytest.mark.parametrize(("name", "text", "reason", "path"), of_kind("whole"))
def test_a_message_that_is_no_ping_is_refused_whole_and_alone(name, text, reason, path):
    case = TABLE[name]
    form = SourceSection(**case["source"]).form
    good = enveloped(case, [made(case)]).encode()
    found, refused, _ = rows(case, form, [good, text.encode(), good])
    assert [row[1:6] for row in found] == [(*ONE, 0), (*ONE, 2)]
    assert refused == [(1, -1, reason, path)]
