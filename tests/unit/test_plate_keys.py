"""Plates become keyed hashes, and their key is one, private and never half-written."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import pytest

from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledgers.keys import PlateKeys, load_or_create_key

KEY = bytes(range(32))


def test_key_of_is_keyed_blake2b_with_its_own_domain() -> None:
    expected = blake2b(b"GJ05BX1234", key=KEY, digest_size=16, person=b"udp-stream/plate").digest()
    assert PlateKeys(KEY).hash_plate("GJ05BX1234") == expected
    assert blake2b(b"GJ05BX1234", key=KEY, digest_size=16).digest() != expected


def test_fingerprint_names_the_key_and_is_neither_key_nor_hash_of_a_plate() -> None:
    keys = PlateKeys(KEY)
    assert keys.fingerprint() == PlateKeys(KEY).fingerprint() != PlateKeys(KEY[::-1]).fingerprint()
    assert keys.fingerprint() != keys.hash_plate("").hex()
    assert keys.fingerprint() not in KEY.hex()


@pytest.mark.parametrize("key", [b"", b"short", bytes(31), bytes(33)])
def test_key_of_another_length_is_a_value_error(key: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        PlateKeys(key)


def test_created_key_is_random_private_and_found_again(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "one.key")
    assert len(key) == 32
    assert load_or_create_key(tmp_path / "one.key") == key
    assert load_or_create_key(tmp_path / "two.key") != key
    assert stat.S_IMODE((tmp_path / "one.key").stat().st_mode) == 0o600
    assert (tmp_path / "one.key").read_text() == key.hex() + "\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.key", "two.key"]


def test_a_key_is_on_disk_before_it_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not leave an empty key beside a ledger that is bound to it."""
    where, synced, real = tmp_path / "one.key", list[str](), os.fsync

    def watched(descriptor: int) -> None:
        place = Path(f"/proc/self/fd/{descriptor}").resolve()
        synced.append(f"{where.exists()}, {'its folder' if place.is_dir() else place.read_text()}")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    key = load_or_create_key(where)
    assert synced == [f"False, {key.hex()}\n", "True, its folder"]


def test_many_at_once_end_up_with_one_key(tmp_path: Path) -> None:
    start = threading.Barrier(16)

    def load(_: int) -> bytes:
        start.wait(30)
        return load_or_create_key(tmp_path / "plate.key")

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(load, range(16)))) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["plate.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601])
def test_key_that_others_can_reach_is_refused(mode: int, tmp_path: Path) -> None:
    load_or_create_key(tmp_path / "plate.key")
    (tmp_path / "plate.key").chmod(mode)
    with pytest.raises(PrivacyRefused, match="got mode 0"):
        load_or_create_key(tmp_path / "plate.key")


@pytest.mark.parametrize(
    "text", ["", "\n", "ab" * 31, "ab" * 33, "xy" * 32, "AB" * 32, "ab" * 32 + "\n\n", "ab" * 500]
)
def test_malformed_key_is_refused_and_kept_out_of_the_message(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plate.key"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(PrivacyRefused, match="64 hex digits") as refused:
        load_or_create_key(path)
    assert str(path) in str(refused.value)
    assert not text.strip() or text.strip() not in str(refused.value)
    assert path.read_text() == text
