"""The status page: HTML that needs nothing but itself, for the day on which Grafana is down. No script, no asset from anywhere."""

from __future__ import annotations

import base64
import functools
import hashlib
from typing import Any
from urllib.parse import quote

import jinja2

from exporter.status.view import colour

TEMPLATE, STYLE = "status.html.j2", "status.css"
REFRESH_SECONDS = 30


@functools.cache
def _environment() -> jinja2.Environment:
    # Everything that is shown comes from a cluster: all of it is escaped, whatever the template forgets.
    made = jinja2.Environment(loader=jinja2.PackageLoader("exporter.status"), autoescape=True, undefined=jinja2.StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    made.filters["colour"] = colour
    made.filters["part"] = lambda text: quote(str(text), safe="")
    return made


@functools.cache
def _style() -> tuple[str, str]:
    """The style sheet, and what the policy must say for it to be used."""
    loader = _environment().loader
    text = loader.get_source(_environment(), STYLE)[0] if loader is not None else ""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"'sha256-{digest}'"


def policy() -> str:
    """The content security policy of the page: its own style sheet and nothing else."""
    return f"default-src 'none'; style-src {_style()[1]}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def render(view: dict[str, Any]) -> bytes:
    """The page for what `exporter.status.view` made."""
    return _environment().get_template(TEMPLATE).render(style=_style()[0], refresh=REFRESH_SECONDS, **view).encode()
