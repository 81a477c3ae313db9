"""Feeds as they are: each form that public feeds have, read to the pings that are in it, and what
is wrong named."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.gtfs import START_S, snapshot, vehicle
from udp_stream.base.errors import ConfigError
from udp_stream.cli.commands.init import find_feed
from udp_stream.pings.advice import advise, no_pings
from udp_stream.pings.data_quality import QualityWarning
from udp_stream.pings.decode import PingDecoder, PingRules, Reason, Refusal
from udp_stream.pings.json import JSON, PLAIN, mapped_form, single_ping
from udp_stream.pings.mapping import PRESETS, FeedMapping
from udp_stream.pings.snapshots import GTFS_REALTIME, RepeatFilter
from udp_stream.pings.texts import from_xml, trim
from udp_stream.settings.sections import SourceSection
from udp_stream.sources.files import prompt_messages, read_messages
from udp_stream.sources.recordings import GtfsFiles, is_gtfs_file, open_source

RULES = PingRules(max_kmh=65, reject_above_kmh=200)


def ping(plate="GJ05ZZ0001", speed=21.0, **more):
    place = {"type": "Point", "coordinates": [72.83, 21.19]}
    return {"license_plate": plate, "observationDateTime": "2024-01-08T10:00:00+05:30", "location": place,
            "speed": speed, **more}  # fmt: skip


def decoded(form, *messages):
    """(plate, Unix seconds, km/h) of each ping, and (position, reason, path) of each refusal."""
    pings, refusals = PingDecoder(RULES, form).decode(messages)
    rows = zip(pings.plate.tolist(), pings.time_ms.tolist(), pings.speed.tolist(), strict=True)
    return (
        [
            (pings.plates[plate], time_ms // 1000, round(quanta / 4096, 2))
            for plate, time_ms, quanta in rows
        ],
        [(refusal.position, str(refusal.reason), refusal.path) for refusal in refusals],
    )


def read(tmp_path, content, form, name="feed.json"):
    """The same of a file, which is cut into messages as `replay` does."""
    (tmp_path / name).write_bytes(content)
    messages = [one for some in read_messages(str(tmp_path / name), form=form) for one in some]
    return decoded(form.format, *messages)


# Numbers that are not finite.


def test_no_spelling_of_a_speed_decides_how_long_the_rest_of_a_message_is():
    rest = set()
    for speed in (1.0, 23.4567, float("nan"), float("-inf")):
        message = json.dumps(ping("A1", speed)).encode()
        rest.add(len(message) - single_ping(message, FeedMapping()).speed_bytes)
    assert len(rest) == 1


# A plate of several fields.

HFP = mapped_form(PRESETS["hfp"].mapping)


def plate_of(*values):
    form = mapped_form(FeedMapping(plate=("a", "b")))
    pings, refusals = decoded(
        form.format, json.dumps(ping() | dict(zip("ab", values, strict=True))).encode()
    )
    return pings[0][0] if pings else refusals[0][1:]


def test_two_vehicles_never_share_a_plate():
    pairs = [
        ("a/b", "c"),
        ("a", "b/c"),
        ("a~1b", "c"),
        ("a\uff0fb", "c~"),
        ("1", "12"),
        ("11", "2"),
    ]
    assert len({plate_of(*pair) for pair in pairs}) == len(pairs)


def test_the_paths_of_a_plate_are_part_of_what_a_ledger_was_made_with():
    one, two = (SourceSection(plate=plate).written for plate in ("veh", ("oper", "veh")))
    assert dict(one)["plate"] == "veh" and dict(two)["plate"] == '["oper", "veh"]'
    assert [name for name, _ in one] == [name for name, _ in two] and "message_time" not in dict(
        one
    )


# Times that a message has once.

NEXTBUS = mapped_form(PRESETS["nextbus"].mapping)
SENT_MS = 1709622060000


def nextbus(*ago, sent=str(SENT_MS)):
    vehicles = [
        {
            "id": f"880{at}",
            "lat": "37.77",
            "lon": "-122.41",
            "secsSinceReport": seconds,
            "speedKmHr": "18",
        }
        for at, seconds in enumerate(ago)
    ]
    return {"vehicle": vehicles} | ({} if sent is None else {"lastTime": {"time": sent}})


def test_a_message_without_its_time_is_refused_at_its_path():
    for sent, reason in (
        (None, "missing_field"),
        ("noon", "wrong_type"),
        ("1e999", "time_out_of_range"),
    ):
        pings, refusals = decoded(
            NEXTBUS.format, json.dumps(nextbus("12", "13", sent=sent)).encode()
        )
        assert not pings and {one[1] for one in refusals} == {reason} and len(refusals) == 2


def test_a_message_with_its_time_and_no_array_has_no_pings(tmp_path):
    for preset, text in (
        ("nextbus", b'{"lastTime": {"time": "1"}}'),
        ("gtfs-rt", b'{"header": {"timestamp": "1"}}'),
    ):
        form = mapped_form(PRESETS[preset].mapping)
        assert decoded(form.format, text) == ([], []) == read(tmp_path, text, form)
        assert (
            decoded(form.format, b"{}")[1]
            and decoded(form.format, text[:-1] + b', "id": 7, "vehicle": 7}')[1]
        )


# JSON in a string at the path of the records; XML; what stands before JSON.


ACTIVITY = """<VehicleActivity><RecordedAtTime>2024-03-05T07:00:{second:02}Z</RecordedAtTime>
<MonitoredVehicleJourney><LineRef>7</LineRef><VehicleLocation><Longitude>-1.54</Longitude><Latitude>53.8</Latitude>
</VehicleLocation><Velocity>36</Velocity><VehicleRef>FX-{second}</VehicleRef></MonitoredVehicleJourney></VehicleActivity>
"""
VEHICLE = "MonitoredVehicleJourney"
SIRI = mapped_form(
    FeedMapping(
        plate=f"{VEHICLE}.VehicleRef", time="RecordedAtTime", speed=f"{VEHICLE}.Velocity",
        longitude=f"{VEHICLE}.VehicleLocation.Longitude", latitude=f"{VEHICLE}.VehicleLocation.Latitude",
        records="Siri.ServiceDelivery.VehicleMonitoringDelivery.0.VehicleActivity",
    )
)  # fmt: skip


def siri(*seconds, prefix=""):
    held = "".join(ACTIVITY.format(second=second) for second in seconds)
    text = f"""<?xml version="1.0" encoding="UTF-8"?>
