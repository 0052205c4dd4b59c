"""`python charts/generate.py`: writes the parts of the chart that are made from other parts of this repository.

    values.schema.json        from values.schema.yaml here and the service's configuration models
    VALUES.md                 from values.yaml and its comments
    files/                    rules and dashboards from dashboards/, EFA instance types from probes/efa/instances.yaml

A Helm chart cannot read outside of its folder, so it holds copies; a test compares them. `--check` writes nothing and says what differs.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
CHART = HERE / "efa-pulse"
Json = dict[str, Any]

OWN: Mapping[str, tuple[str, ...]] = {
    "Config": (), "Inventory": ("mode", "nodes"), "Server": ("listen", "web_config", "bearer_token"),
    "Local": ("work_dir", "network_namespaces"),
    "Kubernetes": ("kubeconfig", "context", "install", "namespace", "probe_namespace", "owner", "anchor", "service", "secret",
                   "secret_key"),
    "Pods": ("image", "pull_policy", "pull_secrets", "service_account", "priority_class"),
    "NodePod": ("image",), "KvPod": ("image",), "NcclPod": ("image",), "UcclEpPod": ("image",),
    "Leader": ("enabled", "lease"), "Archive": ("folder",), "Baselines": ("file",), "Witness": ("enabled", "selector", "port"),
}
"""Keys of the configuration that the chart decides: whoever sets them in `config` is told that they are not known there."""


def config_schema() -> tuple[Json, Json]:
    """The schema of `config` and the definitions it refers to."""
    sys.path.insert(0, str(REPO))
    from exporter.config.json_schema import schema

    whole = copy.deepcopy(schema())
    definitions: Json = whole.pop("$defs")
    for key in ("$schema", "$id"):
        whole.pop(key)
    for name, keys in OWN.items():
        model = whole if name == "Config" else definitions[name]
        for key in keys:
            del model["properties"][key]
        if name == "Kubernetes" and "required" in model:
            model["required"] = [key for key in model["required"] if key not in keys]
    prefixed = {f"config.{name}": body for name, body in definitions.items()}
    text = json.dumps({"config": whole, "definitions": prefixed}).replace('"#/$defs/', '"#/$defs/config.')
    both: Json = json.loads(text)
    return _lean(both["config"]), {name: _lean(body) for name, body in both["definitions"].items()}


def values_schema() -> str:
    """values.schema.json."""
    own: Json = yaml.safe_load((HERE / "values.schema.yaml").read_text())
    config, definitions = config_schema()
    own["properties"]["config"] = config
    own["$defs"] |= definitions
    rules = own["properties"]["prometheus"]["properties"]["rules"]["properties"]
    rules["settings"], rules["alerts"] = rule_options()
    return json.dumps(own, indent=1, sort_keys=False) + "\n"


def rule_options() -> tuple[Json, Json]:
    """The schemas of `settings` and `alerts` of the rules, by name."""
    from dashboards.rules.catalogue import ALERTS
    from dashboards.rules.settings import SETTINGS

    def places(known: Mapping[str, Any]) -> Json:
        found: Json = {"type": "object", "additionalProperties": False}
        return found | {"properties": {name: {"$ref": "#/$defs/place"} for name in known}}

    def changes(parameters: Mapping[str, Any]) -> Json:
        return {"type": "object", "additionalProperties": False, "properties": {
            "enabled": {"type": "boolean"}, "for": {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"},
            "severity": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,63}$"}, "labels": {"$ref": "#/$defs/alertLabels"},
            "annotations": {"$ref": "#/$defs/annotations"}, "parameters": places(parameters)}}

    alerts = {name: changes(alert.parameters) for name, alert in ALERTS.items()}
    return places(SETTINGS), {"type": "object", "additionalProperties": False, "properties": alerts}


def values_page() -> str:
    """VALUES.md: every value with its default and the comment above it."""
    rows = [f"| `{path}` | {default} | {text} |" for path, default, text in _documented((CHART / "values.yaml").read_text())]
    head = ("# Values\n\nMade from values.yaml by `python charts/generate.py`. Types and limits: values.schema.json.\n"
            "`config` holds the sections of [the configuration](../../exporter/config/reference.md).\n\n"
            "| value | default | meaning |\n|---|---|---|\n")
    return head + "\n".join(rows) + "\n"


def instance_types() -> str:
    """A YAML list of the EC2 types that have EFA devices."""
    known: Json = yaml.safe_load((REPO / "probes" / "efa" / "instances.yaml").read_text())
    return "".join(f"- {name}\n" for name in known)


def wanted() -> dict[Path, str]:
    """Every generated file and what it must hold."""
    files = {CHART / "values.schema.json": values_schema(), CHART / "VALUES.md": values_page(),
             CHART / "files" / "instance-types.yaml": instance_types()}
    files[CHART / "files" / "rules.yaml"] = (REPO / "dashboards" / "rules" / "template.yaml").read_text()
    files |= {CHART / "files" / "dashboards" / path.name: path.read_text() for path in (REPO / "dashboards" / "json").glob("*.json")}
    return files


def stale() -> list[str]:
    """What differs from what must be there, in words."""
    files = wanted()
    found = [f"{path.relative_to(REPO)} is not what it is made from" for path, text in files.items()
             if not path.is_file() or path.read_text() != text]
    return found + [f"{path.relative_to(REPO)} is made from nothing" for path in _copies() if path not in files]


def write() -> None:
    """Write them, and remove copies of what is no more."""
    files = wanted()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in _copies():
        if path not in files:
            path.unlink()


def _copies() -> list[Path]:
    return sorted((CHART / "files" / "dashboards").glob("*"))


def _lean(schema: Any) -> Any:
    """Without titles and defaults: Helm validates and nothing more, and a release holds the chart in one Secret."""
    if isinstance(schema, list):
        return [_lean(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    names = {"properties", "$defs", "patternProperties"}
    return {key: {name: _lean(body) for name, body in value.items()} if key in names else _lean(value)
            for key, value in schema.items() if key in names or key not in {"title", "default", "examples"}}


def _documented(text: str) -> Iterator[tuple[str, str, str]]:
    """Path, default and comment of every value that is no mapping, or an empty or one-line one."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    lines = text.splitlines()[2:]
    for number, line in enumerate(lines):
        stripped = line.strip()
        if not stripped:
            comment = []
        elif stripped.startswith("#"):
            if not stripped.startswith(("# - ", "#   ")):
                comment.append(stripped[1:].strip())
        elif match := re.fullmatch(r"( *)([A-Za-z]+):(?: (.*))?", line):
            indent, key, value = len(match[1]), match[2], match[3] or ""
            path = [(at, name) for at, name in path if at < indent] + [(indent, key)]
            value = value.partition(" # ")[0].strip()
            opens = not value
            if not opens or comment:
                shown = "" if opens else f"`{value}`"
                yield ".".join(name for _, name in path), shown, " ".join(comment).replace("|", "\\|")
            comment = []
        else:
            raise ValueError(f"values.yaml line {number + 3}: neither a comment nor `key: value`: {line!r}")


def main(arguments: list[str]) -> int:
    """0 written, or with --check nothing differs; 1 something differs; 64 wrong usage."""
    if arguments == ["--check"]:
        found = stale()
        sys.stderr.write("".join(f"{one}: run `python charts/generate.py`\n" for one in found))
        return 1 if found else 0
    if arguments:
        sys.stderr.write(__doc__ or "")
        return 64
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
