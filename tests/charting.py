"""The chart and Helm for tests."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import helmtools
import yaml

REPO = Path(__file__).resolve().parent.parent
CHART = REPO / "charts" / "efa-pulse"
VALUES = sorted([*(CHART / "ci").glob("*-values.yaml"), *(CHART / "examples").glob("*-values.yaml")])
SECONDS = 60.0
Json = dict[str, Any]


def helm(*arguments: str, kubeconfig: Path | None = None, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run Helm; what it wrote is in the answer. Fails when it takes longer than `seconds`."""
    return _run("helm", arguments, kubeconfig, seconds)


def kubectl(*arguments: str, kubeconfig: Path, seconds: float = SECONDS) -> str:
    """Run kubectl and return what it wrote; one that fails is an assertion."""
    done = _run("kubectl", arguments, kubeconfig, seconds)
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
    return done.stdout


def template(*arguments: str, values: Path | None = None, namespace: str = "efa-pulse", release: str = "efa-pulse") -> list[Json]:
    """The objects that the chart makes, tests included."""
    more = ("-f", str(values)) if values is not None else ()
    done = helm("template", release, str(CHART), "-n", namespace, *more, *arguments)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def objects(manifest: str) -> list[Json]:
    """The objects of a manifest. Dashboards make it half a megabyte: libyaml reads it in a tenth of the time."""
    return [one for one in yaml.load_all(manifest, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if one]


def one(made: list[Json], kind: str, name: str) -> Json:
    """The object of this kind whose name ends with `name`."""
    found = [each for each in made if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    assert len(found) == 1, f"{kind} *{name}: {[each['metadata']['name'] for each in made if each['kind'] == kind]}"
    return found[0]


def generator() -> Any:
    """The module that makes the chart's generated files."""
    spec = importlib.util.spec_from_file_location("chart_generate", REPO / "charts" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(name: str, arguments: tuple[str, ...], kubeconfig: Path | None, seconds: float) -> subprocess.CompletedProcess[str]:
    config = ("--kubeconfig", str(kubeconfig)) if kubeconfig is not None else ()
    return subprocess.run([str(helmtools.find()[name]), *config, *arguments], capture_output=True, text=True, timeout=seconds, check=False,
                          stdin=subprocess.DEVNULL)
