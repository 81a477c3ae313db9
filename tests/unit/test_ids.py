"""Ids of a ledger's entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udp_stream.ledger.ids import CELL_ID, FORMS, NEVER_ENDS, Id, end_of, id_of, kind_of


@given(st.data(), st.integers(-(10**9), 10**11), st.integers(1, 10**8), st.integers(1, 99))
def test_an_id_tells_what_it_is_made_of(data, start, seconds, number):
    kind = data.draw(st.sampled_from(sorted(FORMS)))
    form = FORMS[kind]
    key = data.draw(st.from_regex(CELL_ID, fullmatch=True)) if "key" in form else ""
    seconds = seconds if "seconds" in form else 0
    id_ = id_of(kind, 1000 * start, 1000 * (start + seconds), key, number)
    assert Id.of(id_) == (kind, key, start, seconds)
    assert kind_of(id_) == kind and end_of(id_) == start + seconds


@pytest.mark.parametrize(
    "text",
    ["hat", "", "Cell-0-3600", "-0-3600", "city:a-0-3600", "cloud:0-3600", "query:a", "a-0-"],
)
def test_other_texts_are_no_ids(text):
    with pytest.raises(ValueError, match="expected"):
        Id.of(text)
    assert end_of(text) == NEVER_ENDS
