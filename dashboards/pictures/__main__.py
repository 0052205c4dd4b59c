"""`python -m dashboards.pictures --prometheus URL --out FOLDER`: a page and, where Chromium is, a picture of every dashboard."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dashboards.pictures.page import WIDTH, page
from dashboards.pictures.source import Source, SourceError
from dashboards.store import shipped

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars")
SHOT_SECONDS = 120.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages and pictures. Status 2: Prometheus does not answer; 1: the browser failed; 64: wrong usage."""
    options = _parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        sys.stderr.write("no Chromium on the path: only pages are written (apt-get install --no-install-recommends chromium)\n")
    chosen = {"window": options.window, **({"node": options.node} if options.node else {})}
    source = Source(options.prometheus, options.range)
    for uid, document in shipped().items():
        if options.board and options.board not in uid:
            continue
        try:
            text, height = page(document, source, chosen)
        except SourceError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        file = options.out / f"{uid}.html"
        file.write_text(text, encoding="utf-8")
        if browser is not None and not _shoot(browser, file, height):
            sys.stderr.write(f"{browser} made no picture of {file}\n")
            return 1
        sys.stdout.write(f"{file.with_suffix('.png') if browser is not None else file}\n")
    return 0


def _shoot(browser: str, file: Path, height: int) -> bool:
    picture = file.with_suffix(".png").resolve()
    with tempfile.TemporaryDirectory(prefix="efa-pulse-pictures-") as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", f"--screenshot={picture}", f"--window-size={WIDTH},{height}",
                   file.resolve().as_uri()]
        try:
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SHOT_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return False
    return picture.is_file()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dashboards.pictures", description="Draw every dashboard over a real Prometheus.")
    parser.add_argument("--prometheus", required=True, metavar="URL", help="a Prometheus that scrapes efa-pulse")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where pages and pictures go")
    parser.add_argument("--board", help="only dashboards with this in their uid")
    parser.add_argument("--node", help="the node of the board of one node; default: the first")
    parser.add_argument("--range", type=_span, default=1800.0, metavar="SPAN", help="how far back, such as 30m (default)")
    parser.add_argument("--window", default="15m", help="over which rates and quantiles are taken (default %(default)s)")
    return parser


def _span(text: str) -> float:
    if text[-1:] not in _UNITS or not text[:-1].replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no span such as 90s, 30m or 6h")
    return float(text[:-1]) * _UNITS[text[-1]]


if __name__ == "__main__":
    sys.exit(main())
