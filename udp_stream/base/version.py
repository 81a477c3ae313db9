"""Which version this is: the wheel, `--version`, records and statements say it."""

import re
from pathlib import Path

RELEASE = "0.1.0"


def version_of(tree: Path) -> str:
    """Version of a tree of sources, with the commit that is checked out, as 0.1.0+g48da53a3a95a; of
    an installed package as it was built. A tree that is neither a checkout nor installed is of no
    commit that is known.
    """
    if commit := _commit(tree):
        return f"{RELEASE}+g{commit[:12]}"
    if (tree / "pyproject.toml").exists():
        return RELEASE
    from importlib import metadata  # in a checkout it is not needed, and slow to load

    try:
        return metadata.version("udp-stream")
    except metadata.PackageNotFoundError:
        return RELEASE


def _commit(tree: Path) -> str:
    """Commit that git's files say is checked out; "" without a commit."""
    try:
        return _checked_out(tree / ".git")
    except (OSError, ValueError):
        return ""


def _checked_out(git: Path) -> str:
    if git.is_file():  # of a worktree: the path of its folder
        git = git.parent / git.read_text().removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text().strip()
    if head.startswith("ref:"):
        shared = git / "commondir"
        head = _of_branch(
            git / shared.read_text().strip() if shared.exists() else git, head[4:].strip()
        )
    return head if re.fullmatch("[0-9a-f]{40,64}", head) else ""


def _of_branch(git: Path, name: str) -> str:
    """Commit of a branch, in a file of its own or a line among the packed refs."""
    if (file := git / name).is_file():
        return file.read_text().strip()
    lines = (line.partition(" ") for line in (git / "packed-refs").read_text().splitlines())
    return next((commit for commit, _, branch in lines if branch == name), "")


__version__ = version_of(Path(__file__).parents[2])
