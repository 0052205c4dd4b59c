"""`efa-pulse pause` and `efa-pulse resume`: stop all probing of an installation in a cluster, and let it go on."""

from __future__ import annotations

import getpass
import socket
import sys
import time
from typing import Annotated

import typer

from exporter.cli.cluster import ConfigOption, ContextOption, KubeconfigOption, Place
from exporter.cli.exits import Exit, NotMeasuredError, UsageError
from exporter.kube import pause as switch
from exporter.kube.api import ApiError
from probes.units import parse_duration

LONGEST_SECONDS = 366 * 86400.0


def pause(
    reason: Annotated[str, typer.Option(help="Why, for whoever wonders.")] = "no reason given",
    until: Annotated[str | None, typer.Option(metavar="TIME", help="A time such as 2026-12-31T18:00:00Z (UTC where it names no zone) or a "
                                                                   "duration from now such as 2h; default: until `resume`.")] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
) -> int:
    """Start no more probe runs in the cluster. Runs that go on end normally; a second pause replaces the first."""
    end = end_of(until, time.time()) if until is not None else None
    said = switch.Pause(one_line(reason), who(), end)
    _write(Place(kubeconfig, context, config), said)
    sys.stdout.write(f"{said}{'' if end is not None else '; `efa-pulse resume` lets it go on'}\n")
    return Exit.OK


def resume(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    config: ConfigOption = None,
) -> int:
    """Let probing go on."""
    before = _write(Place(kubeconfig, context, config), None)
    sys.stdout.write(f"probing goes on; it was {before}\n" if before is not None else "probing goes on; it was not paused\n")
    return Exit.OK


def end_of(text: str, now: float) -> float:
    """Unix seconds of a time or of a duration from `now`. Raises UsageError for one that is past, too far away, or neither."""
    try:
        found = switch.parse_time(text)
    except ValueError as error:
        try:
            found = now + parse_duration(text)
        except ValueError:
            raise UsageError(f"--until: {error}, nor a duration such as 2h") from None
    if found <= now:
        raise UsageError(f"--until {text}: {switch.show_time(found)} is past")
    if found > now + LONGEST_SECONDS:
        raise UsageError(f"--until {text}: at most a year; without --until the pause has no end")
    return found


def who() -> str:
    """User and machine, for whoever finds the pause."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def one_line(text: str) -> str:
    """`text` as one printable line of at most 500 characters."""
    clean = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return clean[:switch.TEXT_LIMIT] or "no reason given"


def _write(place: Place, said: switch.Pause | None) -> switch.Pause | None:
    """Write the switch. Returns the pause that held before. Raises NotMeasuredError when the API server refuses or does not answer."""
    loaded = place.load()
    namespace = loaded.kubernetes.namespace
    api = place.connect(loaded)
    try:
        before = switch.read(api, namespace)
        switch.write(api, namespace, said, by=who())
    except ApiError as error:
        raise NotMeasuredError(f"the switch in namespace {namespace} was not changed: {error}") from None
    finally:
        api.close()
    return before
