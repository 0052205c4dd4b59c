"""Whether an image is put together right: run when it is built, and by hand in a container of it.

    python -m probes selfcheck --require mooncake,nixl --efa

Every trap here has cost somebody a day: an engine that does not import, a second libfabric in the process (the second one sees no EFA), a
libfabric older than the symbols an engine was linked with, the toolkit's stub of libcuda in front of the driver's library, a plugin that
does not load, so that NCCL goes over TCP without a word. A node with EFA devices is not needed; what only one can show (the driver's
library, devices) is the preflight's business.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from probes import selfcheck
from probes.efa import libraries, tools
from probes.efa.stacks import RunTool
from probes.result import Finding

EXIT_BAD, EXIT_USAGE = 1, 64
TOOL_SECONDS = 30.0
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries of the driver: the node brings them, an image must not."""
NIXL_PLUGIN = "libplugin_LIBFABRIC.so"
NCCL_PLUGINS = ("libnccl-net.so", "libnccl-net-ofi.so")
PLUGIN_FOLDERS = ("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu", "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
                  "/opt/aws-ofi-nccl/lib", "/usr/local/lib")

_CACHED = re.compile(r"^\s*(lib\S+) \([^)]*\) => (\S+)$", re.MULTILINE)
_FABRIC = re.compile(rb"\0FABRIC_(\d{1,3})\.(\d{1,3})(?=\0)")
_SYMBOL = re.compile(r"version [`']([A-Z]+_[\d.]+)' not found")


@dataclass(frozen=True)
class Places:
    """Where it looks. The defaults are the image it runs in."""

    run: RunTool = tools.run
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    packages: Sequence[str] | None = None
    libraries: Sequence[str] = libraries.FOLDERS
    plugins: Sequence[str] = PLUGIN_FOLDERS
    imports: Callable[[str], str | None] = selfcheck.import_error
    driver: Callable[[], bool] = lambda: ctypes.util.find_library("cuda") is not None


def check(required: Iterable[str], *, efa: bool, places: Places | None = None) -> list[Finding]:
    """All findings, in a fixed order. `required`: engines that must load; `efa`: the image is to use EFA."""
    here = places or Places()
    wanted = list(required)
    findings = [_engine(name, here) for name in wanted]
    findings.append(_copies(here))
    findings.append(_stub(here))
    findings.append(_provider(here, efa=efa))
    if "nixl" in wanted:
        findings.append(_loads("nixl_plugin", _nixl_plugin(here), here, efa=efa,
                               absent=f"no {NIXL_PLUGIN} beside the nixl package"))
        findings.append(_symbols(_nixl_plugin(here), here, efa=efa))
    if "nccl" in wanted or "uccl-ep" in wanted:
        findings.append(_loads("nccl_plugin", _nccl_plugin(here), here, efa=efa,
                               absent=f"none of {', '.join(NCCL_PLUGINS)} in {', '.join(here.plugins[:2])}, ..."))
    return findings


def _engine(name: str, here: Places) -> Finding:
    module, distributions = selfcheck.ENGINES[name]
    error = here.imports(module)
    if error is None:
        found = selfcheck.versions(distributions)
        return Finding(check=f"engine_{name}", ok=True, seen=", ".join(f"{key} {value}" for key, value in found.items()) or "loads")
    if not here.driver() and any(library in error for library in DRIVER):
        return Finding(check=f"engine_{name}", ok=None, seen=f"needs the driver's library, which the node brings: {error}"[:300])
    return Finding(check=f"engine_{name}", ok=False, expected=f"import {module}", seen=error,
                   remedy="install the pinned version of images/versions.env, with the libraries that it names")


def _copies(here: Places) -> Finding:
    copies = libraries.libfabric_copies(here.libraries, here.packages)
    shown = ", ".join(copies) or "none"
    if len(copies) <= 1:
        return Finding(check="libfabric_copies", ok=True, expected="at most 1", seen=shown)
    return Finding(check="libfabric_copies", ok=False, expected="at most 1", seen=shown[:400],
                   remedy="keep the EFA installer's below /opt/amazon/efa: a process that loads two sees no EFA through the second")


def _stub(here: Places) -> Finding:
    """A `stubs` folder on the library path wins over the driver that the node mounts, and every CUDA call then fails."""
    folders = [Path(one) for one in here.environ.get("LD_LIBRARY_PATH", "").split(":") if one]
    stubs = [str(folder / name) for folder in folders for name in ("libcuda.so.1", "libcuda.so")
             if (folder / name).exists() and "stubs" in (folder / name).resolve().parts]
    cache = here.run(["ldconfig", "-p"], TOOL_SECONDS).output
    stubs += [path for name, path in _CACHED.findall(cache) if name.startswith("libcuda.so") and "stubs" in Path(path).resolve().parts]
    if not stubs:
        return Finding(check="libcuda_stub", ok=True, expected="none on the library path", seen="none")
    return Finding(check="libcuda_stub", ok=False, expected="none on the library path", seen=", ".join(dict.fromkeys(stubs)),
                   remedy="take the toolkit's stubs folder out of LD_LIBRARY_PATH and of /etc/ld.so.conf.d; it is for linking only")


