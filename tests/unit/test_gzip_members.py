"""Gzip in pieces of any size, in any number of members, cut or damaged: what was whole comes out,
bounded."""

import gzip
import random

import pytest

from udp_stream.sources import files

DATA = random.Random(1).randbytes(9000) + bytes(200_000)
MEMBERS = (
    gzip.compress(DATA[:100])
    + gzip.compress(b"")
    + bytes(7)
    + gzip.compress(DATA[100:])
    + bytes(5000)
)


def unpacked(packed, piece):
    out = []
    try:
        for some in files.inflated(
            iter([packed[first : first + piece] for first in range(0, len(packed), piece)])
        ):
            assert 0 < len(some) <= files._BLOCK_BYTES
            out.append(some)
    except files.GzipError as error:
        return b"".join(out), str(error)
    return b"".join(out), "whole"


@pytest.mark.parametrize("piece", [1, 3, 4096, 10**6])
@pytest.mark.parametrize("block", [1000, 2**18])
def test_members_come_out_as_one_whatever_the_pieces(piece, block, limits):
    limits(files, _BLOCK_BYTES=block)
    assert unpacked(MEMBERS, piece) == (DATA, "whole")


@pytest.mark.parametrize("piece", [1, 100, 10**6])
def test_data_cut_anywhere_give_a_beginning_and_say_so(piece):
    packed = gzip.compress(DATA)
    for cut in (2, 3, 9, 10, 500, len(packed) - 9, len(packed) - 1):
        out, said = unpacked(packed[:cut], piece)
        assert said == "end too early" and DATA.startswith(out)
    assert len(out) == len(DATA)


@pytest.mark.parametrize("piece", [1, 10**6])
def test_junk_behind_a_member_and_a_wrong_checksum_are_damage(piece):
    for packed in (MEMBERS + b"junk", gzip.compress(DATA)[:-8] + bytes(8)):
        out, said = unpacked(packed, piece)
        assert said.startswith("are damaged (") and DATA.startswith(out) and len(out) > 9000


def test_well_packed_data_come_out_in_blocks_and_not_at_once(limits):
    """A hundred megabytes of zeros are a hundred kilobytes of gzip: no more than a block of them is
    held."""
    limits(files, _BLOCK_BYTES=1000)
    blocks = files.inflated(iter([gzip.compress(bytes(10**7))]))
    assert max(len(next(blocks)) for _ in range(50)) <= 1000
