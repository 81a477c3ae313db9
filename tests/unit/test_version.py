"""The version of a checkout names the commit, as git has it; no other tree of sources names one."""

import subprocess
import sys
from pathlib import Path

import pytest

from udp_stream.base.version import RELEASE, version_of

ROOT = Path(__file__).parents[2]


def git(folder, *words):
    """What git prints, without the settings of whoever runs the tests."""
    alone = {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    known = ("-c", "user.name=nobody", "-c", "user.email=nobody")
    return subprocess.run(
        ["git", *known, *words], cwd=folder, env=alone, check=True, capture_output=True, text=True
    ).stdout.strip()  # fmt: skip


def commit(folder):
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "one more")
    return named(folder)


def named(folder):
    return f"{RELEASE}+g{git(folder, 'rev-parse', 'HEAD')[:12]}"


@pytest.fixture
def tree(tmp_path):
    """A source tree under git, without a commit."""
    (tree := tmp_path / "tree").mkdir()
    git(tree, "init", "--quiet", "--initial-branch", "main")
    (tree / "pyproject.toml").touch()
    return tree


def test_a_checkout_is_named_by_its_commit_however_git_keeps_the_branch(tree):
    assert version_of(tree) == RELEASE
    first = commit(tree)
    assert version_of(tree) == first
    git(tree, "checkout", "--quiet", "-b", "a/b")
    git(tree, "pack-refs", "--all")
    assert not (tree / ".git/refs/heads/a/b").exists() and version_of(tree) == first
    second = commit(tree)
    assert version_of(tree) == second != first
    git(tree, "checkout", "--quiet", "main")
    assert version_of(tree) == first
    git(tree, "checkout", "--quiet", "--detach", "a/b")
    assert version_of(tree) == second


def test_a_worktree_is_named_by_its_own_commit(tree, tmp_path):
    first, other = commit(tree), tmp_path / "other"
    git(tree, "worktree", "add", "--quiet", "-b", "other", other)
    (other / "pyproject.toml").touch()
    assert version_of(other) == first
    second = commit(other)
    assert version_of(other) == second != version_of(tree) == first
    git(tree, "pack-refs", "--all")
    assert version_of(other) == second
    (other / ".git").write_text("gitdir: ../tree/.git/worktrees/other\n")
    assert version_of(other) == second


@pytest.mark.parametrize(
    "head", [b"", b"ref: refs/heads/none\n", b"ref: ../../secret\n", b"\xff\xfe", b"GJ05ZZ0001\n"]
)
def test_a_tree_without_a_commit_that_can_be_read_is_the_release(tree, head):
    (tree / ".git/HEAD").write_bytes(head)
    assert version_of(tree) == RELEASE


def test_a_tree_without_git_is_the_release(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    assert version_of(tmp_path) == RELEASE
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert version_of(tmp_path) == RELEASE


def test_the_program_says_the_version_of_the_tree_that_it_runs_in():
    done = subprocess.run(
        [sys.executable, "-m", "udp_stream", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == f"udp-stream {version_of(ROOT)}\n"
