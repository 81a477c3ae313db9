"""A killed live run, and `replay` over its journal: the same HATs but for late pings, which a file judges by frames."""

import io
import json
import os
import random
from collections import Counter

import pytest

from tests.runtime.harness import embedded, frames_of
from tests.runtime.test_live_run import CONFIG, Clock, child, frames, lines, work
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.settings import LedgerSection
from udp_stream.sources.journal import Journal

assert frames  # the fixture
KILLS = 6


@pytest.fixture(scope="module")
def killed(frames, tmp_path_factory):
    folder, dice, died = tmp_path_factory.mktemp("killed"), random.Random(15), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "drop_before", lambda _journal, _offset: None)
        while True:
            _, status = os.waitpid(child(folder, frames, dice.uniform(0.02, 0.2) if died < KILLS else 60.0), 0)
            if status == 0:
                break
            assert os.WIFSIGNALED(status), status
            died += 1
    assert died > 0  # a fast machine may end the run before the last of the kills
    with ledger_and_keys(LedgerSection(url=f"{folder}/ledger")) as (ledger, _):
        owner = f"the ledger {ledger.meta()['ledger_id']}"
    with Journal(folder / "journal", owner) as journal:
        took = [arrived.messages for arrived in journal.frames(0) if arrived.messages]
    return hats(lines(folder)), Counter(set(lines(folder, "rejected"))), took


def hats(records):
    found = {}
    for record in map(json.loads, records):
        key = record["hat"]["cell"], record["hat"]["slot_start"]
        assert key not in found, "a HAT twice"
        found[key] = record["counts"]["plates"], record["counts"]["samples"]
    return found


def replayed(folder, log):
    out, refused = io.BytesIO(), []
    ledger, reject = folder / "replayed", lambda message, one: refused.append((one.reason, message))
    with embedded(ledger, out, CONFIG, reject=reject) as runtime:
        runtime.run(log)
    return hats(out.getvalue().splitlines()), refused


def test_in_the_frames_in_which_it_arrived_every_hat_is_the_same(killed, tmp_path):
    live, rejected, took = killed
    found, refused = replayed(tmp_path, took)
    assert len(live) > 60 and found == live
    assert sum(reason == "late" for reason, _ in refused) > 3  # the case that could differ is there
    assert {message.replace(b"\n", b" ") for _, message in refused} == set(rejected)


def test_in_the_frames_of_a_file_late_pings_alone_differ(killed, tmp_path):
    live, rejected, took = killed
    messages = [message for frame in took for message in frame]
    found, refused = replayed(tmp_path, frames_of(messages))
    late = {message for reason, message in refused if reason == "late"}
    others = {message.replace(b"\n", b" ") for reason, message in refused if reason != "late"}
    late_live = [message for message in rejected if message not in others]
    more = len(late_live) - len(late)
    assert late and more > 0 and late <= set(late_live)
    assert set(live) <= set(found)
    assert sum(samples for _, samples in found.values()) - sum(samples for _, samples in live.values()) == more
    assert all(found[hat][1] >= samples for hat, (_, samples) in live.items())


def test_a_run_that_was_not_killed_has_the_same_hats(killed, frames, tmp_path):
    work(tmp_path, frames, Clock())
    assert hats(lines(tmp_path)) == killed[0]
