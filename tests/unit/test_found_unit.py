"""What `init` writes of a recording's unit: told by movement only where it fits, and what names say beside it."""

import json
import re
from datetime import datetime

import pytest

from tests.runtime.harness import fleet_log
from udp_stream.cli.city_file import city_file
from udp_stream.cli.found_feed import find_feed

PINGS = [json.loads(message) for message in fleet_log(clean=True)[:3000]]
FITS_NONE = "# CHECK: by how far buses go, speeds fit no unit that is known (knots? scaled?): convert them first."


def speeds(folder, name="speed", factor=1.0, count=3000):
    """The unit that `init` finds, and the lines that it writes of it."""
    rows = [
        {"bus": one["license_plate"], "time": one["observationDateTime"], "lon": one["location"]["coordinates"][0],
         "lat": one["location"]["coordinates"][1], name: one["speed"] * factor} for one in PINGS[:count]
    ]  # fmt: skip
    path = folder / "feed.ndjson"
    path.write_text("\n".join(map(json.dumps, rows)))
    feed = find_feed([str(path)])
    said = re.search(r"^\[speed\]\n(.*?)^unit", city_file(feed, str(path)), re.MULTILINE | re.DOTALL)
    return feed.unit, said[1].splitlines()


def test_a_unit_that_fits_and_that_no_name_contradicts_needs_no_check(tmp_path):
    for name, factor, unit in (("speed", 1, "kmh"), ("speed_mph", 1 / 1.609344, "mph"), ("speed_ms", 1 / 3.6, "mps")):
        found, said = speeds(tmp_path, name, factor)
        assert found == unit and len(said) == 1 and said[0].startswith("# By movement: ")


@pytest.mark.parametrize(
    ("name", "factor", "says"),
    [
        ("speed_knots", 1 / 1.852, "knots"),
        ("speed_fps", 1 / 1.09728, "fps"),
        ("speed", 10, None),
        ("speed", 2.778, None),
    ],
)
def test_speeds_in_no_unit_that_is_known_are_to_be_checked(name, factor, says, tmp_path):
    unit, said = speeds(tmp_path, name, factor)
    assert unit == "kmh" and said[0] == FITS_NONE and "By movement" not in "".join(said)
    assert said[1:] == (
        [] if says is None else [f"# CHECK: the field's name says {says}, which is none of kmh, mps, mph."]
    )


@pytest.mark.parametrize("name", ["speed_mph", "speed_knots"])
def test_a_name_that_says_another_unit_than_the_movement_is_to_be_checked(name, tmp_path):
    unit, said = speeds(tmp_path, name)
    word = name.partition("_")[2]
    assert unit == "kmh" and said[-1] == (
        f"# CHECK: the field's name says {word}, and buses go about as far as they report in kmh: one of the two is "
        "wrong."
    )


def test_a_name_is_taken_where_there_are_too_few_pairs_and_checked_where_they_do_not_fit(tmp_path):
    unit, said = speeds(tmp_path, "speed_mph", count=60)
    assert unit == "mph" and said == [
        "# As the field's name says; the recording has too few pairs of pings to check it."
    ]
    assert speeds(tmp_path, "speed_mph", 10) == ("mph", [FITS_NONE])
    unit, said = speeds(tmp_path, "speed_knots", count=60)
    assert unit == "kmh" and said[0].startswith("# NOT KNOWN") and said[1].startswith("# CHECK: the field's name says")


def test_a_preset_whose_unit_the_movement_contradicts_is_a_mapping_to_be_checked(tmp_path):
    rows = [
        {"entity": [{"id": str(at), "vehicle": {
            "vehicle": {"id": one["license_plate"]},
            "timestamp": int(datetime.fromisoformat(one["observationDateTime"]).timestamp()),
            "position": {"longitude": one["location"]["coordinates"][0],
                         "latitude": one["location"]["coordinates"][1], "speed": one["speed"]}}}]}
        for at, one in enumerate(PINGS)
    ]  # fmt: skip
    (path := tmp_path / "feed.ndjson").write_text("\n".join(map(json.dumps, rows)))
    feed = find_feed([str(path)])
    assert (feed.preset, feed.unit) == ("", "kmh") and feed.keys["records"] == "entity"
    assert "# CHECK: the feed's specification says mps, and buses go" in city_file(feed, str(path))
