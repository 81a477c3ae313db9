"""Feeds as they are: each form that public feeds have, read to the pings that are in it, and what
is wrong named."""

import gzip
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from google.transit.gtfs_realtime_pb2 import FeedMessage

from udp_stream.cli.commands.init import city_file, find_feed
from udp_stream.errors import ConfigError
from udp_stream.pings.advice import advise, no_pings
from udp_stream.pings.data_quality import QualityWarning
from udp_stream.pings.decode import PingDecoder, PingRules, Reason, Refusal
from udp_stream.pings.json import JSON, PLAIN, mapped_form, single_ping
from udp_stream.pings.mapping import PRESETS, FeedMapping
from udp_stream.pings.snapshots import GTFS_REALTIME, RepeatFilter
from udp_stream.pings.texts import from_xml, trim
from udp_stream.settings import load
from udp_stream.settings.sections import SourceSection
from udp_stream.sources.files import prompt_messages, read_messages
from udp_stream.sources.recordings import GtfsFiles, is_gtfs_file, open_source, open_sources

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


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("envelope", ["{}", '{{"results": {}}}'])
def test_a_number_that_is_not_finite_costs_its_ping_alone(word, envelope):
    value = float(word.replace("Infinity", "inf"))
    array = [ping("A1"), ping("B2", value), ping("C3", trip_delay=value)]
    message = envelope.format(json.dumps(array)).encode()
    assert word.encode() in message
    for text in (message, json.dumps(message.decode()).encode()):
        pings, refusals = decoded(JSON, text)
        assert [plate for plate, *_ in pings] == ["A1", "C3"]
        assert refusals == [(1, "speed_not_finite", "$.speed")]
    said = advise(
        [(Refusal(0, 1, Reason.SPEED_NOT_FINITE, "$.speed"), json.dumps(array[1]).encode())], PLAIN
    )
    assert said == [
        "speed_not_finite at $.speed: found NaN or Infinity, wanted a number, 0 or more"
    ]


def test_what_is_refused_for_it_keeps_its_bytes_and_a_text_that_says_nan_is_a_text():
    bad, good = ping("B2", float("nan"), note="NaN"), ping("NaN-1", note='a "NaN" \\')
    message = json.dumps([good, bad, ping("NaN")]).encode()
    assert decoded(JSON, message)[1] == [
        (1, "speed_not_finite", "$.speed"),
        (2, "placeholder_plate", "$.license_plate"),
    ]
    assert bytes(JSON.split(message)[1]) == json.dumps(bad).encode()
    once = RepeatFilter(JSON, 10**6, 100)
    handed = once.take(message)
    pings, refusals = decoded(JSON, *handed)
    assert [plate for plate, *_ in pings] == ["NaN-1"] and len(handed) == 3
    assert [reason for _, reason, _ in refusals] == ["speed_not_finite", "placeholder_plate"]


def test_a_document_with_such_a_number_is_cut_into_pings(tmp_path):
    form = mapped_form(FeedMapping())
    content = json.dumps([ping("A1", float("nan")), ping("B2")], indent=1).encode()
    pings, refusals = read(tmp_path, content, form)
    assert [plate for plate, *_ in pings] == ["B2"] and refusals == [
        (-1, "speed_not_finite", "$.speed")
    ]


def test_no_spelling_of_a_speed_decides_how_long_the_rest_of_a_message_is():
    rest = set()
    for speed in (1.0, 23.4567, float("nan"), float("-inf")):
        message = json.dumps(ping("A1", speed)).encode()
        rest.add(len(message) - single_ping(message, FeedMapping()).speed_bytes)
    assert len(rest) == 1


# A plate of several fields.

HFP = mapped_form(PRESETS["hfp"].mapping)


def test_operator_and_number_together_name_a_vehicle():
    vehicles = [(12, 1001, "01"), (22, 1001, "01"), (12, 1001, "02")]
    place = {"spd": 8.2, "lat": 60.17, "long": 24.94}
    messages = [
        json.dumps(
            {"VP": {"oper": oper, "veh": veh, "tst": f"2024-03-05T07:00:{at}.000Z", **place}}
        ).encode()
        for oper, veh, at in vehicles
    ]
    pings, refusals = decoded(HFP.format, *messages)
    assert [plate for plate, *_ in pings] == ["12/1001", "22/1001", "12/1001"] and not refusals
    assert [single_ping(one, HFP.mapping).plate for one in messages] == [
        "12/1001",
        "22/1001",
        "12/1001",
    ]


