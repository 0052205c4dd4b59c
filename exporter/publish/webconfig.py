"""The web configuration file of the Prometheus exporter toolkit: TLS, client certificates, basic authentication, headers, rate limit.

The format is that of github.com/prometheus/exporter-toolkit, docs/web-configuration.md. What Python's TLS cannot do is refused with a
sentence, never ignored: accepting any client certificate without verifying it, and more than one curve preference. HTTP/1.1 is spoken
whatever `http2` says.
"""

from __future__ import annotations

import difflib
import re
import ssl
import tempfile
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from probes.units import parse_duration

HEADERS = ("Content-Security-Policy", "X-Frame-Options", "X-Content-Type-Options", "X-XSS-Protection", "Strict-Transport-Security")
SIZE_LIMIT = 1 << 20
_BCRYPT = re.compile(r"^\$2[abxy]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}$")
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
_TLS13_SUITES = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}


class WebConfigError(ValueError):
    """A web configuration that cannot be used. The text names file, key and remedy."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsServer(_Model):
    """`tls_server_config`."""

    cert: str | None = None
    key: str | None = Field(default=None, repr=False)
    client_ca: str | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    client_auth_type: Literal["NoClientCert", "RequestClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven",
                              "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: Path | None = None
    client_allowed_sans: list[str] = Field(default_factory=list)
    min_version: Literal["TLS10", "TLS11", "TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS10", "TLS11", "TLS12", "TLS13"] = "TLS13"
    cipher_suites: list[str] = Field(default_factory=list)
    prefer_server_cipher_suites: bool = True
    curve_preferences: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> TlsServer:
        for name in ("cert", "key"):
            inline, file = getattr(self, name), getattr(self, f"{name}_file")
            if (inline is None) == (file is None):
                raise ValueError(f"exactly one of {name} and {name}_file is needed")
        if self.client_ca is not None and self.client_ca_file is not None:
            raise ValueError("client_ca and client_ca_file cannot both be given")
        self._check_clients()
        self._check_protocol()
        return self

    def _check_clients(self) -> None:
        kind = self.client_auth_type
        has_ca = self.client_ca is not None or self.client_ca_file is not None
        if kind in {"RequestClientCert", "RequireAnyClientCert"}:
            raise ValueError(f"client_auth_type {kind} does not verify and is not supported: use RequireAndVerifyClientCert")
        if kind == "NoClientCert" and has_ca:
            raise ValueError("client_ca without client_auth_type has no effect: set client_auth_type to RequireAndVerifyClientCert")
        if kind != "NoClientCert" and not has_ca:
            raise ValueError(f"client_auth_type {kind} needs client_ca_file")
        if self.client_allowed_sans and kind != "RequireAndVerifyClientCert":
            raise ValueError("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")

    def _check_protocol(self) -> None:
        for version in (self.min_version, self.max_version):
            if version not in _VERSIONS:
                raise ValueError(f"{version} is not supported: TLS12 is the oldest version served")
        if self.min_version > self.max_version:
            raise ValueError(f"min_version {self.min_version} is newer than max_version {self.max_version}")
        for suite in self.cipher_suites:
            if suite not in _SUITES and suite not in _TLS13_SUITES:
                raise ValueError(f"unknown cipher suite {suite!r}{_near(suite, [*_SUITES])}")
        for curve in self.curve_preferences:
            if curve not in _CURVES:
                raise ValueError(f"unknown curve {curve!r}: use one of {', '.join(_CURVES)}")
        if len(self.curve_preferences) > 1:
            raise ValueError("curve_preferences: only one curve can be pinned here; name one or leave it out")


class HttpServer(_Model):
    """`http_server_config`."""

    http2: bool = True
    headers: dict[str, str] = Field(default_factory=dict)

    @field_validator("headers")
    @classmethod
    def _known(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if name not in HEADERS:
                raise ValueError(f"header {name!r} cannot be set: use one of {', '.join(HEADERS)}")
            if not value.isascii() or not value.isprintable():
                raise ValueError(f"the value of {name} must be printable ASCII")
        return {name: value for name, value in headers.items() if value}


class RateLimit(_Model):
    """`rate_limit`: a token bucket. `interval` is a Go duration such as `1s`; 0 turns it off."""

    interval: float = 0.0
    burst: int = Field(default=0, ge=0)

    @field_validator("interval", mode="before")
    @classmethod
    def _duration(cls, value: Any) -> Any:
        return parse_duration(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _lets_something_through(self) -> RateLimit:
        if self.interval > 0 and self.burst < 1:
            raise ValueError("a rate limit with an interval needs a burst of 1 or more")
        return self


class WebConfig(_Model):
    """The whole file. An empty file means plain HTTP without authentication."""

    tls_server_config: TlsServer | None = None
    http_server_config: HttpServer = HttpServer()
    basic_auth_users: dict[str, str] = Field(default_factory=dict, repr=False)
    rate_limit: RateLimit = RateLimit()

    @field_validator("basic_auth_users")
    @classmethod
    def _hashed(cls, users: dict[str, str]) -> dict[str, str]:
        for user, hashed in users.items():
            if not user or ":" in user:
                raise ValueError(f"user name {user!r}: a name without a colon is needed")
            if not _BCRYPT.match(hashed):
                raise ValueError(f"the password of user {user!r} is not a bcrypt hash: make one with `htpasswd -nBC 10 {user}`")
        return users

    def files(self) -> tuple[Path, ...]:
        """Every other file that is read."""
        tls = self.tls_server_config
        return tuple(path for path in (tls.cert_file, tls.key_file, tls.client_ca_file) if path is not None) if tls else ()


def check_web_config(path: Path) -> WebConfig:
    """Read the file and everything it names, as a start of the server would. Raises WebConfigError."""
    config = read_web_config(path)
    build_context(path, config)
    return config


def build_context(path: Path, config: WebConfig) -> ssl.SSLContext | None:
    """The TLS context that `config`, read from `path`, asks for; None for plain HTTP. Raises WebConfigError."""
    if config.tls_server_config is None:
        return None
    try:
        return _context(config.tls_server_config)
    except WebConfigError as problem:
        raise WebConfigError(f"{path}: tls_server_config: {problem}") from None


def read_web_config(path: Path) -> WebConfig:
    """Read and check the file alone. Paths in it are relative to its folder. Raises WebConfigError."""
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_LIMIT + 1)
        if len(raw) > SIZE_LIMIT:
            raise WebConfigError(f"{path}: larger than {SIZE_LIMIT} bytes, this is no web configuration")
        data = yaml.safe_load(raw.decode())
    except OSError as error:
        raise WebConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise WebConfigError(f"{path}: not YAML: {_first_line(error)}") from None
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise WebConfigError(f"{path}: a mapping is needed, with tls_server_config, http_server_config or basic_auth_users")
    try:
        return WebConfig.model_validate(_resolved(data, path.parent))
    except ValidationError as error:
        raise WebConfigError(f"{path}: {_explain(error)}") from None


def _context(tls: TlsServer) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.maximum_version = _VERSIONS[tls.max_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if not tls.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    ciphers = [_SUITES[suite] for suite in tls.cipher_suites if suite in _SUITES]
    if ciphers:
        context.set_ciphers(":".join(ciphers))
    if tls.curve_preferences:
        context.set_ecdh_curve(_CURVES[tls.curve_preferences[0]])
    _load_certificate(context, tls)
    if tls.client_auth_type != "NoClientCert":
        context.verify_mode = ssl.CERT_REQUIRED if tls.client_auth_type == "RequireAndVerifyClientCert" else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cafile=tls.client_ca_file, cadata=tls.client_ca)
        except (OSError, ValueError) as error:
            raise WebConfigError(f"client CA {tls.client_ca_file or '(inline)'}: {_reason(error)}") from None
    return context


def subject_names(certificate: dict[str, Any] | None) -> set[str]:
    """The subject alternative names of a peer certificate, as `SSLSocket.getpeercert` gives it: DNS, IP, e-mail and URI."""
    return {str(value) for kind, value in (certificate or {}).get("subjectAltName", ()) if kind in {"DNS", "IP Address", "email", "URI"}}


def _load_certificate(context: ssl.SSLContext, tls: TlsServer) -> None:
    with tempfile.TemporaryDirectory(prefix="efa-pulse-tls-") as folder:
        cert = tls.cert_file or _written(Path(folder, "cert.pem"), tls.cert or "")
        key = tls.key_file or _written(Path(folder, "key.pem"), tls.key or "")
        for name, path in (("certificate", cert), ("key", key)):
            try:
                text = path.read_bytes()
            except OSError as error:
                raise WebConfigError(f"{name} {path}: {error.strerror}") from None
            if b"-----BEGIN " not in text:
                raise WebConfigError(f"{name} {path}: no {name} in PEM form in it")
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except (OSError, ValueError) as error:
            shown = [str(path) if path.parent != Path(folder) else f"(inline {path.stem})" for path in (cert, key)]
            raise WebConfigError(f"certificate {shown[0]} with key {shown[1]}: {_reason(error)}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted: use one without a passphrase")


def _written(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        known = {"KEY_VALUES_MISMATCH": "the key does not belong to the certificate", "None": "not valid PEM data",
                 "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate in PEM form in it"}
        return known.get(str(error.reason), str(error.reason))
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _resolved(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    tls = data.get("tls_server_config")
    if not isinstance(tls, dict):
        return data
    files = {name: str(folder / tls[name]) for name in ("cert_file", "key_file", "client_ca_file") if isinstance(tls.get(name), str)}
    return {**data, "tls_server_config": {**tls, **{name: path for name, path in files.items() if tls[name]}}}


_NAMES: dict[str, type[BaseModel]] = {"tls_server_config": TlsServer, "http_server_config": HttpServer, "rate_limit": RateLimit}


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    loc = [str(part) for part in first["loc"]]
    where = ".".join(loc)
    if first["type"] == "extra_forbidden":
        model = _NAMES.get(loc[0], WebConfig) if len(loc) > 1 else WebConfig
        return f"{where}: unknown key{_near(loc[-1], list(model.model_fields))}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _near(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f", did you mean {near[0]}?" if near else f": use one of {', '.join(names)}"


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    text = str(getattr(error, "problem", None) or error).splitlines()[0]
    return f"line {mark.line + 1}: {text}" if mark is not None else text
