"""Console entry `efa-pulse`. It says so plainly when only the probes are installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its status: 0 ok, 1 bad, 2 could not measure, 64 usage."""
    if sys.version_info < (3, 11):
        sys.stderr.write(f"efa-pulse: the service needs Python 3.11 or later, this is {sys.version.split()[0]}; probes alone run with "
                         "`python -m probes`\n")
        sys.exit(64)
    try:
        from exporter.cli import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"exporter", "probes"}:
            raise
        sys.stderr.write(f"efa-pulse: {error.name} is not installed: only the probes are here. Install the service with "
                         "`pip install 'efa-pulse[exporter]'`; probes alone run with `python -m probes`\n")
        sys.exit(64)
    except KeyboardInterrupt:  # the imports take a second or more
        sys.exit(130)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
