"""The road of a standing query over a store that fails, in memory and SQLite
(`test_query_road.py`)."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import msgspec
import numpy as np
import pytest

from tests.contract.checks import LedgerFactory
from tests.failing import Died, DyingLedger, RivalledLedger, a_ramp, a_threshold
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.ids import QUERY, ROUND, id_of, kind_of
from udp_stream.ledger.port import Admission, Entry, Ledger
from udp_stream.planning.policy import OneBudget
from udp_stream.queries.elimination import ABOVE, IN, Round
from udp_stream.release.charge import require_one_promise
from udp_stream.release.query_pipeline import decode_round, encode_round
from udp_stream.release.record import QueryResult
from udp_stream.testing import a_context, a_moment, a_query, a_query_context, answer_moment

Opening = Callable[[], LedgerFactory]


def ask(ledger: Ledger, seed: int = 1, query=None, moment=None) -> list[bytes]:
    told: list[bytes] = []
    query = a_query() if query is None else query
    moment = a_moment() if moment is None else moment
    context = a_query_context(seed)
    context = replace(
        context, periods=replace(context.periods, budget_nano=query.period_budget_nano)
    )
    answer_moment(
        [query], moment, context, ledger, lambda found: told.extend(f.payload for f in found)
    )
    return told


def dies_at_every_call(new_ledger: Opening, query=None) -> None:
    """Whatever call a process dies at, twice, and then a third with other bits: one answer, each
    round drawn once."""
    for dies_at in range(_most_calls(new_ledger)):
        for answered in (False, True):
            opened, seen = new_ledger(), set[bytes]()
            rounds: dict[str, bytes] = {}
            for attempt, at in enumerate((dies_at, dies_at, None)):
                with opened() as ledger:
                    watched = DyingLedger(ledger, at, answered=answered)
                    try:
                        seen.update(ask(watched, seed=attempt, query=query))
                    except Died:
                        assert attempt < 2
                    for entry in ledger.entries():
                        if entry.payload is not None:  # the first record of a round stands for ever
                            assert (
                                rounds.setdefault(entry.release_id, entry.payload) == entry.payload
                            )
            with opened() as ledger:
                require_whole(ledger, seen)


def rival_at_every_call(new_ledger: Opening) -> None:
    """Whatever call a rival gets in before, with other bits, and with other terms: both publish the
    same."""
    for rivals, mine, step in (
        (a_query(), a_query(), 1),
        (
            msgspec.structs.replace(
                a_query(), rounds=7, privatisation="point", budget_nano=9 * 10**11
            ),
            a_query(),
            1,
        ),
        (a_threshold(), a_query(), 4),
        (a_ramp(), a_ramp(), 1),
        (a_ramp(), a_query(), 4),
    ):
        for call in range(0, _most_calls(new_ledger), step):
            opened, won = new_ledger(), list[bytes]()
            with opened() as theirs, opened() as ledger:

                def rival(theirs: Ledger = theirs, rivals=rivals, won: list[bytes] = won) -> None:
                    won.extend(ask(theirs, seed=8, query=rivals))

                ours = ask(RivalledLedger(ledger, call, rival), seed=7, query=mine)
                assert won in ([], ours)
                require_whole(ledger, set(ours))


def _most_calls(new_ledger: Opening) -> int:
    calls = len(_calls(new_ledger))
    assert calls > 9
    return calls + 4


def require_whole(ledger: Ledger, published: set[bytes], charged_before=()) -> None:
    """One answer, and it is the ledger's; each plate charged for the rounds it was in, and no
    other; nothing waits."""
    (payload,) = published
    result, moment = QueryResult.decode(payload), a_moment()
    assert ledger.verify() == [] and list(ledger.unpublished()) == []
    entries = {
        entry.release_id: entry for entry in ledger.entries() if ":other:" not in entry.release_id
    }
    assert entries.pop(id_of(QUERY, moment.time_ms, key="in-the-middle")).payload == payload
    assert len(entries) == result.plates.rounds and {kind_of(id_) for id_ in entries} == {"round"}
    charged = dict.fromkeys(moment.plates, 0)
    for id_, entry in entries.items():
        found = decode_round(entry.payload, 2 if result.query.privatisation == "point" else 1, id_)
        together = result.query.kind == "threshold"
        assert {moment.plates[i] for i in found.plates} == set(entry.plates) or (
            together and entry.plates
        )
        for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True):
            charged[plate] += nano
    assert (
        max(charged.values())
        == round(result.privacy.charged * 1e9)
        <= round(result.privacy.moment * 1e9)
    )
    (period,) = ledger.periods()
    assert period.startswith("positions 1d from ")
    before = [181 * 10**9 * (plate in charged_before) for plate in moment.plates]
    assert not [plate for plate in charged_before if charged[plate]]
    assert (ledger.balances(period, moment.plates).charged - before).tolist() == list(
        charged.values()
    )


def goes_on_elsewhere_with_the_plates_that_were_asked(new_ledger: Opening) -> None:
    """The recorded decisions stand, also where a machine would decide otherwise: nobody else is
    asked or charged."""
    opened = new_ledger()
    with opened() as ledger:
        with contextlib.suppress(Died):
            ask(DyingLedger(ledger, _calls(new_ledger).index("record")))
        all_zero = Round(
            np.arange(8),
            np.zeros((8, 1), np.int64),
            np.array([IN, ABOVE, IN] + [ABOVE] * 5, np.int8),
        )
        ledger.record(
            [
                (
                    id_of(ROUND, a_moment().time_ms, key="in-the-middle", number=1),
                    encode_round(all_zero),
                )
            ]
        )
        ask(ledger, seed=2)
        first, second = list(ledger.entries())[:2]
        assert second.release_id.endswith(":2") and set(second.plates) == {
            first.plates[0],
            first.plates[2],
        }


def marks_before_it_publishes(new_ledger: Opening) -> None:
    """Readers have an answer once the high-water mark knows it; the ledger hears of it behind that.
    A repeat, too."""
    with new_ledger()() as ledger:
        _require_marked(DyingLedger(ledger))
        again = DyingLedger(ledger)
        _require_marked(again)
        assert again.calls == ["recorded", "mark", "published"]


def _require_marked(watched: DyingLedger) -> None:
    told: list[str] = []
    answer_moment(
        [a_query()], a_moment(), a_query_context(), watched, lambda _: told.extend(watched.calls)
    )
    assert told[-1] == "mark" and watched.calls[len(told) :] == ["published"]


def _calls(new_ledger: Opening, query=None) -> list[str]:
    with new_ledger()() as ledger:
        watched = DyingLedger(ledger)
        ask(watched, query=query)
        return watched.calls


def other_plates_withhold_the_answer(new_ledger: Opening) -> None:
    opened = new_ledger()
    more = a_moment()
    more = replace(
        more,
        plates=(*more.plates, b"hash 9"),
        lat=np.append(more.lat, 0.0),
        lon=np.append(more.lon, 0.0),
    )
    with opened() as ledger:
        with contextlib.suppress(Died):
            ask(DyingLedger(ledger, _calls(new_ledger).index("record") + 1))
        (withheld,) = ask(ledger, moment=more)
        assert (
            QueryResult.decode(withheld).status == "withheld_other_plates"
            and QueryResult.decode(withheld).answer is None
        )
        assert ask(ledger) == [withheld] and ledger.verify() == []
        assert sum(entry.release_id.startswith("round") for entry in ledger.entries()) == 1


def plates_without_enough_for_all_rounds_take_no_part(new_ledger: Opening) -> None:
    poor = a_moment().plates[1:4]
    with new_ledger()() as ledger:
        charge(ledger, poor, 181 * 10**9)  # of 200; a moment costs up to 20, a round 5
        (payload,) = ask(ledger, query=a_threshold())
        require_whole(ledger, {payload}, charged_before=poor)
    result = QueryResult.decode(payload)
    assert result.plates.gave_nothing == 3 and result.plates.asked == 8
    assert (
        result.answer.low < 1 / 8 and result.answer.high > 4 / 8
    )  # the poor may be all inside, or none
    with new_ledger()() as ledger:
        charge(ledger, a_moment().plates, 181 * 10**9)
        (payload,) = ask(ledger, query=a_threshold())
    found = QueryResult.decode(payload)
    assert (found.answer.value, found.answer.below, found.answer.sure) == (None, None, False)
    assert found.privacy.charged == 0 and found.plates.gave_nothing == 8


def others_charges_between_rounds_end_a_threshold(new_ledger: Opening) -> None:
    calls = _calls(new_ledger, a_threshold())
    later = [at for at, name in enumerate(calls) if name == "admit"][1]
    opened = new_ledger()
    with opened() as theirs, opened() as ledger:
        rival = RivalledLedger(
            ledger, later, lambda: charge(theirs, a_moment().plates[:1], 191 * 10**9)
        )
        (payload,) = ask(rival, query=a_threshold())
        first, second = [
            entry
            for entry in ledger.entries()
            if entry.release_id.startswith("round:in-the-middle")
        ]
    result = QueryResult.decode(payload)
    assert (
        len(decode_round(first.payload, 1, "").plates) == 1
        and len(decode_round(second.payload, 1, "").plates) == 0
    )
    assert (
        set(first.charged.tolist()) == {5 * 10**9}
        and second.charged.tolist() == [0] + [5 * 10**9] * 7
    )
    assert (
        result.status == "answered" and result.plates.rounds == 2 and result.privacy.charged == 10
    )
    assert not result.answer.sure and result.answer.low < result.answer.value < result.answer.high


def a_plate_that_a_round_does_not_charge_gives_no_value_in_it(new_ledger: Opening) -> None:
    """Others charged it between the first round and the second: it has nothing left, is charged 0,
    and is not drawn."""
    later = [at for at, name in enumerate(_calls(new_ledger)) if name == "admit"][1]
    opened, poor = new_ledger(), a_moment().plates[0]
    with opened() as theirs, opened() as ledger:
        rival = RivalledLedger(ledger, later, lambda: charge(theirs, [poor], 191 * 10**9))
        (payload,) = ask(rival)
        first, second, *_ = rounds_of(ledger)
    assert poor in first.plates and 0 in decode_round(first.payload, 1, "").plates
    charged = dict(zip(second.plates, second.charged.tolist(), strict=True))
    assert charged.get(poor, 0) == 0 and max(charged.values()) == 5 * 10**9
    drawn = decode_round(second.payload, 1, "").plates.tolist()
    assert (
        [a_moment().plates[i] for i in drawn]
        == [plate for plate, nano in charged.items() if nano > 0]
        != []
    )
    assert (
        QueryResult.decode(payload).plates.gave_nothing == 0
    )  # it gave a value in the first round


def later_rounds_stay_within_the_lower_of_two_budgets(new_ledger: Opening) -> None:
    """A budget of 25 and of 200, in both orders: a plate with 18 charged has enough for a round of
    5 and no more."""
    poor, low = a_moment().plates[0], 25 * 10**9
    lower = msgspec.structs.replace(a_query(), period_budget_nano=low)
    for began, goes_on in ((lower, a_query()), (a_query(), lower)):
        opened = new_ledger()
        with opened() as ledger:
            with contextlib.suppress(Died):
                ask(
                    DyingLedger(ledger, _calls(new_ledger).index("record"), answered=True),
                    query=began,
                )
            assert len(rounds_of(ledger)) == 1
            charge(ledger, [poor], 18 * 10**9)
            (payload,) = ask(ledger, query=goes_on)
            first, *later = rounds_of(ledger)
            (period,) = ledger.periods()
            assert ledger.balances(period, [poor]).charged.tolist() == [23 * 10**9]
        assert (
            poor in first.plates
            and len(later) == 3
            and QueryResult.decode(payload).status == "answered"
        )
        charged = [dict(zip(one.plates, one.charged.tolist(), strict=True)) for one in later]
        assert not any(one.get(poor, 0) for one in charged) and all(
            max(one.values()) > 0 for one in charged
        )


def rounds_of(ledger: Ledger) -> list[Entry]:
    found = [
        entry for entry in ledger.entries() if entry.release_id.startswith("round:in-the-middle")
    ]
    return sorted(found, key=lambda entry: int(entry.release_id.rpartition(":")[2]))


def charge(ledger: Ledger, plates, nano: int) -> None:
    period = a_query_context().periods.name_at(a_moment().time_ms)
    everyone, charges = np.arange(len(plates)), np.full(len(plates), nano)
    ledger.admit(
        period,
        200 * 10**9,
        plates,
        [Admission("round:other:1641011400:1", everyone, charges, 0, b"")],
    )


DAY = "1d from 2022-01-01T00:00:00+00:00 in rho"
ONE = OneBudget("zcdp", 8 * 10**9, 2 * 10**9, Decimal(500))
"""Of rho 8 positions have 2: 8 per square kilometre."""


def ask_in_one_budget(ledger: Ledger) -> list[bytes]:
    context, told = a_query_context(), []
    periods = replace(context.periods, budget_nano=8 * 10**9, one_budget=ONE)
    query = msgspec.structs.replace(a_query(), budget_nano=4 * 10**9, period_budget_nano=8 * 10**9)
    answer_moment([query], a_moment(), replace(context, periods=periods), ledger, told.extend)
    return told


def charge_speeds(ledger: Ledger, nano: int, one: OneBudget | None, budget: int) -> None:
    calendar, plates = a_context().calendar, a_moment().plates
    calendar.one_budget = one
    require_one_promise(DAY, budget, calendar, ledger, plates)
    hat = Admission(f"hat-1641006000-{nano}", np.arange(8), np.full(8, nano), 0, b"")
    ledger.admit(DAY, budget, plates, [hat])
    require_one_promise(DAY, budget, calendar, ledger, plates)


def refuses(words: str, call: Callable[[], object]) -> None:
    with pytest.raises(PrivacyRefused) as refused:
        call()
    said = str(refused.value)
    assert f"could lose {words}, not rho 8" in said and "use another ledger" in said


def both_kinds_of_charges_stay_within_the_one_budget(new_ledger: Opening) -> None:
    """What a plate could lose is summed before it is charged. Half a kilometre counts as one; rho
    by its square."""
    with new_ledger()() as ledger:  # positions under 200 per square km, then a share
        ask(ledger, query=msgspec.structs.replace(a_query(), name="before"))
        refuses("rho 56", lambda: charge_speeds(ledger, 10**9, ONE, 6 * 10**9))
        refuses("rho 56", lambda: ask_in_one_budget(ledger))
        assert ledger.periods() == [f"positions {DAY}"]
    with new_ledger()() as ledger:  # speeds under the whole, then a share
        charge_speeds(ledger, 10**9, None, 8 * 10**9)
        refuses("rho 10", lambda: ask_in_one_budget(ledger))
        refuses("rho 10", lambda: charge_speeds(ledger, 10**9 + 1, ONE, 6 * 10**9))
    with new_ledger()() as ledger:  # a share, and then another budget beside it
        charge_speeds(ledger, 10**9, ONE, 6 * 10**9)
        assert ask_in_one_budget(ledger)
        charge_speeds(ledger, 10**9 + 1, ONE, 6 * 10**9)
        refuses(
            "rho 56", lambda: ask(ledger, query=msgspec.structs.replace(a_query(), name="later"))
        )
        refuses("rho 10", lambda: charge_speeds(ledger, 10**9 + 2, None, 8 * 10**9))
    with (
        new_ledger()() as ledger
    ):  # charged under the whole while a run with a share was on its way
        charge_speeds(ledger, 10**9, ONE, 6 * 10**9)
        ledger.admit(DAY, 8 * 10**9, a_moment().plates, [ask_all("rival", 6 * 10**9)])
        refuses("rho 10", lambda: ask_in_one_budget(ledger))


def ask_all(name: str, nano: int) -> Admission:
    return Admission(name, np.arange(8), np.full(8, nano), 0, b"")


CHECKS = [
    pytest.param(check, id=check.__name__)
    for check in (
        dies_at_every_call,
        plates_without_enough_for_all_rounds_take_no_part,
        rival_at_every_call,
        goes_on_elsewhere_with_the_plates_that_were_asked,
        other_plates_withhold_the_answer,
        others_charges_between_rounds_end_a_threshold,
        a_plate_that_a_round_does_not_charge_gives_no_value_in_it,
        later_rounds_stay_within_the_lower_of_two_budgets,
        marks_before_it_publishes,
        both_kinds_of_charges_stay_within_the_one_budget,
    )
]
