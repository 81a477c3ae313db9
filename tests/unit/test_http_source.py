"""An address that is polled, on a server that stalls, cuts, repeats and lies: nothing lost, nothing
twice."""

import json
import re
import socket
import threading
import time
from contextlib import suppress
from itertools import islice

import pytest
import trustme

from tests import http_server as server
from tests.gtfs import snapshot, vehicle
from tests.http_server import GTFS, ok, serving, status
from udp_stream.base.errors import ConfigError, DependencyUnavailable, UsageError
from udp_stream.settings import Settings
from udp_stream.settings.sections import LiveSection, SpeedSection
from udp_stream.sources.http import HttpGet, PolledSource
from udp_stream.sources.live import Handover, SourceFailure

TOKEN = "eyJ0.Secret-Token"
ENCODED = "a/b+c== d"


def ping(plate, second=0, speed=47.25):
    time_ = f"2024-01-08T10:00:{second:02}+05:30"
    point = {"type": "Point", "coordinates": [72.5, 21.25]}
    return {
        "license_plate": plate,
        "observationDateTime": time_,
        "location": point,
        "speed": speed,
        "trip_id": "9",
    }


def answer(*pings):
    return json.dumps({"type": "urn:dx:rs:success", "title": "success", "results": pings}).encode()


ONE = answer(ping("A1"), ping("B2"))
TWO = answer(ping("A1", 1), ping("B2"))


def source(
    url, said=None, every_s=0.03, timeout_s=0.5, max_bytes=10**6, unit=None, form="auto", **options
):
    live = LiveSection(every=f"{every_s}s", timeout=f"{timeout_s}s", format=form, **options)
    log_message = (said if said is not None else []).append
    return PolledSource(
        url, Settings(live=live, speed=SpeedSection(unit=unit)), log_message, max_bytes=max_bytes
    )


def plates(frame):
    return [json.loads(one).get("license_plate") for one in frame]


def polled(url, frames, said=None, **options):
    """So many frames; the script of a server must have them, or this waits."""
    live = source(url, said, **options)
    found = [plates(frame) for frame in islice(live.messages(), frames)]
    live.stop()
    return found


def clean(said, *secrets):
    """No line holds a plate, a speed, a token or what was in a query."""
    text = "\n".join(said)
    assert not [one for one in ("A1", "B2", "47.25", TOKEN, "key=", *secrets) if one in text], text
    return text


