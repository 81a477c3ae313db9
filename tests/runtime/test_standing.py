"""Standing queries in the embedded runtime: answers beside the truth, beside speeds, across kills,
and on real days."""

import base64
import io
import json
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest

from tests.failing import Died, DyingLedger
from tests.forms import long_but
from tests.runtime.harness import CONFIG, embedded, fleet_log, frames_of, record_writer
from udp_stream.base.errors import PrivacyRefused
from udp_stream.cli.commands.ledger import lines_of_plate
from udp_stream.cli.report import utility_sentences
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledger.ids import kind_of
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.ledgers.statement import statement
from udp_stream.planning.policy import amount_text
from udp_stream.release.record import QueryResult, described
from udp_stream.settings import load
from udp_stream.settings import queries as query_sections
from udp_stream.testing import SeededEntropy

SURAT = """
[queries]
rho = {rho}
age = "10m"
center = [72.83, 21.17]

[[query]]
name = "centre"
kind = "range"
every = "15m"
box = [72.79, 21.15, 72.85, 21.21]

[[query]]
name = "density"
kind = "density"
every = "30m"
place = [72.83, 21.19]

[[query]]
name = "stop"
kind = "nearest"
every = "30m"
place = [72.83, 21.19]
k = 3
"""


@pytest.fixture(autouse=True)
def few_rounds(limits):
    limits(query_sections, ROUNDS={"zcdp": 12, "pure": 4})


def configured(folder, rho=1e6, text=SURAT):
    path = Path(folder) / "queries.toml"
    path.write_text(text.format(rho=rho))
    return path


@contextmanager
def asking(
    folder, ledger_name, rho=1e6, entropy=None, watched=None, text=SURAT, flags=CONFIG, answers=True
):
    settings = load(configured(folder, rho, text), flags, {})
    told, out = [], io.BytesIO()
    with ledger_and_keys(
        msgspec.structs.replace(settings.ledger, url=str(folder / ledger_name))
    ) as (ledger, keys):
        runtime = EmbeddedRuntime(
            settings, watched(ledger) if watched else ledger, entropy or SeededEntropy("queries"), keys.hash_plate,
            "udp-stream test", record_writer(out), answer=told.extend if answers else None,
        )  # fmt: skip
        yield runtime, told, out, ledger


def everyone(ledger):
    return [entry for entry in ledger.entries() if kind_of(entry.release_id) == "round"]


def test_answers_at_a_large_budget_are_the_truth_from_the_pings(tmp_path):
    """Rho 10^6 a day: noise of some 20 m, so a count is what the accepted pings say, to a plate on
    the edge."""
    log = fleet_log(clean=True)
    with asking(tmp_path, "ledger") as (runtime, told, _, _ledger):
        runtime.run(frames_of(log))
    results = [QueryResult.decode(payload) for payload in told]
    assert len(results) == 6 + 3 + 3 and {result.status for result in results} == {"answered"}
    truth = positions_at_moments(log)
    for result in results:
        near = truth[result.query.moment]
        assert result.plates.asked == len(near) and result.plates.gave_nothing == 0
        if result.query.kind == "range":
            west, south, east, north = result.query.box
            inside = sum(west < lon < east and south < lat < north for lon, lat in near.values())
            assert abs(result.answer.value - inside) <= 1
        if result.query.kind == "nearest":
            metres = sorted(distance(result.query.place, one) for one in near.values())
            assert len(result.answer.distances_m) == 3
            assert all(
                abs(a - b) < 150 for a, b in zip(result.answer.distances_m, metres, strict=False)
            )


def distance(a, b):
    lat = np.radians((a[1] + b[1]) / 2)
    return float(np.hypot((a[0] - b[0]) * np.cos(lat), a[1] - b[1]) * 111_200)


