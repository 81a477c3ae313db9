"""Every key of the sections, by its type, its stated limits and beside every mode, by every road;
`keys.toml` is the table."""

import io
import json
import re
import tomllib
from itertools import cycle, pairwise, product
from operator import attrgetter
from pathlib import Path
from typing import get_type_hints

import h3
import pytest

from tests.forms import long_rows, soaked_rows
from tests.runtime.harness import embedded, fleet_log, frames_of
from udp_stream.base.errors import ConfigError
from udp_stream.cli import main as cli
from udp_stream.cli.commands.config import as_toml
from udp_stream.ledgers.opening import other_policies
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.planning.policy import note_policy, written
from udp_stream.release import rehearsal
from udp_stream.release.record import Release
from udp_stream.settings import Settings, load
from udp_stream.settings.loading import MOVED, accepted_keys, variable_of

TABLE = tomllib.loads((Path(__file__).parent / "keys.toml").read_text())
KEYS = TABLE["keys"]
DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"
DOCUMENTED = {
    key: (bool(star), re.search(r"([\d.e-]+[smhd]?) to ([\d.e-]+[smhd]?)\b", line.split("|")[2]))
    for line in DOCS.read_text().splitlines()
    if line.startswith("| `")
    for key, star in re.findall(r"`([a-z]+\.[a-z_.]+)`(\*?)", line.split(" | ")[0])
}
"""Of each key, whether it is starred, as it changes what is promised, and its limits."""

