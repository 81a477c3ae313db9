"""`privacy.neighbours = "add-remove"`: its settings, what is refused beside it, its domain, its
noise, its periods."""

import json
import math
import zipfile
from fractions import Fraction

import h3
import numpy as np
import pytest

from udp_stream.base.errors import ConfigError, PrivacyRefused
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.cli.commands.ledger import lines_of_plate
from udp_stream.cli.main import main
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.opening import other_budgets, other_policies
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.ledgers.statement import disagreement, statement
from udp_stream.mechanisms.add_remove import GAIN
from udp_stream.mechanisms.samplers import SCALE_MAX
from udp_stream.planning.add_remove import SCALE_KMH2, SCALE_PLATES_KMH2, AddRemoveRules, sigma_of
from udp_stream.planning.policy import note_policy, period_of, written
from udp_stream.release.charge import require_one_promise
from udp_stream.settings import load
from udp_stream.settings.domain import CELLS_MAX, FILE_MAX

SURAT = 21.17, 72.83
CELLS = sorted(h3.grid_disk(h3.latlng_to_cell(*SURAT, 7), 3))
BOX = "pings.box=[72.6, 21.0, 73.0, 21.35]"
NOON_MS = 1_704_715_200_000
DAY_MS = 86_400_000


@pytest.fixture
def cells(tmp_path):
    return written_to(tmp_path / "cells.txt", "\n".join(CELLS))


