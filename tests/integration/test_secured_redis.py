"""A Redis that asks for a user, a password and TLS: the least rights that a ledger needs, and what
refusals say."""

import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest
from redis import Redis

from lab.services import start_redis
from tests.contract.checks import ALL_LEDGER_CHECKS, IN_CROWDS, ask, hour
from tests.runtime.harness import fleet_log
from tests.secured import PASSWORD, certificates, secret_file, tls_in_front_of
from tests.verbs import run_verb
from udp_stream.base.errors import ConfigError, DependencyUnavailable, UdpStreamError
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.ledgers.redis import open_redis_ledger
from udp_stream.settings import LedgerSection

RULES = (Path(__file__).parents[2] / "deploy" / "redis" / "users.acl").read_text(encoding="utf-8")
USER, ADMIN = "udp-ledger", "admin-hush"
BOUND_S = 15.0


def rights():
    return RULES.split()[2:]


COMMANDS = [rule for rule in rights() if rule.startswith("+")]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    with ExitStack() as stack:
        running = start_redis(folder)
        stack.callback(running.stop)
        with Redis.from_url(running.url) as client:
            client.execute_command("ACL", "SETUSER", "default", "resetpass", f">{ADMIN}")
        yield running, certificates(folder)


@contextmanager
def user(running, *more):
    name = f"u{uuid4().hex[:8]}"
    rules = [rule.replace("PASSWORD", PASSWORD) for rule in rights()]
    with Redis.from_url(running.url, password=ADMIN, protocol=2) as client:
        client.execute_command("ACL", "SETUSER", name, *rules, *more)
        yield {"username": name, "password": PASSWORD}
        client.execute_command("ACL", "DELUSER", name)


@pytest.mark.parametrize(
    "check",
    [one for one in ALL_LEDGER_CHECKS if one not in IN_CROWDS],
    ids=lambda check: check.__name__,
)
def test_the_rights_of_the_page_suffice_for_every_promise(guarded, check):
    running, _ = guarded
    with user(running, "~{udp-*") as access:
        check(partial(open_redis_ledger, running.url, prefix=f"{{udp-{uuid4()}}}", client=access))


def empty(running):
    with Redis.from_url(running.url, password=ADMIN) as client:
        client.flushdb()
        client.script_flush()


def life(running, access):
    """All that verbs do with a ledger: a HAT's road, a rolling period's, epochs, marks, looking
    into it, archiving."""
    opened = partial(open_redis_ledger, running.url, client=access)
    with opened() as ledger:
        ledger.bind("cafe")
        ledger.note("trial", "yes")
        ledger.take_epoch("shard 0")
        name = uuid4().hex
        for period in (name, hour("3h", 1)):
            ledger.admit(period, 10, [b"x"], [ask(f"{period}/hat", [3])])
            ledger.balances(period, [b"x"])
            ledger.record([(f"{period}/hat", b"payload")])
        assert ledger.recorded([f"{name}/hat"]) == [b"payload"]
        assert list(ledger.unpublished())
        ledger.published([f"{name}/hat"])
        assert ledger.charged_by_period(b"x")[name] == 3
        assert list(ledger.entries()) and list(ledger.newest())
        assert ledger.verify() == []
        assert ledger.progress() and ledger.mark(f"{name}/hat") and ledger.periods()
        start = -2_000_000_000
        old = [f"8742d98b6ffffff-{start + hours * 3600}-3600" for hours in (0, 1)]
        ledger.admit("old", 10, [b"x"], [ask(old[0], [3]), ask(old[1], [3])])
        ledger.close_before(start + 7200)
        for one in old:
            ledger.drop("old", [one])
    with opened() as ledger:
        assert ledger.meta()["key_fingerprint"] == "cafe"


def test_each_right_of_the_page_is_needed_and_its_lack_is_a_sentence(guarded, monkeypatch):
    running, _ = guarded
    with user(running) as access:
        life(running, access)
    for right in COMMANDS:
        empty(running)
        # A right by parts (config|get) is taken away whole.
        with user(running, f"-{right[1:].partition('|')[0]}") as access:
            try:
                life(running, access)
            except UdpStreamError as error:
                raised = error
            else:
                pytest.fail(f"{right} is not needed")
        said = str(raised)
        assert raised.exit_status in (4, 5) and PASSWORD not in said, (right, said)
        assert "docs/deployments.md" in said or "does not report" in said or "expected" in said, (
            right,
            said,
        )


def test_keys_outside_of_the_ledger_are_out_of_reach(guarded):
    running, _ = guarded
    with (
        user(running) as access,
        pytest.raises(DependencyUnavailable, match="does not let this user do"),
    ):
        open_redis_ledger(running.url, prefix="{other}", client=access)


def section(running, made, **keys):
    url = keys.pop("url", running.url)
    files = {
        name: str(made.folder / value)
        for name, value in keys.items()
        if name.startswith("ssl") or "file" in name
    }
    return LedgerSection(url=url, key_file=str(made.folder / "plates.key"), client=keys | files)


def test_a_ledger_by_tls_with_a_user_and_a_certificate_of_ours(guarded):
    running, made = guarded
    empty(running)
    with tls_in_front_of(running.port, made, client=True) as port, user(running) as access:
        keys = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "client.crt", "ssl_keyfile": "client.key"}
        keys |= {"username": access["username"], "password_file": "password"}
        asked = section(running, made, url=f"rediss://localhost:{port}/0", **keys)
        with ledger_and_keys(asked) as (ledger, _):
            assert ledger.admit("tls", 10, [b"x"], [ask("tls/hat", [3])])[0].admitted.all()
            assert PASSWORD not in repr(ledger) + repr(asked)


