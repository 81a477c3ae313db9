"""What `init` finds in feeds of many forms: mapping, times, plate, zone, unit, box; and what it
asks to be checked."""

import json
from datetime import UTC, datetime

import pytest

from udp_stream.cli.commands.init import city_file, find_feed
from udp_stream.settings import load


def checks(feed):
    return [sentence for some in feed.checks.values() for sentence in some]


# Forms in which public feeds come, written by hand from their documentation.


def polls(vehicles=60, count=3, zero=False):
    """(time, [(number, time, lon, lat, km/h)]): buses that go 60 m in each 10 s."""
    for poll in range(count):
        now = 1704688200 + 60 * poll
        yield (
            now,
            [
                (
                    1000 + at,
                    now - at // 2 % 30,
                    72.83 + 0.003 * at,
                    21.19 + 0.0005405 * 6 * poll,
                    0 if zero else 36.0,
                )
                for at in range(vehicles)
            ],
        )


def saved(folder, contents, name="poll-{}.json"):
    paths = [folder / name.format(at) for at, _ in enumerate(contents)]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    return list(map(str, paths))


def iso(time_s):
    return datetime.fromtimestamp(time_s, UTC).isoformat()


def siri(now, vehicles):
    """Over many lines, as England's open data have it: no speeds, and operators that share numbers."""
    each = """
      <VehicleActivity>
        <RecordedAtTime>{}</RecordedAtTime><ItemIdentifier>{}</ItemIdentifier>
        <MonitoredVehicleJourney>
          <LineRef>1</LineRef><OperatorRef>{}</OperatorRef>
          <VehicleLocation><Longitude>{}</Longitude><Latitude>{}</Latitude></VehicleLocation>
          <VehicleRef>{}</VehicleRef>
        </MonitoredVehicleJourney>
      </VehicleActivity>"""
    inner = "".join(
        each.format(
            iso(time_s), f"{number}-{time_s}", "AB" if at % 2 else "CD", lon, lat, number // 2
        )
        for at, (number, time_s, lon, lat, _) in enumerate(vehicles)
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Siri xmlns="http://www.siri.org.uk/siri" version="2.0">
  <ServiceDelivery>
    <ResponseTimestamp>{iso(now)}</ResponseTimestamp>
    <VehicleMonitoringDelivery>{inner}
    </VehicleMonitoringDelivery>
  </ServiceDelivery>
</Siri>
"""


def test_xml_over_many_lines_is_one_document_whose_vehicles_may_be_one_or_none(tmp_path):
    some = list(polls())
    some[0] = (some[0][0], some[0][1][:1])
    feed = find_feed(saved(tmp_path, [siri(*one) for one in some], "{}.xml"))
    assert (feed.pings, feed.plates, feed.refused, feed.unit, feed.form) == (121, 60, 0, "", "XML")
    assert feed.keys["plate"] == (
        "MonitoredVehicleJourney.OperatorRef",
        "MonitoredVehicleJourney.VehicleRef",
    )
    one = find_feed(saved(tmp_path, [siri(some[0][0], some[0][1])], "one-{}.xml"))
    assert one.pings == 1 and one.keys["records"] == feed.keys["records"]


def test_vehicles_in_attributes_are_an_array_even_where_there_is_one_or_none(tmp_path):
    def nextbus(now, vehicles):
        each = '<vehicle id="{}" routeTag="N" lat="{}" lon="{}" secsSinceReport="{}" heading="1" speedKmHr="{}"/>\n'
        inner = "".join(
            each.format(number, lat, lon, now - at, speed)
            for number, at, lon, lat, speed in vehicles
        )
        return f'<?xml version="1.0" encoding="utf-8"?>\n<body copyright="X">\n{inner}<lastTime time="{now}000"/>\n</body>'

    some = [nextbus(now, vehicles[: (60, 1, 0)[at]]) for at, (now, vehicles) in enumerate(polls())]
    feed = find_feed(saved(tmp_path, some, "{}.xml"))
    assert (feed.pings, feed.plates, feed.refused) == (61, 60, 0)
    one = find_feed(saved(tmp_path, some[1:2], "one-{}.xml"))
    assert one.keys == feed.keys and feed.keys["records"] == "body.vehicle"


def test_of_several_arrays_the_one_whose_records_have_times_of_their_own_is_of_vehicles(tmp_path):
    def answer(now, vehicles):  # as OneBusAway's
        listed = [
            {"vehicleId": f"1_{number}", "lastLocationUpdateTime": at * 1000, "location": {"lat": lat, "lon": lon},
             "tripStatus": {"position": {"lat": lat + 1, "lon": lon}, "lastUpdateTime": (at - 900) * 1000}}
            for number, at, lon, lat, _ in vehicles
        ]  # fmt: skip
        stops = [
            {"id": f"1_{at}", "lat": 21.1 + at / 1e4, "lon": 72.8, "name": "x"} for at in range(300)
        ]
        return json.dumps(
            {"currentTime": now * 1000, "data": {"list": listed, "references": {"stops": stops}}}
        )

    feed = find_feed(saved(tmp_path, [answer(*one) for one in polls()]))
    assert (feed.keys["records"], feed.keys["plate"], feed.pings, feed.plates) == (
        "data.list",
        "vehicleId",
        180,
        60,
    )
    assert feed.keys["latitude"] == "location.lat" and feed.keys["time"] == "lastLocationUpdateTime"


def test_of_two_times_of_one_name_the_one_beside_the_place_is_the_pings(tmp_path):
    lines = [
        json.dumps({"tst": iso(now + 500), "payload": {"id": n, "tst": iso(at), "lat": lat, "lon": lon}})
        for now, vehicles in polls() for n, at, lon, lat, _ in vehicles
    ]  # fmt: skip
    (tmp_path / "log.txt").write_text("\n".join(lines))
    feed = find_feed([str(tmp_path / "log.txt")])
    assert feed.keys["time"] == "payload.tst" and feed.pings == 180


def test_no_path_leads_through_a_key_that_may_be_a_plate(tmp_path):
    by_id = {
        str(n): [{"bus": f"B{n}", "latitude": lat, "longitude": lon, "time": at, "speed": 1}]
        for n, at, lon, lat, _ in next(polls())[1]
    }
    feed = find_feed(saved(tmp_path, [json.dumps({"buses": by_id})]))
    assert (feed.keys["records"], feed.keys["plate"], feed.plates) == ("buses.*", "bus", 60)
    assert "1000" not in city_file(feed, "sample")


@pytest.mark.parametrize("zero", [True, False])
def test_speeds_that_are_all_zero_while_buses_move_are_derived(zero, tmp_path):
    rows = [
        f"{n},{at},{lon},{lat},{speed}"
        for _, some in polls(zero=zero)
        for n, at, lon, lat, speed in some
    ]
    (tmp_path / "avl.csv").write_text("\n".join(["bus,timestamp,lon,lat,speed", *rows]))
    feed = find_feed([str(tmp_path / "avl.csv")])
    (tmp_path / "city.toml").write_text(city_file(feed, "avl.csv"))
    settings = load(tmp_path / "city.toml", (), {})
    assert (settings.speed.from_, settings.source.speed) == (
        "movement" if zero else "field",
        "speed",
    )
    assert any("every speed is 0" in one for one in checks(feed)) == zero
    one_poll = [f"{row.rpartition(',')[0]},0" for row in rows[:60]]
    (tmp_path / "poll.csv").write_text("\n".join(["bus,timestamp,lon,lat,speed", *one_poll]))
    still = find_feed([str(tmp_path / "poll.csv")])  # it cannot tell, and says so
    assert still.unit and any("every speed is 0" in one for one in checks(still))