def written_to(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def hidden(domain, *flags):
    mode = "privacy.neighbours=add-remove", "pings.interval=10s"
    return load(None, (*mode, f"hat.domain={domain}", *flags), {})


def rules_of(settings):
    return AddRemoveRules.of(settings.policy, settings.domain)


def domain_of(path, *flags):
    return [f"{cell:x}" for cell in hidden(path, *flags).domain.tolist()]


def refused(path, *flags):
    with pytest.raises(ConfigError) as caught:
        hidden(path, *flags)
    assert caught.value.exit_status == 3
    return str(caught.value)


# Rules.


def test_rules_follow_from_settings(cells):
    rules = rules_of(hidden(cells))
    assert domain_of(cells) == CELLS and rules.cells.dtype == np.uint64
    assert (rules.full, rules.active, rules.plates, rules.slot_hours, rules.max_kmh) == (
        360,
        12,
        False,
        1.0,
        65.0,
    )
    assert rules.digest == hidden(cells).policy.domain and len(rules.digest) == 16
    assert rules.first_sigma / QUANTA_PER_KMH == pytest.approx(25.49, abs=0.01)
    flags = "hat.slot=30m", "budget.period=2d", "pings.interval=20s", "release.plates=true"
    other = rules_of(hidden(cells, *flags))
    assert (other.full, other.active, other.plates, other.slot_hours) == (90, 24, True, 0.5)


def test_the_digest_is_of_all_cells_and_of_no_order(cells, tmp_path):
    backwards = written_to(tmp_path / "backwards.txt", "\n".join([*CELLS[::-1], CELLS[0]]))
    fewer = written_to(tmp_path / "fewer.txt", "\n".join(CELLS[:-1]))
    digests = [rules_of(hidden(path)).digest for path in (cells, backwards, fewer)]
    assert digests[0] == digests[1] != digests[2]


def test_swap_values_has_no_rules_and_is_the_default():
    assert load(None, (), {}).domain.size == 0
    assert load(None, ("privacy.neighbours=swap-values",), {}).policy == load(None, (), {}).policy


@pytest.mark.parametrize("plates", [False, True])
@pytest.mark.parametrize("slots", [1, 23, 24, 168])
@pytest.mark.parametrize("rho_nano", [500, 1_539_278_763, 7 * NANO + 1])
def test_sigma_is_rounded_up_to_the_quantum(rho_nano, slots, plates):
    """The squares of a period cost the budget and no more; one quantum less would cost more."""
    squares = (
        (SCALE_PLATES_KMH2 if plates else SCALE_KMH2) * QUANTA_PER_KMH**2 * Fraction(slots, 24)
    )
    sigma, rho = sigma_of(rho_nano, slots, plates=plates), Fraction(rho_nano, NANO)
    assert squares / (2 * sigma**2) <= rho < squares / (2 * (sigma - 1) ** 2)


def test_zcdp_is_a_rho_of_its_own(cells):
    settings = hidden(cells, "budget.accounting=zcdp", "budget.rho=0.5")
    expected = math.ceil(math.sqrt(2000 / (2 * 0.5)) * QUANTA_PER_KMH)
    assert rules_of(settings).first_sigma == expected
    assert settings.policy.neighbours == "add-remove"


@pytest.mark.parametrize(
    ("flags", "day", "city", "spread"),
    [((), 0.1, 0.03, 0.05), (("budget.epsilon=20",), 0.1, 0.03, 0.05), (("budget.epsilon=4",), 0.25, 0.05, 0.05),
     (("budget.epsilon=2",), 0.25, 0.05, 0), (("budget.epsilon=1",), 0.4, 0.1, 0),
     (("budget.epsilon=0.1",), 0.4, 0.1, 0), (("budget.epsilon=10", "budget.period=30d"), 0.3366, 0.0788, 0),
     (("hat.slot=15m",), 0.1, 0.03, 0.05), (("release.plates=true",), 0, 0, 0), (("budget.period=12h",), 0, 0.03, 0.05),
     (("release.cdf=off",), 0.1, 0.03, 0), (("release.cdf=smoothed",), 0.1, 0.03, 0.05),
     (("budget.epsilon=0.01",), 0, 0, 0)],
)  # fmt: skip
def test_parts_of_a_day_follow_from_its_rho_and_each_noise_is_made_for_its_part(
    cells, flags, day, city, spread
):
    settings = hidden(cells, *flags)
    rules, policy = rules_of(settings), settings.policy
    rho, slots = policy.budget_nano / NANO, policy.period_seconds / policy.slot_seconds
    assert rules.day_nano == pytest.approx(day * rho * NANO / policy.days, rel=0.01)
    scale = 5000 if policy.plates else 2000
    for sigma, share in ((rules.first_sigma, 1), (rules.sigma, 1 - day - city - spread)):
        squares = scale * slots / 24 / (2 * share * rho)
        assert sigma / QUANTA_PER_KMH == pytest.approx(math.sqrt(squares), rel=0.01)
    # Entries of the city, and of its bins of speed, have the noise of the slot's.
    for gain, scale, part in ((rules.city, 9000, city), (rules.spread, 500, spread)):
        assert (gain / GAIN) ** 2 * scale / (2 * part * rho or 1) * slots / 24 == pytest.approx(
            (rules.sigma / QUANTA_PER_KMH) ** 2 if part else 0, rel=0.02
        )
    if day:
        squares = 10_000 * (slots / policy.days / 24) ** 2 * policy.days / (2 * day * rho)
        assert rules.day_sigma / QUANTA_PER_KMH == pytest.approx(math.sqrt(squares), rel=0.01)
    else:
        assert rules.day_sigma == 0


def test_noise_that_cannot_be_drawn_is_refused_and_the_rest_is_drawable(cells):
    zcdp = "budget.accounting=zcdp"
    said = refused(cells, zcdp, "budget.rho=1e-6")
    assert said.startswith("budget.rho: ") and "16,384 km/h" in said
    assert "16,384 km/h" in refused(cells, zcdp, "budget.rho=1e-4", "budget.period=100d")
    assert 0.9 * SCALE_MAX < rules_of(hidden(cells, zcdp, "budget.rho=4e-6")).sigma <= SCALE_MAX


# The policy.


def test_a_ledger_tells_the_promises_apart(cells):
    ours = hidden(cells).policy
    swapped = load(None, (), {}).policy
    assert not {"hat.domain", "pings.interval", "release.plates"} & written(swapped).keys()
    ledger = MemoryLedger()
    note_policy(ledger, swapped)
    changed = "neighbours swap-values -> add-remove"
    assert changed in other_policies(ledger, ours)[swapped.fingerprint()]
    assert other_budgets(ledger.meta(), ours) == [changed]


# The domain.

SQUARE = [[72.7, 21.1], [72.9, 21.1], [72.9, 21.3], [72.7, 21.3], [72.7, 21.1]]
HOLE = [[72.76, 21.16], [72.76, 21.24], [72.84, 21.24], [72.84, 21.16], [72.76, 21.16]]


def geojson(path, shape):
    return written_to(path, json.dumps(shape))


def polygon(*rings):
    return {"type": "Polygon", "coordinates": rings}


def test_a_file_of_cells_has_comments_blank_lines_repeats_and_any_case(tmp_path):
    lines = [
        f"# {len(CELLS)} cells",
        "",
        *reversed(CELLS),
        "  " + CELLS[0].upper() + "  # the first",
        "",
    ]
    path = tmp_path / "cells.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert domain_of(path) == CELLS


def test_a_polygon_has_the_cells_that_it_touches_and_none_else(tmp_path):
    found = set(domain_of(geojson(tmp_path / "city.json", polygon(SQUARE)), BOX))
    centres = set(h3.h3shape_to_cells(h3.LatLngPoly([(lat, lon) for lon, lat in SQUARE]), 7))
    spread = {
        h3.latlng_to_cell(lat, lon, 7)
        for lat in np.linspace(21.1, 21.3, 300)
        for lon in np.linspace(72.7, 72.9, 300)
    }
    assert centres < found and spread <= found
    for cell in found - spread:  # it is touched between the points
        (south, west), (north, east) = (
            f(np.array(h3.cell_to_boundary(cell)), axis=0) for f in (np.min, np.max)
        )
        assert south < 21.301 and north > 21.099 and west < 72.901 and east > 72.699
    with_hole = set(domain_of(geojson(tmp_path / "hole.json", polygon(SQUARE, HOLE))))
    assert with_hole < found and h3.latlng_to_cell(21.2, 72.8, 7) in found - with_hole


def test_a_polygon_within_one_cell_is_that_cell(tmp_path):
    lat, lon = SURAT
    small = polygon([[lon, lat], [lon + 1e-4, lat], [lon, lat + 1e-4], [lon, lat]])
    assert domain_of(geojson(tmp_path / "s.json", small)) == [h3.latlng_to_cell(*SURAT, 7)]


def test_the_form_of_a_file_does_not_matter(tmp_path):
    shape = polygon(SQUARE)
    feature = {
        "type": "Feature",
        "properties": {"name": "Surat"},
        "geometry": shape,
        "bbox": [72.7, 21.1, 72.9, 21.3],
    }
    forms = [
        shape,
        {"type": "MultiPolygon", "coordinates": [shape["coordinates"]] * 2},
        feature,
        {"type": "FeatureCollection", "name": "cities", "features": [feature, feature]},
    ]
    rules = [
        rules_of(hidden(geojson(tmp_path / f"{i}.geojson", form))) for i, form in enumerate(forms)
    ]
    names = [f"{cell:x}" for cell in rules[0].cells.tolist()]
    rules.append(rules_of(hidden(written_to(tmp_path / "cells.txt", "\n".join(names[::-1])))))
    assert len({one.digest for one in rules}) == 1


def test_a_polygon_across_the_antimeridian_is_no_belt_around_the_earth(tmp_path):
    whole = polygon([[178, -19], [-178, -19], [-178, -17], [178, -17], [178, -19]])
    halves = [
        [[[178, -19], [180, -19], [180, -17], [178, -17], [178, -19]]],
        [[[-180, -19], [-178, -19], [-178, -17], [-180, -17], [-180, -19]]],
    ]
    flags = "hat.resolution=5", "hat.timezone=Pacific/Fiji"
    one = set(domain_of(geojson(tmp_path / "whole.json", whole), *flags))
    two = set(
        domain_of(
            geojson(tmp_path / "halves.json", {"type": "MultiPolygon", "coordinates": halves}),
            *flags,
        )
    )
    assert 300 < len(one) < 600 and len(one ^ two) < 10
    assert all(abs(h3.cell_to_latlng(cell)[1]) > 177 for cell in one | two)


STOPS = "stop_id,stop_name,stop_lat,stop_lon\nA,Station,21.17,72.83\nB,Depot,21.2051,72.8407\n"
SHAPES = "shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence\n1,21.17,72.83,1\n1,21.19,72.80,2\n"


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_a_timetable_has_the_cells_of_its_stops_and_shapes(form, tmp_path):
    feed = tmp_path / ("feed.zip" if form == "zip" else "feed")
    if form == "zip":
        with zipfile.ZipFile(feed, "w") as packed:
            packed.writestr("stops.txt", STOPS)
            packed.writestr("shapes.txt", SHAPES)
    else:
        feed.mkdir()
        (feed / "stops.txt").write_text(STOPS)
        (feed / "shapes.txt").write_text(SHAPES)
    places = SURAT, (21.2051, 72.8407), (21.19, 72.80)
    assert domain_of(feed, BOX) == sorted({h3.latlng_to_cell(*place, 7) for place in places})


def test_a_domain_has_at_most_so_many_cells(tmp_path):
    center = h3.latlng_to_cell(*SURAT, 7)
    many = h3.grid_disk(center, 82)
    assert len(many) > CELLS_MAX
    assert len(domain_of(written_to(tmp_path / "most", "\n".join(many[:CELLS_MAX])))) == CELLS_MAX
    assert "at most 20,000 cells, got 20,001" in refused(
        written_to(tmp_path / "more", "\n".join(many[: CELLS_MAX + 1]))
    )


@pytest.mark.parametrize("resolution", [0, 15])
def test_the_largest_polygons_are_refused_before_their_cells_are_made(resolution, tmp_path):
    """At resolution 15 a town would have billions of cells."""
    town = geojson(tmp_path / "town.json", polygon(SQUARE))
    if resolution:
        assert "at most 20,000 cells" in refused(town, f"hat.resolution={resolution}")
    else:
        assert len(domain_of(town, f"hat.resolution={resolution}")) in (1, 2)


def test_what_is_no_file_is_refused_with_its_name(tmp_path):
    assert refused(tmp_path / "none").startswith(f"hat.domain: {tmp_path / 'none'}: cannot be read")
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path / 'empty'}: stops.txt" in refused(tmp_path / "empty")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as packed:
        packed.writestr("readme.txt", "no stops")
    found = refused(tmp_path / "other.zip")
    assert found.startswith("hat.domain: ") and "stops.txt" in found
    (tmp_path / "large").write_bytes(b"#" * (FILE_MAX + 1))
    assert "16 MiB" in refused(tmp_path / "large")


