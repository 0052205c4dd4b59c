"""The web configuration file: what is accepted, and the sentence for what is not."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from exporter.publish.webconfig import WebConfigError, build_context, check_web_config

HASH = "$2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze"
"""From the exporter toolkit's own example file."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    ca, other = trustme.CA(), trustme.CA()
    issued = ca.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(folder / "server.crt")
    issued.private_key_pem.write_to_path(folder / "server.key")
    other.issue_cert("localhost").private_key_pem.write_to_path(folder / "other.key")
    ca.cert_pem.write_to_path(folder / "ca.crt")
    (folder / "empty").write_text("")
    (folder / "cut.crt").write_text((folder / "server.crt").read_text()[:300])
    (folder / "text").write_text("no PEM\n")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    lock = serialization.BestAvailableEncryption(b"secret")
    (folder / "locked.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
    return folder


def write(folder: Path, text: str) -> Path:
    path = folder / "web-config.yml"
    path.write_text(text)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(WebConfigError) as caught:
        check_web_config(path)
    return str(caught.value)


TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


def test_the_example_of_the_exporter_toolkit_is_accepted(certificates: Path) -> None:
    config = check_web_config(write(certificates, f"""
        tls_server_config: {{cert_file: server.crt, key_file: server.key}}
        basic_auth_users: {{alice: {HASH}}}
        rate_limit: {{interval: "1s", burst: 20}}
        http_server_config:
          http2: true
          headers: {{X-Frame-Options: deny, X-Content-Type-Options: nosniff, Content-Security-Policy: ""}}
    """))
    assert list(config.basic_auth_users) == ["alice"]
    assert config.http_server_config.headers == {"X-Frame-Options": "deny", "X-Content-Type-Options": "nosniff"}
    assert (config.rate_limit.interval, config.rate_limit.burst) == (1.0, 20)


def test_an_empty_file_is_plain_http_for_everybody(tmp_path: Path) -> None:
    config = check_web_config(write(tmp_path, "\n"))
    assert config.tls_server_config is None
    assert config.basic_auth_users == {}


def test_files_are_relative_to_the_folder_of_the_configuration(certificates: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert [path.parent for path in check_web_config(write(certificates, TLS)).files()] == [certificates, certificates]


def test_certificate_and_key_may_be_inline(certificates: Path) -> None:
    cert, key = ((certificates / f"server.{end}").read_text().replace("\n", "\n    ") for end in ("crt", "key"))
    path = write(certificates, f"tls_server_config:\n  cert: |\n    {cert}\n  key: |\n    {key}\n")
    assert isinstance(build_context(path, check_web_config(path)), ssl.SSLContext)


def test_tls_settings_reach_the_context(certificates: Path) -> None:
    path = write(certificates, TLS + "  min_version: TLS13\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n")
    context = build_context(path, check_web_config(path))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    path = write(certificates, TLS + "  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n"
                                     "  curve_preferences: [CurveP256]\n")
    context = build_context(path, check_web_config(path))
    assert context is not None
    assert [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"] == ["ECDHE-ECDSA-AES128-GCM-SHA256"]


def test_the_oldest_version_is_tls_12_without_saying_so(certificates: Path) -> None:
    path = write(certificates, TLS)
    context = build_context(path, check_web_config(path))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(("text", "sentence"), [
    ("tls_server_confg: {}\n", "tls_server_confg: unknown key, did you mean tls_server_config?"),
    ("tls_server_config:\n  cert_fle: server.crt\n", "tls_server_config.cert_fle: unknown key, did you mean cert_file?"),
    ("- a\n", "a mapping is needed"),
    ("basic_auth_users: [\n", "not YAML: line 2:"),
    ("basic_auth_users: {alice: secret}\n", "the password of user 'alice' is not a bcrypt hash: make one with `htpasswd -nBC 10 alice`"),
    (f"basic_auth_users: {{'a:b': '{HASH}'}}\n", "user name 'a:b': a name without a colon is needed"),
    ("http_server_config: {headers: {Server: mine}}\n", "header 'Server' cannot be set: use one of Content-Security-Policy"),
    ("http_server_config: {headers: {X-Frame-Options: \"a\\r\\nb\"}}\n", "X-Frame-Options must be printable ASCII"),
    ("rate_limit: {interval: 1s}\n", "a rate limit with an interval needs a burst of 1 or more"),
    ("rate_limit: {interval: soon, burst: 1}\n", "a duration such as 30s"),
    ("tls_server_config: {key_file: server.key}\n", "exactly one of cert and cert_file is needed"),
    ("tls_server_config: {cert: x, cert_file: server.crt, key_file: server.key}\n", "exactly one of cert and cert_file is needed"),
    (TLS + "  min_version: TLS11\n", "TLS11 is not supported: TLS12 is the oldest version served"),
    (TLS + "  min_version: TLS13\n  max_version: TLS12\n", "min_version TLS13 is newer than max_version TLS12"),
    (TLS + "  min_version: SSL3\n", "tls_server_config.min_version"),
    (TLS + "  client_auth_type: RequireAnyClientCert\n", "does not verify and is not supported: use RequireAndVerifyClientCert"),
    (TLS + "  client_auth_type: RequestClientCert\n", "does not verify and is not supported"),
    (TLS + "  client_auth_type: RequireAndVerifyClientCert\n", "needs client_ca_file"),
    (TLS + "  client_ca_file: ca.crt\n", "client_ca without client_auth_type has no effect"),
    (TLS + "  client_allowed_sans: [a]\n", "client_allowed_sans needs client_auth_type RequireAndVerifyClientCert"),
    (TLS + "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA265]\n", "did you mean TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256?"),
    (TLS + "  curve_preferences: [CurveP256, X25519]\n", "only one curve can be pinned here"),
    (TLS + "  curve_preferences: [P256]\n", "unknown curve 'P256': use one of CurveP256"),
    (TLS.replace("server.crt", "missing.crt"), "missing.crt: No such file or directory"),
    (TLS.replace("server.key", "missing.key"), "missing.key: No such file or directory"),
    (TLS.replace("server.key", "other.key"), "other.key: the key does not belong to the certificate"),
    (TLS.replace("server.key", "locked.key"), "locked.key: the key is encrypted: use one without a passphrase"),
    (TLS.replace("server.crt", "text"), "text: no certificate in PEM form in it"),
    (TLS.replace("server.key", "empty"), "empty: no key in PEM form in it"),
    (TLS.replace("server.crt", "cut.crt"), "cut.crt with key"),
    (TLS.replace("server.crt", "cut.crt"), "not valid PEM data"),
    (TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: text\n", "text: no certificate in PEM form in it"),
])
def test_a_mistake_is_explained(certificates: Path, text: str, sentence: str) -> None:
    path = write(certificates, text)
    assert complaint(path).startswith(f"{path}: ")
    assert sentence in complaint(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path / "nothing.yml") == f"{tmp_path}/nothing.yml: cannot be read: No such file or directory"


def test_no_message_repeats_a_password(tmp_path: Path) -> None:
    assert "hunter2" not in complaint(write(tmp_path, "basic_auth_users: {alice: hunter2}\n"))
    assert "hunter2" not in complaint(write(tmp_path, "basic_auth_users: hunter2\n"))
    assert "hunter2" not in complaint(write(tmp_path, "basic_auth_users: {alice: [hunter2]}\n"))
