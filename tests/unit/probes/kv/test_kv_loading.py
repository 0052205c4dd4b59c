"""An engine that is not there, one that is there and does not load, and variables that would steer it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.kv import loading
from probes.reasons import Reason
from probes.worker import ProbeFailure


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kvengine").mkdir()
    (tmp_path / "kvengine" / "__init__.py").touch()
    yield tmp_path / "kvengine"
    for name in [name for name in sys.modules if name.partition(".")[0] == "kvengine"]:
        del sys.modules[name]


def load(module: str) -> ProbeFailure:
    with pytest.raises(ProbeFailure) as failed:
        loading.load_engine([module], "pip install it")
    return failed.value


def test_an_engine_that_is_not_installed_is_missing() -> None:
    failure = load("no_such_engine.engine")
    assert failure.reason is Reason.ENGINE_MISSING
    assert failure.message == "no_such_engine is not installed here: pip install it"


def test_the_first_package_that_is_installed_counts(site: Path) -> None:
    (site / "engine.py").touch()
    assert loading.load_engine(["no_such_engine.engine", "kvengine.engine"], "").__name__ == "kvengine.engine"


def test_an_engine_built_for_another_python_is_incompatible(site: Path) -> None:
    failure = load("kvengine.engine")
    assert (failure.reason, "kvengine.engine" in failure.message) == (Reason.ENGINE_INCOMPATIBLE, True)


def test_a_missing_shared_library_is_named(site: Path) -> None:
    (site / "engine.py").write_text("import ctypes\nctypes.CDLL('libibverbs-of-nowhere.so.1')\n")
    failure = load("kvengine.engine")
    assert failure.reason is Reason.ENGINE_INCOMPATIBLE
    assert "libibverbs-of-nowhere.so.1: cannot open shared object file" in failure.message


def test_a_missing_module_of_the_engine_is_named_and_is_not_a_missing_engine(site: Path) -> None:
    (site / "other.py").write_text("import numpy_of_nowhere\n")
    failure = load("kvengine.other")
    assert failure.reason is Reason.ENGINE_INCOMPATIBLE
    assert "numpy_of_nowhere" in failure.message


def test_a_library_that_the_linker_refuses_is_explained_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "libplugin.so").write_bytes(b"this is no library, whatever it is called")
    assert "libplugin.so" in (loading.missing_library(tmp_path / "libplugin.so") or "")
    assert loading.missing_library(Path("libc.so.6")) is None


def test_versions_name_the_distribution_and_nothing_is_made_up() -> None:
    found = loading.distribution_versions("engine", ["no-such-distribution", "pydantic"])
    assert found["engine.distribution"] == "pydantic"
    assert found["engine"][0].isdigit()
    assert loading.distribution_versions("engine", ["no-such-distribution"]) == {}


def test_a_binary_tells_what_it_mentions(tmp_path: Path) -> None:
    (tmp_path / "engine.so").write_bytes(b"\0libcudart.so.12\0")
    assert loading.mentions(str(tmp_path / "engine.so"), b"libcudart") is True
    assert loading.mentions(str(tmp_path / "engine.so"), b"EfaTransport") is False
    assert loading.mentions(None, b"x") is None


class TestSteering:
    """What an image leaves in the environment must not decide over the transport without a word."""

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("KV_FORCE", "KV_LEVEL", "KV_SIZE"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)

    def test_a_steering_variable_of_the_environment_is_removed_and_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KV_FORCE", "secret value")
        (finding,) = loading.steer({}, {}, ["KV_FORCE"], {}, pinned=False)
        assert "KV_FORCE" not in os.environ
        assert (finding.check, finding.ok) == ("environment.KV_FORCE", False)
        assert "secret value" not in finding.model_dump_json()

    def test_one_that_agrees_with_the_choice_is_no_finding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KV_FORCE", "efa")
        assert loading.steer({"KV_FORCE": "efa"}, {}, ["KV_FORCE"], {}, pinned=True) == []
        assert os.environ["KV_FORCE"] == "efa"

    def test_the_spec_may_set_it_in_any_mode_and_not_in_efa_mode(self) -> None:
        assert loading.steer({}, {}, ["KV_FORCE"], {"KV_FORCE": "1"}, pinned=False) == []
        assert os.environ["KV_FORCE"] == "1"
        with pytest.raises(ProbeFailure, match="KV_FORCE chooses the transport") as refused:
            loading.steer({}, {}, ["KV_FORCE"], {"KV_FORCE": "1"}, pinned=True)
        assert refused.value.reason is Reason.BAD_SPEC

    def test_a_default_gives_way_to_the_environment_and_the_spec(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KV_LEVEL", "DEBUG")
        loading.steer({}, {"KV_LEVEL": "INFO", "KV_SIZE": "1"}, [], {"KV_SIZE": "2"}, pinned=False)
        assert (os.environ["KV_LEVEL"], os.environ["KV_SIZE"]) == ("DEBUG", "2")


@pytest.mark.parametrize(("drivers", "expected"), [(["efa"], True), (["mlx5_core", "efa"], True), (["mlx5_core"], False), ([], False)])
def test_an_efa_device_is_told_by_its_driver_alone(tmp_path: Path, drivers: list[str], expected: bool) -> None:
    for number, driver in enumerate(drivers):
        device = tmp_path / "class/infiniband" / f"rdmap{number}s0" / "device"
        device.mkdir(parents=True)
        (tmp_path / "bus/pci/drivers" / driver).mkdir(parents=True)
        (device / "driver").symlink_to(tmp_path / "bus/pci/drivers" / driver)
    assert loading.efa_here(tmp_path) is expected


def test_a_library_that_is_not_loaded_has_no_version() -> None:
    code = "from probes.kv.loading import library_versions; print(library_versions())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "{}"
