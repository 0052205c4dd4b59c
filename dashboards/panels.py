"""The kinds of panel that boards are made of, in the look they share. Each has a title, a description and a unit: without one it cannot be
made.

Widths are in columns of 24, heights in rows of about 30 pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as c
from grafana_foundation_sdk.models import dashboard as m
from grafana_foundation_sdk.models import heatmap as h
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = m.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE, GREY = "green", "yellow", "orange", "red", "blue", "purple", "#8e8e8e"
COUNT, SECONDS, RATIO, BYTES_RATE, WORDS = "short", "s", "percentunit", "Bps", "none"
"""Units by Grafana's names. `WORDS`: values that mappings turn into words."""
PER_HOUR = "suffix:/h"
TOKENS_RATE = "suffix: tokens/s"

Panel: TypeAlias = Builder[m.Panel]
Steps: TypeAlias = Sequence[tuple[float | None, str]]
"""Colours from a value on; the first one has no value."""
Words: TypeAlias = Mapping[str, tuple[str, str]]
"""Value to text and colour."""

CALM: Steps = ((None, BLUE),)
GOOD_AT_ZERO: Steps = ((None, GREEN), (1, RED))
GOOD_AT_ONE: Steps = ((None, RED), (1, GREEN))
HEALTH: Words = {"0": ("bad", RED), "1": ("ok", GREEN)}
YES_NO: Words = {"0": ("no", RED), "1": ("yes", GREEN)}
HELD: Words = {"0": ("open", GREEN), "1": ("closed", ORANGE)}


@dataclass(frozen=True)
class Query:
    """One query: PromQL, the text of its legend, and for tables the name of its value's column."""

    expr: str
    legend: str = ""
    threshold: bool = False
    """Drawn as a dashed red line: the bound that the others are held against."""


@dataclass(frozen=True)
class Column:
    """How a column of a table looks. `name` is the label, or the legend of the query whose value it is."""

    name: str
    unit: str = WORDS
    steps: Steps | None = None
    words: Words | None = None
    width: int | None = None
    title: str | None = None
    link: tuple[str, str] | None = None
    """Title and address of a link on each cell."""


def number(title: str, description: str, expr: str, unit: str, *, steps: Steps = CALM, words: Words | None = None, width: int = 4,
           height: int = 4, runbooks: Sequence[str] = (), decimals: int | None = None, legend: str = "") -> Panel:
    """One big figure, or one for each series. It says `no data` where there is none: nothing is ever good by absence."""
    panel = (stat.Panel().title(title).description(description).datasource(SOURCE).unit(unit).span(width).height(height).no_value("no data")
             .with_target(_target(Query(expr, legend), 0, instant=True)).thresholds(_steps(steps))
             .color_mode(c.BigValueColorMode.VALUE).graph_mode(c.BigValueGraphMode.NONE).justify_mode(c.BigValueJustifyMode.AUTO)
             .text_mode(c.BigValueTextMode.VALUE_AND_NAME if legend else c.BigValueTextMode.VALUE)
             .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)).links(_links(runbooks)))
    if decimals is not None:
        panel = panel.decimals(decimals)
    return panel.mappings(_words(words)) if words is not None else panel


