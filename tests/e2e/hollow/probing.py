"""Readiness and liveness probes of a hollow container: HTTP, TCP and commands."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]


class Probing:
    """The probes of one running container. Without a readiness probe it is ready at once."""

    def __init__(self, container: Json, address: str, namespace: str) -> None:
        self._container, self._address, self._namespace = container, address, namespace
        self._began = time.monotonic()
        self._next: dict[str, float] = {}
        self._passed: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._ready = "readinessProbe" not in container

    def ready(self) -> bool:
        """Whether the container is ready now."""
        probe = self._container.get("readinessProbe")
        if probe and self._due("readinessProbe", probe):
            if self._try(probe):
                self._passed["r"], self._failed["r"] = self._passed.get("r", 0) + 1, 0
                self._ready = self._ready or self._passed["r"] >= int(probe.get("successThreshold", 1))
            else:
                self._failed["r"], self._passed["r"] = self._failed.get("r", 0) + 1, 0
                self._ready = self._ready and self._failed["r"] < int(probe.get("failureThreshold", 3))
        return self._ready

    def dead(self) -> bool:
        """Whether liveness says that the container must be restarted."""
        probe = self._container.get("livenessProbe")
        if not probe or not self._due("livenessProbe", probe):
            return False
        self._failed["l"] = 0 if self._try(probe) else self._failed.get("l", 0) + 1
        return self._failed["l"] >= int(probe.get("failureThreshold", 3))

    def _due(self, name: str, probe: Json) -> bool:
        now = time.monotonic()
        if now < self._next.get(name, self._began + probe.get("initialDelaySeconds", 0)):
            return False
        self._next[name] = now + probe.get("periodSeconds", 10)
        return True

    def _try(self, probe: Json) -> bool:
        timeout = float(probe.get("timeoutSeconds", 1))
        checks: list[tuple[str, Callable[[Json, float], bool]]] = [("httpGet", self._http), ("tcpSocket", self._tcp), ("exec", self._exec)]
        return all(check(probe[kind], timeout) for kind, check in checks if kind in probe)

    def _http(self, ask: Json, timeout: float) -> bool:
        port = self._port(ask["port"])
        secure = ask.get("scheme") == "HTTPS"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(self._address, port, timeout=timeout, context=context) if secure \
            else http.client.HTTPConnection(self._address, port, timeout=timeout)
        try:
            connection.request("GET", ask.get("path", "/"), headers={one["name"]: one["value"] for one in ask.get("httpHeaders") or []})
            status: int = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return 200 <= status < 400

    def _tcp(self, ask: Json, timeout: float) -> bool:
        try:
            socket.create_connection((self._address, self._port(ask["port"])), timeout).close()
        except OSError:
            return False
        return True

    def _exec(self, ask: Json, timeout: float) -> bool:
        command = ["nsenter", f"--net=/run/netns/{self._namespace}", "--", *ask["command"]]
        try:
            return subprocess.run(command, capture_output=True, timeout=timeout, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def _port(self, port: int | str) -> int:
        if isinstance(port, int):
            return port
        return next(int(one["containerPort"]) for one in self._container.get("ports") or [] if one.get("name") == port)
