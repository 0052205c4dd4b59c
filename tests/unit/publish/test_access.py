"""Authentication, its cached verdicts, and files that change."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

import bcrypt
import pytest
import trustme

from exporter.config.base import Secret
from exporter.publish.access import VERDICTS, Access
from exporter.publish.webconfig import WebConfigError


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def users(tmp_path: Path, **passwords: str) -> Path:
    path = tmp_path / "web-config.yml"
    path.write_text("basic_auth_users:\n" + "".join(f"  {user}: '{hashed(password)}'\n" for user, password in passwords.items()))
    return path


def token(tmp_path: Path, text: str = "t0ken") -> Secret:
    path = tmp_path / "token"
    path.write_text(text + "\n")
    return Secret(file=path)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords that bcrypt is asked about from now on."""
    real, calls = bcrypt.checkpw, list[bytes]()

    def checkpw(password: bytes, salt: bytes) -> bool:
        calls.append(password)
        return real(password, salt)

    monkeypatch.setattr(bcrypt, "checkpw", checkpw)
    return calls


def state(access: Access) -> tuple[bool, str]:
    """Whether the files in place are in use, and why not."""
    return access.ok, access.error or ""


def passes(access: Access, authorization: str) -> bool:
    return access.check(authorization) is None


def test_without_files_everybody_may_read() -> None:
    access = Access()
    assert passes(access, "")
    assert access.ok
    assert not access.tls


def test_a_user_with_the_right_password_may_read(tmp_path: Path) -> None:
    access = Access(users(tmp_path, alice="wonder:land", bob="b"))
    assert passes(access, basic("alice", "wonder:land"))
    assert passes(access, basic("bob", "b").replace("Basic", "bAsIc"))


@pytest.mark.parametrize("authorization", [
    "", "Basic", "Basic !!!", "Basic " + base64.b64encode(b"alice").decode(), "Basic " + base64.b64encode(b"\xff:\xff").decode(),
    "Bearer wonderland", basic("alice", "wrong"), basic("nobody", "wonderland"), basic("", ""), basic("alice", ""),
    basic("alice", "x" * 100), basic("alice", "nul\0"),
])
def test_nobody_else_may(tmp_path: Path, authorization: str) -> None:
    denied = Access(users(tmp_path, alice="wonderland")).check(authorization)
    assert denied is not None
    assert denied.status == 401
    assert denied.challenge == 'Basic realm="efa-pulse", charset="UTF-8"'


def test_a_bearer_token_may_read_and_its_challenge_says_so(tmp_path: Path) -> None:
    access = Access(None, token(tmp_path))
    assert passes(access, "Bearer t0ken")
    assert passes(access, "bearer t0ken")
    for wrong in ("Bearer other", "Bearer", "Bearer t0ken2", "t0ken", "", "Bearer \xff"):
        denied = access.check(wrong)
        assert denied is not None
        assert denied.challenge == 'Bearer realm="efa-pulse"'


def test_with_both_either_is_enough(tmp_path: Path) -> None:
    access = Access(users(tmp_path, alice="a"), token(tmp_path))
    assert passes(access, basic("alice", "a"))
    assert passes(access, "Bearer t0ken")
    assert not passes(access, basic("alice", "t0ken"))


def test_a_verdict_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(users(tmp_path, alice="a"))
    calls = counted(monkeypatch)
    for _ in range(5):
        assert passes(access, basic("alice", "a"))
        assert not passes(access, basic("alice", "b"))
    assert calls == [b"a", b"b"]


def test_an_unknown_user_costs_as_much_as_a_known_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(users(tmp_path, alice="a"))
    calls = counted(monkeypatch)
    assert not passes(access, basic("nobody", "a"))
    assert calls == [b"a"]


def test_a_flood_of_wrong_passwords_does_not_push_the_right_one_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(users(tmp_path, alice="a"))
    assert passes(access, basic("alice", "a"))
    monkeypatch.setattr(bcrypt, "checkpw", lambda *_: False)
    for i in range(2 * VERDICTS):
        assert not passes(access, basic("alice", f"wrong-{i}"))
    assert passes(access, basic("alice", "a"))
    assert len(access._wrong) == VERDICTS


def test_a_cached_verdict_does_not_outlive_the_password(tmp_path: Path) -> None:
    clock = Clock()
    access = Access(users(tmp_path, alice="old"), clock=clock)
    assert passes(access, basic("alice", "old"))
    users(tmp_path, alice="new")
    clock.now += 2
    access.refresh()
    assert not passes(access, basic("alice", "old"))
    assert passes(access, basic("alice", "new"))


