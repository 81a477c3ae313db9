"""Gzip in pieces of any size, in any number of members, cut or damaged: what was whole comes out, bounded."""

import gzip
import random

import pytest

from udp_stream.sources.files import GzipError, GzipMembers

DATA = random.Random(1).randbytes(9000) + bytes(200_000)
MEMBERS = gzip.compress(DATA[:100]) + gzip.compress(b"") + bytes(7) + gzip.compress(DATA[100:]) + bytes(5000)


def inflated(packed, piece, block=1000):
    """What comes out, and how it ended."""
    members, out = GzipMembers(block), []
    try:
        for first in range(0, len(packed), piece):
            out += members.feed(packed[first : first + piece])
        out += members.end()
    except GzipError as error:
        return b"".join(out), str(error)
    assert all(0 < len(some) <= block for some in out)
    return b"".join(out), "whole"


@pytest.mark.parametrize("piece", [1, 3, 4096, 10**6])
@pytest.mark.parametrize("block", [1000, 2**18])
def test_members_come_out_as_one_whatever_the_pieces(piece, block):
    assert inflated(MEMBERS, piece, block) == (DATA, "whole")


@pytest.mark.parametrize("piece", [1, 100, 10**6])
def test_data_cut_anywhere_give_a_beginning_and_say_so(piece):
    packed = gzip.compress(DATA)
    for cut in (0, 1, 9, 10, 500, len(packed) - 9, len(packed) - 1):
        out, said = inflated(packed[:cut], piece)
        assert said == "end too early" and DATA.startswith(out)
    assert len(out) == len(DATA)


@pytest.mark.parametrize("piece", [1, 10**6])
def test_junk_behind_a_member_and_a_wrong_checksum_are_damage(piece):
    for packed in (MEMBERS + b"junk", gzip.compress(DATA)[:-8] + bytes(8)):
        out, said = inflated(packed, piece)
        assert said.startswith("are damaged (") and DATA.startswith(out) and len(out) > 9000


def test_well_packed_data_come_out_in_blocks_and_not_at_once():
    """A hundred megabytes of zeros are a hundred kilobytes of gzip: no more than a block of them is held."""
    blocks = GzipMembers(1000).feed(gzip.compress(bytes(10**7)))
    assert [len(next(blocks)) for _ in range(5)] == [1000] * 5