<Siri xmlns="http://www.siri.org.uk/siri" version="2.0"><ServiceDelivery><VehicleMonitoringDelivery>{held}
</VehicleMonitoringDelivery></ServiceDelivery></Siri>"""
    return (text if not prefix else text.replace("</", f"</{prefix}:").replace("<S", f"<{prefix}:S").replace(
        "<V", f"<{prefix}:V").replace("<R", f"<{prefix}:R").replace("<M", f"<{prefix}:M").replace(
        "<L", f"<{prefix}:L").replace("xmlns=", f"xmlns:{prefix}=")).encode()  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "siri"])
def test_siri_in_xml_is_read_by_the_paths_of_its_json_also_one_vehicle(tmp_path, prefix):
    for seconds in ((30,), (30, 50), range(40)):
        expected = [(f"FX-{second}", 1709622000 + second, 36.0) for second in seconds]
        assert read(tmp_path, siri(*seconds, prefix=prefix), SIRI, "siri.xml") == (expected, [])
        pieces = RepeatFilter(SIRI.format, 10**6, 100).take(siri(*seconds, prefix=prefix))
        assert decoded(SIRI.format, *pieces) == (expected, [])


def test_polls_of_xml_with_one_vehicle_or_none_are_of_the_form_of_those_with_many(tmp_path):
    paths = [tmp_path / f"{poll}.xml" for poll in range(3)]
    for poll, (path, vehicles) in enumerate(zip(paths, (60, 1, 0), strict=True)):
        each = "".join(
            f'<vehicle id="{at}" lat="{21.19 + poll * 0.003243}" lon="{72.83 + at * 0.003}" '
            f'secsSinceReport="{at // 2}" speedKmHr="36"/>\n'
            for at in range(vehicles)
        )
        path.write_text(
            f'<?xml version="1.0"?>\n<body copyright="X">\n{each}'
            f'<lastTime time="{1704688200 + 60 * poll}000"/>\n</body>'
        )
    feed = find_feed([str(path) for path in paths])
    assert (feed.pings, feed.plates, feed.refused) == (61, 60, 0)
    assert find_feed([str(paths[1])]).keys == feed.keys
    assert feed.keys["records"] == "body.vehicle"


def test_xml_on_each_line_is_a_message_each_from_a_file_and_from_a_pipe(tmp_path):
    lines = b"\n".join(siri(second).replace(b"\n", b" ") for second in (1, 2))
    assert [plate for plate, *_ in read(tmp_path, lines, SIRI)[0]] == ["FX-1", "FX-2"]
    for content in (lines, siri(1, 2)):
        messages = [one for _, some in prompt_messages("-", iter([content]), SIRI) for one in some]
        assert [plate for plate, *_ in decoded(SIRI.format, *messages)[0]] == ["FX-1", "FX-2"]


BOMB = b'<!DOCTYPE r [<!ENTITY a "aa"><!ENTITY b "&a;&a;&a;">]><r><VehicleActivity>&b;</VehicleActivity></r>'


@pytest.mark.parametrize(
    "text",
    [BOMB, b"<html><body>busy</body></html>", b"<a><b></a>", b"<a", b"<" * 1000, b"<a>" * 100 + b"</a>" * 100,
     b"<\xff/>", b'<?xml version="1.0" encoding="no-such"?><a/>', b"<!DOCTYPE html><html/>"],
)  # fmt: skip
def test_entities_pages_and_what_is_no_xml_stay_as_they_are_and_are_refused(text, tmp_path):
    assert from_xml(text) is text
    assert decoded(SIRI.format, text) == ([], [(-1, "not_json", "$")])
    assert {reason for _, reason, _ in read(tmp_path, text, SIRI)[1]} <= {"not_json"}


def test_attributes_text_and_repeated_elements_become_json():
    text = b'<r n:at="1" xmlns:n="u"><v id="1">x</v><v id="2"/><w> y </w><Text>&lt;&amp;</Text></r>'
    assert msgspec.json.decode(from_xml(text)) == {
        "r": {"at": "1", "v": [{"id": "1", "value": "x"}, {"id": "2"}], "w": "y", "Text": "<&"}
    }


def test_the_topic_before_a_payload_and_a_registrys_frame_are_left_out():
    message = json.dumps(
        {"VP": {"oper": 1, "veh": 2, "tst": "2024-03-05T07:00:01Z", "spd": 1, "lat": 1, "long": 1}}
    )
    topics = [
        "/hfp/v2/journey/ongoing/vp/bus/0012/01001/1055/1/Kamppi M/06:00/1130110/5/60;24/19/74/12 ",
        "bus/1\t",
    ]
    topics += [
        "2024-03-05T09:00:00+0200 hfp/v2 ",
        "CreateTime:1709622001000\t12-1001\t",
    ]  # other clients' words
    for start in (*topics, "\0\0\0\x07\x7b", "\ufeff "):
        assert [plate for plate, *_ in decoded(HFP.format, (start + message).encode())[0]] == [
            "1/2"
        ]
        assert single_ping((start + message).encode(), HFP.mapping).plate == "1/2"
    for start in (
        "junk",
        "junk ",
        "2024-03-05 INFO ",
        '"a/b" ',
        "a\nb/c ",
        "{/} ",
        "\0\0\0\x07\x7b\x02",
    ):
        assert decoded(HFP.format, (start + message).encode())[1] == [(-1, "not_json", "$")], start
        assert trim((start + message).encode()) == (start + message).encode()


# GTFS-realtime as agencies have it.


def polled(tmp_path, *polls, name="{}.pb", plate=()):
    names = [str(tmp_path / name.format(at)) for at, _ in enumerate(polls)]
    for path, content in zip(names, polls, strict=True):
        Path(path).write_bytes(content)
    assert all(map(is_gtfs_file, names))
    said = []
    form = replace(PLAIN, gtfs_plate=plate)
    messages = [
        one
        for some in GtfsFiles(names, log_message=said.append, form=form).messages()
        for one in some
    ]
    return [plate for plate, *_ in decoded(JSON, *messages)[0]], decoded(JSON, *messages)[1], said


def test_a_label_names_a_vehicle_where_it_is_asked_to_and_is_named_where_it_is_not(tmp_path):
    both = snapshot(vehicle(label="4711"), vehicle(number="7", label=" "))
    plates, refusals, _ = polled(tmp_path, both, plate=("label",))
    assert plates == ["4711"] and refusals == [(-1, "missing_field", "$.license_plate")]
    assert polled(tmp_path, both)[0] == ["7"]
    assert polled(tmp_path, snapshot(vehicle(number="7", label="a/b")), plate=("id", "label"))[
        0
    ] == ["7/a~1b"]
    (message,) = (
        one
        for one in RepeatFilter(GTFS_REALTIME, 10**6, 100).take(both)
        if b"license_plate" not in one
    )
    (said,) = advise([(Refusal(0, -1, Reason.MISSING_FIELD, "$.license_plate"), message)], PLAIN)
    assert "vehicle.vehicle.label is set" in said and "4711" not in said


def test_the_key_for_it_leaves_the_contracts_form_and_is_part_of_the_policy():
    section = SourceSection(plate="vehicle.vehicle.label")
    assert section.form.is_plain and section.form.gtfs_plate == ("label",) and section.written
    assert SourceSection(plate=("vehicle.vehicle.id", "vehicle.vehicle.label")).form.gtfs_plate == (
        "id",
        "label",
    )
    for other in (
        SourceSection(plate="vehicle.vehicle.label", preset="gtfs-rt"),
        SourceSection(plate="bus.label"),
    ):
        assert not other.form.is_plain and not other.form.gtfs_plate


def test_times_in_milliseconds_are_read_and_said(tmp_path):
    first, second = (
        snapshot(vehicle("A1", time_s=at * 1000), header_s=at * 1000)
        for at in (START_S, START_S + 10)
    )
    plates, refusals, said = polled(tmp_path, second, first)
    assert plates == ["A1", "A1"] and not refusals
    assert [one for one in said if isinstance(one, QualityWarning) and "milliseconds" in one]
    assert not [
        one
        for one in polled(tmp_path, snapshot(vehicle("A1")))[2]
        if isinstance(one, QualityWarning)
    ]


@pytest.mark.parametrize("name", ["{}.pbf", "{}.bin", "{}.PB.gz", "{}.bin.gz"])
def test_other_names_of_polls_are_read_and_a_frame_in_bin_is_none(tmp_path, name):
    content = snapshot(vehicle("A1"))
    content = gzip.compress(content) if name.endswith("gz") else content
    assert polled(tmp_path, content, name=name)[0] == ["A1"]
    framed = tmp_path / "framed.bin"
    framed.write_bytes(b"\0\0\0\7{" + json.dumps(ping("X-1")).encode())
    assert not is_gtfs_file(str(framed))
    ((message,),) = read_messages(str(framed))
    assert [plate for plate, *_ in decoded(JSON, message)[0]] == ["X-1"]


def test_a_frame_around_what_is_no_json_is_named_with_its_schema():
    assert "1915" in no_pings(b"\0\0\0\7{\2\6abc") and "GTFS" not in no_pings(b"\0\0\0\7{\2\6abc")


def test_a_unit_must_be_said_and_may_be_another_than_the_specifications(tmp_path):
    (tmp_path / "1.pb").write_bytes(snapshot(vehicle("A1")))
    name, said = str(tmp_path / "1.pb"), []
    with pytest.raises(ConfigError, match=r"speed\.unit"):
        open_source(name, None)
    for unit in ("mps", "kmh", "knots"):
        open_source(name, unit, log_message=said.append).close()
    assert len(said) == 2


# Inputs that were found to fail, where they are at hand.