def positions_at_moments(log):
    """Each plate's last position before each quarter of an hour, at most ten minutes old, by its
    text alone."""
    pings = []
    for message in log:
        one = msgspec.json.decode(message)
        when = datetime.fromisoformat(one["observationDateTime"])
        pings.append((when, one["license_plate"], tuple(one["location"]["coordinates"])))
    found, first = {}, min(pings)[0].replace(minute=0, second=0)
    for quarter in range(1, 8):
        moment = first + timedelta(minutes=15 * quarter)
        held = {
            plate: place
            for when, plate, place in sorted(pings)
            if timedelta(0) < moment - when <= timedelta(minutes=10)
        }
        found[moment.isoformat(timespec="seconds")] = held
    return found


def test_releases_of_speeds_are_byte_for_byte_what_they_are_without_queries(tmp_path):
    with embedded(
        tmp_path / "alone", alone := io.BytesIO(), entropy=SeededEntropy("queries")
    ) as runtime:
        runtime.run(frames_of(fleet_log()))
    key = (tmp_path / "alone.key").read_bytes()
    (tmp_path / "ledger.key").write_bytes(key)
    (tmp_path / "ledger.key").chmod(0o600)
    with asking(tmp_path, "ledger", rho=100) as (runtime, told, out, ledger):
        runtime.run(frames_of(fleet_log()))
        assert out.getvalue() == alone.getvalue() and told
        speeds, positions = {}, {}
        for entry in ledger.entries():
            of = positions if entry.period.startswith("positions ") else speeds
            for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True):
                of.setdefault(entry.period, {})
                of[entry.period][plate] = of[entry.period].get(plate, 0) + nano
            assert (of is positions) == (kind_of(entry.release_id) in ("round", "query"))
        assert len(speeds) == len(positions) == 1
        for period, plates in {**speeds, **positions}.items():
            charged = ledger.balances(period, list(plates)).charged
            assert charged.tolist() == list(plates.values())
        assert ledger.verify() == [] and list(ledger.unpublished()) == []
        assert max(positions.popitem()[1].values()) <= 100 * 10**9


def test_a_run_again_writes_the_same_bytes_and_charges_nothing(tmp_path):
    found = []
    for seed in range(2):
        with asking(tmp_path, "ledger", rho=100, entropy=SeededEntropy(seed)) as (
            runtime,
            told,
            _,
            ledger,
        ):
            summary = runtime.run(frames_of(fleet_log()))
            found.append((told, ledger.progress()))
    assert found[0] == found[1] and summary.answers_made == 0
    assert summary.answers.total() == len(told) == 12


@pytest.mark.parametrize("answered", long_but([True], [False, True]))
def test_a_run_that_dies_anywhere_goes_on_to_the_same_answers(tmp_path, answered):
    log = frames_of(fleet_log(buses=12, hours=0.6))
    stands, died = {}, 0
    for attempt in range(200):
        with asking(
            tmp_path, "ledger", rho=3000, entropy=SeededEntropy(attempt),
            watched=lambda ledger, attempt=attempt: DyingLedger(ledger, 40 + 17 * attempt, answered=answered),
        ) as (runtime, told, _, ledger):  # fmt: skip
            try:
                runtime.run(log)
                break
            except Died:
                died += 1
            finally:
                for payload in told:
                    assert (
                        stands.setdefault(QueryResult.decode(payload).release_id, payload)
                        == payload
                    )
    with asking(tmp_path, "ledger", rho=3000) as (_, _, _, ledger):
        assert died > 3 and ledger.verify() == [] and list(ledger.unpublished()) == []
        recorded = {
            e.release_id: e.payload for e in ledger.entries() if kind_of(e.release_id) == "query"
        }
        assert recorded == stands


