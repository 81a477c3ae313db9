"""A ledger is behind a mark if it holds less, or another record; what was accepted as forgotten is
forgiven."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger import rules as ledger_past
from udp_stream.ledger.port import Admission, Mark
from udp_stream.ledger.rules import AcceptedRollback, caveats, forget, forgotten, see
from udp_stream.ledgers import keys as ledger_id
from udp_stream.ledgers.keys import (
    adopt,
    compare,
    kept_mark,
    raise_mark,
    remember_ledger,
    replace_mark,
)
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger


def ledger_of(*payloads, name="5eed"):
    ledger = MemoryLedger(name)
    for number, payload in enumerate(payloads):
        hat = Admission(f"hat-{number}", np.array([0]), np.array([1]), 1, b"")
        ledger.admit("p", 100, [b"plate"], [hat])
        ledger.record([(f"hat-{number}", payload)])
    return ledger


def mark_of(ledger, release_id=""):
    return see(ledger, release_id).mark(release_id)


def behind(ledger, mark):
    return ledger_past.behind(see(ledger, mark.release_id), mark)


def test_what_was_accepted_is_forgiven_and_not_one_hat_more():
    highest, restored = mark_of(ledger_of(b"a", b"b", b"c"), "hat-2"), ledger_of(b"a")
    lower = mark_of(ledger_of(b"a", b"b"), "hat-1")
    assert forget(restored, AcceptedRollback("one HAT", "2026-11-22", lower))
    assert behind(restored, lower) is None
    assert "3 charged and 3 recorded" in behind(restored, highest)
    assert forget(restored, AcceptedRollback("two HATs", "2026-11-22", highest))
    assert behind(restored, highest) is None and len(forgotten(restored.meta())) == 2
    assert caveats(restored.meta()) == ("one HAT", "two HATs")


def test_two_machines_that_each_accept_their_own_mark_can_both_go_on(tmp_path):
    """The acceptance on one machine begins an era after that on the other, whose mark is none that
    was accepted."""
    restored, files = ledger_of(b"a"), [tmp_path / "one", tmp_path / "other"]
    for file, published in zip(files, ((b"a", b"b"), (b"a", b"b", b"c")), strict=True):
        remember_ledger(file, "5eed")
        raise_mark(ledger_of(*published), file, "here", f"hat-{len(published) - 1}")
        with pytest.raises(PrivacyRefused, match="went back in time"):
            compare(restored, file, "here")
        forget(restored, AcceptedRollback("words", "2026-11-22", kept_mark(file)))
        replace_mark(restored, file)
    for file in files:
        compare(restored, file, "here")
        assert raise_mark(restored, file, "here", "hat-0").era == 2


def test_a_mark_of_an_earlier_era_is_no_excuse_for_a_later_fall_behind():
    was, now = ledger_of(b"a", b"b", b"c"), ledger_of(b"a", b"b")
    for ledger in (was, now):
        forget(ledger, AcceptedRollback("first", "2026-11-22", mark_of(ledger_of(*[b"x"] * 9))))
    mark = mark_of(was, "hat-2")
    forget(now, AcceptedRollback("second", "2026-11-23", mark_of(ledger_of(*[b"x"] * 12))))
    assert "3 charged and 3 recorded" in behind(now, mark)
    again = ledger_of(b"a", b"b", b"another draw", b"d")
    for name, text in now.meta().items():
        again.note(name, text)
    assert "record of hat-2" in behind(again, mark)


def test_what_is_accepted_in_a_later_era_forgives_no_mark_of_an_earlier_one():
    """Another machine may keep a higher mark of that time: nobody has read what it says is
    forgotten."""
    restored = ledger_of(b"a")
    forget(restored, AcceptedRollback("first", "2026-11-22", mark_of(ledger_of(b"a", b"b"))))
    second = Mark("5eed", 1, admitted=2, recorded=2)
    forget(restored, AcceptedRollback("second", "2026-11-23", second))
    unread = mark_of(ledger_of(*[b"x"] * 9))
    assert behind(restored, second) is None
    assert "9 charged and 9 recorded" in behind(restored, unread)


def test_a_ledger_that_has_forgotten_its_acceptance_is_behind():
    accepted = ledger_of(b"a")
    forget(accepted, AcceptedRollback("words", "2026-11-22", mark_of(ledger_of(b"a", b"b"))))
    assert "does not remember" in behind(ledger_of(b"a", b"b", b"c"), mark_of(accepted))


def test_of_two_acceptances_at_once_one_is_told_that_it_came_second():
    ledger, other = ledger_of(b"a"), ledger_of(b"a")
    other.meta, other.note = ledger.meta, ledger.note
    first = AcceptedRollback("first", "2026-11-22", mark_of(ledger))
    original = ledger.meta()
    assert forget(ledger, first)
    other.meta = lambda: original
    assert not forget(other, AcceptedRollback("second", "2026-11-22", mark_of(ledger)))


# The file beside the key.


@pytest.fixture
def file(tmp_path):
    remember_ledger(tmp_path / "key.ledger-id", "5eed")
    return tmp_path / "key.ledger-id"


def test_a_mark_is_kept_and_only_ever_raised(file):
    early, late = ledger_of(b"a"), ledger_of(b"a", b"b")
    assert kept_mark(file) is None
    raise_mark(early, file, "here", "hat-0")
    high = raise_mark(late, file, "here", "hat-1")
    assert kept_mark(file) == high == mark_of(late, "hat-1") and file.read_text().startswith(
        "5eed\n"
    )
    with pytest.raises(PrivacyRefused, match="it holds 1 charged"):
        raise_mark(early, file, "here", "hat-0")
    with pytest.raises(PrivacyRefused, match="accept-older"):
        compare(early, file, "here")
    assert kept_mark(file) == high
    before = file.stat().st_ino
    raise_mark(late, file, "here", "hat-0")
    assert file.stat().st_ino == before  # nothing was added: nothing is written
    compare(late, file, "here")


def test_a_process_that_adopts_a_new_ledger_beside_another_does_not_wipe_its_mark(tmp_path):
    """Both find no id file; one has published before the other comes to write it."""
    id_file = tmp_path / "key.ledger-id"
    with (
        open_sqlite_ledger(tmp_path / "ledger", id_file=id_file) as one,
        open_sqlite_ledger(tmp_path / "ledger", id_file=id_file) as other,
    ):
        adopt(one, id_file, "here")
        one.admit("p", 100, [b"plate"], [Admission("hat", np.array([0]), np.array([1]), 1, b"")])
        one.record([("hat", b"payload")])
        mark = one.mark("hat")
        adopt(other, id_file, "here")
        assert kept_mark(id_file) == mark and mark.recorded == 1


def test_a_mark_from_another_machine_is_kept_where_the_ledger_is_behind_it(file):
    """So that what is to be accepted is counted by the highest mark that anybody knows."""
    high, restored = mark_of(ledger_of(b"a", b"b"), "hat-1"), ledger_of(b"a")
    compare(ledger_of(b"a", b"b"), file, "here", high)
    assert kept_mark(file) is None
    with pytest.raises(PrivacyRefused, match="went back in time"):
        compare(restored, file, "here", high)
    assert kept_mark(file) == high
    forget(restored, AcceptedRollback("words", "2026-11-22", high))
    replace_mark(restored, file)
    compare(restored, file, "here", high)
    assert kept_mark(file).era == 1


def test_a_mark_that_is_not_of_this_ledger_or_has_no_file_is_refused_and_kept_nowhere(file):
    """Kept, it would name the other ledger as the one that belongs to the key."""
    raise_mark(ledger_of(b"a"), file, "here", "hat-0")
    text, restored = file.read_text(), ledger_of(b"a")
    with pytest.raises(PrivacyRefused, match="expected the ledger other"):
        compare(restored, file, "here", mark_of(ledger_of(b"a", b"b", name="other"), "hat-1"))
    with pytest.raises(PrivacyRefused, match="went back in time"):
        compare(restored, None, "here", mark_of(ledger_of(b"a", b"b"), "hat-1"))
    assert file.read_text() == text
    assert raise_mark(restored, None, "here", "hat-0") == mark_of(restored, "hat-0")


def test_a_mark_that_another_process_raises_meanwhile_is_not_lowered(file, monkeypatch):
    """Both look at the ledger; the other one comes first to the file, with more."""
    early, late, looked = ledger_of(b"a"), ledger_of(b"a", b"b"), ledger_id.see

    def then_the_other(ledger, *names):
        seen = looked(ledger, *names)
        monkeypatch.undo()
        then_the_other.mark = raise_mark(late, file, "here", "hat-1")
        return seen

    monkeypatch.setattr(ledger_id, "see", then_the_other)
    with pytest.raises(PrivacyRefused, match="went back in time"):
        raise_mark(early, file, "here", "hat-0")
    assert kept_mark(file) == then_the_other.mark == mark_of(late, "hat-1")


@pytest.mark.parametrize(
    "change",
    [
        lambda file: raise_mark(ledger_of(b"a"), file, "here", "hat-0"),
        lambda file: replace_mark(ledger_of(b"a"), file),
        lambda file: compare(
            ledger_of(b"a"), file, "here", mark_of(ledger_of(b"a", b"b"), "hat-1")
        ),
    ],
    ids=["raised", "replaced", "of another machine"],
)
def test_a_mark_is_written_under_the_lock_of_the_file_that_is_there_now(change, file, monkeypatch):
    """Also where the file was replaced while we waited for its lock: that one's lock would keep out
    nobody."""
    locks, written = [], []
    lock, write = fcntl.flock, ledger_id._write

    def late(opened, how):
        if not locks:
            file.with_name("new").write_text(file.read_text())
            file.with_name("new").replace(file)
        locks.append(how)
        lock(opened, how)

    def locked(path, *what):
        with path.open() as other, pytest.raises(BlockingIOError):
            lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        written.append(path)
        write(path, *what)

    monkeypatch.setattr(fcntl, "flock", late)
    monkeypatch.setattr(ledger_id, "_write", locked)
    with suppress(PrivacyRefused):  # as behind another machine's mark
        change(file)
    assert (written, len(locks)) == ([file], 2)


def test_a_mark_and_an_id_are_on_disk_before_they_have_their_place(tmp_path, monkeypatch):
    """After a power cut the file is whole, or as it was before: an empty one would refuse every
    run."""
    file, synced, real = tmp_path / "key.ledger-id", [], os.fsync

    def watched(descriptor):
        draft = Path(f"/proc/self/fd/{descriptor}").resolve()
        if draft.is_file():
            assert draft.name.startswith(".key.ledger-id.")
            synced.append(draft.read_text())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    remember_ledger(file, "5eed")
    assert synced == ["5eed\n"] == [file.read_text()]
    raise_mark(ledger_of(b"a"), file, "here", "hat-0")
    assert synced[1:] == [file.read_text()]


def test_the_mark_of_another_ledger_is_refused(file):
    raise_mark(ledger_of(b"a"), file, "here", "hat-0")
    with pytest.raises(PrivacyRefused, match="expected the ledger 5eed"):
        compare(ledger_of(b"a", name="other"), file, "here")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x00" * 33, b"<html>\n"])
def test_an_id_file_that_is_damaged_is_refused_and_is_no_other_ledger(file, content, tmp_path):
    """Where another ledger is there, the advice is to begin anew: never where the file alone is
    damaged."""
    file.write_bytes(content)
    with pytest.raises(PrivacyRefused, match="got something else"):
        open_sqlite_ledger(tmp_path / "ledger", id_file=file)


def test_a_mark_that_is_lost_while_the_ledger_is_in_use_is_refused(file):
    file.unlink()
    with pytest.raises(PrivacyRefused, match="is gone: restore it"):
        raise_mark(ledger_of(b"a"), file, "here", "hat-0")


def test_a_mark_that_cannot_be_written_stops_before_anything_is_published(file, planted):
    planted("udp_stream.ledgers.keys", sync_directory=_full)
    with pytest.raises(DependencyUnavailable, match="cannot be written"):
        raise_mark(ledger_of(b"a"), file, "here", "hat-0")


def test_a_mark_that_cannot_be_locked_is_a_dependency_that_fails_and_no_fault_of_ours(
    file, monkeypatch
):
    """As where another user's file may be read and not written, or where a network's disk has no
    locks."""
    with monkeypatch.context() as refusing:
        refusing.setattr("fcntl.flock", _without_locks)
        with pytest.raises(DependencyUnavailable, match="cannot be written"):
            raise_mark(ledger_of(b"a"), file, "here", "hat-0")
    opened = Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda path, mode="r", **how: _forbidden(path, mode) or opened(path, mode, **how),
    )
    with pytest.raises(DependencyUnavailable, match="cannot be written"):
        raise_mark(ledger_of(b"a"), file, "here", "hat-0")


def _without_locks(_file, _how):
    raise OSError(37, "No locks available")


def _forbidden(path, mode):
    if path.name == "key.ledger-id" and "+" in mode:
        raise PermissionError(13, "Permission denied", str(path))


def _full(_folder):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("text", ["5eed\n?\n", "5eed\n[1]\n", "5eed\n{}\n"])
def test_a_mark_that_cannot_be_read_is_refused(file, text):
    file.write_text(text)
    with pytest.raises(PrivacyRefused, match="expected the ledger's"):
        compare(ledger_of(), file, "here")
