"""Loading an engine, saying what is missing when it does not load, and which versions are really in the process."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType

from probes.reasons import Reason
from probes.result import Finding
from probes.worker import ProbeFailure

_MAPS = Path("/proc/self/maps")


def load_engine(modules: Sequence[str], install: str) -> ModuleType:
    """Import the first of `modules` whose package is installed. Raises ProbeFailure: `engine_missing` when none is (`install` says how to
    get it), `engine_incompatible` when it is there and does not load, with the missing library or module named."""
    for module in modules:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module.partition(".")[0]:
                raise ProbeFailure(Reason.ENGINE_INCOMPATIBLE, f"{module} does not load: {error}") from None
        except (ImportError, OSError) as error:
            raise ProbeFailure(Reason.ENGINE_INCOMPATIBLE, f"{module} does not load: {error}") from None
    raise ProbeFailure(Reason.ENGINE_MISSING, f"{modules[0].partition('.')[0]} is not installed here: {install}")


def distribution_versions(name: str, candidates: Iterable[str]) -> dict[str, str]:
    """`{name: version, name.distribution: which wheel}` of the first candidate that is installed; nothing when none is."""
    for candidate in candidates:
        try:
            return {name: metadata.version(candidate), f"{name}.distribution": candidate}
        except metadata.PackageNotFoundError:
            continue
    return {}


def library_versions() -> dict[str, str]:
    """Versions of libfabric and UCX as loaded into this process, asked from the libraries themselves."""
    found: dict[str, str] = {}
    fabric = _mapped(r"libfabric[-.][^/]*so[^/]*")
    if fabric is not None:
        code = int(fabric.fi_version())
        found["libfabric"] = f"{code >> 16}.{code & 0xFFFF}"
    ucp = _mapped(r"libucp[-.][^/]*so[^/]*")
    if ucp is not None:
        ucp.ucp_get_version_string.restype = ctypes.c_char_p
        found["ucx"] = (ucp.ucp_get_version_string() or b"unknown").decode(errors="replace")
    return found


def missing_library(path: Path) -> str | None:
    """Why the dynamic linker does not load `path`: its own words, which name the library or symbol. None when it loads."""
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return None


def mentions(path: str | None, text: bytes) -> bool | None:
    """Whether a binary holds a text, such as a log line or a library name. None when it cannot be read."""
    try:
        return text in Path(path or "").read_bytes()
    except OSError:
        return None


def steer(chosen: Mapping[str, str], defaults: Mapping[str, str], steering: Iterable[str], given: Mapping[str, str], *,
          pinned: bool) -> list[Finding]:
    """Set the engine's variables before it is loaded: `chosen` by the probe over `given` in the spec over `defaults` where nothing is set.

    A variable of `steering` decides over the transport. Left in the environment by an image it would be obeyed without a word: it is
    removed unless the spec has it, and reported. With `pinned` the spec may not have it either: ProbeFailure (`bad_spec`).
    """
    findings = []
    for name in steering:
        if pinned and name in given and given[name] != chosen.get(name):
            raise ProbeFailure(Reason.BAD_SPEC, f"env: {name} chooses the transport, which EFA mode pins: remove it, or use transport any")
    for name in steering:
        if name in os.environ and name not in given:
            if os.environ[name] != chosen.get(name):
                findings.append(Finding(check=f"environment.{name}", ok=False, expected="not set", seen="set, and ignored by this probe",
                                        remedy="remove it from the image, or put it into the probe's env to have it obeyed"))
            del os.environ[name]
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    os.environ.update({**given, **chosen})
    return findings


def efa_here(sys_root: Path = Path("/sys")) -> bool:
    """Whether a device driven by `efa` is visible in sysfs. Counters are not touched."""
    drivers = (sys_root / "class/infiniband").glob("*/device/driver")
    return any(os.path.realpath(driver).endswith("/efa") for driver in drivers)


def _mapped(pattern: str) -> ctypes.CDLL | None:
    """The library of that file name which is already in the process."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        path = line.partition("/")[2]
        if path and re.fullmatch(pattern, path.rpartition("/")[2]):
            try:
                return ctypes.CDLL("/" + path)
            except OSError:
                return None
    return None
