"""What an image is asked when it is built: made images with one thing wrong, and the real NIXL plugin of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from probes.efa.tools import Ran
from probes.imagecheck import Places, check
from probes.result import Finding

FI_LIST = "efa:\n    version: 204.0\ntcp:\n    version: 204.0\nshm:\n    version: 204.0\n"
CACHE = "\tlibcuda.so.1 (libc6,x86-64) => {path}\n\tlibfabric.so.1 (libc6,x86-64) => /opt/amazon/efa/lib/libfabric.so.1\n"


def ran(listed: str = FI_LIST, cache: str = "", loading: Ran | None = None) -> Callable[..., Ran]:
    """Tools that answer so. Loading a plugin works unless `loading` says otherwise."""

    def run(command: Sequence[str], seconds: float, environ: Any = None) -> Ran:
        known = {"fi_info": Ran(0, listed) if listed else Ran(None, "No such file", missing=True), "ldconfig": Ran(0, cache)}
        return known.get(command[0], loading or Ran(0, ""))

    return run


def symbols(*names: str) -> bytes:
    """A piece of a library's string table."""
    return b"ELF" + b"".join(b"\0" + name.encode() for name in names) + b"\0"


@pytest.fixture
def image(tmp_path: Path) -> Callable[..., Places]:
    """A made image in which everything is right, changed by what is given."""
    libraries, packages, plugins = tmp_path / "lib", tmp_path / "site-packages", tmp_path / "ofi"
    for folder in (libraries, packages / "nixl_cu13.libs" / "nixl", plugins):
        folder.mkdir(parents=True)
    (libraries / "libfabric.so.1").write_bytes(symbols("FABRIC_1.0", "FABRIC_1.7", "FABRIC_1.9"))
    (packages / "nixl_cu13.libs" / "nixl" / "libplugin_LIBFABRIC.so").write_bytes(symbols("FABRIC_1.0", "FABRIC_1.7"))
    (plugins / "libnccl-net.so").touch()

    def make(**changes: Any) -> Places:
        usual: dict[str, Any] = {"run": ran(), "environ": {}, "packages": [str(packages)], "libraries": [str(libraries)],
                                 "plugins": [str(plugins)], "imports": lambda module: None, "driver": lambda: False}
        return Places(**{**usual, **changes})

    return make


def bad(findings: list[Finding]) -> dict[str, Finding]:
    return {one.check: one for one in findings if one.ok is False}


ALL = ("mooncake", "nixl", "nccl", "uccl-ep")


def test_nothing_is_wrong_with_a_good_image(image: Callable[..., Places]) -> None:
    findings = check(ALL, efa=True, places=image())
    assert bad(findings) == {}
    assert {one.check for one in findings if one.ok} == {f"engine_{name}" for name in ALL} | {
        "libfabric_copies", "libcuda_stub", "efa_provider", "nixl_plugin", "fabric_symbols", "nccl_plugin"}


def test_an_engine_that_does_not_import_is_named(image: Callable[..., Places]) -> None:
    found = bad(check(ALL, efa=True, places=image(imports=lambda module: "ImportError: libcudart.so.12" if module == "uccl.ep" else None)))
    assert list(found) == ["engine_uccl-ep"]
    assert found["engine_uccl-ep"].seen == "ImportError: libcudart.so.12"


@pytest.mark.parametrize(("driver", "ok"), [(False, None), (True, False)], ids=["at build", "on a node"])
def test_the_drivers_library_is_missing_at_build_and_must_not_be_on_a_node(image: Callable[..., Places], driver: bool,
                                                                           ok: bool | None) -> None:
    error = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
    findings = check(["mooncake"], efa=True, places=image(imports=lambda _: error, driver=lambda: driver))
    assert findings[0].ok is ok


def test_a_second_libfabric_in_a_wheel_is_found(image: Callable[..., Places]) -> None:
    places = image()
    folder = Path(str(places.packages[0] if places.packages else ""), "engine.libs")
    folder.mkdir()
    (folder / "libfabric-1a2b3c4d.so.1.29").touch()
    found = bad(check([], efa=True, places=places))
    assert list(found) == ["libfabric_copies"]
    assert "libfabric-1a2b3c4d.so.1.29" in str(found["libfabric_copies"].seen)


