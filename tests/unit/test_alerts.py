"""The rules for alerts, by Prometheus' own `promtool test rules`: a case for each alert, in which
it fires and nothing else does, and a year's ordinary days, in which none does."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml

from tests.promtool import found
from udp_stream.cli.metrics import Metrics

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "alerts.yaml"
MINUTES = 40 * 60
KOLKATA_S = 19_800
ALERTS = {
    rule["alert"]
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    if "alert" in rule
}

# What two processes of a deployment show that is well; minute by minute, from midnight UTC, 05:30
# in Kolkata, on.
WELL = {
    "info": "1", "started_timestamp_seconds": "0", "zone_offset_seconds": f"{KOLKATA_S}",
    "partitions": "4", "deployment_partitions": "8",
    "source_silent_seconds": "5", "source_failures_total": "0+0.1", "certificate_end_timestamp_seconds": "1e8",
    "newest_ping_timestamp_seconds": "0+60", "clock_ahead_seconds": "-62", "pings_stale_total": "0",
    "pings_total": "0+300", 'pings_refused_total{reason="late"}': "0+1",
    "published_timestamp_seconds": "0+60", 'hats_total{status="released"}': "0+3",
    'hats_total{status="withheld_budget"}': "0+1",
    "raised_partitions": "0", "ledger_away_seconds": "0", "stuck_seconds": "20", "closing_seconds": "0",
    "unit_in_doubt": "0", "disk_free_bytes": "5e10", "ledger_bytes": "1e8", "journal_bytes": "1e6",
}  # fmt: skip

# What a dashboard shows, with the same clock.
PAGE = {"page_up": "1", "page_dashboard_newest_slot_timestamp_seconds": "0+60"}


def over(values):
    """A value, or a beginning and a step a minute, for the whole time; else as promtool spells a
    course."""
    value = str(values)
    return (
        value
        if " " in value or "x" in value
        else f"{value}{'' if '+' in value else '+0'}x{MINUTES}"
    )


def course(before, minutes, after):
    """One value for so many minutes, then another, by a step a minute if it has one."""
    return f"{before}+0x{minutes - 1} {over(after)}"


def named(series, instance):
    is_page, (name, _, labels) = series in PAGE, series.removeprefix("page_").partition("{")
    job = "udp-stream-dashboard" if is_page else "udp-stream"
    labels = f'instance="{instance}",job="{job}"' + (f",{labels}" if labels else "}")
    return f"{'' if name == 'up' else 'udp_stream_'}{name}{{{labels}" + (
        "" if labels.endswith("}") else "}"
    )


def input_series(changed, processes=("a", "b")):
    shown = {"up": "1", **WELL}
    both = changed if isinstance(changed, Mapping) else {}
    page = {series: both.get(series, values) for series, values in PAGE.items()}
    both = {series: values for series, values in both.items() if series not in PAGE}
    told = [{**shown, **both} for _ in processes]
    if not isinstance(changed, Mapping):  # of one process each
        told = [{**shown, **one} for one in changed]
    return [
        {"series": named(series, instance), "values": over(values)}
        for instance, values_of in zip([*processes, "page"], [*told, page], strict=True)
        for series, values in values_of.items()
        if values is not None
    ]


def case(changed, fires, states="firing", processes=("a", "b")):
    """`fires`: by time, the names of the alerts that are in one of these states then."""
    tests = [
        {
            "expr": f'count by (alertname) (ALERTS{{alertstate=~"{states}"}}) > bool 0', "eval_time": at,
            "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)],
        }
        for at, alerts in fires.items()
    ]  # fmt: skip
    return {
        "interval": "1m",
        "input_series": input_series(changed, processes),
        "promql_expr_test": tests,
    }


def minutes_of(time):
    return int(time[:-1]) * (60 if time.endswith("h") else 1)


def judged(folder, tests, rules=RULES):
    """What promtool says of these cases; empty if all hold. Those of many hours are looked at less
    often."""
    ends = [minutes_of(one["eval_time"]) for test in tests for one in test["promql_expr_test"]]
    every = "4m" if max(ends) >= 600 else "2m"
    (folder / "cases.yaml").write_text(
        json.dumps({"rule_files": [str(rules)], "evaluation_interval": every, "tests": tests})
    )
    done = subprocess.run(
        [found(), "test", "rules", "cases.yaml"],
        cwd=folder,
        env={**os.environ, "GOMAXPROCS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


# A process that begins each 20 s, and is met by one scrape of three.
MET = " ".join(["1 0 0"] * (MINUTES // 3))
INFO = " ".join(["1 stale stale"] * (MINUTES // 3))
BIRTHS = " ".join(f"{60 * minute} stale stale" for minute in range(0, MINUTES, 3))

CASES = {
    "UdpStreamNoWorker": (
        dict.fromkeys(WELL) | {"up": "0"},
        {"1m": set(), "4h": {"UdpStreamNoWorker"}},
    ),
    "UdpStreamRestarts": (
        {"up": MET, "info": INFO, "started_timestamp_seconds": BIRTHS}, {"10h": {"UdpStreamRestarts"}},
    ),
    "UdpStreamWorkerGone": (
        [{}, {"up": course(1, 180, 0), "partitions": f"4+0x180 stale _x{MINUTES}"}],
        {"2h": set(), "200m": {"UdpStreamWorkerGone", "UdpStreamPartitionsWithoutWorker"}},
    ),
    "UdpStreamPartitionsWithoutWorker": (
        {"deployment_partitions": course(8, 180, 12)}, {"185m": set(), "200m": {"UdpStreamPartitionsWithoutWorker"}},
    ),
    "UdpStreamPartitionsRaised": (
        {"raised_partitions": course(0, 180, 4)}, {"179m": set(), "182m": {"UdpStreamPartitionsRaised"}},
    ),
    "UdpStreamLedgerAway": (
        [{"ledger_away_seconds": course(0, 180, "0+60")}, {}], {"3h": set(), "184m": {"UdpStreamLedgerAway"}},
    ),
    "UdpStreamSourceSilent": (
        [{"source_silent_seconds": course(5, 180, "0+60")}, {}],
        {"184m": set(), "190m": {"UdpStreamSourceSilent"}},
    ),
    "UdpStreamSourceFails": (
        [{"source_failures_total": "0+0.5"}, {}], {"4h": {"UdpStreamSourceFails"}},
    ),
    "UdpStreamPingsAreOld": (  # it stands from 14:30 to 21:00 in Kolkata, and is no trouble at night
        {"newest_ping_timestamp_seconds": f"0+60x540 32400+0x{MINUTES}"},
        {"9h": set(), "10h": {"UdpStreamPingsAreOld"}, "15h": {"UdpStreamPingsAreOld"}, "16h": set(), "25h": set(),
         "26h": {"UdpStreamPingsAreOld"}},
    ),
    "UdpStreamPingsAreStale": (
        {"pings_stale_total": f"0+0x180 0+50x{MINUTES}"}, {"3h": set(), "200m": {"UdpStreamPingsAreStale"}},
    ),
    "UdpStreamPingsAreLate": (
        {'pings_refused_total{reason="late"}': f"0+0x180 0+40x{MINUTES}"},
        {"3h": set(), "4h": {"UdpStreamPingsAreLate"}},
    ),
    "UdpStreamClockAhead": (
        {"clock_ahead_seconds": f"-62+0x180 3600-60x{MINUTES}"},
        {"3h": set(), "200m": {"UdpStreamClockAhead"}, "5h": set()},
    ),
    "UdpStreamNothingPublished": (
        {"published_timestamp_seconds": f"0+60x240 14400+0x{MINUTES}"},
        {"5h": set(), "6h": {"UdpStreamNothingPublished"}},
    ),
    "UdpStreamNothingReleased": (  # nothing from 11:30 on; a night is no trouble, and 7:00 is not two slots after it
        {'hats_total{status="released"}': f"0+3x360 1080+0x{MINUTES}",
         'hats_total{status="withheld_few_plates"}': "0+9"},
        {"6h": set(), "8h": set(), "9h": {"UdpStreamNothingReleased"}, "20h": set(), "26h": set(),
         "28h": {"UdpStreamNothingReleased"}},
    ),
    "UdpStreamBudgetWithheld": (  # for ten hours
        {'hats_total{status="withheld_budget"}': f"0+1x360 360+9x{MINUTES}"},
        {"6h": set(), "8h": {"UdpStreamBudgetWithheld"}, "16h": {"UdpStreamBudgetWithheld"}},
    ),
    "UdpStreamUnitInDoubt": (
        [{"unit_in_doubt": course(0, 180, 1)}, {}], {"179m": set(), "182m": {"UdpStreamUnitInDoubt"}},
    ),
    "UdpStreamStuck": (
        [{"closing_seconds": course(0, 180, "0+60")}, {}], {"184m": set(), "190m": {"UdpStreamStuck"}},
    ),
    "UdpStreamPingsRefused": (
        {'pings_refused_total{reason="not_json"}': f"0+0x180 0+100x{MINUTES}"},
        {"3h": set(), "4h": {"UdpStreamPingsRefused"}},
    ),
    "UdpStreamDiskFull": (
        [{"disk_free_bytes": "5e10-1e8x490 1e9+0x1900"}, {}], {"4h": set(), "10h": {"UdpStreamDiskFull"}},
    ),
    "UdpStreamDashboardGone": (  # it ends, or begins each three minutes and ends at once
        {"page_up": f"1+0x180 0+0x300 {' '.join(['1 0 0'] * 100)} 1+0x{MINUTES}"},
        {"3h": set(), "200m": {"UdpStreamDashboardGone"}, "9h": {"UdpStreamDashboardGone"}, "14h": set()},
    ),
    "UdpStreamDashboardBehind": (
        {"page_dashboard_newest_slot_timestamp_seconds": f"0+60x180 10800+0x300 28800+60x{MINUTES}"},
        {"3h": set(), "5h": set(), "6h": {"UdpStreamDashboardBehind"}, "10h": set()},
    ),
    "UdpStreamLedgerGrows": (
        [{"ledger_bytes": course("1e8", 180, "6e9")}, {}], {"3h": set(), "5h": {"UdpStreamLedgerGrows"}},
    ),
    "UdpStreamCertificateEnds": (
        [{"certificate_end_timestamp_seconds": str(14 * 86400 + 3600)}, {}],
        {"1h": set(), "3h": {"UdpStreamCertificateEnds"}},
    ),
}  # fmt: skip


def test_each_alert_has_a_case_in_which_it_fires():
    assert set(CASES) == ALERTS
    for alert, (_, fires) in CASES.items():
        assert any(alert in alerts for alerts in fires.values()), alert


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_should(alert, tmp_path):
    assert judged(tmp_path, [case(*CASES[alert])]) == ""


@pytest.mark.long
def test_ordinary_days_have_no_alert_and_a_case_that_does_not_hold_is_seen(tmp_path):
    hours = {f"{hour}h": set() for hour in range(26)}
    bursts = {'hats_total{status="released"}': " ".join(f"{180 * hour}+0x59" for hour in range(26))}
    assert judged(tmp_path, [case({}, hours), case(bursts, hours)]) == ""
    assert "UdpStreamStuck" in judged(tmp_path, [case({"stuck_seconds": "90"}, hours)])


def test_the_first_hours_of_a_process_in_the_middle_of_a_day_have_no_alert(tmp_path):
    """It begins at 11:30, and its first slot is out two hours later."""
    begun = {series: f"_x360 {over(value)}" for series, value in WELL.items()}
    begun |= {name: f"_x360 21600+60x{MINUTES}" for name in WELL if name.startswith("newest_ping")}
    begun |= {"started_timestamp_seconds": f"_x360 21600+0x{MINUTES}", "up": f"_x360 1+0x{MINUTES}"}
    begun |= {"published_timestamp_seconds": f"_x360 0+0x65 25560+60x{MINUTES}"}
    begun |= {
        series: f"_x360 0+0x120 90+3x{MINUTES}"
        for series in WELL
        if series.startswith("hats_total")
    }
    assert (
        judged(tmp_path, [case(begun, {f"{minute}m": set() for minute in range(370, 1200, 10)})])
        == ""
    )


def test_what_a_process_shows_before_it_knows_anything_is_no_alert_not_even_a_pending_one(tmp_path):
    """It begins alone at 11:30, in hours of service, and stands there for four minutes."""
    begun = dict.fromkeys(WELL) | {"up": f"_x360 1+0x{MINUTES}"}
    for family in Metrics("udp-stream test", "5eed", ZoneInfo("Asia/Kolkata")).registry.collect():
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            name = sample.name.removeprefix("udp_stream_") + (f"{{{labels}}}" if labels else "")
            value = 21600 if name == "started_timestamp_seconds" else sample.value
            begun[name] = f"_x360 {value}+0x{MINUTES}"
    assert {name.partition("{")[0] for name in WELL} <= {name.partition("{")[0] for name in begun}
    quiet = {f"{minute}m": set() for minute in range(364, 366)}
    assert judged(tmp_path, [case(begun, quiet, "pending|firing", processes=["a"])]) == ""
    full = case(
        begun | {"disk_free_bytes": f"_x360 0+0x{MINUTES}"},
        quiet,
        "pending|firing",
        processes=["a"],
    )
    assert "UdpStreamDiskFull" in judged(tmp_path, [full])


def test_hours_of_service_go_by_the_zone_and_may_go_over_midnight(tmp_path):
    """From 18:00 to 03:00 in Kolkata; what is old all day is told then alone."""
    text = RULES.read_text()
    for before, after in (
        ("expr: vector(7)", "expr: vector(18)"),
        ("expr: vector(14)", "expr: vector(9)"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    (tmp_path / "alerts.yaml").write_text(text)
    fires = {
        f"{hour}h": {"UdpStreamPingsAreOld"} if (hour + 5.5 - 18) % 24 < 9 else set()
        for hour in range(1, 26)
    }
    assert {len(alerts) for alerts in fires.values()} == {0, 1}
    assert (
        judged(tmp_path, [case({"newest_ping_timestamp_seconds": "-600+60"}, fires)], "alerts.yaml")
        == ""
    )