def test_other_events_are_no_faults_and_have_a_reason_of_their_own():
    other = b'{"DUE": {"oper": 12, "veh": 1001, "tst": "2024-03-05T07:00:01Z"}}'
    assert decoded(HFP.format, other, b'{"VP": {"oper": 12}}', b'{"due": {"oper": 12}}', b"{}")[1] == [
        (-1, "other_event", "$.VP"), (-1, "missing_field", "$.VP.veh"), *[(-1, "missing_field", "$.VP")] * 2,
    ]  # fmt: skip


def plate_of(*values):
    form = mapped_form(FeedMapping(plate=("a", "b")))
    pings, refusals = decoded(
        form.format, json.dumps(ping() | dict(zip("ab", values, strict=True))).encode()
    )
    return pings[0][0] if pings else refusals[0][1:]


def test_two_vehicles_never_share_a_plate_and_a_part_that_names_none_is_refused():
    pairs = [
        ("a/b", "c"),
        ("a", "b/c"),
        ("a~1b", "c"),
        ("a\uff0fb", "c~"),
        ("1", "12"),
        ("11", "2"),
    ]
    assert len({plate_of(*pair) for pair in pairs}) == len(pairs)
    assert plate_of(" 12 ", 7) == plate_of("12", "7") == "12/7"
    assert plate_of("12", " ") == ("empty_plate", "$.a") and plate_of("unknown", "7") == (
        "placeholder_plate",
        "$.a",
    )
    assert plate_of("12", None) == ("wrong_type", "$.b") and plate_of("1" * 40, "2" * 40) == (
        "wrong_type",
        "$.a",
    )


def test_columns_of_a_table_together_name_a_vehicle(tmp_path):
    names = {"time_format": "epoch_s", "time": "t", "longitude": "x", "latitude": "y", "speed": "v"}
    form = mapped_form(FeedMapping(plate=("oper", "veh"), **names))
    pings, _ = read(tmp_path, b"veh,oper,t,x,y,v\n7,1,1641012035,72.5,21.25,45\n7,2,1641012035,72.5,21.25,45\n", form,
                    "feed.csv")  # fmt: skip
    assert [plate for plate, *_ in pings] == ["1/7", "2/7"]


def test_the_paths_of_a_plate_are_part_of_what_a_ledger_was_made_with():
    one, two = (SourceSection(plate=plate).written for plate in ("veh", ("oper", "veh")))
    assert dict(one)["plate"] == "veh" and dict(two)["plate"] == '["oper", "veh"]'
    assert [name for name, _ in one] == [name for name, _ in two] and "message_time" not in dict(
        one
    )
    with pytest.raises(Exception, match=r"source\.plate"):
        _ = SourceSection(plate=("veh", "veh")).mapping
    with pytest.raises(Exception, match=r"source\.plate"):
        _ = SourceSection(plate=()).mapping


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


