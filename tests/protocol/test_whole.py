"""Every order with up to three faults; planted faults, also such as take several; and the
reductions hold."""

import itertools

import pytest

from tests.forms import changed, long_rows, soaked_rows
from tests.protocol.explore import SHARDS, Planted, Violation
from tests.protocol.whole import Whole

ONE_SLOT = {"slots": 1, "reads": 1}
AT_ONCE = {"slots": 2, "reads": 1}


@pytest.mark.parametrize(("faults", "states"), long_rows([(2, 15_000)], [(2, 15_000), (3, 40_000)]))
def test_with_faults_anywhere_every_order_ends_the_same(faults, states):
    found = Whole(**ONE_SLOT).explore(faults)
    assert len(found.ends) == 1 and sum(found.states) > states


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("sources", "faults", "states"),
    [
        pytest.param(2, 2, 250_000, marks=pytest.mark.long),
        pytest.param(1, 3, 1_700_000, marks=pytest.mark.soak),
        pytest.param(2, 3, 6_000_000, marks=pytest.mark.soak),
    ],
)
def test_with_up_to_three_faults_two_slots_that_are_sent_at_once_end_the_same(
    sources, faults, states
):
    """`make explore FAULTS=3`: 6,174,011 states, 98 CPU s, 0.9 GB; of one source 1,745,849 states,
    25 CPU s."""
    found = Whole(**AT_ONCE, sources=sources).explore(faults)
    assert len(found.ends) == 1 and sum(found.states) > states


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("faults", "states"), [*long_rows([], [(1, 30_000)]), *soaked_rows([(2, 950_000)])]
)
def test_with_two_faults_two_slots_that_are_sent_one_by_one_end_the_same(faults, states):
    """One source has all pings: with two faults 970,234 states, 21 CPU s."""
    found = Whole(slots=2, reads=2, sources=1).explore(faults)
    assert len(found.ends) == 1 and sum(found.states) > states


PLANTED = {
    "commits too early": (Planted(commits_too_early=True), 1),
    "plan not remembered": (Planted(forgets_plans=True), 1),
    "fence ignored": (Planted(ignores_fences=True), 1),
    "fence begins anew after two": (Planted(fence_wraps=2), 2),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_with_as_many_faults_as_it_needs_and_no_fewer(name):
    planted, needed = PLANTED[name]
    Whole(**ONE_SLOT, planted=planted).explore(needed - 1)
    with pytest.raises(Violation):
        Whole(**ONE_SLOT, planted=planted).explore(needed)


@pytest.mark.soak
@pytest.mark.parametrize("follows", [False, True])
def test_a_fence_that_begins_anew_after_three_is_found_with_three_faults_and_one_source(follows):
    at = {**ONE_SLOT, "sources": 1, "planted": Planted(fence_wraps=3), "follows": follows}
    Whole(**at).explore(2)
    with pytest.raises(Violation, match="was published twice"):
        Whole(**at).explore(3)


@pytest.mark.parametrize("faults", [0, 1])
def test_without_reductions_the_ends_are_the_same_and_the_states_many_more(faults):
    reduced, plain = (Whole(**ONE_SLOT, is_reduced=one).explore(faults) for one in (True, False))
    assert reduced.ends == plain.ends
    assert sum(plain.states) > (1 + 3 * faults) * sum(reduced.states)


@pytest.mark.parametrize("name", [name for name, (_, needed) in PLANTED.items() if needed == 1])
def test_without_reductions_the_same_planted_faults_are_found(name):
    with pytest.raises(Violation):
        Whole(**ONE_SLOT, planted=PLANTED[name][0], is_reduced=False).explore(1)


def steps_of(plain):
    """Of partitions that were kept apart: (before, what happened, after), for messages and for
    steps of their own."""
    for key, after in plain.parts.memo.items():
        if key[0] == "appended":
            settled = plain.parts.memo.get(("settled", after))
            if settled is not None:
                yield key[1], ("message", key[2]), settled
    for key, moves in plain.memo.items():
        if key[0] == "moves":
            yield from ((key[2], ("move", k), move.part) for k, move in enumerate(moves or ()))
        elif key[0] == "act":
            yield key[2], ("act", key[3]), moves[0].part


@pytest.fixture(scope="module", params=[False, True], ids=["", "follows"])
def explored(request):
    """Partitions that a run without reductions has met, their keys, and their steps."""
    plain = Whole(**ONE_SLOT, is_reduced=False, follows=request.param)
    plain.explore(1)
    steps = list(steps_of(plain))
    keys, lost = {}, {}
    for kind, i, is_last, part in [key for key in plain.parts.memo if key[0] == "number"]:
        number = plain.parts.memo[kind, i, is_last, part]
        plain.parts.is_last = is_last
        keys[number] = i, is_last, plain.parts.key(i, part)
        resumed = [plain.parts.resumed(i, commit, part.log) for commit in part.commits]
        lost[number] = {plain.parts.key(i, one) for one in resumed}
    return keys, steps, lost, lambda message: plain.parts.may_matter_later((message,))


def test_partitions_of_one_key_go_on_under_one_key(explored):
    """So taking the one for the other loses nothing: whatever follows on the one, a fault too,
    follows on the other."""
    keys, steps, lost, _ = explored
    assert len(set(keys.values())) < 0.9 * len(keys)
    after = {}
    for number, event, then in steps:
        assert after.setdefault((keys[number], event), keys[then]) == keys[then]
    for number, resumed in lost.items():
        assert after.setdefault((keys[number], "lost"), resumed) == resumed


def test_pings_or_counts_that_change_nothing_change_nothing_later(explored):
    """A plan may: one with other bytes may have come in between. And so may what was released, for
    who comes later."""
    keys, steps, _, may_matter_later = explored
    idle = {}
    for number, (kind, message), then in steps:
        if kind == "message":
            idle.setdefault(keys[number], {})[message] = keys[number] == keys[then]
    checked = 0
    for number, _, then in steps:
        before, later = idle.get(keys[number], {}), idle.get(keys[then], {})
        for message in itertools.filterfalse(may_matter_later, before.keys() & later.keys()):
            checked += before[message]
            assert later[message] or not before[message]
    assert checked > 20 and {keys[number][0] for number, _, _ in steps} > set(SHARDS)


def test_a_fault_may_take_both_pairs_only_from_one_worker():
    whole = Whole(**ONE_SLOT)
    begin = whole.begin(is_last=False)
    assert [len(list(whole.hits(changed(begin, is_one_worker=one)))) for one in (False, True)] == [
        2,
        3,
    ]
