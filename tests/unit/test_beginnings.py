"""Files that begin or end oddly: what is no text in UTF-8, lines before a header, and data that end
too early."""

import gzip
import json

import pytest

from udp_stream.base.errors import UsageError
from udp_stream.cli.commands.init import read_samples
from udp_stream.pings.json import mapped_form
from udp_stream.pings.mapping import FeedMapping
from udp_stream.pings.texts import whole_part
from udp_stream.sources.files import prompt_messages, read_messages

FORM = mapped_form(
    FeedMapping(plate="bus", time="timestamp", longitude="lon", latitude="lat", speed="speed")
)
PINGS = [
    {"bus": f"GJ05BX{at % 9}", "timestamp": f"2022-01-01T10:10:{at:02}Z", "lon": 72.8, "lat": 21.1, "speed": at}
    for at in range(60)
]  # fmt: skip
HEADER = "bus;timestamp;lon;lat;speed"
ROWS = [";".join(map(str, one.values())) for one in PINGS]
CSV = "\n".join([HEADER, *ROWS, ""])


def written(folder, name, content):
    content = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(folder / name)


def messages(path):
    return [one for some in read_messages(path, form=FORM) for one in some]


KINDS = [
    (b"PK\x03\x04" + bytes(99), "a zip archive or a spreadsheet"),
    (b"PAR1" + bytes(99), "Parquet"),
    (CSV.encode("utf-16"), "text in UTF-16"),
    (CSV.encode("utf-16-be"), "text in UTF-16"),
    (b"\xfd7zXZ\0", "compressed by xz"),
    (CSV.replace("bus", "b\u00fcs").encode("latin-1"), "text that is not UTF-8"),
]


@pytest.mark.parametrize("name", ["feed.csv", "feed.csv.gz"])
@pytest.mark.parametrize(("content", "words"), KINDS, ids=[str(at) for at in range(len(KINDS))])
def test_a_file_that_is_no_text_in_utf8_is_named(content, words, name, tmp_path):
    path = written(tmp_path, name, content)
    for read in (messages, read_samples):
        with pytest.raises(UsageError) as raised:
            read(path)
        assert words in str(raised.value), str(raised.value)


BEFORE = ["sep=;\n", '"sep=;"\r\n', "# made by X\n# on Monday\n", "sep=;\n\n#x\n", "\n"]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("name", ["feed.csv", "feed", "feed.txt.gz"])
def test_lines_before_a_header_are_left_out(before, name, tmp_path):
    path = written(tmp_path, name, before + CSV)
    plain = written(tmp_path, "plain.csv", CSV)
    assert messages(path) == messages(plain) and len(messages(plain)) == len(ROWS)
    assert read_samples(path) == read_samples(plain)
    for size in (1, 7, 1000):
        text = (before + CSV).encode()
        blocks = (text[at : at + size] for at in range(0, len(text), size))
        prompted = prompt_messages("-", blocks, FORM)
        assert [one for form, some in prompted for one in form.as_json(some)] == messages(plain)


def test_behind_the_header_nothing_is_left_out(tmp_path):
    path = written(tmp_path, "feed.csv", "\n".join([HEADER, ROWS[0], "# a word", "sep=;", ROWS[1]]))
    assert messages(path)[1:3] == [b"# a word", b"sep=;"] and len(messages(path)) == 4
    lines = written(tmp_path, "feed.ndjson", '# a word\n{"bus": 1}\n')
    assert messages(lines) == [b"# a word", b'{"bus": 1}']


DOCUMENTS = [
    lambda pings: {"results": pings, "count": 5}, lambda pings: pings,
    lambda pings: {"meta": [{"a": 1}], "data": {"list": pings}}, lambda pings: {"delivery": [{"activity": pings}]},
]  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(at) for at in range(len(DOCUMENTS))])
@pytest.mark.parametrize("indent", [None, 1])
def test_of_json_that_ends_too_early_the_whole_elements_stay_wherever_it_ends(document, indent):
    pings = [one | {"stops": [{"n": 'a]}\\"[{'}, {"n": 2}]} for one in PINGS[:4]]
    text = json.dumps(document(pings), indent=indent)
    ends = [text.index("}", text.index('"n": 2', text.index(one["bus"]) + 1)) for one in pings]
    ends = [text.index("}", end + 1) + 1 for end in ends]
    last = max(text.index("]", ends[-1]) - 1, ends[-1])
    for end in range(ends[0], last):
        whole = sum(one <= end for one in ends)
        part = whole_part(text[:end].encode())
        assert json.dumps(pings[:whole]) in json.dumps(json.loads(part))
        assert pings[-1]["bus"] not in part.decode() or whole == 4


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a": 1', b"[1, 2", b"[{}}", b"nonsense", b'"[{}, {', b"[{}, {] ", b"]"]
)
def test_what_has_no_whole_element_or_is_no_json_has_no_whole_part(text):
    assert whole_part(text) is None


def test_a_document_that_ends_too_early_gives_what_came_before_and_says_so(tmp_path):
    text = json.dumps({"results": PINGS})
    path = written(tmp_path, "feed.json", text[: int(len(text) * 0.7)])
    got = []
    with pytest.raises(
        UsageError, match=r"feed\.json: its JSON ends too early; what came before was read"
    ):
        for some in read_messages(path, form=FORM):
            got += some
    assert [json.loads(one) for one in got] == PINGS[: len(got)] and len(got) > 30
