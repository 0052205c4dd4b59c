"""`python -m probes.witness`: see `probes.witness`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import probes
from probes.efa.counters import SysfsError
from probes.witness.http import ListenError
from probes.witness.service import Witness

DEFAULT_SYSFS = Path("/host/sys")
DEFAULT_LISTEN = ":9479"
EXIT_BAD = 1
EXIT_USAGE = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM. Exit status: 0 ended on request, 1 the port or the sysfs root cannot be used, 64 wrong flags."""
    options = _parser().parse_args(argv)
    try:
        host, port = options.listen
        witness = Witness(options.sysfs, host, port, options.node, options.interval, options.history)
    except (SysfsError, ListenError) as error:
        sys.stderr.write(f"witness: {error}\n")
        return EXIT_BAD
    sys.stderr.write(f"witness {probes.__version__}: port {witness.port}, counters below {options.sysfs}, node {options.node}\n")
    sys.stderr.flush()
    try:
        witness.run()
    finally:
        witness.close()
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"witness: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m probes.witness", description="Keep and serve the history of this node's EFA counters.")
    parser.add_argument("--sysfs", type=Path, default=DEFAULT_SYSFS,
                        help="the host's sysfs, never this process's own /sys (default %(default)s)")
    parser.add_argument("--listen", type=_address, default=DEFAULT_LISTEN,
                        help="host:port; an empty host is every address (default %(default)s)")
    parser.add_argument("--node", default=os.environ.get("EFA_PULSE_NODE") or socket.gethostname(),
                        help="name of the node (default: EFA_PULSE_NODE, else the host name)")
    parser.add_argument("--interval", type=_seconds(0.5, 60), default=1.0, help="seconds between two looks (default %(default)s)")
    parser.add_argument("--history", type=_seconds(10, 3600), default=600.0,
                        help="seconds kept; 10 kB of memory a second with 32 devices (default %(default)s)")
    parser.add_argument("--version", action="version", version=probes.__version__)
    return parser


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port, such as :9479 or 127.0.0.1:9479")
    return host.strip("[]"), int(port)


class _seconds:  # noqa: N801 - it stands where a type stands
    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not self._low <= value <= self._high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {self._low:g} to {self._high:g}")
        return value


if __name__ == "__main__":
    sys.exit(main())
