"""A worker on a real broker and a real Redis names its ledger, and warns where that is one of other settings."""

import re

from tests.integration.deployment import charges, log_of, worker
from tests.runtime.harness import fleet_log
from udp_stream.planning.policy import written


def test_a_worker_names_its_ledger_and_the_keys_in_which_other_settings_differ(city, redis_server):
    where = redis_server.url.rpartition("//")[2]
    here = city(fleet_log(clean=True, hours=0.6), ledger=redis_server.url)
    before = here.settings.policy
    here.feed()
    expected, _ = here.embedded()
    with worker(here) as running:
        here.wait_for(expected, running)
    (_, named), (_, begun), *said = log_of((here.folder / "one.err").read_text())
    assert named == f"ledger {where}, new" and begun.startswith("worker of group")
    assert all(level == "info" for level, _ in said) and any("HATs, " in text and "pings, " in text for _, text in said)

    here.config.write_text(here.config.read_text().replace("min_plates = 4", "min_plates = 5"))
    with worker(here, "two"):
        pass
    (_, named), warned, *_ = log_of((here.folder / "two.err").read_text())
    assert re.match(rf"ledger {re.escape(where)}, made \S+Z: {len(expected)} HATs, the first of the", named)
    assert warned == (
        "warning",
        "the ledger holds HATs made under other settings (release.min_plates 4 -> 5): these HATs keep their records",
    )
    with here.ledger() as (ledger, _):
        noted = {name for name in ledger.meta() if name.startswith("policy:")}
        assert noted == {f"policy:{policy.fingerprint()}" for policy in (before, here.settings.policy)}
        assert set(charges(ledger)) == set(expected) and written(before)["release.min_plates"] == "4"
