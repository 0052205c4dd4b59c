"""The status page in a real browser: of a served simulation, and of a cluster whose names are hostile, wide and on a phone."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import bcrypt
import pytest
from browser import Browser, Looked, browser
from dashboard_rig import exporters
from verdicts import canary, pair

from exporter.config.server import Server
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer
from exporter.status import Looked as Told
from exporter.status import StatusBoard
from exporter.status.pages import pages

pytestmark = pytest.mark.timeout(400)
DESKTOP, PHONE = 1280, 390
HOSTILE = "<img src=x onerror=alert(document.domain)>\"'" + "w" * 120
SHAPES = [pytest.param(width, dark, id=f"{name}-{'dark' if dark else 'light'}")
          for name, width in (("desktop", DESKTOP), ("phone", PHONE), ("small-phone", 320)) for dark in (False, True)]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`efa-pulse simulate --serve` with faults."""
    with exporters(tmp_path_factory.mktemp("simulated"), nodes=24, simulated_only=True) as rig:
        yield rig.status


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    servers: list[MetricsServer] = []

    def start(board: StatusBoard, web_config: Path | None = None) -> str:
        publisher = Publisher("1.2.3")
        config = Server.model_validate({"listen": "127.0.0.1:0", "web_config": str(web_config) if web_config else None})
        server = MetricsServer(config, lambda: publisher.snapshot, pages=pages(board, lambda: 151.0))
        server.start()
        servers.append(server)
        return server.url

    yield start
    for server in servers:
        server.close()


def hostile_board() -> StatusBoard:
    board = StatusBoard(clock=lambda: 100.0, pace=0.0)
    board.verdict(pair("one", nodes=(HOSTILE, "b"), reason="tcp_fallback", message="</td><script>alert(2)</script>" + "long" * 60))
    board.verdict(pair("two", nodes=("x" * 253, "c"), mode="efa"))
    board.verdict(canary(target=HOSTILE, reason="timeout_header"))
    job = {"id": f"canary/{HOSTILE}/short", "probe": "canary", "target": HOSTILE, "nodes": (), "next": 160.0, "prompt": "short"}
    gates = {HOSTILE: {"nixl": [{"gate": "excluded", "why": "<b>" + "y" * 300, "lasting": True}]}}
    board.turn(lambda: Told(150.0, "1.2.3", jobs=(job,), gates=gates, paused="<script>alert(3)</script>"))
    return board


def keep(name: str, looked: Looked, tmp_path: Path) -> None:
    """The picture, for whoever wants to look at a failure."""
    (tmp_path / f"{name}.png").write_bytes(looked.picture)


@pytest.mark.parametrize(("width", "dark"), SHAPES)
def test_a_served_simulation_fits_every_screen(chromium: Browser, simulated: str, tmp_path: Path, width: int, dark: bool) -> None:
    looked = chromium.look(f"{simulated}/status", width, dark=dark, phone=width < 600)
    keep("simulated", looked, tmp_path)
    assert looked.width <= width, "the page is wider than the screen"
    assert looked.complaints == []
    assert chromium.value("document.querySelector('.badge').textContent") == "bad"
    assert chromium.value("document.querySelectorAll('.squares a').length") == 24
    assert chromium.value("document.querySelectorAll('#pairs svg').length") >= 2
    assert chromium.value("document.querySelectorAll('#findings .card').length") >= 2
    ground = chromium.value("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_hostile_names_stay_text_and_fit(chromium: Browser, serve: Callable[..., str], tmp_path: Path, width: int) -> None:
    looked = chromium.look(f"{serve(hostile_board())}status", width, phone=width < 600)
    keep("hostile", looked, tmp_path)
    assert looked.complaints == []
    assert looked.width <= width
    assert chromium.value("document.images.length + document.scripts.length") == 0
    assert chromium.value("document.body.innerText").count("<img src=x onerror=alert(document.domain)>") >= 2


def test_its_own_words_say_what_is_wrong(chromium: Browser, serve: Callable[..., str]) -> None:
    chromium.look(f"{serve(hostile_board())}status", DESKTOP)
    text = chromium.value("document.body.innerText")
    assert "Paused: <script>alert(3)</script>" in text
    assert "tcp_fallback" in text


def test_a_link_leads_to_the_explanation_of_the_node(chromium: Browser, serve: Callable[..., str]) -> None:
    url = serve(hostile_board())
    chromium.look(f"{url}status", DESKTOP)
    href = chromium.value("document.querySelector('.squares a').href")
    chromium.look(href, DESKTOP)
    assert '"kind":"node"' in chromium.value("document.body.innerText")


def test_without_the_password_there_is_no_page(chromium: Browser, serve: Callable[..., str], tmp_path: Path) -> None:
    config = tmp_path / "web.yml"
    config.write_text(f"basic_auth_users: {{ops: {bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}}}\n")
    url = serve(hostile_board(), config)
    assert any("401" in one for one in chromium.look(f"{url}status", DESKTOP, headers={"Authorization": "Basic bm9ib2R5Om5v"}).complaints)
    word = base64.b64encode(b"ops:secret").decode()
    assert chromium.look(f"{url}status", DESKTOP, headers={"Authorization": f"Basic {word}"}).complaints == []
    assert chromium.value("document.querySelector('.badge').textContent") == "bad"