def test_a_domain_is_taken_that_touches_the_box(cells):
    assert domain_of(cells, BOX) == CELLS
    lat, lon = h3.cell_to_latlng(CELLS[0])
    within = f"pings.box=[{lon + 0.002}, {lat + 0.002}, {lon + 0.003}, {lat + 0.003}]"
    assert domain_of(cells, within) == CELLS, "a box within a cell, beside its centre"


# One promise a ledger.

KINDS = ("add-remove", "swap-values")


def settings_of(kind, cells):
    return hidden(cells) if kind == "add-remove" else load(None, (), {})


def charged_under(settings, at_ms=NOON_MS, ledger=None):
    ledger = MemoryLedger() if ledger is None else ledger
    period = settings.calendar.slot_in_period(at_ms).period
    one = Admission(f"{CELLS[0]}-{at_ms // 1000}-3600", np.array([0]), np.array([NANO]), 0, b"{}")
    ledger.admit(period, settings.policy.budget_nano, [b"plate"], [one])
    return ledger


def promise(settings, ledger, at_ms=NOON_MS):
    calendar = settings.calendar
    require_one_promise(
        calendar.slot_in_period(at_ms).period,
        settings.policy.budget_nano,
        calendar,
        ledger,
        [b"plate"],
    )


@pytest.mark.parametrize(("first", "second"), [KINDS, KINDS[::-1]])
def test_a_period_that_was_charged_under_one_promise_is_refused_under_the_other(
    first, second, cells
):
    one, other = settings_of(first, cells), settings_of(second, cells)
    ledger = charged_under(one)
    promise(one, ledger)
    with pytest.raises(PrivacyRefused, match=r"privacy\.neighbours") as caught:
        promise(other, ledger)
    assert caught.value.exit_status == 5
    for days in (-1, 1):
        promise(other, ledger, NOON_MS + days * DAY_MS)
    charged_under(other, NOON_MS + DAY_MS, ledger)
    with pytest.raises(PrivacyRefused, match=r"privacy\.neighbours"):
        promise(one, ledger, NOON_MS + DAY_MS)


