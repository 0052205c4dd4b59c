"""A board: rows of panels with the variables, annotations and links that all boards share, and the JSON it becomes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as m

from dashboards.panels import SOURCE, Panel
from dashboards.promql import latest, pick

TAG = "efa-pulse"
RUNBOOKS = "https://github.com/efa-pulse/efa-pulse/blob/main/dashboards/runbooks"
"""Where runbooks are read; `dashboards push --runbooks` puts another address in."""
GRAFANA = m.DataSourceRef(type_val="grafana", uid="-- Grafana --")
WINDOWS = "15m,1h,6h,1d,7d"

Json = dict[str, Any]


@dataclass(frozen=True)
class Variable:
    """A variable that filters `label`, with the values that `metric` has."""

    name: str
    text: str
    metric: str
    label: str
    matchers: tuple[str, ...] = ()
    multi: bool = True
    everything: str = ".*"
    """What All stands for, a regular expression."""

    def builder(self) -> dashboard.QueryVariable:
        """For the board."""
        query = f"label_values({pick(self.metric, *self.matchers)}, {self.label})"
        made = (dashboard.QueryVariable(self.name).label(self.text).query({"query": query, "refId": f"variable-{self.name}"})
                .datasource(SOURCE).refresh(m.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(m.VariableSort.ALPHABETICAL_ASC))
        if not self.multi:
            return made
        return made.multi(True).include_all(True).all_value(self.everything).current(
            m.VariableOption(selected=True, text="All", value="$__all"))


@dataclass(frozen=True)
class Row:
    """A row of panels under a title."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Board:
    """One dashboard. `slug` names its file and, behind the tag, its uid, which never changes: links and pushes rely on it.

    `window` is over how much time rates and quantiles are taken at first: canaries are rare, so it is longer than usual. `annotations`
    off leaves out the marks of verdict changes, where they would hide more than they show.
    """

    slug: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = ()
    window: str = "1h"
    time_from: str = "now-6h"
    annotated: Sequence[str] = ()
    """Matchers of the node verdicts whose changes are marked."""

    @property
    def uid(self) -> str:
        """Its name in Grafana."""
        return f"{TAG}-{self.slug}"

    def json(self) -> Json:
        """The document that Grafana imports, provisions, or is pushed."""
        builder = (dashboard.Dashboard(f"efa-pulse / {self.title}").uid(self.uid).description(self.description).tags([TAG])
                   .editable().time(self.time_from, "now").refresh("1m").tooltip(m.DashboardCursorSync.CROSSHAIR).timezone("browser")
                   .link(dashboard.DashboardLink("efa-pulse").type(m.DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(False)
                         .keep_time(True).include_vars(True)))
        for variable in (_source(), _cluster(), *(one.builder() for one in self.variables), _window(self.window), _runbooks()):
            builder = builder.with_variable(variable)
        for annotation in _annotations(self.annotated):
            builder = builder.annotation(annotation)
        for row in self.rows:
            builder = builder.with_row(dashboard.Row(row.title))
            for panel in row.panels:
                builder = builder.with_panel(panel)
        document: Json = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
        return _finished(document)

    def text(self) -> str:
        """The document as the file has it."""
        return json.dumps(self.json(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _source() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _cluster() -> dashboard.QueryVariable:
    query: dict[str, object] = {"query": "label_values(efapulse_build_info, cluster)", "refId": "variable-cluster"}
    return (dashboard.QueryVariable("cluster").label("Cluster").description("An external label of Prometheus; without one, All is right.")
            .query(query).datasource(SOURCE).multi(True).include_all(True).all_value(".*").refresh(m.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(m.VariableSort.ALPHABETICAL_ASC).current(m.VariableOption(selected=True, text="All", value="$__all")))


def _window(window: str) -> dashboard.IntervalVariable:
    options = [m.VariableOption(selected=one == window, text=one, value=one) for one in WINDOWS.split(",")]
    return (dashboard.IntervalVariable("window").label("Taken over").values(WINDOWS).options(options)
            .description("Over how much time counts, shares and quantiles are taken.")
            .current(m.VariableOption(selected=True, text=window, value=window)))


def _runbooks() -> dashboard.ConstantVariable:
    return dashboard.ConstantVariable("runbooks").value(RUNBOOKS)


def _annotations(matchers: Sequence[str]) -> list[dashboard.AnnotationQuery]:
    marks = []
    healthy = latest(pick("efapulse_node_healthy", *matchers))
    before = latest(f"{pick('efapulse_node_healthy', *matchers)} offset 1m")
    for name, colour, then, now in (("Node became bad", "red", 1, 0), ("Node recovered", "green", 0, 1)):
        marks.append(dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour)
                     .expr(f"({healthy} == bool {now}) * ({before} == bool {then}) == 1"))
    told = (dashboard.AnnotationQuery().name("Told by the service").datasource(GRAFANA).enable(True).icon_color("blue").type("tags")
            .target(dashboard.AnnotationTarget().limit(100).match_any(False).tags([TAG]).type("tags")))
    return [*marks, told]


def _finished(document: Json) -> Json:
    """What the builders cannot say: ids that do not change from run to run, texts of annotations, a schema version of today."""
    _lay_out(document["panels"])
    for number, panel in enumerate(document["panels"], 1):
        panel["id"] = number
    for variable in document["templating"]["list"]:
        # The builder gives every variable the same placeholder, and the settings of an interval.
        variable.pop("id", None)
        for name in ("auto", "auto_count", "auto_min"):
            variable.pop(name, None)
        if variable["type"] == "constant":
            variable |= {"hide": 2, "current": {"text": variable["query"], "value": variable["query"]}}
    for annotation in document["annotations"]["list"]:
        if "expr" in annotation:
            annotation |= {"step": "1m", "titleFormat": annotation["name"], "textFormat": "{{node}}: {{probe}}", "tagKeys": "node,probe"}
    document["schemaVersion"] = SCHEMA_VERSION
    document.pop("style", None)
    return document


def _lay_out(panels: list[Json]) -> None:
    """From left to right, a new line where a panel does not fit any more; the builder would let it hang over the edge."""
    x = y = line = 0
    for panel in panels:
        at = panel["gridPos"]
        if x + at["w"] > COLUMNS or panel["type"] == "row":
            x, y, line = 0, y + line, 0
        at |= {"x": x, "y": y}
        x, line = x + at["w"], max(line, at["h"])


COLUMNS = 24
SCHEMA_VERSION = 39
"""Of Grafana 10.4 and later; older ones ignore what they do not know, newer ones migrate."""
