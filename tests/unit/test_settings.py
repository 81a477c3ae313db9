"""Configuration: file, environment, flags; errors that name the key, the value and the rule."""

import re
import tomllib
from pathlib import Path

import pytest

from udp_stream.cli.main import main
from udp_stream.errors import ConfigError
from udp_stream.settings import Settings, known_keys, load
from udp_stream.settings.loading import MOVED

CONTRACT = """
[hat]
resolution = 7
slot = "1h"
timezone = "Asia/Kolkata"
grace = "2m"
[speed]
max_kmh = 65
unit = "kmh"
reject_above_kmh = 200
[budget]
epsilon = 10.0
period = "1d"
accounting = "pure"
delta = 1e-6
[release]
mean = "auto"
grouping = "best-fit"
mean_epsilon = 0.5
variance_epsilon = 0.0
cdf_epsilon = 0.5
bins = "auto"
min_plates = 2
suppression = "off"
[ledger]
url = "sqlite:udp-stream.ledger"
key_file = ""
[kafka]
bootstrap = "localhost:9092"
prefix = ""
group = "udp-stream"
partitions = 8
idle_timeout = "1m"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "udp-stream.toml"
    path.write_text(text)
    return path


def test_the_example_of_the_contract_is_valid_and_complete(tmp_path):
    settings = load(written(tmp_path, CONTRACT), (), {})
    assert (
        settings.hat.resolution,
        settings.release.mean_epsilon,
        settings.release.min_plates,
    ) == (7, 0.5, 2)
    named = {
        f"{section}.{key}" for section, table in tomllib.loads(CONTRACT).items() for key in table
    }
    assert named <= {*known_keys(), *MOVED.values()}


@pytest.mark.parametrize(("newer", "older"), MOVED.items())
def test_a_key_that_has_moved_is_read_by_both_names_from_file_variable_and_flag(
    newer, older, tmp_path
):
    values = {
        "hats_max": "2",
        "branching": "[4, 4]",
        "levels": "'even'",
        "suppression": "'chop-user'",
    }
    values |= {"grouping": "'wrap-around'", "cap": "'worst-case'", "schedule": "'uniform'"}
    value = values.get(newer.rpartition(".")[2], "'name'")
    beside = ["budget.accounting=pure", "release.mean=array-averaging"]
    if older == "release.hats_max":
        beside.append("release.suppression=chop-user")
    if older == "release.levels":
        beside.append("release.branching=[4, 4]")
    found = []
    for name in (newer, older):
        table, _, key = name.rpartition(".")
        file = written(tmp_path, f"[{table}]\n{key} = {value}\n")
        variable = {"UDP_STREAM_" + name.upper().replace(".", "__"): value}
        found += [load(file, beside, {}), load(None, beside, variable)]
        found.append(load(None, [*beside, f"{name}={value}"], {}))
    assert all(one == found[0] for one in found) and found[0] != load(None, beside, {})
    assert load(file, [*beside, f"{older}={value}"], {}) == found[0]


@pytest.mark.parametrize(
    "text", ["[release.paper]\nlevel = 'even'", "[live.client]\ntoken = 'x'", "release.paper = 3"]
)
def test_an_unknown_key_of_a_nested_table_is_refused(text, tmp_path):
    with pytest.raises(ConfigError, match=r"release\.paper|live\.client"):
        load(written(tmp_path, text), (), {})


def test_few_keys_are_to_be_learnt():
    assert len(known_keys()) <= 84


def test_flag_over_environment_over_file_over_default(tmp_path):
    path = written(tmp_path, "[hat]\nresolution = 8\nslot = '1h'\n[budget]\nepsilon = 3\n")
    environment = {
        "UDP_STREAM_HAT__RESOLUTION": "9",
        "UDP_STREAM_BUDGET__EPSILON": "4",
        "PATH": "x",
    }
    settings = load(path, ["hat.resolution=5"], environment)
    assert (settings.hat.resolution, settings.budget.epsilon, settings.hat.slot) == (5, 4, "1h")
    assert settings.release == Settings().release


def test_automatic_epsilons_and_suppression_go_with_any_number_of_shards():
    settings = load(
        None, ["kafka.shards=8", "budget.accounting=pure", "release.suppression=chop-user"], {}
    )
    assert settings.policy.mean_nano is None and settings.policy.suppression == "chop-user"
    assert settings.policy.fingerprint() != load(None, ["kafka.shards=8"], {}).policy.fingerprint()
    assert (
        load(None, ["kafka.shards=8"], {}).policy.fingerprint()
        == load(None, (), {}).policy.fingerprint()
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hat]\nresolutoin = 7", r"unknown key hat\.resolutoin"),
        ("[budget]\naccounting = 'zcpd'", "budget.accounting:"),
        ("[budget]\nepsilon = 'ten'", "budget.epsilon:"),
        ("[hat]\nresolution = 16", "hat.resolution:.*15"),
        ("[hat]\nslot = '7h'", "hat.slot:"),
        ("[hat]\ntimezone = 'Mars/Olympus'", "hat.timezone:"),
        ("[budget]\nperiod = '90m'", "budget.period:"),
        ("[budget]\nepsilon = -1", "budget.epsilon:"),
        ("[budget]\nepsilon = 0.5\n[release]\nmean_epsilon = 0.6", "budget.epsilon:"),
        ("[speed]\nmax_kmh = 90\nreject_above_kmh = 80", "speed.reject_above_kmh:"),
        ("[release]\nmean = 'median'", "release.mean: "),
        ("[release]\nmean_epsilon = 0", "least one epsilon above 0"),
        ("[release]\ncap = 'worst-case'", "release.cap:.*array-averaging"),
        ("[release]\nmean = 'array-averaging'\ncap = 'mean'", "release.cap:.*worst-case"),
        ("[release]\nbins = [0, 30, 20, 65]", "release.bins:"),
        ("[pings]\nbox = [3, 1, 2, 4]", "pings.box:"),
        ("hat = 3", "hat: .*got 3"),
        ("resolution = 7", r"did you mean hat.resolution\?"),
        ("zzz = 7", r"known are \[budget\]"),
        ("[hat]\ngrace = 'x'", "hat.grace:.*90"),
        ("[hat]\ngrace = '99999999999999d'", "hat.grace:"),
        ("[budget]\nepsilon = 1e-12", "budget.epsilon:"),
        ("[budget]\nperiod = '1000000d'", "budget.period:"),
        ("[budget]\nschedule = 'uniform'", "budget.schedule:"),
        (
            "[budget]\nschedule = 'uniform'\n[release]\nmean = 'baseline'\nmean_epsilon = 1",
            "budget.schedule:",
        ),
        ("[budget]\naccounting = 'zcdp'", "budget.rho:"),
        ("[budget]\naccounting = 'zcdp'\nrho = 1.5\nepsilon = 10", "budget.epsilon:"),
        ("[budget]\nrho = 1.5", "budget.rho:"),
        ("[budget]\naccounting = 'approximate'\ndelta = 0.1", "budget.delta:.*0.001"),
        (
            "[budget]\naccounting = 'approximate'\n[release]\nmean_epsilon = 3",
            "budget.epsilon:.*rho 4.5",
        ),
        ("[release]\nmean_epsilon = 9\n[queries]\nshare = 0.2\nunit_m = 500", "budget.epsilon:"),
        ("[release]\ncdf_epsilon = 2e3", "release.cdf_epsilon:"),
        ("[kafka]\ntransactions = 'on'", "kafka.transactions:"),
        ("[ledger]\nurl = ''", "ledger.url:"),
        ("[ledger]\nurl = '127.0.0.1:6379/0'", r"127\.0\.0\.1:6379/0\?"),
        ("[ledger]\nurl = 'sqlite:///srv/city.ledger'", r"city\.ledger\?"),
        ("[ledger]\nreplicas = 1", "ledger.replicas:"),
        ("[hat", "not TOML"),
        ("[live]\ntoken_header = ''", "live.token_header:"),
    ],
)
def test_an_invalid_key_is_named_with_its_value_and_the_rule(text, said, tmp_path):
    with pytest.raises(ConfigError, match=said) as caught:
        load(written(tmp_path, text), (), {})
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(
    "key", ["ledger.url", "ledger.key_file", "live.ca_file", "live.token_file", "kafka.group"]
)
def test_a_nul_is_in_no_name_and_is_refused_before_the_system_does(key, tmp_path):
    section, _, name = key.partition(".")
    path = written(tmp_path, f'[{section}]\n{name} = "a\\u0000b"')
    with pytest.raises(ConfigError, match=rf"^{key}: expected text without NUL, got one$"):
        load(path, (), {})
    assert main(["config", "--config", str(path)]) == 3


def test_a_flag_or_variable_of_several_lines_is_not_read_by_its_first():
    """Two settings in one flag were the first of them alone."""
    with pytest.raises(ConfigError, match=r"budget\.epsilon:"):
        load(None, ("budget.epsilon=5\nbudget.rho=3",), {})
    assert load(None, (), {"UDP_STREAM_BUDGET__EPSILON": "5\n"}).budget.epsilon == 5
    assert load(None, ("release.bins=[\n0,\n9, 65]",), {}).release.bins == (0, 9, 65)


def test_a_variable_that_is_set_to_nothing_does_not_choose_the_default_ledger():
    """As in a compose file whose own variable is unset."""
    with pytest.raises(ConfigError, match=r"ledger\.url:"):
        load(None, (), {"UDP_STREAM_LEDGER__URL": ""})
    assert load(None, (), {}).ledger.place == "sqlite:udp-stream.ledger"


def test_an_unknown_environment_key_or_flag_is_an_error_too():
    with pytest.raises(ConfigError, match=r"did you mean budget\.epsilon"):
        load(None, (), {"UDP_STREAM_BUDGET__EPSILOM": "1"})
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        load(None, ["budget.epsilon"], {})
    with pytest.raises(ConfigError, match=r"section\.key"):
        load(None, ["epsilon=1"], {})


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml", (), {})


def test_a_day_is_promised_with_a_delta_unless_told_otherwise():
    budget, policy = Settings().budget, Settings().policy
    assert (budget.promised, budget.delta, policy.measure) == (10.0, 1e-6, "zcdp")
    assert policy.budget_nano == 1_539_278_763  # the largest rho that implies (10, 1e-6)


def test_budgets_round_down_and_charges_up():
    policy = load(
        None,
        [
            "budget.accounting=pure",
            "budget.epsilon=1.0000000019",
            "release.mean_epsilon=0.1000000001",
        ],
        {},
    ).policy
    assert (policy.budget_nano, policy.mean_nano) == (1_000_000_001, 100_000_001)


def test_the_policys_fingerprint_changes_with_what_changes_privacy_and_with_nothing_else():
    base = load(None, (), {}).policy.fingerprint()
    for flag in (
        "budget.epsilon=9",
        "hat.resolution=8",
        "speed.max_kmh=66",
        "release.min_plates=11",
        "hat.grace=3m",
    ):
        assert load(None, [flag], {}).policy.fingerprint() != base, flag
    for flag in ("kafka.group=other", "ledger.url=sqlite:other"):
        assert load(None, [flag], {}).policy.fingerprint() == base, flag


def test_the_spelling_of_a_period_makes_no_new_budget():
    names = {
        load(None, [f"budget.period={text}"], {}).calendar.slot_in_period(0).period
        for text in ("1d", "24h", "1440m")
    }
    assert len(names) == 1


def test_periods_are_cut_on_the_local_calendar():
    calendar = load(None, ["hat.timezone=America/Chicago", "hat.slot=1h"], {}).calendar
    noon = (
        1_478_455_200_000  # 2016-11-06T12:00-06:00, after the night on which the clock was set back
    )
    moment = calendar.slot_in_period(noon)
    assert moment.period == "1d from 2016-11-06T00:00:00-05:00 in rho"
    assert (moment.slots_gone, moment.slots_left) == (13, 11)


@pytest.mark.parametrize(
    ("accounting", "key", "epsilon"),
    [("pure", "epsilon", 1.23456444), ("zcdp", "rho", 1.2345678), ("zcdp", "rho", 1.76)],
)
def test_the_least_budget_that_a_refusal_names_is_taken(accounting, key, epsilon):
    """In six digits it could be less than the charge, and the budget more than it is."""
    flags = (
        f"budget.accounting={accounting}",
        f"release.mean_epsilon={epsilon}",
        "release.cdf_epsilon=0",
    )
    with pytest.raises(ConfigError, match="at least the charge of one HAT") as caught:
        load(None, (*flags, f"budget.{key}=0.12345678"), {})
    least = re.search(r"\((?:rho )?([0-9.]+)\), got (?:rho )?0.12345678$", str(caught.value))[1]
    assert load(None, (*flags, f"budget.{key}={least}"), {}).policy.budget_nano >= float(
        least
    ) * 1e9 * (1 - 1e-12)