REFUSALS = {
    "no password": ({"password_file": ""}, "it wants a password: ledger.client.password_file"),
    "wrong password": ({"password_file": "wrong"}, "does not accept the user and password"),
    "nobody known": ({"username": "stranger"}, "does not accept the user and password"),
    "wrong authority": (
        {"scheme": "rediss", "ssl_ca_certs": "other.crt"},
        "a certificate that is not trusted",
    ),
    "the system's authorities": ({"scheme": "rediss"}, "a certificate that is not trusted"),
    "another host": (
        {"scheme": "rediss", "ssl_ca_certs": "ca.crt", "at": "elsewhere"},
        "a certificate of another host",
    ),
    "no certificate of ours": (
        {"scheme": "rediss", "ssl_ca_certs": "ca.crt", "at": "mutual"},
        "want ledger.client.ssl_certfile?",
    ),
    "TLS to plaintext": (
        {"scheme": "rediss", "ssl_ca_certs": "ca.crt", "at": "plain"},
        "does not speak TLS with us",
    ),
    "plaintext to TLS": ({"at": "server"}, "Does it speak TLS on this port, and want rediss://?"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_says_what_to_mend_in_bounded_time_and_without_a_secret(guarded, name):
    running, made = guarded
    keys, sentence = REFUSALS[name]
    keys = {"username": USER, "password_file": "password", **keys}
    scheme, at = keys.pop("scheme", "redis"), keys.pop("at", "")
    if not keys["password_file"]:
        keys.pop("username")
        keys.pop("password_file")
    at = at or ("server" if scheme == "rediss" else "plain")
    with ExitStack() as stack:
        port = running.port
        if at != "plain":
            certificate = "elsewhere" if at == "elsewhere" else "server"
            port = stack.enter_context(
                tls_in_front_of(port, made, certificate, client=at == "mutual")
            )
        asked, began = (
            section(running, made, url=f"{scheme}://127.0.0.1:{port}/0", **keys),
            time.monotonic(),
        )
        with pytest.raises(DependencyUnavailable) as raised, ledger_and_keys(asked):
            pass
    said = str(raised.value)
    assert sentence in said and f"127.0.0.1:{port}" in said, said
    assert PASSWORD not in said and "tr0ub4dor" not in said and time.monotonic() - began < BOUND_S


def test_a_password_file_that_others_can_read_is_refused_before_the_server_is_asked(tmp_path):
    secret_file(tmp_path / "password", b"hush\n")
    (tmp_path / "password").chmod(0o644)
    asked = LedgerSection(
        url="redis://127.0.0.1:1", client={"password_file": str(tmp_path / "password")}
    )
    with (
        pytest.raises(ConfigError, match=r"ledger\.client\.password_file: .*only its owner"),
        ledger_and_keys(asked),
    ):
        pass


def test_a_replay_by_the_command_line_with_a_password_from_a_file(guarded, tmp_path):
    running, made = guarded
    empty(running)
    (tmp_path / "pings.ndjson").write_bytes(b"\n".join(fleet_log(hours=0.3)))
    with user(running) as access:
        config = tmp_path / "city.toml"
        name = access["username"]
        client = f'username = "{name}"\npassword_file = "{made.password}"\n'
        config.write_text(f'[ledger]\nurl = "{running.url}"\n[ledger.client]\n{client}')
        found = []
        for verb in (
            ["replay", "pings.ndjson"], ["ledger", "verify"], ["ledger", "export"], ["doctor", "pings.ndjson"],
        ):  # fmt: skip
            done = run_verb([*verb, "--config", config], cwd=tmp_path)
            assert done.returncode == 0, done.stderr.decode()
            found.append(done.stdout + done.stderr)
        inline = running.url.replace("redis://", f"redis://{access['username']}:{quote(PASSWORD)}@")
        config.write_text(f'[ledger]\nurl = "{inline}"\n')
        found.append(run_verb(["doctor", "pings.ndjson", "--config", config], cwd=tmp_path).stdout)
        assert b"use ledger.client.password_file" in found[-1]
        config.unlink()
        assert found[0].count(b'"status"') > 10
        kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert PASSWORD.encode() not in b"".join(found) + kept
    assert quote(PASSWORD).encode() not in b"".join(found) + kept


def test_a_password_is_changed_while_workers_go_on(guarded):
    running, _ = guarded
    empty(running)
    with (
        user(running) as access,
        Redis.from_url(running.url, password=ADMIN) as admin,
        open_redis_ledger(running.url, client=access) as ledger,
    ):
        admin.execute_command("ACL", "SETUSER", access["username"], ">renewed")
        with open_redis_ledger(running.url, client=access | {"password": "renewed"}) as other:
            assert other.ledger_id == ledger.ledger_id
        admin.execute_command("ACL", "SETUSER", access["username"], f"<{PASSWORD}")
        assert ledger.admit("day", 10, [b"x"], [ask("hat", [1])])[0].admitted.all()
        with pytest.raises(DependencyUnavailable, match="does not accept"):
            open_redis_ledger(running.url, client=access)