def lines(title: str, description: str, queries: Sequence[Query], unit: str, *, width: int = 12, height: int = 8, stacked: bool = False,
          bars: bool = False, colours: Mapping[str, str] | None = None, runbooks: Sequence[str] = (), low: float | None = 0.0,
          high: float | None = None, logarithmic: bool = False) -> Panel:
    """Values over time; bars are stacked. Every series is in the legend with its last and its largest value."""
    panel = (timeseries.Panel().title(title).description(description).datasource(SOURCE).unit(unit).span(width).height(height)
             .no_value("no data").line_width(1).fill_opacity(25 if stacked or bars else 0).show_points(c.VisibilityMode.AUTO)
             .draw_style(c.GraphDrawStyle.BARS if bars else c.GraphDrawStyle.LINE).span_nulls(False)
             .legend(common.VizLegendOptions().display_mode(c.LegendDisplayMode.TABLE).placement(c.LegendPlacement.BOTTOM)
                     .calcs(["lastNotNull", "max"]).show_legend(True))
             .tooltip(common.VizTooltipOptions().mode(c.TooltipDisplayMode.MULTI).sort(c.SortOrder.DESCENDING)).links(_links(runbooks)))
    for index, query in enumerate(queries):
        panel = panel.with_target(_target(query, index))
        if query.threshold:
            panel = panel.override_by_query(_ref(index), [
                m.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
                m.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": RED}),
                m.DynamicConfigValue("custom.lineWidth", 2), m.DynamicConfigValue("custom.fillOpacity", 0)])
    for name, colour in (colours or {}).items():
        panel = panel.override_by_name(name, [m.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})])
    if stacked or bars:
        panel = panel.stacking(common.StackingConfig().mode(c.StackingMode.NORMAL).group("A"))
    if logarithmic:
        panel = panel.scale_distribution(common.ScaleDistributionConfig().type(c.ScaleDistribution.LOG).log(10))
    elif low is not None:
        panel = panel.min(low)
    return panel.max(high) if high is not None else panel


def states(title: str, description: str, queries: Sequence[Query], words: Words, *, width: int = 24, height: int = 8,
           runbooks: Sequence[str] = ()) -> Panel:
    """States over time, one row a series: when it began and when it was over can be read off."""
    panel = (statetimeline.Panel().title(title).description(description).datasource(SOURCE).unit(WORDS).span(width).height(height)
             .no_value("no data").mappings(_words(words)).merge_values(True).show_value(c.VisibilityMode.NEVER).row_height(0.8)
             .line_width(0).fill_opacity(85).color_scheme(_by_thresholds()).thresholds(_steps(((None, GREY),)))
             .legend(common.VizLegendOptions().display_mode(c.LegendDisplayMode.LIST).placement(c.LegendPlacement.BOTTOM)
                     .show_legend(True)).links(_links(runbooks)))
    for index, query in enumerate(queries):
        panel = panel.with_target(_target(query, index))
    return panel


def history(title: str, description: str, query: Query, unit: str, steps: Steps, *, width: int = 24, height: int = 10,
            runbooks: Sequence[str] = ()) -> Panel:
    """A heat map of named rows over time: one row a series, the colour from the steps."""
    return (statushistory.Panel().title(title).description(description).datasource(SOURCE).unit(unit).span(width).height(height)
            .no_value("no data").max_data_points(100).with_target(_target(query, 0)).thresholds(_steps(steps))
            .color_scheme(_by_thresholds()).show_value(c.VisibilityMode.NEVER).row_height(0.9).fill_opacity(90)
            .legend(common.VizLegendOptions().display_mode(c.LegendDisplayMode.LIST).placement(c.LegendPlacement.BOTTOM)
                    .show_legend(True)).links(_links(runbooks)))


def bars(title: str, description: str, query: Query, unit: str, steps: Steps, *, width: int = 12, height: int = 8, low: float = 0.0,
         high: float | None = None, runbooks: Sequence[str] = ()) -> Panel:
    """The present values as bars, one a series."""
    panel = (bargauge.Panel().title(title).description(description).datasource(SOURCE).unit(unit).span(width).height(height)
             .no_value("no data").with_target(_target(query, 0, instant=True)).thresholds(_steps(steps)).min(low)
             .display_mode(c.BarGaugeDisplayMode.BASIC).orientation(c.VizOrientation.HORIZONTAL).show_unfilled(True)
             .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)).links(_links(runbooks)))
    return panel.max(high) if high is not None else panel


def spread(title: str, description: str, expr: str, unit: str, *, width: int = 12, height: int = 8) -> Panel:
    """How a histogram's observations are spread over time; `expr` is by `le`."""
    return (heatmap.Panel().title(title).description(description).datasource(SOURCE).unit(unit).span(width).height(height)
            .no_value("no data").max_data_points(60)
            .with_target(_target(Query(expr, "{{le}}"), 0).format(PromQueryFormat.HEATMAP))
            .calculate(False).y_axis(heatmap.YAxisConfig().unit(unit))
            .color(heatmap.HeatmapColorOptions().mode(h.HeatmapColorMode.SCHEME).scheme("Turbo").steps(32)).cell_gap(1)
            .filter_values(heatmap.FilterValueRange().le(1e-9)))