@pytest.mark.parametrize(
    "flag", ["budget.period=rolling 1d", "budget.period=2d", "hat.timezone=UTC"]
)
def test_nor_does_any_other_period_of_speeds_overlap_one_of_whole_plates(flag, cells):
    mode, swapped = hidden(cells), load(None, (flag,), {})
    for one, other in ((mode, swapped), (swapped, mode)):
        with pytest.raises(PrivacyRefused, match=r"privacy\.neighbours"):
            promise(other, charged_under(one))


def test_answers_about_positions_overlap_whole_plates_and_not_speeds(cells):
    mode = hidden(cells)
    speeds = load(None, ("queries.rho=100", "queries.center=[72.8, 21.2]"), {})
    periods, ledger = speeds.position_periods, charged_under(mode)
    with pytest.raises(PrivacyRefused, match=r"privacy\.neighbours"):
        require_one_promise(
            periods.name_at(NOON_MS), periods.budget_nano, periods, ledger, [b"plate"]
        )
    of_speeds = charged_under(load(None, (), {}))
    require_one_promise(
        periods.name_at(NOON_MS), periods.budget_nano, periods, of_speeds, [b"plate"]
    )


def test_periods_of_whole_plates_are_of_the_same_time_and_follow_each_other(cells):
    mode, swapped = (settings_of(kind, cells).calendar for kind in KINDS)
    names = [
        [one.slot_in_period(NOON_MS + day * DAY_MS).period for day in range(3)]
        for one in (mode, swapped)
    ]
    for ours, theirs in zip(*names, strict=True):
        assert ours != theirs and ours.endswith(" of whole plates in rho")
        assert [(one.start, one.end) for one in (period_of(ours), period_of(theirs))] == [
            (period_of(theirs).start, period_of(theirs).end)
        ] * 2
    assert not mode.overlapping(names[0][1], names[0]) and mode.overlapping(
        names[0][1], names[1]
    ) == (names[1][1],)