@pytest.mark.parametrize("by", ["environment", "cache"])
def test_the_toolkits_stub_in_front_of_the_driver_is_found(image: Callable[..., Places], tmp_path: Path, by: str) -> None:
    stubs = tmp_path / "cuda" / "lib64" / "stubs"
    stubs.mkdir(parents=True)
    (stubs / "libcuda.so.1").touch()
    more = {"environ": {"LD_LIBRARY_PATH": f"/opt/x:{stubs}"}} if by == "environment" else {
        "run": ran(cache=CACHE.format(path=stubs / "libcuda.so.1"))}
    assert list(bad(check([], efa=True, places=image(**more)))) == ["libcuda_stub"]


@pytest.mark.parametrize(("listed", "efa", "ok"), [("tcp:\n    version: 117.0\n", True, False), ("", True, False), ("", False, None)],
                         ids=["without EFA", "no tool", "no tool, no EFA wanted"])
def test_a_libfabric_without_the_provider_is_no_use(image: Callable[..., Places], listed: str, efa: bool, ok: bool | None) -> None:
    found = {one.check: one for one in check([], efa=efa, places=image(run=ran(listed)))}
    assert found["efa_provider"].ok is ok


def test_a_plugin_linked_with_a_newer_libfabric_says_which_symbol(image: Callable[..., Places]) -> None:
    said = "OSError: /lib/libfabric.so.1: version `FABRIC_1.10' not found (required by libplugin_LIBFABRIC.so)"
    found = bad(check(["nixl"], efa=True, places=image(run=ran(loading=Ran(1, said)))))
    assert list(found) == ["nixl_plugin"]
    assert "FABRIC_1.10" in str(found["nixl_plugin"].remedy)


def test_symbols_are_compared_without_loading_anything(image: Callable[..., Places], tmp_path: Path) -> None:
    (tmp_path / "site-packages" / "nixl_cu13.libs" / "nixl" / "libplugin_LIBFABRIC.so").write_bytes(symbols("FABRIC_1.7", "FABRIC_1.10"))
    found = bad(check(["nixl"], efa=True, places=image()))
    assert list(found) == ["fabric_symbols"]
    assert found["fabric_symbols"].seen == f"FABRIC_1.10 is needed, {tmp_path / 'lib' / 'libfabric.so.1'} has up to FABRIC_1.9"


def test_the_real_plugin_of_this_environment_names_what_it_was_linked_with(tmp_path: Path) -> None:
    (tmp_path / "libfabric.so.1").write_bytes(symbols("FABRIC_1.9"))
    found = {one.check: one for one in check(["nixl"], efa=True, places=Places(libraries=[str(tmp_path)]))}
    if found["fabric_symbols"].seen == "no plugin":
        pytest.skip("nixl is not installed here")
    assert found["fabric_symbols"].expected == "FABRIC_1.10", "nixl 1.5.1; 1.4.1 needs FABRIC_1.7"


def test_without_the_plugin_nccl_would_go_over_tcp(image: Callable[..., Places]) -> None:
    assert list(bad(check(["nccl"], efa=True, places=image(plugins=["/nowhere"])))) == ["nccl_plugin"]
    assert bad(check(["nccl"], efa=False, places=image(plugins=["/nowhere"]))) == {}


def test_the_command_says_what_is_wrong_here_and_ends_so() -> None:
    done = subprocess.run([sys.executable, "-m", "probes", "selfcheck", "--efa", "--require", "uccl-ep"], capture_output=True, text=True,
                          timeout=90, check=False, env={**os.environ, "LD_LIBRARY_PATH": ""})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BAD  engine_uccl-ep: " in done.stdout
    assert "ok   libcuda_stub: none" in done.stdout
    wrong = subprocess.run([sys.executable, "-m", "probes", "selfcheck", "--require", "ucx"], capture_output=True, text=True, timeout=60,
                           check=False)
    assert wrong.returncode == 64
    assert "usage" in wrong.stderr