FAULTS = {
    "stalls": (server.stall, r"gave no whole answer within 0\.5 s"),
    "drips": (server.drip, r"gave no whole answer within 0\.5 s"),
    "cut": (server.cut(TWO, 99), "cut the answer short"),
    "cut between chunks": (server.cut_chunked(TWO), "cut the answer short"),
    "reset": (server.reset, "cut the answer short"),
    "no HTTP": (server.junk, "cut the answer short"),
    "500": (status(500), "answers 500"),
    "401": (status(401), r"answers 401: it asks for a token \(live\.token_file\)"),
    "404": (status(404), "answers 404"),
    "a page": (
        ok(b"<!DOCTYPE html><p>A1 47.25", "text/html"),
        r"answers with a page for people \(HTML\)",
    ),
    "403": (status(403), "answers 403"),
    "429": (status(429, Retry_After="0"), r"answers 429: it was asked too often.*live\.every"),
    "half of JSON": (ok(TWO[:-9]), "answers with what is no JSON of pings"),
    "not gzip": (ok(b"\x1f\x8b\x08 A1", Content_Encoding="gzip"), "answers with gzip data that"),
    "brotli": (ok(TWO, Content_Encoding="br"), "answers in an encoding that was not asked for"),
    "huge": (server.endless, "answers with more than 1,000,000 bytes"),
    "a bomb": (server.gzipped(b" " * 10**8 + TWO), r"answers with more than 1,000,000 bytes"),
    "round and round": (status(302, Location="/again"), "redirects more than 5 times"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_two_polls_is_said_and_loses_nothing_and_doubles_nothing(fault):
    step, words = FAULTS[fault]
    faulty = [step] * {"round and round": 6, "reset": 2}.get(
        fault, 1
    )  # what is reset is asked for once more
    said = []
    with serving(ok(ONE), *faulty, ok(TWO), ok(TWO), ok(answer(ping("C3")))) as running:
        assert polled(running.url, 3, said) == [["A1", "B2"], ["A1"], ["C3"]]
    text = clean(said)
    assert re.search(f"{running.url} {words}.*; tried again in", text), text
    assert f"{running.url} works again" in text


@pytest.mark.parametrize("final", ["401", "404", "a page", "brotli", "round and round"])
def test_an_address_that_never_worked_and_cannot_work_ends_the_source_at_once(final):
    step, _ = FAULTS[final]
    with serving(step) as running, pytest.raises(DependencyUnavailable) as refused:
        next(source(running.url).messages())
    assert running.url in str(refused.value)
    clean([str(refused.value)])


def test_repeats_between_polls_are_handed_on_once_and_only_the_contracts_fields_are():
    with serving(ok(ONE), ok(ONE), ok(answer(ping("B2"), ping("A1"), ping("A1", 2)))) as running:
        live = source(running.url)
        first, second = islice(live.messages(), 2)
    assert plates(first) == ["A1", "B2"] and plates(second) == ["A1"]
    assert sorted(json.loads(first[0])) == [
        "license_plate",
        "location",
        "observationDateTime",
        "speed",
    ]


def test_what_is_no_ping_is_handed_on_once_for_the_reader_to_refuse():
    bad = answer(ping("A1"), {"license_plate": "B2"}, 7)
    with serving(ok(bad), ok(bad), ok(ONE)) as running:
        first, second = islice(source(running.url).messages(), 2)
    assert [json.loads(one) for one in first[1:]] == [{"license_plate": "B2"}, 7] and plates(
        second
    ) == ["B2"]


def test_an_answer_that_the_server_calls_unchanged_is_not_sent_again():
    with serving(server.seen([ONE, TWO])) as running:
        assert polled(running.url, 2) == [["A1", "B2"], ["A1"]]
    asked = [headers.get("If-None-Match") for _, _, headers in running.requests]
    assert asked[0] is None and None not in asked[1:]


def test_gtfs_realtime_is_known_by_its_content_type_its_name_or_its_content():
    feed = snapshot(vehicle("", "A1"), vehicle("", "B2", speed=None))
    for kind, path, why in (
        (GTFS, "", "content type"),
        ("", "/a.pb", "name"),
        ("application/octet-stream", "", "content"),
    ):
        said = []
        with serving(ok(feed, kind)) as running:
            (frame,) = polled(running.url + path, 1, said, unit="mps")
        assert (
            frame == ["A1", "B2"] and f"GTFS-realtime by its {why}, polled every 0.03 s" in said[0]
        )
        assert "2 pings" not in said[1] and "1 ping has its plate from vehicle.id" in said[1]


def test_gtfs_realtime_in_metres_a_second_is_not_read_as_kilometres_an_hour():
    with serving(ok(snapshot(vehicle("A1")), GTFS)) as running:
        with pytest.raises(ConfigError, match=r"speed\.unit = 'mps'"):
            next(source(running.url).messages())
        with pytest.raises(ConfigError, match=r"speed\.unit = 'mps'"):
            source(running.url + "/a.pb")
        said = []
        assert plates(next(source(running.url, said, unit="kmh").messages())) == ["A1"]
        assert [one for one in said if "mps by its specification" in one and "kmh" in one]


def token_file(tmp_path, text=TOKEN):
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(text + "\n")
    return str(tmp_path / "token")


def test_the_token_goes_in_its_header_and_is_read_again_for_each_poll(tmp_path):
    file = token_file(tmp_path)
    with serving(ok(ONE), ok(TWO)) as running:
        live = source(running.url, token_file=file, token_header="Authorization")
        frames = live.messages()
        next(frames)
        token_file(tmp_path, "Bearer renewed")
        next(frames)
    assert [headers["Authorization"] for _, _, headers in running.requests] == [
        TOKEN,
        "Bearer renewed",
    ]


def test_a_redirect_to_another_host_is_followed_without_the_token(tmp_path):
    """Another port is another host. Back on the first one the token is sent again."""
    file = token_file(tmp_path)
    with serving(ok(ONE)) as there, serving(status(302, Location="/here")) as running:
        running.script = [
            status(302, Location="/here"),
            status(307, Location=f"{there.url}/x?y=1"),
            ok(ONE),
        ]
        assert polled(running.url, 1, token_file=file, token_header="X-Key") == [["A1", "B2"]]
    assert [(path, headers.get("X-Key")) for _, path, headers in running.requests] == [
        ("/", TOKEN),
        ("/here", TOKEN),
    ]
    assert [(path, headers.get("X-Key")) for _, path, headers in there.requests] == [
        ("/x?y=1", None)
    ]


@pytest.mark.parametrize(
    ("token", "carried"),
    [
        (TOKEN, f"k={TOKEN}"),
        (ENCODED, "k=a%2Fb%2Bc%3D%3D+d"),
        (ENCODED, "k=a%2fb%2bc%3d%3d%20d"),
        (ENCODED, "k=a/b%2Bc==%20d"),
        (ENCODED, "next=https%3A%2F%2Fh%2F%3Fk%3Da%252Fb%252Bc%253D%253D%2520d"),
    ],
    ids=["as it is", "a form", "small letters", "only what has to be", "within another address"],
)
def test_a_redirect_that_carries_the_token_away_is_not_followed_however_it_is_encoded(
    tmp_path, token, carried
):
    """A token of base64, and an old space; a gateway's page for the login gets the whole address
    that was asked."""
    with (
        serving(ok(ONE)) as there,
        serving(status(302, Location=f"{there.url}/?{carried}")) as running,
    ):
        live = source(running.url, token_file=token_file(tmp_path, token))
        with pytest.raises(DependencyUnavailable, match="with the token in the address") as refused:
            next(live.messages())
    assert there.requests == []
    clean([str(refused.value)], token)


@pytest.fixture
def certificates(tmp_path):
    """Files of an authority, and of a certificate and key for 127.0.0.1."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate")
    issued.private_key_pem.write_to_path(tmp_path / "key")
    return str(tmp_path / "ca"), (str(tmp_path / "certificate"), str(tmp_path / "key"))


def test_certificates_are_checked_and_an_authority_of_ones_own_can_be_named(certificates, tmp_path):
    authority, pair = certificates
    with serving(ok(ONE), tls=pair) as running:
        assert polled(running.url, 1, ca_file=authority, token_file=token_file(tmp_path)) == [
            ["A1", "B2"]
        ]
        with pytest.raises(DependencyUnavailable, match="has a certificate"):
            next(source(running.url, token_file=token_file(tmp_path)).messages())
    assert len(running.requests) == 1


def test_a_redirect_from_https_to_http_is_not_followed(certificates):
    authority, pair = certificates
    with serving(ok(ONE)) as there, serving(status(301, Location=there.url), tls=pair) as running:
        live = source(running.url, ca_file=authority)
        with pytest.raises(DependencyUnavailable, match="redirects from https to http"):
            next(live.messages())
    assert there.requests == []


def test_a_server_that_never_ends_the_greeting_of_tls_is_given_up_too():
    """A byte now and then: no single read times out."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet():
            with listening.accept()[0] as client, suppress(OSError):
                client.sendall(b"\x16\x03\x03\x40\x00")
                while not stopped.wait(0.02):
                    client.sendall(b"\0")

        thread = threading.Thread(target=greet)
        thread.start()
        get = HttpGet(
            f"https://127.0.0.1:{listening.getsockname()[1]}", LiveSection(timeout="0.5s")
        )
        began = time.monotonic()
        try:
            with pytest.raises(SourceFailure) as failed:
                get.get({})
        finally:
            stopped.set()
            thread.join()
    assert time.monotonic() - began < 10 and failed.value.sentence.startswith(
        "gave no whole answer"
    )


@pytest.mark.parametrize("text", ["", "two\nlines", "k\u00e9y", "x" * 20_000])
def test_a_token_file_that_holds_no_token_is_refused_without_what_it_holds(tmp_path, text):
    with pytest.raises(ConfigError, match=r"live\.token_file:") as refused:
        source("http://host/", token_file=token_file(tmp_path, text))
    assert not text or text not in str(refused.value)
    with pytest.raises(ConfigError, match=r"live\.token_file:"):
        source("http://host/", token_file=str(tmp_path / "nowhere"))


def test_stopping_ends_a_poll_that_stalls_and_a_pause():
    for step, every_s in ((server.stall, 0.03), (ok(ONE), 60.0)):
        with (
            serving(step) as running,
            Handover(source(running.url, every_s=every_s, timeout_s=20)) as handover,
        ):
            while not running.requests:
                handover.take(0.05)
            began = time.monotonic()
            handover.stop()
            while not handover.ended:
                handover.take(0.05)
            assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://", "with a host"),
        ("http://:80/", "with a host"),
        ("http://host:port/", "with a host"),
        ("http://ho\u00dft/", "printable ASCII"),
        ("http://host/\n", "printable ASCII"),
        ("http://host/a b", "without spaces"),
        (f"http://me:{TOKEN}@host/", r"without a password.*live\.token_file"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused_when_it_is_named(address, words):
    with pytest.raises(UsageError, match=words) as refused:
        source(address)
    assert TOKEN not in str(refused.value)
