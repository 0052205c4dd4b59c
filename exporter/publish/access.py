"""Who may read: the TLS context, basic and bearer authentication, headers and rate limit, read again when their files change.

A change that cannot be used leaves what was there in place: `ok` turns False and `error` says why, until a load works again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bcrypt

from exporter import log
from exporter.config.base import Secret, SecretError
from exporter.publish.webconfig import RateLimit, WebConfig, WebConfigError, build_context, read_web_config

LOOK_SECONDS = 1.0
"""How often the files are looked at, at most."""
VERDICTS = 256
NOBODY = b"$2b$10$" + b"." * 53
"""Checked for a user that does not exist, so that the answer takes as long as for one that does."""



@dataclass(frozen=True)
class Denied:
    """Why a request is refused: HTTP status, sentence, and the scheme to use."""

    status: int
    text: str
    challenge: str | None = None


@dataclass(frozen=True)
class _State:
    config: WebConfig
    context: ssl.SSLContext | None
    token: str | None
    signature: tuple[object, ...]


class Access:
    """Access to the server. Raises WebConfigError when the first load fails; later ones only leave a mark. Any thread may call it."""

    def __init__(self, web_config: Path | None = None, bearer_token: Secret | None = None, *,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._path = web_config
        self._secret = bearer_token
        self._clock = clock
        self._lock = threading.Lock()
        self._bcrypt_lock = threading.Lock()
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._salt = os.urandom(32)
        self._bucket: _Bucket | None = None
        self.error: str | None = None
        self._state = self._load()
        self._looked = clock()

    @property
    def ok(self) -> bool:
        """Whether the files in place now are the ones in use."""
        return self.error is None

    @property
    def tls(self) -> bool:
        """Whether TLS is spoken."""
        return self._state.context is not None

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context for a new connection, or None for plain HTTP."""
        return self._state.context

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers added to every answer."""
        return tuple(self._state.config.http_server_config.headers.items())

    @property
    def allowed_names(self) -> frozenset[str]:
        """Subject names a client certificate must have one of; empty: any."""
        tls = self._state.config.tls_server_config
        return frozenset(tls.client_allowed_sans) if tls else frozenset()

    def refresh(self) -> None:
        """Read the files again when one has changed. Looks at most once a second."""
        with self._lock:
            if self._clock() - self._looked < LOOK_SECONDS:
                return
            self._looked = self._clock()
            if self.ok and _signature(self._own_files() + self._state.config.files()) == self._state.signature:
                return
            problem: str | None = None
            try:
                self._state = self._load()
            except WebConfigError as error:
                problem = str(error)
            if problem is not None and problem != self.error:
                log.get().error("the web configuration cannot be used, the one before stays", error=problem)
            self.error = problem

    def check(self, authorization: str) -> Denied | None:
        """Judge the Authorization header of one request. None lets it pass."""
        state = self._state
        users = state.config.basic_auth_users
        if not users and state.token is None:
            return None
        scheme, _, value = authorization.partition(" ")
        if users and scheme.lower() == "basic" and self._basic(users, value.strip()):
            return None
        if state.token is not None and scheme.lower() == "bearer" and _same(value.strip(), state.token):
            return None
        challenge = 'Basic realm="efa-pulse", charset="UTF-8"' if users else 'Bearer realm="efa-pulse"'
        return Denied(401, "wrong user or password" if authorization else "authentication is needed", challenge)

    def limited(self) -> bool:
        """Take one token of the rate limit. True when there is none left."""
        limit = self._state.config.rate_limit
        if limit.interval <= 0:
            return False
        with self._lock:
            if self._bucket is None or self._bucket.limit != limit:
                self._bucket = _Bucket(limit, self._clock())
            return not self._bucket.take(self._clock())

    def _basic(self, users: dict[str, str], value: str) -> bool:
        try:
            user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return False
        hashed = users.get(user, "").encode()
        key = hmac.new(self._salt, b"\0".join((user.encode(), password.encode(), hashed)), hashlib.sha256).digest()
        with self._lock:
            if key in self._right or key in self._wrong:
                return key in self._right
        # One check at a time: a flood of wrong passwords must not take every CPU.
        with self._bcrypt_lock:
            try:
                right = bcrypt.checkpw(password.encode(), hashed or NOBODY)
            except ValueError:  # longer than 72 bytes, or with a NUL
                right = False
        verdict = bool(colon) and bool(hashed) and right
        with self._lock:
            # Kept apart, so that a flood of wrong passwords does not push the right ones out.
            known = self._right if verdict else self._wrong
            known[key] = None
            while len(known) > VERDICTS:
                known.popitem(last=False)
        return verdict

    def _load(self) -> _State:
        # Each signature is taken before its file is read: a change during the load is then seen by the next look.
        signature = _signature(self._own_files())
        config = WebConfig() if self._path is None else read_web_config(self._path)
        signature += _signature(config.files())
        context = None if self._path is None else build_context(self._path, config)
        try:
            token = self._secret.read() if self._secret is not None else None
        except SecretError as error:
            raise WebConfigError(f"bearer token: {error}") from None
        return _State(config, context, token, signature)

    def _own_files(self) -> tuple[Path, ...]:
        own = (self._path, self._secret.file if self._secret is not None else None)
        return tuple(path for path in own if path is not None)


class _Bucket:
    """A token bucket: full at first, one token more each interval."""

    def __init__(self, limit: RateLimit, now: float) -> None:
        self.limit = limit
        self._tokens = float(limit.burst)
        self._then = now

    def take(self, now: float) -> bool:
        self._tokens = min(float(self.limit.burst), self._tokens + (now - self._then) / self.limit.interval)
        self._then = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def _same(header: str, token: str) -> bool:
    return hmac.compare_digest(header.encode("latin-1"), token.encode())


def _signature(paths: tuple[Path, ...]) -> tuple[object, ...]:
    """What changes when one of the files does, a swapped symbolic link included."""
    out: list[object] = []
    for path in paths:
        try:
            found = path.stat()
            out.append((str(path), found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev))
        except OSError as error:
            out.append((str(path), error.errno))
    return tuple(out)
