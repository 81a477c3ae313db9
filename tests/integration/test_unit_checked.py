"""A worker whose topic is in another unit than the one set ends before it charges, until a person
has looked."""

from datetime import datetime

from tests.integration.deployment import charges
from tests.verbs import run_verb
from udp_stream.sources.fleet import IST, Fleet, Imperfections


def test_a_worker_reads_another_unit_than_the_one_set_and_ends_before_it_charges(city):
    start = datetime(2024, 1, 8, 9, 0, tzinfo=IST)
    fleet = Fleet(seed=3, buses=20, start=start, hours=0.5, imperfections=Imperfections.none())
    here = city(
        [message for batch in fleet.messages() for message in batch],
        queries='[speed]\nunit = "mps"\n',
    )
    here.feed()
    ended = run_verb(["worker", "--config", here.config, "--instance", "one"], cwd=here.folder)
    assert ended.returncode == 3
    said = ended.stderr.decode()
    assert "move about as fast as they report in 'kmh'" in said and "speed.unit_checked" in said
    with here.ledger() as (ledger, _):
        assert charges(ledger) == {}
    assert here.releases() == {}