def rows(title: str, description: str, queries: Sequence[Query], columns: Sequence[Column], *, width: int = 24, height: int = 8,
         sort: tuple[str, bool] | None = None, runbooks: Sequence[str] = (), unit: str = COUNT) -> Panel:
    """A table: each query gives one column of values, joined by the labels they share. `sort` is a column and whether it falls."""
    names = {f"Value #{_ref(index)}": query.legend for index, query in enumerate(queries)} if len(queries) > 1 else {
        "Value": queries[0].legend}
    order = {_field(column.name, names): index for index, column in enumerate(columns)}
    titles = {column.name: column.title or column.name for column in columns}
    rename = {field: titles.get(text, text) for field, text in names.items()}
    rename |= {column.name: column.title for column in columns if column.title and column.name not in names.values()}
    panel = (table.Panel().title(title).description(description).datasource(SOURCE).unit(unit).span(width).height(height)
             .no_value("").show_header(True).cell_height(c.TableCellHeight.SM).links(_links(runbooks)))
    for index, query in enumerate(queries):
        panel = panel.with_target(_target(query, index, instant=True).format(PromQueryFormat.TABLE))
    panel = panel.with_transformation(m.DataTransformerConfig("merge", options={}))
    panel = panel.with_transformation(m.DataTransformerConfig("organize", options={
        "excludeByName": {"Time": True}, "indexByName": order, "renameByName": rename}))
    for column in columns:
        panel = panel.override_by_name(titles[column.name], list(_looks(column)))
    if sort is not None:
        panel = panel.sort_by([common.TableSortByFieldState().display_name(titles[sort[0]]).desc(sort[1])])
    return panel


def _field(name: str, values: Mapping[str, str]) -> str:
    return next((field for field, text in values.items() if text == name), name)


def _looks(column: Column) -> Sequence[m.DynamicConfigValue]:
    found = [m.DynamicConfigValue("unit", column.unit)]
    if column.words is not None:
        found.append(m.DynamicConfigValue("mappings", [one.to_json() for one in _words(column.words)]))
    if column.words is not None or column.steps is not None:
        found.append(m.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
        steps = _steps(column.steps or ((None, GREY),)).build()
        found.append(m.DynamicConfigValue("thresholds", {"mode": "absolute", "steps": [
            {"color": one.color, "value": one.value} for one in steps.steps]}))
    if column.width is not None:
        found.append(m.DynamicConfigValue("custom.width", column.width))
    if column.link is not None:
        found.append(m.DynamicConfigValue("links", [{"title": column.link[0], "url": column.link[1]}]))
    return found


def _ref(index: int) -> str:
    return "ABCDEFGHIJKLMNOP"[index]


def _target(query: Query, index: int, *, instant: bool = False) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(_ref(index)).legend_format(query.legend or "__auto").datasource(SOURCE)
    return target.instant() if instant else target.range()


def _steps(steps: Steps) -> dashboard.ThresholdsConfig:
    return dashboard.ThresholdsConfig().mode(m.ThresholdsMode.ABSOLUTE).steps([m.Threshold(value, colour) for value, colour in steps])


def _words(words: Words) -> list[m.ValueMapping]:
    return [m.ValueMap({value: m.ValueMappingResult(text=text, color=colour, index=index)
                        for index, (value, (text, colour)) in enumerate(words.items())})]


def _by_thresholds() -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(m.FieldColorModeId.THRESHOLDS)


def _links(runbooks: Sequence[str]) -> list[Builder[m.DashboardLink]]:
    return [dashboard.DashboardLink(f"Runbook: {name}").type(m.DashboardLinkType.LINK).url(f"${{runbooks}}/{name}.md").target_blank(True)
            for name in runbooks]
