"""Benchmarks on wrong words: a page or a usage error, and nothing run or written."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN = sorted(f.stem for f in BENCHMARKS.glob("*.py") if '__name__ == "__main__"' in f.read_text("utf-8"))


def ran(monkeypatch, name, *words):
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    return left.value.code


@pytest.mark.parametrize("name", RUN)
def test_help_prints_the_page_and_runs_nothing(name, monkeypatch, tmp_path, capsys):
    """A picture was written to a file of the name --help; others ran for minutes, or ended with a traceback."""
    monkeypatch.chdir(tmp_path)
    assert ran(monkeypatch, name, "--help") == 0
    assert capsys.readouterr().out.startswith("usage: ") and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("stream", ["nosuch"], "unrecognized arguments: nosuch"),
        ("picture", [], "required: FILE"),
    ],
)
def test_wrong_words_are_refused(name, words, said, monkeypatch, capsys):
    assert ran(monkeypatch, name, *words) == 2
    assert said in capsys.readouterr().err