def test_the_statement_agrees_with_the_settings_of_the_mode(cells):
    mode, swapped = (settings_of(kind, cells) for kind in KINDS)
    stated = statement(mode, charged_under(mode))
    assert disagreement(mode, stated) is None and disagreement(swapped, stated) is not None
    (under,) = stated["privacy"]["privacy_loss"]["charged_under"]
    assert (
        under["period"] == "1d of whole plates" and under["rho"] == mode.policy.budget_nano / NANO
    )
    details = stated["details"]
    assert (
        details["privacy_unit_details"]["adjacency"].startswith("add-remove")
        and not details["unprotected_quantities"]
    )


def test_what_a_plate_has_left_is_told_of_whole_plates(cells):
    mode, swapped = (settings_of(kind, cells) for kind in KINDS)
    (line,) = lines_of_plate(charged_under(mode), b"plate", mode)
    assert "charged 1.0" in line and "left 0.539" in line
    (line,) = lines_of_plate(charged_under(mode), b"plate", swapped)
    assert "left" not in line


def test_no_output_is_written_over_the_domain(cells, tmp_path, capsys):
    """It may be what somebody has drawn by hand."""
    before = cells.read_text()
    flags = "privacy.neighbours=add-remove", "pings.interval=10s", f"hat.domain={cells}"
    words = [word for flag in flags for word in ("--set", flag)]
    feed = written_to(tmp_path / "pings.ndjson", "")
    assert (
        main(["replay", str(feed), "--out", str(cells), "--ledger", str(tmp_path / "l"), *words])
        == 2
    )
    assert f"the domain {cells}" in capsys.readouterr().err and cells.read_text() == before
