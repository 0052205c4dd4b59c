"""Format and encoding by the client's headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.publish.negotiate import CLASSIC, choose_format, wants_gzip

PROMETHEUS_2 = ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
                "text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
PROMETHEUS_3 = ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
                "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,/;q=0.1")


def openmetrics(version: str = "1.0.0") -> str:
    return f"application/openmetrics-text; version={version}; charset=utf-8"


@pytest.mark.parametrize(("accept", "content_type"), [
    (PROMETHEUS_2, openmetrics()),
    (PROMETHEUS_3, openmetrics()),
    ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", CLASSIC),
    ("text/plain;version=1.0.0;q=0.9,application/openmetrics-text;version=1.0.0;q=0.4", CLASSIC),
    ("application/openmetrics-text; version=0.0.1", openmetrics("0.0.1")),
    ("application/openmetrics-text", openmetrics()),
    ("APPLICATION/OpenMetrics-Text ; Version=\"1.0.0\"", openmetrics()),
    ("application/openmetrics-text;version=2.0.0", CLASSIC),
    ("application/openmetrics-text;version=2.0.0,application/openmetrics-text;version=1.0.0;q=0.5", openmetrics()),
    ("application/openmetrics-text;q=0", CLASSIC),
    ("application/openmetrics-text;q=0.5,text/plain;q=0.5", openmetrics()),
    ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", CLASSIC),
    ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", CLASSIC),
    ("", CLASSIC),
    (",;,q=,;;=", CLASSIC),
    ("application/openmetrics-text;q=much", CLASSIC),
])
def test_the_format_a_client_gets(accept: str, content_type: str) -> None:
    wanted = choose_format(accept)
    assert wanted.content_type == content_type
    assert wanted.openmetrics == content_type.startswith("application/openmetrics-text")


@pytest.mark.parametrize(("header", "gzip"), [
    ("gzip", True),
    ("gzip, deflate, br", True),
    ("x-gzip", True),
    ("GZIP;q=0.5", True),
    ("*", True),
    ("br, *;q=0.3", True),
    ("gzip;q=0.5, identity;q=0.5", True),
    ("", False),
    ("identity", False),
    ("br", False),
    ("gzip;q=0", False),
    ("gzip;q=0.000", False),
    ("gzip;q=0, *", False),
    ("gzip;q=0.2, identity;q=0.8", False),
    ("gzip;q=nan", False),
])
def test_whether_gzip_is_used(header: str, gzip: bool) -> None:
    assert wants_gzip(header) is gzip


@given(st.text(max_size=60))
def test_no_header_breaks_the_choice(header: str) -> None:
    assert choose_format(header).content_type
    assert wants_gzip(header) in {True, False}
