"""Volumes of hollow pods as folders of this machine, laid out as the kubelet's: files behind a `..data` link that is swapped as a whole."""

from __future__ import annotations

import base64
import os
import shutil
import time
from pathlib import Path
from typing import Any

from exporter.kube.api import Api, ApiError

Json = dict[str, Any]
Files = dict[str, tuple[bytes, int]]


class NotReadyError(Exception):
    """Something that the pod needs is not there yet. The text is what the kubelet would say."""


class Volumes:
    """The volumes of one pod."""

    def __init__(self, api: Api, pod: Json, folder: Path, host_paths: dict[str, str]) -> None:
        self._api, self._pod, self._folder, self._host_paths = api, pod, folder, host_paths
        self._space = pod["metadata"]["namespace"]
        self._group: int | None = (pod["spec"].get("securityContext") or {}).get("fsGroup")
        self._written: dict[str, Files] = {}

    def prepare(self) -> dict[str, Path]:
        """Every volume's folder by name. Raises NotReadyError."""
        found: dict[str, Path] = {}
        for volume in self._pod["spec"].get("volumes") or []:
            name = volume["name"]
            path = self._folder / name
            if "hostPath" in volume:
                wanted = volume["hostPath"]["path"]
                path = Path(self._host_paths.get(wanted, wanted))
                if not path.exists():
                    raise NotReadyError(f"hostPath type check failed: {wanted} is not there")
            elif "emptyDir" in volume:
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o777)
            else:
                self._write(name, path, self._files(volume))
            found[name] = path
        return found

    def refresh(self) -> None:
        """Write what changed; what can no longer be read stays as it was."""
        for volume in self._pod["spec"].get("volumes") or []:
            if volume.keys() & {"configMap", "secret"}:
                try:
                    self._write(volume["name"], self._folder / volume["name"], self._files(volume))
                except (NotReadyError, ApiError):
                    continue

    def _files(self, volume: Json) -> Files:
        if "configMap" in volume:
            source = volume["configMap"]
            return self._object("configmaps", source["name"], source, source.get("defaultMode", 0o644))
        if "secret" in volume:
            source = volume["secret"]
            return self._object("secrets", source["secretName"], source, source.get("defaultMode", 0o644))
        if "downwardAPI" in volume:
            return self._downward(volume["downwardAPI"])
        if "projected" in volume:
            files: Files = {}
            mode = volume["projected"].get("defaultMode", 0o644)
            for source in volume["projected"].get("sources") or []:
                files |= self._projected(source, mode)
            return files
        raise NotReadyError(f"volume {volume['name']}: this kind is not supported by hollow nodes: {sorted(volume)}")

    def _projected(self, source: Json, mode: int) -> Files:
        if "serviceAccountToken" in source:
            ask = source["serviceAccountToken"]
            account = self._pod["spec"].get("serviceAccountName") or "default"
            bound = {"kind": "Pod", "apiVersion": "v1", "name": self._pod["metadata"]["name"], "uid": self._pod["metadata"]["uid"]}
            made = self._api.create(f"/api/v1/namespaces/{self._space}/serviceaccounts/{account}/token", {
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                "spec": {"expirationSeconds": ask.get("expirationSeconds", 3600), "boundObjectRef": bound,
                         **({"audiences": [ask["audience"]]} if ask.get("audience") else {})}})
            return {ask["path"]: (made["status"]["token"].encode(), mode)}
        if "configMap" in source:
            return self._object("configmaps", source["configMap"]["name"], source["configMap"], mode)
        if "secret" in source:
            return self._object("secrets", source["secret"]["name"], source["secret"], mode)
        return self._downward(source["downwardAPI"]) if "downwardAPI" in source else {}

    def _object(self, kind: str, name: str, source: Json, mode: int) -> Files:
        try:
            one = self._api.get(f"/api/v1/namespaces/{self._space}/{kind}/{name}")
        except ApiError as error:
            if error.not_found and source.get("optional"):
                return {}
            raise NotReadyError(f"{kind[:-1]} {name!r} not found" if error.not_found else str(error)) from None
        values = {key: text.encode() for key, text in (one.get("data") or {}).items()}
        if kind == "secrets":
            values = {key: base64.b64decode(text) for key, text in values.items()}
        values |= {key: base64.b64decode(text) for key, text in (one.get("binaryData") or {}).items()}
        items = source.get("items")
        if items is None:
            return {key: (value, mode) for key, value in values.items()}
        missing = [item["key"] for item in items if item["key"] not in values]
        if missing and not source.get("optional"):
            raise NotReadyError(f"references non-existent {kind[:-1]} key: {missing[0]}")
        return {item["path"]: (values[item["key"]], item.get("mode", mode)) for item in items if item["key"] in values}

    def _downward(self, source: Json) -> Files:
        return {item["path"]: (field(self._pod, item["fieldRef"]["fieldPath"]).encode(), 0o644)
                for item in source.get("items") or [] if "fieldRef" in item}

    def _write(self, name: str, path: Path, files: Files) -> None:
        if self._written.get(name) == files:
            return
        path.mkdir(parents=True, exist_ok=True)
        old = path / "..data"
        before = old.readlink() if old.is_symlink() else None
        version = path / f"..{time.time_ns()}"
        version.mkdir()
        for relative, (content, mode) in files.items():
            target = version / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(mode)
            if self._group is not None:
                os.chown(target, -1, self._group)
                target.chmod(mode | 0o440)
        fresh = path / "..data_tmp"
        fresh.symlink_to(version.name)
        fresh.rename(old)
        for top in {relative.split("/")[0] for relative in files}:
            link = path / top
            if not link.is_symlink():
                link.symlink_to(Path("..data") / top)
        if before is not None:
            shutil.rmtree(path / before, ignore_errors=True)
        self._written[name] = files


def field(pod: Json, path: str, *, address: str = "", node_address: str = "") -> str:
    """The value of a fieldRef."""
    meta, spec = pod["metadata"], pod["spec"]
    for part in ("annotations", "labels"):
        if path.startswith(f"metadata.{part}['"):
            return str((meta.get(part) or {}).get(path.split("'")[1], ""))
        if path == f"metadata.{part}":
            return "\n".join(f'{key}="{value}"' for key, value in sorted((meta.get(part) or {}).items()))
    known = {"metadata.name": meta["name"], "metadata.namespace": meta["namespace"], "metadata.uid": meta["uid"],
             "spec.nodeName": spec.get("nodeName", ""), "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
             "status.podIP": address, "status.podIPs": address, "status.hostIP": node_address, "status.hostIPs": node_address}
    return str(known[path])