def test_files_are_looked_at_once_a_second(tmp_path: Path) -> None:
    clock = Clock()
    access = Access(None, token(tmp_path, "one"), clock=clock)
    token(tmp_path, "two-longer")
    clock.now += 0.5
    access.refresh()
    assert passes(access, "Bearer one")
    clock.now += 0.6
    access.refresh()
    assert passes(access, "Bearer two-longer")
    assert not passes(access, "Bearer one")


def test_a_change_of_the_same_length_is_seen(tmp_path: Path) -> None:
    clock = Clock()
    access = Access(None, token(tmp_path, "aaaa"), clock=clock)
    token(tmp_path, "bbbb")
    os.utime(tmp_path / "token", ns=(time.time_ns(), time.time_ns() + 1))
    clock.now += 2
    access.refresh()
    assert passes(access, "Bearer bbbb")


def test_a_broken_change_keeps_the_last_good_state_until_it_is_mended(tmp_path: Path) -> None:
    clock = Clock()
    path = users(tmp_path, alice="a")
    access = Access(path, clock=clock)
    path.write_text("basic_auth_users: {alice: plain}\n")
    clock.now += 2
    access.refresh()
    ok, why = state(access)
    assert not ok
    assert "not a bcrypt hash" in why
    assert passes(access, basic("alice", "a"))
    users(tmp_path, bob="b")
    clock.now += 2
    access.refresh()
    assert state(access) == (True, "")
    assert passes(access, basic("bob", "b"))
    assert not passes(access, basic("alice", "a"))


def test_a_file_that_vanishes_does_not_open_the_door(tmp_path: Path) -> None:
    clock = Clock()
    path = users(tmp_path, alice="a")
    access = Access(path, clock=clock)
    path.unlink()
    clock.now += 2
    access.refresh()
    assert not access.ok
    assert not passes(access, "")


def test_a_swapped_symbolic_link_is_a_change(tmp_path: Path) -> None:
    """Kubernetes replaces a Secret's files by swapping the link `..data`."""
    clock = Clock()
    for name, text in (("v1", "one"), ("v2", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(text)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "token").symlink_to("..data/token")
    access = Access(None, Secret(file=tmp_path / "token"), clock=clock)
    assert passes(access, "Bearer one")
    (tmp_path / "..next").symlink_to("v2")
    (tmp_path / "..next").rename(tmp_path / "..data")
    clock.now += 2
    access.refresh()
    assert passes(access, "Bearer two")


def test_a_new_certificate_is_used_and_a_half_written_pair_is_not(tmp_path: Path) -> None:
    clock = Clock()
    ca = trustme.CA()

    def issue(*parts: str) -> None:
        issued = ca.issue_cert("localhost")
        if "cert" in parts:
            issued.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
        if "key" in parts:
            issued.private_key_pem.write_to_path(tmp_path / "server.key")

    issue("cert", "key")
    path = tmp_path / "web-config.yml"
    path.write_text("tls_server_config: {cert_file: server.crt, key_file: server.key}\n")
    access = Access(path, clock=clock)
    first = access.context
    issue("cert")
    clock.now += 2
    access.refresh()
    assert access.context is first
    assert "does not belong" in (access.error or "")
    issue("cert", "key")
    clock.now += 2
    access.refresh()
    assert access.ok
    assert access.context is not first


def test_files_that_have_not_changed_are_not_read_again(tmp_path: Path) -> None:
    clock = Clock()
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    path = tmp_path / "web-config.yml"
    path.write_text("tls_server_config: {cert_file: server.crt, key_file: server.key}\n")
    access = Access(path, clock=clock)
    first = access.context
    clock.now += 2
    access.refresh()
    assert access.context is first


@pytest.mark.parametrize(("make", "sentence"), [
    (lambda path: Access(path / "none.yml"), "none.yml: cannot be read"),
    (lambda path: Access(None, Secret(file=path / "none")), "bearer token: file"),
    (lambda path: Access(None, token(path, "")), "is empty"),
    (lambda path: Access(None, Secret(env="EFA_PULSE_TEST_NOT_SET")), "bearer token: variable EFA_PULSE_TEST_NOT_SET is empty or not set"),
])
def test_a_start_with_files_that_cannot_be_used_fails(tmp_path: Path, make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.raises(WebConfigError, match=sentence):
        make(tmp_path)


def test_a_rate_limit_lets_a_burst_through_and_then_one_per_interval(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "web-config.yml"
    path.write_text("rate_limit: {interval: 2s, burst: 3}\n")
    access = Access(path, clock=clock)
    assert [access.limited() for _ in range(5)] == [False, False, False, True, True]
    clock.now += 2
    assert [access.limited() for _ in range(2)] == [False, True]
    clock.now += 100
    assert [access.limited() for _ in range(4)] == [False, False, False, True]


def test_without_a_rate_limit_nothing_is_limited() -> None:
    access = Access()
    assert not any(access.limited() for _ in range(1000))
