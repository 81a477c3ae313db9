"""What a stranger adds without a change of the package: each goes through `replay` to a record, and is charged."""

import json
from dataclasses import replace

import pytest

from tests.runtime.harness import fleet_log, ledger_at
from udp_stream.cli import main as cli
from udp_stream.mechanisms.noise import MEASURES
from udp_stream.planning.promise import ACCOUNTINGS
from udp_stream.release.record import decode


@pytest.fixture
def toy_measure(monkeypatch):
    """An epsilon by another name, whose balances are apart from those of epsilons."""
    toy = replace(MEASURES["pure"], name="toy", ending=" in toys")
    monkeypatch.setitem(MEASURES, "toy", toy)
    monkeypatch.setitem(ACCOUNTINGS, "toys", replace(ACCOUNTINGS["pure"], measure=toy, variant="Toy DP"))


def replayed(folder, *flags):
    """The records of a replay of a small fleet on a new ledger, and the arguments that say so to other verbs."""
    (folder / "day.ndjson").write_bytes(b"\n".join(fleet_log(clean=True)))
    given = [word for flag in (*flags, f"ledger.url={folder}/city.ledger", "hat.slot=15m") for word in ("--set", flag)]
    assert cli.main(["replay", str(folder / "day.ndjson"), "--out", str(folder / "out.ndjson"), *given]) == 0
    return [decode(line) for line in (folder / "out.ndjson").read_bytes().splitlines()], given


def test_a_measure(tmp_path, toy_measure, capsys):
    records, given = replayed(tmp_path, "budget.accounting=toys", "budget.epsilon=8")
    released = [one for one in records if one.status == "released"]
    assert released and {one.privacy.accounting for one in records} == {"toys"}
    with ledger_at(tmp_path / "city.ledger") as (ledger, _):
        assert all(period.endswith(" in toys") for period in ledger.periods()) and ledger.verify() == []
        assert max(entry.charged.max(initial=0) for entry in ledger.entries()) > 0
    capsys.readouterr()
    assert cli.main(["ledger", "export", *given]) == 0
    privacy = json.loads(capsys.readouterr().out)["privacy"]
    assert privacy["dp_variant"]["variant_name"] == "Toy DP"
    assert 0 < privacy["privacy_loss"]["periods"][0]["epsilon_max_over_plates"] <= 8