def test_a_plate_that_has_run_out_gives_nothing_and_the_answer_says_so(tmp_path, registered):
    registered(query_sections.ROUNDS, "zcdp", 1)
    text = SURAT.replace('every = "15m"\n', 'every = "15m"\nbudget = 100\n')
    with asking(tmp_path, "ledger", rho=300, text=text) as (runtime, told, _, ledger):
        runtime.run(frames_of(fleet_log(clean=True)))
        assert ledger.verify() == []
        (period,) = [period for period in ledger.periods() if period.startswith("positions")]
        plates = list({plate for entry in everyone(ledger) for plate in entry.plates})
        assert 200 * 10**9 <= ledger.balances(period, plates).charged.max() <= 300 * 10**9
    counts = [result for result in map(QueryResult.decode, told) if result.query.name == "centre"]
    gave_nothing = [result.plates.gave_nothing for result in counts]
    assert gave_nothing[0] == 0 and gave_nothing[-1] == counts[-1].plates.asked
    assert counts[-1].answer.high - counts[-1].answer.low == counts[-1].plates.asked


def test_how_much_farther_the_nearest_may_be_is_not_told_where_a_plate_gave_nothing(tmp_path):
    """A plate that has run out may stand at the stop itself, so no distance bounds how much nearer
    it is."""
    text = SURAT.replace("k = 3\n", "k = 3\nbudget = 50\n")
    with asking(tmp_path, "ledger", rho=50, text=text) as (runtime, told, _, _):
        runtime.run(frames_of(fleet_log(clean=True)))
    found = [result for result in map(QueryResult.decode, told) if result.query.name == "stop"]
    some = [one for one in found if 0 < one.plates.gave_nothing < one.plates.asked]
    assert some and any(one.answer.distances_m for one in some)
    assert [one.answer.excess_m is None for one in found] == [
        one.plates.gave_nothing > 0 for one in found
    ]
    assert not all(one.plates.gave_nothing for one in found)


@pytest.mark.parametrize(
    "budget", ['accounting = "pure"\nepsilon = 10', 'accounting = "zcdp"\nrho = 2.0']
)
def test_no_plate_loses_more_than_its_one_budget_by_speeds_and_positions_together(tmp_path, budget):
    text = SURAT.replace("rho = {rho}", "share = 0.25\nunit_m = 500") + f"[budget]\n{budget}\n"
    text = text.replace('every = "15m"\n', 'every = "15m"\nbudget = {rho}\n')
    of_positions = (
        5 if "epsilon" in budget else 2
    )  # a quarter of 10 by half a km; of 2, by its square
    flags = tuple(flag for flag in CONFIG if not flag.startswith("budget."))
    with asking(tmp_path, "ledger", rho=of_positions, text=text, flags=flags) as (
        runtime,
        told,
        _,
        ledger,
    ):
        runtime.run(frames_of(fleet_log(clean=True)))
        plates = sorted({plate for entry in ledger.entries() for plate in entry.plates})
        charged = {period: ledger.balances(period, plates).charged for period in ledger.periods()}
    of = {kind: sum(one for period, one in charged.items() if period.startswith("positions") == (kind == "positions"))
          for kind in ("speeds", "positions")}  # fmt: skip
    by_unit = of["positions"] / 2 if "epsilon" in budget else of["positions"] / 4
    whole = (10 if "epsilon" in budget else 2) * 10**9
    assert len(charged) == 2 and (of["speeds"] > 0).any() and by_unit.max() > 0.24 * whole
    assert (of["speeds"] + by_unit).max() <= whole
    assert of["speeds"].max() <= 0.75 * whole
    assert {QueryResult.decode(payload).status for payload in told} == {"answered"}


def test_a_result_fits_its_schema_and_names_no_plate(tmp_path):
    with asking(tmp_path, "ledger", rho=100) as (runtime, told, _, ledger):
        runtime.run(frames_of(fleet_log()))
        hashes = {plate for entry in ledger.entries() for plate in entry.plates}
        rounds = [entry.payload for entry in everyone(ledger)]
    validator = jsonschema.Draft202012Validator(described(QueryResult))
    plates = {msgspec.json.decode(message)["license_plate"] for message in fleet_log(clean=True)}
    for payload in told:
        validator.validate(json.loads(payload))
    for payload in [*told, *rounds]:
        text = payload.decode()
        assert not any(plate in text for plate in plates)
        assert not any(
            one.hex() in text or base64.b64encode(one).decode() in text for one in hashes
        )