def _provider(here: Places, *, efa: bool) -> Finding:
    ran = here.run(["fi_info", "-l"], TOOL_SECONDS)
    expected = "fi_info -l lists efa"
    if ran.missing:
        return Finding(check="efa_provider", ok=False if efa else None, expected=expected, seen="fi_info is not installed",
                       remedy="put the EFA installer's /opt/amazon/efa/bin on PATH" if efa else None)
    providers = re.findall(r"^(\w[\w;-]*):", ran.output, re.MULTILINE)
    good = "efa" in providers
    return Finding(check="efa_provider", ok=True if good else False if efa else None, expected=expected,
                   seen=", ".join(providers)[:200] or f"none: {ran.output.strip()[-150:]}",
                   remedy=None if good or not efa else "this libfabric was built without EFA: use the installer's")


def _loads(what: str, path: Path | None, here: Places, *, efa: bool, absent: str) -> Finding:
    """Whether a plugin loads in a process of its own, with every symbol that it needs."""
    if path is None:
        return Finding(check=what, ok=False if efa else None, seen=absent)
    code = f"import ctypes, os; ctypes.CDLL({str(path)!r}, mode=os.RTLD_NOW)"
    # The engine has its own libraries loaded already when it opens its plugins.
    beside = [str(folder) for folder in (path.parent, path.parent.parent) if folder != Path("/")]
    search = ":".join([*beside, *filter(None, [here.environ.get("LD_LIBRARY_PATH")])])
    ran = here.run([sys.executable, "-c", code], TOOL_SECONDS, {"LD_LIBRARY_PATH": search})
    if ran.code == 0:
        return Finding(check=what, ok=True, seen=str(path))
    lines = [line for line in ran.output.splitlines() if line.strip()]
    said = lines[-1][:300] if lines else f"the process ended with {ran.code}"
    if not here.driver() and any(library in said for library in DRIVER):
        return Finding(check=what, ok=None, seen=f"needs the driver's library, which the node brings: {said}"[:300])
    symbol = _SYMBOL.search(said)
    remedy = (f"it was linked with a newer library that has {symbol[1]}: take an older engine, or a newer EFA installer"
              if symbol else "install what it names, or put its folder on the library path")
    return Finding(check=what, ok=False if efa else None, seen=said, remedy=remedy)


def _symbols(path: Path | None, here: Places, *, efa: bool) -> Finding:
    """Whether libfabric has the symbol versions that a plugin was linked with: read from the files, so that no driver is needed."""
    copies = libraries.libfabric_copies(here.libraries, here.packages)
    if path is None or not copies:
        return Finding(check="fabric_symbols", ok=None, seen="no plugin" if path is None else "no libfabric")
    needed, there = _versions(path), _versions(Path(copies[0]))
    if not needed:
        return Finding(check="fabric_symbols", ok=None, seen=f"{path} names no version of libfabric's symbols")
    newest = f"FABRIC_{max(needed)[0]}.{max(needed)[1]}"
    shown = f"{copies[0]} has up to FABRIC_{max(there)[0]}.{max(there)[1]}" if there else f"{copies[0]} has none"
    if max(needed) in there:
        return Finding(check="fabric_symbols", ok=True, expected=newest, seen=shown)
    return Finding(check="fabric_symbols", ok=False if efa else None, expected=newest, seen=f"{newest} is needed, {shown}",
                   remedy="take an older NIXL, or a newer EFA installer (images/versions.env)")


def _versions(path: Path) -> set[tuple[int, int]]:
    try:
        data = path.read_bytes()
    except OSError:
        return set()
    return {(int(one[1]), int(one[2])) for one in _FABRIC.finditer(data)}


def _nixl_plugin(here: Places) -> Path | None:
    folders = [one for one in sys.path if one.endswith(("site-packages", "dist-packages"))] if here.packages is None else here.packages
    # The first pattern is where meson-python keeps what the extension loads: the plugin there has its own libraries beside it.
    patterns = (f".nixl*.libs/**/{NIXL_PLUGIN}", f"nixl*.libs/**/{NIXL_PLUGIN}")
    found = [path for pattern in patterns for folder in folders for path in sorted(Path(folder).glob(pattern))]
    return found[0] if found else None


def _nccl_plugin(here: Places) -> Path | None:
    return next((Path(folder, name) for folder in here.plugins for name in NCCL_PLUGINS if Path(folder, name).is_file()), None)


def main(arguments: Sequence[str]) -> int:
    """0 nothing is wrong, 1 something is, 64 wrong usage."""
    required: list[str] = []
    efa = as_json = False
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--efa":
            efa = True
        elif word == "--json":
            as_json = True
        elif word == "--require" and words and all(name in selfcheck.ENGINES for name in words[0].split(",")):
            required += words.pop(0).split(",")
        else:
            sys.stderr.write(f"usage: python -m probes selfcheck [--require {','.join(selfcheck.ENGINES)}] [--efa] [--json]\n")
            return EXIT_USAGE
    findings = check(required, efa=efa)
    if as_json:
        sys.stdout.write(json.dumps([one.model_dump(exclude_none=True) for one in findings], indent=2) + "\n")
    else:
        words_of = {True: "ok", False: "BAD", None: "-"}
        for one in findings:
            sys.stdout.write(f"{words_of[one.ok]:4} {one.check}: {one.seen}\n")
            if one.ok is False and one.remedy:
                sys.stdout.write(f"     {one.remedy}\n")
    return EXIT_BAD if any(one.ok is False for one in findings) else 0