@pytest.mark.parametrize(
    "sent", [SENT_MS, str(SENT_MS), SENT_MS // 1000, SENT_MS * 1000, "2024-03-05T07:01:00Z"]
)
def test_times_count_back_from_the_messages(tmp_path, sent):
    message = json.dumps(nextbus("12", 41, "0.5", sent=sent)).encode()
    seconds = [SENT_MS // 1000 - 12, SENT_MS // 1000 - 41, SENT_MS // 1000 - 1]
    for found in (decoded(NEXTBUS.format, message), read(tmp_path, message, NEXTBUS)):
        assert found == ([(f"880{at}", one, 18.0) for at, one in enumerate(seconds)], [])
    pieces = RepeatFilter(NEXTBUS.format, 10**6, 100).take(message)
    assert len(pieces) == 3 and decoded(NEXTBUS.format, *pieces) == found
    assert single_ping(pieces[0], NEXTBUS.mapping)[:2] == ("8800", (SENT_MS // 1000 - 12) * 1000)


def test_one_vehicle_that_is_no_array_is_a_ping():
    message = nextbus("12") | {"vehicle": nextbus("12")["vehicle"][0]}
    assert decoded(NEXTBUS.format, json.dumps(message).encode())[0] == [
        ("8800", SENT_MS // 1000 - 12, 18.0)
    ]


def test_a_message_without_its_time_is_refused_at_its_path_and_a_ping_without_its_seconds_alone():
    for sent, reason in (
        (None, "missing_field"),
        ("noon", "wrong_type"),
        ("1e999", "time_out_of_range"),
    ):
        pings, refusals = decoded(
            NEXTBUS.format, json.dumps(nextbus("12", "13", sent=sent)).encode()
        )
        assert not pings and {one[1] for one in refusals} == {reason} and len(refusals) == 2
    pings, refusals = decoded(
        NEXTBUS.format, json.dumps(nextbus("12", None, "soon", 1e300)).encode()
    )
    assert len(pings) == 1
    assert [(at, reason) for at, reason, _ in refusals] == [
        (1, "wrong_type"), (2, "wrong_type"), (3, "time_out_of_range"),
    ]  # fmt: skip


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


def test_an_entity_without_a_time_has_the_messages_and_one_with_it_its_own(tmp_path):
    form = mapped_form(PRESETS["gtfs-rt"].mapping)
    where = {"position": {"latitude": 21.25, "longitude": 72.5, "speed": 5}}
    own = {"vehicle": {"vehicle": {"id": "A1"}, "timestamp": "1641012000", **where}}
    none, null = (
        {"vehicle": {"vehicle": {"id": "B2"}, **more, **where}}
        for more in ({}, {"timestamp": None})
    )
    message = json.dumps(
        {"header": {"timestamp": "1641012035"}, "entity": [own, none, null]}
    ).encode()
    for found in (decoded(form.format, message), read(tmp_path, message, form)):
        assert [time_s for _, time_s, _ in found[0]] == [
            1641012000,
            1641012035,
            1641012035,
        ] and not found[1]
    without = json.dumps({"header": {}, "entity": [own, none]}).encode()
    assert decoded(form.format, without)[1] == [(1, "missing_field", "$.vehicle.timestamp")]


def test_seconds_ago_need_a_time_to_count_from():
    with pytest.raises(ValueError, match="message_time"):
        FeedMapping(time="secsSinceReport", time_format="seconds_ago")


# JSON in a string at the path of the records; XML; what stands before JSON.


def test_json_in_a_string_within_an_envelope_is_unwrapped_once():
    form = mapped_form(FeedMapping(records="payload.value"))
    for held, count in ((ping("A1"), 1), ([ping("A1"), ping("B2")], 2)):
        inside = json.dumps(held)
        assert (
            len(decoded(form.format, json.dumps({"payload": {"value": inside}}).encode())[0])
            == count
        )
        twice = json.dumps({"payload": {"value": json.dumps(inside)}}).encode()
        assert decoded(form.format, twice) == ([], [(-1, "wrong_type", "$.payload.value")])
    junk = json.dumps({"payload": {"value": "no JSON"}}).encode()
    assert decoded(form.format, junk)[1] == [(-1, "wrong_type", "$.payload.value")]


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

START_S = 1704688200


def poll(*vehicles, header_s=START_S):
    feed = FeedMessage()
    feed.header.gtfs_realtime_version, feed.header.timestamp = "2.0", header_s
    for at, (descriptor, time_s) in enumerate(vehicles):
        entity = feed.entity.add(id=str(at)).vehicle
        for name, value in descriptor.items():
            setattr(entity.vehicle, name, value)
        entity.timestamp = time_s
        entity.position.longitude, entity.position.latitude, entity.position.speed = 72.5, 21.25, 10
    return feed.SerializeToString()


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
    both = poll(({"label": "4711"}, START_S), ({"label": " ", "id": "7"}, START_S))
    plates, refusals, _ = polled(tmp_path, both, plate=("label",))
    assert plates == ["4711"] and refusals == [(-1, "missing_field", "$.license_plate")]
    assert polled(tmp_path, both)[0] == ["7"]
    assert polled(tmp_path, poll(({"label": "a/b", "id": "7"}, START_S)), plate=("id", "label"))[
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
        poll(({"id": "A1"}, at * 1000), header_s=at * 1000) for at in (START_S, START_S + 10)
    )
    plates, refusals, said = polled(tmp_path, second, first)
    assert plates == ["A1", "A1"] and not refusals
    assert [one for one in said if isinstance(one, QualityWarning) and "milliseconds" in one]
    assert not [
        one
        for one in polled(tmp_path, poll(({"id": "A1"}, START_S)))[2]
        if isinstance(one, QualityWarning)
    ]


@pytest.mark.parametrize("name", ["{}.pbf", "{}.bin", "{}.PB.gz", "{}.bin.gz"])
def test_other_names_of_polls_are_read_and_a_frame_in_bin_is_none(tmp_path, name):
    content = poll(({"id": "A1"}, START_S))
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
    (tmp_path / "1.pb").write_bytes(poll(({"id": "A1"}, START_S)))
    name, said = str(tmp_path / "1.pb"), []
    with pytest.raises(ConfigError, match=r"speed\.unit"):
        open_source(name, None)
    for unit in ("mps", "kmh", "knots"):
        open_source(name, unit, log_message=said.append).close()
    assert len(said) == 2


# Inputs that were found to fail, where they are at hand.

CASES = Path(__file__).parents[3] / "shared" / "cases"


@dataclass
class Said:
    """What `init` must find: pings, plates, unit, keys of its own, words of a CHECK, messages of
    other events."""

    pings: int
    plates: int
    unit: str = "kmh"
    keys: dict[str, object] = field(default_factory=dict)
    check: str = ""
    others: int = 0


SIRI_RECORDS = "Siri.ServiceDelivery.VehicleMonitoringDelivery.0.VehicleActivity"
FOUND = {
    "01-kmh-*.pb": Said(4000, 100, "kmh", check="specification says mps"),
    "02-milliseconds-*.pb": Said(80, 40, "mps", check="milliseconds"),
    "03-label-only-*.pb": Said(
        80, 40, "mps", {"plate": "vehicle.vehicle.label"}, "vehicle.vehicle.label is set"
    ),
    "05-many-polls-*.pb": Said(1600, 40, "mps"),
    "05-many-polls-0[0-3].pb": Said(160, 40, "mps"),
    "06-siri-vm.ndjson": Said(280, 20, "kmh", {"records": SIRI_RECORDS}),
    "07-hfp-topic-lines.txt": Said(41, 41, "mps", {"preset": "hfp"}, others=18),
    "08-hfp-mixed-events.ndjson": Said(41, 41, "mps", {"preset": "hfp"}, others=18),
    "09-bustime.ndjson": Said(280, 20, "mph", {"preset": "bustime"}),
    "13-schema-registry-frame.bin": Said(1, 1),
    "16-connect-http-string.ndjson": Said(300, 150, "kmh", {"records": "payload.value"}),
    "hfp-two-operators.ndjson": Said(3, 2, "mps", {"preset": "hfp"}),
    "nan-in-array.json": Said(2, 2, check="speed_not_finite"),
    "nextbus-relative.json": Said(2, 2, "kmh", {"preset": "nextbus"}),
    "traccar-knots.json": Said(2, 2, "kmh", {"plate": "deviceId", "time": "fixTime"}),
}


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not at hand")
@pytest.mark.parametrize("pattern", FOUND)
def test_cases_that_were_found_read_as_they_say(pattern, tmp_path):
    said, paths = FOUND[pattern], sorted(map(str, CASES.glob(pattern)))
    found = find_feed(paths)
    assert (found.pings, found.plates, found.unit, found.others) == (
        said.pings,
        said.plates,
        said.unit,
        said.others,
    )
    (tmp_path / "city.toml").write_text(city_file(found, "sample"))
    settings = load(tmp_path / "city.toml", (), {})
    assert {name: getattr(settings.source, name) for name in said.keys} == said.keys
    checks = " ".join(sentence for some in found.checks.values() for sentence in some)
    assert said.check in checks and (
        said.check or not [one for one in checks.split() if "refused" in one]
    )
    # With what was written, the verbs read them too.
    opened = open_sources(paths, settings.speed.unit, form=settings.source.form)
    messages = [
        (source.format, one) for _, source in opened for some in source.messages() for one in some
    ]
    read = sum(
        len(PingDecoder(settings.ping_rules, form).decode([one])[0]) for form, one in messages
    )
    assert read == said.pings


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not at hand")
def test_speeds_and_times_of_the_cases_are_those_that_they_say():
    knots = mapped_form(
        FeedMapping(plate="deviceId", time="fixTime", longitude="longitude", latitude="latitude")
    )
    rules = PingRules(max_kmh=65, reject_above_kmh=200, unit="knots")
    pings, _ = PingDecoder(rules, knots.format).decode(
        [(CASES / "traccar-knots.json").read_bytes()]
    )
    assert [round(quanta / 4096, 1) for quanta in pings.speed.tolist()] == [20.0, 10.0]
    assert pings.plates == ("41", "42")
    found, _ = decoded(NEXTBUS.format, (CASES / "nextbus-relative.json").read_bytes())
    assert [(datetime.fromtimestamp(at, UTC).isoformat(), speed) for _, at, speed in found] == [
        ("2024-03-05T07:00:48+00:00", 18.0), ("2024-03-05T07:00:19+00:00", 0.0),
    ]  # fmt: skip
    array = (CASES / "nan-in-array.json").read_bytes()
    assert decoded(JSON, array)[1] == [(1, "speed_not_finite", "$.speed")]