def test_counts_that_are_kept_back_are_not_in_results(tmp_path):
    with asking(tmp_path, "ledger", flags=(*CONFIG, "release.counts=none")) as (runtime, told, *_):
        runtime.run(frames_of(fleet_log(hours=0.4)))
    assert told and all(QueryResult.decode(payload).plates is None for payload in told)


SHARE = SURAT.replace("rho = {rho}", "share = 0.25\nunit_m = 500").replace(
    'every = "15m"\n', 'every = "15m"\nbudget = 5\n'
)
NO_BUDGET = tuple(flag for flag in CONFIG if not flag.startswith("budget.epsilon"))


def test_what_positions_cost_before_counts_in_the_one_budget_of_the_same_day(tmp_path):
    log = fleet_log(clean=True)
    morning, rest = log[: len(log) // 2], log
    apart = SURAT.replace("rho = {rho}", "epsilon = 4000")
    with asking(tmp_path, "ledger", text=apart, flags=NO_BUDGET) as (runtime, _, _, ledger):
        runtime.run(frames_of(morning))
        before = ledger.progress().admitted
    with (
        asking(tmp_path, "ledger", text=SHARE, flags=NO_BUDGET) as (runtime, _, _, ledger),
        # 4000 * 0.5 of positions; speeds had 10, and that stays
        pytest.raises(PrivacyRefused, match="could lose epsilon 2010"),
    ):
        runtime.run(frames_of(rest))
    with asking(tmp_path, "ledger", text=apart, flags=NO_BUDGET) as (_, _, _, ledger):
        assert ledger.progress().admitted == before


def test_the_statement_and_show_say_what_both_kinds_come_to_in_the_one_budget(tmp_path):
    with asking(tmp_path, "ledger", text=SHARE, flags=NO_BUDGET) as (runtime, _, _, ledger):
        summary = runtime.run(frames_of(fleet_log(clean=True)))
        stated = statement(load(configured(tmp_path, text=SHARE), NO_BUDGET, {}), ledger)[
            "positions"
        ]
        plates = sorted({plate for entry in ledger.entries() for plate in entry.plates})
        both = [ledger.balances(period, plates).charged for period in ledger.periods()]
        settings = load(configured(tmp_path, text=SHARE), NO_BUDGET, {})
        shown = [lines_of_plate(ledger, plate, settings)[-1] for plate in plates]
        assert "had one budget" not in " ".join(utility_sentences(summary, settings))
    for line, speeds, positions in zip(shown, *both, strict=True):  # a kilometre is two units
        charged = f"epsilon {amount_text(int(speeds - positions // -2))}"
        assert f"charged {charged} in all\tof at most epsilon 10 in all\t500 m count" in line
    (one,) = stated["one_budget"]
    assert (one["promised"], one["guaranteed"]) == ("epsilon 10", "epsilon 10")
    most = (both[0] - both[1] // -2).max() / 1e9  # speeds, and half of positions rounded up
    assert float(one["max_over_plates"].removeprefix("epsilon ")) == pytest.approx(most)


def test_another_period_of_positions_is_refused_before_it_is_charged(tmp_path):
    log = fleet_log(hours=0.4)
    with asking(tmp_path, "ledger") as (runtime, *_):
        runtime.run(frames_of(log))
    other = (
        SURAT.replace("[queries]\n", '[queries]\nperiod = "7d"\n')
        .replace('"15m"', '"30m"')
        .replace("centre", "other")
    )

    with (
        asking(tmp_path, "ledger", text=other) as (runtime, *_),
        pytest.raises(PrivacyRefused, match=r"queries\.period"),
    ):
        runtime.run(frames_of(log))
    with asking(tmp_path, "ledger") as (_, _, _, ledger):
        assert all("7d" not in period for period in ledger.periods())
