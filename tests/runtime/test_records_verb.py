"""`records` reads records of files, of a ledger and of topics; verbs keep their older names."""

import json

import pytest

from tests.runtime.test_ledger_records import FLAGS, replayed, run  # noqa: F401 (a fixture)
from tests.verbs import run_verb
from udp_stream.cli.parsers import OLDER, program
from udp_stream.export_formats import TEXTS, TextForm
from udp_stream.release.record import Release


def records(folder, *words, status=0):
    return run("records", *words, cwd=folder, status=status).stdout


def test_a_ledger_is_named_by_its_file_its_url_or_the_configuration(replayed):  # noqa: F811
    published = (replayed / "releases.ndjson").read_bytes()
    for words in (
        ["city.ledger"],
        ["sqlite:city.ledger"],
        ["--ledger", "city.ledger"],
        ["--set", "ledger.url=city.ledger"],
    ):
        assert records(replayed, *words) == published
    estimates = (replayed / "estimates.ndjson").read_bytes()
    assert records(replayed, "city.ledger", "--smoothed") == estimates


def test_files_have_the_same_records_by_kind_and_span(replayed):  # noqa: F811
    files = "releases.ndjson", "estimates.ndjson"
    for kind, name in (((), files[0]), (("--smoothed",), files[1])):
        assert records(replayed, *files, *kind) == (replayed / name).read_bytes()
    assert records(replayed, *files, "--queries") == b""
    span = "--from", "2024-01-08T09:15", "--to", "2024-01-08T09:45"
    found = records(replayed, files[0], *span)
    assert found and found == records(replayed, "city.ledger", *span)
    starts = {Release.decode(line).hat.slot_start[10:16] for line in found.splitlines()}
    assert starts == {"T09:15", "T09:30"}


def test_records_of_a_file_and_of_a_ledger_are_written_in_other_forms(replayed):  # noqa: F811
    for source in ("releases.ndjson", "city.ledger"):
        records(replayed, source, "--out", f"{source}.csv")
        records(replayed, source, "--out", f"{source}.geojson")
    ours, theirs = (
        (replayed / f"{name}.csv").read_bytes() for name in ("releases.ndjson", "city.ledger")
    )
    assert ours == theirs and ours.count(b"\n") == 1 + len(
        (replayed / "releases.ndjson").read_bytes().splitlines()
    )
    collection = json.loads((replayed / "releases.ndjson.geojson").read_bytes())
    assert len(collection["features"]) == ours.count(b"\n") - 1


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["releases.ndjson", "--out", "releases.ndjson"], 2),
        (["none.ndjson"], 2),
        (["releases.ndjson", "--follow"], 2),
        (["city.ledger", "--typical"], 2),
        (["city.ledger", "--queries", "--out", "answers.csv"], 2),
        (["none.ledger", "--ledger", "none.ledger"], 2),
        (["topics", "--set", "kafka.bootstrap=127.0.0.1:1"], 4),
    ],
)
def test_what_cannot_be_read_is_refused_before_an_output_is_touched(words, status, replayed):  # noqa: F811
    published = (replayed / "releases.ndjson").read_bytes()
    assert run_verb(["records", *words, *FLAGS], cwd=replayed).returncode == status
    assert (replayed / "releases.ndjson").read_bytes() == published
    assert not (replayed / "answers.csv").exists()


def test_an_output_is_not_emptied_for_a_ledger_that_is_not_there(replayed):  # noqa: F811
    (replayed / "kept.ndjson").write_bytes(b"{}\n")
    words = ["records", "--ledger", "gone.ledger", "--out", "kept.ndjson"]
    assert run_verb([*words, *FLAGS], cwd=replayed).returncode != 0
    assert (replayed / "kept.ndjson").read_bytes() == b"{}\n"


def test_a_form_is_a_row_of_one_table(replayed, registered):  # noqa: F811
    cells = TextForm(
        "text/plain",
        lambda lines, *_: (Release.decode(line).hat.cell.encode() + b"\n" for line in lines),
    )
    registered(TEXTS, "cells", cells)
    published = (replayed / "releases.ndjson").read_bytes().splitlines()
    records(replayed, "releases.ndjson", "--out", "out.cells")
    found = (replayed / "out.cells").read_text().split()
    assert found == [Release.decode(line).hat.cell for line in published]


def test_older_names_do_what_the_newer_ones_do(replayed):  # noqa: F811
    where = ("--ledger", "city.ledger")
    for older, newer in (
        (["ledger", "releases", *where], ["records", *where]),
        (["ledger", "export", *where], ["ledger", "show", *where]),
        (["ledger", "accept-older", *where], ["ledger", "verify", "--accept-older", *where]),
        (["typical", "releases.ndjson"], ["records", "releases.ndjson", "--typical"]),
        (["config"], ["init"]),
    ):
        one, other = (run_verb([*words, *FLAGS], cwd=replayed) for words in (older, newer))
        assert (one.returncode, one.stdout) == (other.returncode, other.stdout), older
        assert one.returncode in (0, 5) and (one.stdout or one.stderr)


def listed(parser):
    """Verbs that the help of a parser and of its groups lists."""
    for action in parser._subparsers._group_actions:
        for shown in action._choices_actions:
            verb = action.choices[shown.dest]
            yield from listed(verb) if verb._subparsers else [verb.prog]


def test_at_most_sixteen_verbs_are_to_be_learnt():
    verbs = list(listed(program()))
    assert len(verbs) <= 16
    assert not {f"udp-stream {' '.join(older)}" for older in OLDER} & set(verbs)