SQUARE = [[72.7, 21.1], [72.9, 21.1], [72.9, 21.3], [72.7, 21.3], [72.7, 21.1]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("keys")
    cells = sorted(h3.grid_disk(h3.latlng_to_cell(21.17, 72.83, 7), 3))
    (made / "cells").write_text("\n".join(cells))
    (made / "fewer").write_text("\n".join(cells[1:]))
    zone = {"type": "Polygon", "coordinates": [SQUARE]}
    street = {"type": "LineString", "coordinates": SQUARE[:2]}
    zones = [
        {"type": "Feature", "properties": {"name": name, "label": f"{name} 2"}, "geometry": shape}
        for name, shape in (("A", zone), ("B", street), ("C", zone))
    ]
    for name, some in (("zones", zones[::2]), ("streets", zones)):
        collection = {"type": "FeatureCollection", "features": some}
        (made / f"{name}.geojson").write_text(json.dumps(collection))
    asked_of(made, "range")
    return made


def asked_of(folder, kind, changes=(), others=()):
    """A configuration with a standing query, some of whose keys are changed."""
    tables = {name: {} for name in others} | {"queries": TABLE["questions"]["queries"]}
    tables = {f"[{name}]": keys | dict(others).get(name, {}) for name, keys in tables.items()}
    tables["[[query]]"] = {"kind": kind} | TABLE["questions"]["kinds"][kind] | dict(changes)
    lines = []
    for head, keys in tables.items():
        lines += [head, *(f"{k} = {json.dumps(v)}" for k, v in keys.items() if v != "-")]
    text = "\n".join(lines).replace("FOLDER", str(folder))
    (folder / "city.toml").write_text(text)
    return text


def loaded(folder, key, flags, environment=None):
    """Settings; those of questions about positions have a question."""
    path = folder / "city.toml" if key.startswith("queries.") else None
    return load(path, [flag.replace("FOLDER", str(folder)) for flag in flags], environment or {})


def test_every_key_is_documented_and_has_its_row_and_few_are_to_be_learnt():
    newer = {older: key for key, older in MOVED.items()}
    known = [newer.get(key, key) for key in accepted_keys()]
    assert sorted(KEYS) == sorted(known)
    assert {*known} == {key for key in DOCUMENTED if not key.startswith("query.")}
    assert len({re.sub(r"(release\.paper|live\.client)\..*", r"\1", key) for key in known}) <= 84


def said(theirs, ours):
    """How a ledger that knows the one policy tells the other."""
    ledger = MemoryLedger()
    note_policy(ledger, theirs)
    return other_policies(ledger, ours)[theirs.fingerprint()]


def promise(settings):
    questions = [question.fingerprint() for question in settings.standing_queries]
    return settings.policy.fingerprint(), *questions


@pytest.mark.parametrize("key", KEYS)
def test_values_are_read_by_every_road_and_change_the_promise_where_the_documents_star_them(
    key, folder
):
    values, beside = (*KEYS[key], [])[:2]
    older = MOVED.get(key, key)
    found = {}
    for value in values:
        value = value.replace("FOLDER", str(folder))
        ours = loaded(folder, key, [*beside, f"{key}={value}"])
        found[value] = ours
        again = folder / "again.toml"
        again.write_text("\n".join(as_toml(found[value], {})))
        assert loaded(folder, key, beside, {variable_of(older): value}) == found[value]
        assert loaded(folder, key, [*beside, f"{older}={value}"]) == found[value]
        if key in MOVED:
            section, _, name = older.partition(".")
            kept = json.dumps(attrgetter(older)(found[value]))
            (folder / "older.toml").write_text(f"[{section}]\n{name} = {kept}")
            assert load(folder / "older.toml", beside, {}) == found[value]
        if key != "ledger.url":
            assert load(again, (), {}) == found[value]
            other = {variable_of(key): next(iter(found))}
            assert load(again, (), other) == found[next(iter(found))]
            assert load(again, [f"{key}={value}"], other) == found[value]
    is_of_the_promise = DOCUMENTED[key][0]
    assert len({*map(promise, found.values())}) == (len(values) if is_of_the_promise else 1)
    if older in written(ours.policy):
        for one, other in pairwise(each.policy for each in found.values()):
            value = re.escape(written(other).get(older) or "unset")
            assert re.search(rf"{re.escape(older)} .*-> {value}", said(one, other))
    if older in written(Settings().policy):
        keys = written(ours.policy).items()
        again = [f"{name}={text}" for name, text in keys if text != "none" or name == older]
        again = [flag for flag in again if flag.partition("=")[0] in accepted_keys()]
        assert load(None, (*beside, *again), {}).policy == ours.policy


def refusal(folder, key, *flags):
    with pytest.raises(ConfigError) as caught:
        loaded(folder, key, flags)
    assert caught.value.exit_status == 3
    return str(caught.value)


@pytest.mark.parametrize("mode", TABLE["modes"])
def test_a_mode_refuses_by_name_the_keys_that_it_excludes_and_takes_all_others(mode, folder):
    excluded = TABLE["excluded"]
    expected = {*excluded["everywhere"], *excluded["and"].get(mode, ())}
    expected -= {*excluded["but"].get(mode, ())}
    found = set()
    for key, (values, *_) in KEYS.items():
        try:
            loaded(folder, "", [*TABLE["modes"][mode], f"{key}={values[-1]}"])
        except ConfigError as error:
            named = re.match(r"([a-z._]+): .*expected .+, got .+", str(error), re.DOTALL)[1]
            found.add(key if named == MOVED.get(key, key) else f"{key} -> {named}")
    assert found == expected


REFUSED = [
    pytest.param(mode, row, id=" ".join(row[1:])[:60])
    for mode, rows in TABLE["refused"].items()
    for row in rows
]


@pytest.mark.parametrize(("mode", "row"), REFUSED)
def test_what_a_rule_refuses_is_named_with_the_rule(mode, row, folder):
    beside = TABLE["modes"][mode]
    found = refusal(folder, "", *beside, *row[1:])
    assert re.match(row[0], found) and "hush" not in found and "\n" not in found
    if not beside and all(re.match(r"\w+\..*=", flag) for flag in row[1:]):
        pairs = [flag.partition("=")[::2] for flag in row[1:]]
        with pytest.raises(ConfigError) as caught:
            loaded(folder, "", beside, {variable_of(key): value for key, value in pairs})
        assert str(caught.value) == found


@pytest.mark.parametrize("row", TABLE["files"]["refused"], ids=str)
def test_a_file_that_is_no_configuration_is_refused(row, tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "city.toml", (), {})
    (tmp_path / "city.toml").write_text(row[1])
    with pytest.raises(ConfigError, match=rf"^{row[0]}"):
        load(tmp_path / "city.toml", (), {})


@pytest.mark.parametrize("row", TABLE["questions"]["refused"], ids=str)
def test_what_is_wrong_with_a_standing_query_is_named(row, folder):
    said, *changed = row
    asked_of(folder, *changed)
    assert re.match(said, refusal(folder, "queries."))
    text = asked_of(folder, "range")
    (folder / "city.toml").write_text(text + text[text.index("[[query]]") - 1 :])
    assert refusal(folder, "queries.").startswith("query.name: ")
    asked_of(folder, "range")


@pytest.mark.parametrize("row", TABLE["domains"]["refused"], ids=str)
def test_a_file_that_is_no_domain_is_refused_with_its_name_and_the_rule(row, folder):
    said, text = row
    (folder / "domain").write_text(text)
    found = refusal(folder, "", *TABLE["modes"]["add-remove"], "hat.domain=FOLDER/domain")
    assert found.startswith(f"hat.domain: {folder}/domain") and "\n" not in found
    assert re.search(said, found), found


def kind_of(key):
    """The type of a key, as it is written."""
    section, _, name = MOVED.get(key, key).partition(".")
    hints = get_type_hints(type(getattr(Settings(), section)))
    return str(hints["from_" if name == "from" else name])


@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_another_type_is_refused_by_name_with_the_words_that_there_are(key, folder):
    kind = kind_of(key)
    older = MOVED.get(key, key)
    others = ["[[[1]]]", '"a\\u0000b"']
    others += ["5"] * (kind in ("<class 'str'>", "<class 'bool'>"))
    others += ["a word"] * (re.search(r"\bstr\b", kind) is None)
    for other in others:
        said = refusal(folder, "", f"{key}={other}")
        assert re.match(rf"{older}(\[0\])?: expected .*, got ", said), other
    if kind.startswith(("typing.Literal", "typing.Optional[typing.Literal", "<class 'bool'>")):
        assert all(word in refusal(folder, "", f"{key}=[]") for word in KEYS[key][0])


def beyond(end, sign):
    """A value that is a little less (-1) or more (1) than an end."""
    if not end[-1].isalpha():
        far = float(end) * (1 + sign * 1e-3) or sign * 1e-9
        return str(int(end) + sign) if end.isdigit() else repr(far)
    length, unit = re.fullmatch(r"([\d.]+)(\w)", end).groups()
    if unit == "d":
        return f"{int(length) + sign}d"
    return f"{float(length) * (1 + sign * 0.1) or sign:g}{unit}"


LIMITS = {
    key: stated.groups() for key, (_, stated) in DOCUMENTED.items() if stated and key in KEYS
} | TABLE["limits"]


@pytest.mark.parametrize("key", LIMITS)
def test_at_its_stated_limits_a_key_works_and_beyond_them_it_is_refused(key, folder, tmp_path):
    least, most, *beside = LIMITS[key]
    for end, sign in ((least, -1), (most, 1)):
        flags = [flag.replace("FOLDER", str(folder)) for flag in (*beside, f"{key}={end}")]
        if key.partition(".")[0] in ("hat", "speed", "budget", "release"):
            runs(tmp_path / end, flags)
        loaded(folder, "", flags)
        said = refusal(folder, "", *beside, f"{key}={beyond(end, sign)}")
        assert re.match(rf"{MOVED.get(key, key)}: expected .*, got ", said), said


def runs(folder, flags):
    """Pings go all the way to releases."""
    folder.mkdir()
    out = io.BytesIO()
    pings = fleet_log(buses=8, hours=0.4)
    with embedded(folder / "ledger", out, flags=("hat.slot=15m", *flags)) as runtime:
        summary = runtime.run(frames_of(pings))
    records = [Release.decode(line) for line in out.getvalue().splitlines()]
    assert len(records) == summary.hats.total()


ACCOUNTED = {
    "pure": ["budget.accounting=pure"],
    "approximate": [],
    "zcdp": ["budget.accounting=zcdp", "budget.rho=1.5"],
}
DEAREST = "budget.epsilon", "budget.rho", "budget.delta", "release.mean_epsilon", "speed.max_kmh"
OTHERS = [key for key in LIMITS if key.startswith(("hat.", "speed.", "budget.", "release."))]


SHORT = [
    *dict.fromkeys([*product(ACCOUNTED, DEAREST), *zip(cycle(ACCOUNTED), OTHERS, strict=False)])
]
LONG = [pair for pair in zip(cycle(ACCOUNTED), LIMITS, strict=False) if pair not in SHORT]
SOAKED = [pair for pair in product(ACCOUNTED, LIMITS) if pair not in {*SHORT, *LONG}]


@pytest.mark.parametrize(
    ("accounting", "key"), [*SHORT, *long_rows([], LONG), *soaked_rows(SOAKED)]
)
def test_a_dry_run_at_the_limits_of_a_key_works_or_names_a_key(
    accounting, key, folder, limits, capsys
):
    """The first of two invented cities is enough."""
    limits(rehearsal, PAIRS_MIN=1, PAIRS_MAX=1)
    feed = folder / "few.ndjson"
    feed.write_bytes(b"\n".join(fleet_log(buses=4, hours=0.2)))
    least, most, *beside = LIMITS[key]
    theirs = [flag for flag in beside if not flag.startswith("budget.accounting=")]
    for end in (least, most):
        flags = [*ACCOUNTED[accounting], *theirs, f"{key}={end}"]
        sets = [word for flag in flags for word in ("--set", flag.replace("FOLDER", str(folder)))]
        status = cli.main(["replay", str(feed), "--dry-run", *sets])
        said = capsys.readouterr().err
        assert status == 0 or (status == 3 and re.match(r"udp-stream: [a-z._]+: expected ", said))
