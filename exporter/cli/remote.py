"""Asking a running service: over HTTP, or through the API server's proxy to the Service. One document, or one line that says why not."""

from __future__ import annotations

import ssl
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from exporter.cli.exits import NotMeasuredError, UsageError
from exporter.config.server import DEFAULT_PORT
from exporter.kube.api import Api, ApiError, ClusterError, configuration

DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
STATUS = "/api/status"
DEFAULT_SERVICE = f"efa-pulse:{DEFAULT_PORT}"
TIMEOUT = httpx.Timeout(30.0, connect=5.0)

UrlOption = Annotated[str | None, typer.Option("--url", metavar="URL", help=f"Address of the service; default: {DEFAULT_URL}.")]
TokenOption = Annotated[Path | None, typer.Option("--token-file", help="File with the bearer token.")]
UserOption = Annotated[str | None, typer.Option("--user", metavar="NAME", help="User for basic authentication, with --password-file.")]
PasswordOption = Annotated[Path | None, typer.Option("--password-file", help="File with the user's password.")]
CaOption = Annotated[Path | None, typer.Option("--ca-file", help="Certificate authorities to trust instead of the system's (PEM).")]
KubeconfigOption = Annotated[Path | None, typer.Option(help="Ask through this kubeconfig's API server instead of --url.")]
ContextOption = Annotated[str | None, typer.Option(help="Context of the kubeconfig; asks through its API server.")]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the Service; default: efa-pulse. Asks through "
                                                                               "the API server.")]
ServiceOption = Annotated[str | None, typer.Option(metavar="NAME[:PORT]", help=f"The Service, with https: before it for TLS; default: "
                                                                               f"{DEFAULT_SERVICE}. Asks through the API server.")]

Json = dict[str, Any]


@dataclass(frozen=True)
class Remote:
    """Where the service is and who we are, as the options of a command name it."""

    url: str | None = None
    token_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    service: str | None = None

    @property
    def through_cluster(self) -> bool:
        """Whether the API server is asked."""
        return any(value is not None for value in (self.kubeconfig, self.context, self.namespace, self.service))

    def get(self, path: str, query: dict[str, str], schema: str) -> Json:
        """The document at `path`. Raises UsageError for a mistake of the user, what is asked for included, NotMeasuredError otherwise."""
        if self.through_cluster:
            if self.url is not None:
                raise UsageError("--url goes without --kubeconfig, --context, --namespace and --service: it is one way or the other")
            if self.token_file or self.user or self.password_file:
                raise UsageError("the API server takes no credentials for the service behind it: use kubectl port-forward and --url")
            where, document = self._proxied(path, query)
        else:
            where, document = self._plain(path, query)
        if document.get("schema") != schema:
            raise NotMeasuredError(f"{where}: the answer has schema {document.get('schema')!r}, this command reads {schema}")
        return document

    def _plain(self, path: str, query: dict[str, str]) -> tuple[str, Json]:
        base = (self.url or DEFAULT_URL).rstrip("/")
        base = base if "://" in base else f"http://{base}"
        parts = urllib.parse.urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            shown = base.replace(parts.netloc, parts.netloc.rpartition("@")[2]) if parts.netloc else base
            raise UsageError(f"--url {shown}: http://host:port or https://host:port is needed, credentials by --token-file or --user")
        try:
            with httpx.Client(timeout=TIMEOUT, verify=self._trust(), auth=self._basic(), headers=self._headers()) as client:
                answer = client.get(f"{base}{path}", params=query)
        except httpx.InvalidURL as error:
            raise UsageError(f"--url {base}: {error}") from None
        except httpx.HTTPError as error:
            raise NotMeasuredError(f"{base} does not answer: {_why(error)}") from None
        return base, _document(base, answer.status_code, answer.content.decode(errors="replace"), lambda: answer.json())

    def _proxied(self, path: str, query: dict[str, str]) -> tuple[str, Json]:
        namespace, service = self.namespace or "efa-pulse", self.service or DEFAULT_SERVICE
        if ":" not in service.removeprefix("https:"):
            service = f"{service}:{DEFAULT_PORT}"
        where = f"service {namespace}/{service}"
        try:
            api = Api(configuration(self.kubeconfig, self.context))
        except ClusterError as error:
            raise UsageError(str(error)) from None
        quoted = [urllib.parse.quote(part, safe=":") for part in (namespace, service)]
        try:
            through = f"/api/v1/namespaces/{quoted[0]}/services/{quoted[1]}/proxy"
            return where, api.get(f"{_leader_of(api, quoted[0], through, service)}{path}", dict(query))
        except ApiError as error:
            if error.details.get("near") is not None:
                raise UsageError(error.message.partition(": ")[2] or error.message) from None
            if error.status in (401, 403, 404):
                hint = " (behind the API server the service cannot ask for credentials: kubectl port-forward and --url)"
                raise UsageError(f"{where}: {error}{hint if error.status == 401 else ''}") from None
            raise NotMeasuredError(f"{where}: {error}") from None
        finally:
            api.close()

    def _headers(self) -> dict[str, str]:
        if self.token_file is None:
            return {}
        return {"Authorization": f"Bearer {_secret('--token-file', self.token_file)}"}

    def _basic(self) -> httpx.BasicAuth | None:
        if (self.user is None) != (self.password_file is None):
            raise UsageError("--user and --password-file go together")
        if self.user is None or self.password_file is None:
            return None
        if self.token_file is not None:
            raise UsageError("--token-file or --user, not both")
        return httpx.BasicAuth(self.user, _secret("--password-file", self.password_file))

    def _trust(self) -> ssl.SSLContext | bool:
        if self.ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=str(self.ca_file))
        except (OSError, ValueError) as error:
            raise UsageError(f"--ca-file {self.ca_file}: {error}") from None


def _leader_of(api: Api, namespace: str, through: str, service: str) -> str:
    """The path that leads to the replica that leads, which alone knows of nodes: a Service answers by any of its pods.

    It takes the right to `pods/proxy`; without it, or where there is no election, whoever the Service picks is asked.
    """
    first = api.get(f"{through}{STATUS}", {"only": "notable"})
    pod = str(first.get("leader") or "").rpartition("-")[0]  # the identity is the pod's name and a process id
    if first.get("leading") is not False or not pod:
        return through
    tls, number = "https:" if service.startswith("https:") else "", service.rpartition(":")[2]
    port = number if number.isdecimal() else DEFAULT_PORT
    at = f"/api/v1/namespaces/{namespace}/pods/{tls}{urllib.parse.quote(pod, safe='')}:{port}/proxy"
    try:
        found = api.get(f"{at}{STATUS}", {"only": "notable"})
    except ApiError:
        return through
    return at if found.get("leading") else through


def _secret(option: str, path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from None
    if not text or not text.isprintable():
        raise UsageError(f"{option} {path}: one printable line is needed")
    return text


def _document(where: str, status: int, text: str, parse: Any) -> Json:
    """The JSON of an answer. Raises what `Remote.get` raises."""
    try:
        found = parse()
    except ValueError:
        found = None
    if status in (401, 403):
        raise UsageError(f"{where} refuses: {text.strip()[:200]}; give --token-file, or --user with --password-file")
    if status == 404 and isinstance(found, dict) and "message" in found:
        raise UsageError(str(found["message"]))
    if status != 200 or not isinstance(found, dict):
        said = str(found["message"]) if isinstance(found, dict) and "message" in found else " ".join(text.split())[:200]
        raise NotMeasuredError(f"{where}: status {status}, no document of efa-pulse{': ' + said if said else ''}")
    return found


def _why(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__
