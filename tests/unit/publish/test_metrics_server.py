"""The metrics server over real sockets: pages, formats, health, TLS and authentication."""

from __future__ import annotations

import base64
import gzip
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import bcrypt
import pytest
import trustme
from publishing import canary_verdict, kv_verdict, samples, value_of

from exporter.config.base import Secret
from exporter.config.server import Server
from exporter.publish import families as f
from exporter.publish import render
from exporter.publish.http import Answer
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer, Page

Start = Callable[..., MetricsServer]


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def publisher() -> Publisher:
    made = Publisher("1.2.3")
    made.declare_canary("chat", "router", "short")
    made.run_finished(kv_verdict())
    made.run_finished(canary_verdict())
    made.commit()
    return made


@pytest.fixture
def start(publisher: Publisher) -> Iterator[Start]:
    servers: list[MetricsServer] = []

    def begin(config: Server | None = None, **more: object) -> MetricsServer:
        server = MetricsServer(config or Server(listen="127.0.0.1:0"), lambda: publisher.snapshot, **more)  # type: ignore[arg-type]
        servers.append(server)
        server.start()
        return server

    yield begin
    for server in servers:
        server.close()


class Reply:
    """An answer, read whole."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def text(self) -> str:
        body = gzip.decompress(self.body) if self.headers.get("Content-Encoding") == "gzip" else self.body
        return body.decode()


def ask(server: MetricsServer, path: str = "/metrics", method: str = "GET", headers: dict[str, str] | None = None,
        body: bytes | None = None, context: ssl.SSLContext | None = None) -> Reply:
    host, port = server.address
    connection = (http.client.HTTPConnection(host, port, timeout=10) if context is None
                  else http.client.HTTPSConnection("localhost", port, timeout=10, context=context))
    try:
        connection.request(method, path, body, headers or {})
        return Reply(connection.getresponse())
    finally:
        connection.close()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class TestMetricsPage:
    """GET /metrics."""

    def test_text_by_default(self, start: Start) -> None:
        reply = ask(start())
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert value_of(samples(reply.text), "efapulse_node_healthy", node="a", probe="mooncake") == 1.0

    def test_openmetrics_on_request(self, start: Start) -> None:
        reply = ask(start(), headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        assert reply.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert reply.text.endswith("\n# EOF\n")
        assert reply.text.count("# EOF") == 1
        page = samples(reply.text, openmetrics=True)
        assert value_of(page, "efapulse_runs_total", probe="canary", outcome="ok", reason="ok") == 1.0

    def test_exemplars_name_the_run_in_openmetrics_only(self, start: Start) -> None:
        server = start()
        assert '# {run_id="canary-1"} 0.2' in ask(server, headers={"Accept": "application/openmetrics-text"}).text
        assert "run_id" not in ask(server).text

    @pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
    def test_gzip_holds_the_same_page(self, start: Start, accept: str) -> None:
        server = start()
        plain, packed = ask(server, headers={"Accept": accept}), ask(server, headers={"Accept": accept, "Accept-Encoding": "gzip"})
        assert packed.headers["Content-Encoding"] == "gzip"
        assert "Accept-Encoding" in packed.headers["Vary"]
        assert len(packed.body) < len(plain.body) / 5
        ours = [line for line in plain.text.splitlines() if line.startswith("efapulse_node")]
        assert [line for line in packed.text.splitlines() if line.startswith("efapulse_node")] == ours

    def test_the_content_length_is_that_of_the_body(self, start: Start) -> None:
        server = start()
        for encoding in ("gzip", "identity"):
            reply = ask(server, headers={"Accept-Encoding": encoding})
            assert int(reply.headers["Content-Length"]) == len(reply.body)

    def test_head_has_the_headers_and_no_body(self, start: Start) -> None:
        reply = ask(start(), method="HEAD")
        assert reply.status == 200
        assert int(reply.headers["Content-Length"]) > 1000
        assert reply.body == b""

    def test_a_query_changes_nothing(self, start: Start) -> None:
        assert ask(start(), "/metrics?name[]=up").status == 200

    def test_a_new_result_is_on_the_next_page(self, start: Start, publisher: Publisher) -> None:
        server = start()
        publisher.run_finished(kv_verdict(("c", "d"), finished=3000.0))
        assert value_of(samples(ask(server).text), "efapulse_node_healthy", node="c", probe="mooncake") is None
        publisher.commit()
        assert value_of(samples(ask(server).text), "efapulse_node_healthy", node="c", probe="mooncake") == 1.0

    def test_the_process_is_on_the_page(self, start: Start) -> None:
        page = samples(ask(start()).text)
        assert (value_of(page, "process_resident_memory_bytes") or 0) > 1e6
        assert (value_of(page, "process_cpu_seconds_total") or 0) > 0

    def test_no_series_comes_twice_in_either_format(self, start: Start) -> None:
        server = start()
        for _ in range(2):
            samples(ask(server).text)
            samples(ask(server, headers={"Accept": "application/openmetrics-text"}).text, openmetrics=True)

    def test_every_declared_family_on_the_page_has_the_declared_type(self, start: Start) -> None:
        text = ask(start()).text
        for family in f.FAMILIES:
            if f"# HELP {family.name} " in text:
                assert render.classic_header(family).decode() in text

    def test_a_failing_part_is_left_out_and_counted(self, start: Start) -> None:
        def broken(_: bool) -> bytes:
            raise RuntimeError("no counters today")

        server = start(parts={"broken": broken, "fine": lambda _: b"fine 1\n"})
        for count in (1.0, 2.0):
            reply = ask(server)
            assert reply.status == 200
            page = samples(reply.text)
            assert value_of(page, "efapulse_scrape_errors_total", part="broken") == count
            assert value_of(page, "efapulse_scrape_errors_total", part="process") == 0.0
            assert value_of(page, "fine") == 1.0
            assert value_of(page, "efapulse_node_healthy", node="a", probe="mooncake") == 1.0

    def test_requests_are_counted_by_page_and_code(self, start: Start) -> None:
        server = start()
        ask(server, "/nothing/here")
        ask(server, "/-/reload", "POST")
        page = samples(ask(server).text)
        assert value_of(page, "efapulse_http_requests_total", handler="other", code="404") == 1.0
        assert value_of(page, "efapulse_http_requests_total", handler="/-/reload", code="403") == 1.0


class TestOtherPages:
    """Health, reload, index, and what is not there."""

    def test_ready_only_when_told(self, start: Start) -> None:
        server = start()
        reply = ask(server, "/-/ready")
        assert (reply.status, reply.text) == (503, "efa-pulse is not ready: starting\n")
        server.ready(True)
        assert ask(server, "/-/ready").status == 200
        server.ready(False, "stopping")
        assert ask(server, "/-/ready").text == "efa-pulse is not ready: stopping\n"

    def test_metrics_are_served_before_it_is_ready(self, start: Start) -> None:
        assert ask(start()).status == 200

    def test_healthy_says_what_is_wrong(self, start: Start) -> None:
        problems: list[str] = []
        server = start(healthy=lambda: problems[0] if problems else None)
        assert (ask(server, "/-/healthy").status, ask(server, "/-/healthy").text) == (200, "efa-pulse is healthy\n")
        problems.append("the control loop stands still")
        assert (ask(server, "/-/healthy").status, ask(server, "/-/healthy").text) == (
            503, "efa-pulse is not healthy: the control loop stands still\n")

    def test_reload_is_off_by_default(self, start: Start) -> None:
        called: list[int] = []
        server = start(reload=lambda: called.append(1))
        reply = ask(server, "/-/reload", "POST")
        assert (reply.status, called) == (403, [])
        assert "enable_reload" in reply.text

    def test_reload_says_how_it_went(self, start: Start) -> None:
        problems: list[str | None] = [None, "metrics.max_series: 1000 or more is needed"]
        server = start(Server(listen="127.0.0.1:0", enable_reload=True), reload=lambda: problems.pop(0))
        assert ask(server, "/-/reload", "POST", body=b"x" * 100).status == 200
        reply = ask(server, "/-/reload", "POST")
        assert (reply.status, reply.text) == (
            500, "not loaded, the configuration before stays in use: metrics.max_series: 1000 or more is needed\n")

    @pytest.mark.parametrize(("path", "method", "allow"), [("/metrics", "POST", "GET, HEAD"), ("/", "DELETE", "GET, HEAD"),
                                                           ("/-/reload", "GET", "POST"), ("/-/healthy", "TRACE", "GET, HEAD")])
    def test_a_wrong_method_is_told_the_right_one(self, start: Start, path: str, method: str, allow: str) -> None:
        reply = ask(start(), path, method)
        assert (reply.status, reply.headers["Allow"]) == (405, allow)

    @pytest.mark.parametrize("path", ["/metric", "/metrics/", "/etc/passwd", "/../metrics", "/%6detrics", "//metrics"])
    def test_what_is_not_there_says_what_is(self, start: Start, path: str) -> None:
        reply = ask(start(), path)
        assert reply.status == 404
        assert "/metrics" in reply.text

    def test_the_index_links_every_page_and_runs_no_script(self, start: Start) -> None:
        reply = ask(start(), "/")
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        assert reply.headers["Content-Security-Policy"] == "default-src 'none'"
        for path in ("/metrics", "/-/healthy", "/-/ready"):
            assert f"<a href='{path}'>" in reply.text

    def test_an_error_in_a_page_is_a_500_and_the_connection_lives(self, start: Start) -> None:
        def fails() -> str | None:
            raise RuntimeError("oh")

        server = start(healthy=fails)
        connection = http.client.HTTPConnection(*server.address, timeout=10)
        for path, status in (("/-/healthy", 500), ("/metrics", 200)):
            connection.request("GET", path)
            reply = connection.getresponse()
            assert reply.status == status
            assert b"RuntimeError" not in reply.read()
        connection.close()


class TestPagesOfOthers:
    """Pages that other parts serve here."""

    def pages(self) -> dict[str, Page]:
        return {"/api/v1/status": Page("what runs now", lambda request: Answer.text(200, f"asked for {request.query}"))}

    def test_it_gets_the_query_and_is_in_the_index_and_the_hint(self, start: Start) -> None:
        server = start(pages=self.pages())
        assert ask(server, "/api/v1/status?node=a").text == "asked for node=a\n"
        assert "<a href='/api/v1/status'>/api/v1/status</a>: what runs now" in ask(server, "/").text
        assert "/api/v1/status" in ask(server, "/nothing").text

    def test_it_is_for_get_and_behind_the_same_authentication(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("s3cret\n")
        server = start(Server(listen="127.0.0.1:0", bearer_token=Secret(file=tmp_path / "token")), pages=self.pages())
        right = {"Authorization": "Bearer s3cret"}
        assert ask(server, "/api/v1/status").status == 401
        assert ask(server, "/api/v1/status", headers=right).status == 200
        assert ask(server, "/api/v1/status", "POST", headers=right).status == 405


class TestAddresses:
    """Where it listens."""

    def test_ipv6(self, start: Start) -> None:
        try:
            server = start(Server(listen="[::1]:0"))
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        assert server.url.startswith("http://[::1]:")
        assert ask(server).status == 200

    def test_an_empty_host_is_every_address(self, start: Start) -> None:
        server = start(Server(listen=":0"))
        port = server.address[1]
        hosts = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
        for host in hosts:
            connection = http.client.HTTPConnection(host, port, timeout=10)
            connection.request("GET", "/-/healthy")
            assert connection.getresponse().status == 200
            connection.close()

    def test_a_port_in_use_is_named(self, start: Start, publisher: Publisher) -> None:
        port = start().address[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            MetricsServer(Server(listen=f"127.0.0.1:{port}"), lambda: publisher.snapshot)

    def test_a_host_that_does_not_exist_is_named(self, publisher: Publisher) -> None:
        with pytest.raises(OSError, match=r"cannot listen on nowhere\.invalid:0"):
            MetricsServer(Server(listen="nowhere.invalid:0"), lambda: publisher.snapshot)

    def test_after_close_the_port_is_free(self, start: Start) -> None:
        server = start()
        address = server.address
        ask(server)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)


class TestProtected:
    """TLS and authentication by a web configuration file."""

    @pytest.fixture
    def folder(self, tmp_path: Path, ca: trustme.CA) -> Path:
        issued = ca.issue_cert("localhost", "127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
        issued.private_key_pem.write_to_path(tmp_path / "server.key")
        ca.cert_pem.write_to_path(tmp_path / "ca.crt")
        return tmp_path

    def client(self, ca: trustme.CA, *identities: str) -> ssl.SSLContext:
        context = ssl.create_default_context()
        ca.configure_trust(context)
        if identities:
            ca.issue_cert(*identities).configure_cert(context)
        return context

    def config(self, folder: Path, more: str = "", tls: str = "") -> Server:
        text = f"tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n{tls}{more}"
        (folder / "web-config.yml").write_text(text)
        return Server(listen="127.0.0.1:0", web_config=folder / "web-config.yml")

    def users(self) -> str:
        return f"basic_auth_users:\n  alice: '{bcrypt.hashpw(b'wonderland', bcrypt.gensalt(4)).decode()}'\n"

    def test_https_with_basic_authentication(self, start: Start, folder: Path, ca: trustme.CA) -> None:
        server = start(self.config(folder, self.users()))
        assert server.url.startswith("https://")
        trusted = self.client(ca)
        assert ask(server, context=trusted).status == 401
        assert ask(server, context=trusted).headers["WWW-Authenticate"].startswith("Basic")
        assert ask(server, headers=basic("alice", "wrong"), context=trusted).status == 401
        assert ask(server, headers=basic("alice", "wonderland"), context=trusted).status == 200

    def test_a_large_page_crosses_tls_whole(self, start: Start, publisher: Publisher, folder: Path, ca: trustme.CA) -> None:
        for i in range(0, 300, 2):
            publisher.run_finished(kv_verdict((f"node-{i}", f"node-{i + 1}")))
        publisher.commit()
        page = samples(ask(start(self.config(folder)), context=self.client(ca)).text)
        assert value_of(page, "efapulse_node_healthy", node="node-299", probe="mooncake") == 1.0

    def test_what_is_not_there_is_hidden_from_strangers_and_health_is_not(self, start: Start, folder: Path, ca: trustme.CA) -> None:
        server, trusted = start(self.config(folder, self.users())), self.client(ca)
        assert [ask(server, path, context=trusted).status for path in ("/", "/nothing", "/-/reload", "/-/healthy", "/-/ready")] == [
            401, 401, 401, 200, 503]

    def test_a_client_certificate_may_be_required(self, start: Start, folder: Path, ca: trustme.CA) -> None:
        tls = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
        server = start(self.config(folder, tls=tls))
        assert ask(server, context=self.client(ca, "prometheus")).status == 200
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            ask(server, context=self.client(ca))
        stranger = self.client(ca)
        trustme.CA().issue_cert("prometheus").configure_cert(stranger)
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            ask(server, context=stranger)

    def test_the_names_of_client_certificates_may_be_listed(self, start: Start, folder: Path, ca: trustme.CA) -> None:
        tls = ("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  client_allowed_sans: [prometheus, 10.0.0.7]\n")
        server = start(self.config(folder, tls=tls))
        assert ask(server, context=self.client(ca, "prometheus")).status == 200
        assert ask(server, context=self.client(ca, "10.0.0.7")).status == 200
        with pytest.raises((ssl.SSLError, http.client.RemoteDisconnected, ConnectionResetError)):
            ask(server, context=self.client(ca, "grafana"))

    def test_headers_are_on_every_answer(self, start: Start, folder: Path, ca: trustme.CA) -> None:
        server = start(self.config(folder, "http_server_config: {headers: {X-Frame-Options: deny, Content-Security-Policy: none}}\n"))
        for path in ("/metrics", "/nothing", "/"):
            reply = ask(server, path, context=self.client(ca))
            assert reply.headers.get_all("X-Frame-Options") == ["deny"]
            assert reply.headers.get_all("Content-Security-Policy") == ["none"]

    def test_http_on_a_tls_port_is_told_to_use_https(self, start: Start, folder: Path) -> None:
        reply = ask(start(self.config(folder)))
        assert (reply.status, reply.text) == (400, "this is a TLS port: use https://\n")

    def test_a_new_certificate_is_used_for_the_next_connection(self, start: Start, folder: Path) -> None:
        old, new = trustme.CA(), trustme.CA()

        def install(ca: trustme.CA) -> None:
            issued = ca.issue_cert("localhost")
            issued.cert_chain_pems[0].write_to_path(folder / "server.crt")
            issued.private_key_pem.write_to_path(folder / "server.key")

        install(old)
        server = start(self.config(folder))
        assert ask(server, context=self.client(old)).status == 200
        install(new)
        server._access._looked -= 2
        assert ask(server, context=self.client(new)).status == 200
        (folder / "server.key").write_text("broken")
        server._access._looked -= 2
        reply = ask(server, context=self.client(new))
        assert value_of(samples(reply.text), "efapulse_web_config_last_reload_successful") == 0.0

    def test_a_bearer_token(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("s3cret\n")
        server = start(Server(listen="127.0.0.1:0", bearer_token=Secret(file=tmp_path / "token")))
        assert ask(server).status == 401
        assert ask(server, headers={"Authorization": "Bearer s3cret"}).status == 200

    def test_a_rate_limit(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "web-config.yml").write_text("rate_limit: {interval: 1h, burst: 2}\n")
        server = start(Server(listen="127.0.0.1:0", web_config=tmp_path / "web-config.yml"))
        assert [ask(server).status for _ in range(3)] == [200, 200, 429]
        assert ask(server, "/-/healthy").status == 200
