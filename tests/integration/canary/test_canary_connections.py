"""Getting to the endpoint: names, addresses, TLS, proxies, and every way that fails."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from canary_peers import MakeParams, delivered, quick, server_context

from probes.canary.client import measure
from probes.canary.dial import SetupError
from probes.canary.simulated import SimulatedEndpoint


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that takes connections into its queue and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as sock:
        yield sock


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{sock.getsockname()[1]}"


def test_a_closed_port_is_a_failed_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = url_of(sock)
    run = measure(quick(url))
    assert run.stream.status == "connect_failed"
    assert "refused" in run.message


def test_a_name_that_does_not_resolve_is_a_failed_connection() -> None:
    run = measure(quick("http://nobody.invalid:8000"))
    assert run.stream.status == "connect_failed"
    assert "nobody.invalid does not resolve" in run.message


def test_a_resolver_that_hangs_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> list[object]:
        time.sleep(5)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    began = time.monotonic()
    run = measure(quick("http://slow.invalid", connect_timeout=0.3))
    assert run.stream.status == "connect_failed"
    assert "not resolved in time" in run.message
    assert time.monotonic() - began < 5


def test_an_address_that_swallows_packets_has_a_deadline(listener: socket.socket) -> None:
    held = []
    try:
        for _ in range(4):  # fill the queue: the kernel then drops further connection requests
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
            held.append(sock)
        time.sleep(0.1)
        began = time.monotonic()
        run = measure(quick(url_of(listener), connect_timeout=0.5))
        assert run.stream.status == "connect_failed"
        assert "no answer in time" in run.message
        assert time.monotonic() - began < 5
    finally:
        for sock in held:
            sock.close()


def test_the_next_address_is_tried(plain_endpoint: SimulatedEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(plain_endpoint.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", 0)) as sock:
        dead = sock.getsockname()[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", number)) for number in (dead, port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert delivered(measure(quick(plain_endpoint.url)))


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_ipv6() -> None:
    with SimulatedEndpoint(host="::1") as endpoint:
        assert delivered(measure(quick(endpoint.url)))


def test_a_request_that_nobody_reads_has_a_deadline(listener: socket.socket) -> None:
    run = measure(quick(url_of(listener), prompt="long", prompt_tokens=131072, context_length=1_000_000, head_timeout=0.5, max_tokens=4,
                        extra_body={"padding": "x" * 20_000_000}))
    assert run.stream.status == "timeout_header"
    assert "did not take the request" in run.message


def test_a_handshake_that_never_comes_has_a_deadline(listener: socket.socket) -> None:
    run = measure(quick(url_of(listener, "https"), tls_timeout=0.4))
    assert run.stream.status == "tls_failed"
    assert "did not end in time" in run.message


@pytest.mark.parametrize(("answer", "says"), [
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "handshake failed"),
    (b"", "closed the connection during"),
    (b"\x16\x03\x03\xff\xff" + b"\0" * 100, "handshake"),
])
def test_a_peer_that_does_not_speak_tls(listener: socket.socket, answer: bytes, says: str) -> None:
    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    run = measure(quick(url_of(listener, "https"), tls_timeout=1))
    thread.join(5)
    assert run.stream.status == "tls_failed"
    assert says in run.message


def test_plain_http_to_a_tls_port_says_so(tls_endpoint: SimulatedEndpoint) -> None:
    run = measure(quick(tls_endpoint.url.replace("https", "http")))
    assert run.stream.status in ("protocol_error", "truncated")
    assert "use https" in run.message or "without any answer" in run.message


def test_only_the_given_authority_is_trusted(tls_endpoint: SimulatedEndpoint, ca_file: Path, tmp_path: Path) -> None:
    assert delivered(measure(quick(tls_endpoint.url, ca_file=ca_file)))
    run = measure(quick(tls_endpoint.url))
    assert run.stream.status == "tls_failed"
    assert "certificate is not accepted" in run.message
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    assert measure(quick(tls_endpoint.url, ca_file=other)).stream.status == "tls_failed"


def test_the_name_is_verified_and_can_be_given(tls_endpoint: SimulatedEndpoint, ca_file: Path) -> None:
    localhost = tls_endpoint.url.replace("127.0.0.1", "localhost")
    run = measure(quick(localhost, ca_file=ca_file))
    assert run.stream.status == "tls_failed"
    assert "localhost" in run.message
    assert delivered(measure(quick(localhost, ca_file=ca_file, server_name="canary.test")))


def test_any_certificate_only_when_asked_for(tls_endpoint: SimulatedEndpoint) -> None:
    assert measure(quick(tls_endpoint.url.replace("127.0.0.1", "localhost"), insecure=True)).stream.status == "ok"


def test_an_expired_certificate_is_refused(authority: trustme.CA, ca_file: Path) -> None:
    past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    with SimulatedEndpoint(tls=server_context(authority, "127.0.0.1", not_after=past)) as endpoint:
        run = measure(quick(endpoint.url, ca_file=ca_file))
    assert run.stream.status == "tls_failed"
    assert "expired" in run.message


def test_tls_1_2(authority: trustme.CA, ca_file: Path) -> None:
    context = server_context(authority, "127.0.0.1")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with SimulatedEndpoint(tls=context) as endpoint:
        run = measure(quick(endpoint.url, ca_file=ca_file))
    assert delivered(run)
    assert run.versions["tls"] == "TLSv1.2"


@pytest.mark.parametrize("content", [None, "no certificate here", ""])
def test_an_authority_file_that_cannot_be_used_is_told_before_connecting(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SetupError, match=str(path)):
        measure(quick("https://127.0.0.1:1", ca_file=path))


def test_connecting_is_timed_apart(params: MakeParams, endpoint: SimulatedEndpoint) -> None:
    stream = measure(params({"ttft": 0.1})).stream
    assert stream.connect is not None
    assert stream.resolve is not None
    assert stream.connect < 1
    assert (stream.tls is not None) == endpoint.url.startswith("https")
    assert stream.ttft is not None
    assert stream.ttft >= 0.1


# A stand-in for a corporate proxy: it notes what it is asked for and passes it on.
class RelayingProxy:
    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(sock,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += near.recv(65536)
        self.asked.append(data)
        method, target, _ = data.split(b"\r\n")[0].split()
        host, port = (target if method == b"CONNECT" else target.split(b"/")[2]).decode().split(":")
        far = socket.create_connection((host, int(port)))
        if method == b"CONNECT":
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            far.sendall(data.replace(target, b"/" + target.split(b"/", 3)[3], 1))
        threading.Thread(target=_pump, args=(near, far), daemon=True).start()
        _pump(far, near)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    source.close()
    sink.close()


@pytest.fixture
def proxy() -> Iterator[RelayingProxy]:
    made = RelayingProxy()
    yield made
    made.close()


def test_proxies_of_the_environment_are_ignored_unless_asked_for(params: MakeParams, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert delivered(measure(params()))
    assert measure(params(trust_env=True)).stream.status == "connect_failed"


def test_a_proxy_of_the_environment_is_used_when_asked_for(params: MakeParams, endpoint: SimulatedEndpoint, proxy: RelayingProxy,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", f"http://user:p%40ss@127.0.0.1:{proxy.port}")
    assert delivered(measure(params(trust_env=True)))
    authority = endpoint.url.rpartition("/")[2].encode()
    if endpoint.url.startswith("https"):
        assert proxy.asked[0].startswith(b"CONNECT " + authority + b" HTTP/1.1\r\n")
    else:
        assert proxy.asked[0].startswith(b"POST http://" + authority + b"/v1/chat/completions HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in proxy.asked[0]


def test_no_proxy_is_honoured(params: MakeParams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert delivered(measure(params(trust_env=True)))


def test_a_proxy_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(SetupError, match="only http:// proxies"):
        measure(quick("http://127.0.0.1:1", trust_env=True))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n", b"nonsense\r\n\r\n", b""])
def test_a_proxy_that_refuses(listener: socket.socket, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    monkeypatch.setenv("https_proxy", url_of(listener))
    run = measure(quick("https://127.0.0.1:1", trust_env=True))
    thread.join(5)
    assert run.stream.status == "connect_failed"
    assert "the proxy 127.0.0.1" in run.message


def test_nothing_is_left_open(params: MakeParams) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    for fault in ("none", "cut", "http_500", "not_http"):
        measure(params({"fault": fault}))
    until = time.monotonic() + 5
    while open_files() > before and time.monotonic() < until:
        time.sleep(0.05)  # the endpoint's own end of the connections
    assert open_files() <= before
