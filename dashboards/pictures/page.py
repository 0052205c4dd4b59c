"""One HTML page for one dashboard: its panels on the same grid, with what their queries return now."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.pictures import charts
from dashboards.pictures.source import Series, Source, SourceError, fill
from dashboards.pictures.units import show

COLUMN, LINE, GAP = 66.0, 34.0, 6.0
MOST_LEGENDS, MOST_ROWS = 6, 40
WIDTH = int(24 * COLUMN + 40)

STYLE = """
body { margin: 0; background: #111217; color: #d5d6dc; font: 13px "DejaVu Sans", sans-serif; width: @WIDTH@px; }
h1 { font-size: 19px; margin: 14px 20px 2px; } .sub { margin: 0 20px 8px; color: #8e9098; font-size: 12px; }
.board { position: relative; margin: 0 20px 20px; }
.panel { position: absolute; background: #181b1f; border: 1px solid #2c3235; border-radius: 3px; overflow: hidden; }
.panel h2 { font-size: 13px; font-weight: 500; margin: 5px 8px 0; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.row { position: absolute; font-size: 15px; color: #e8e9ee; padding: 5px 2px; border-bottom: 1px solid #2c3235; box-sizing: border-box; }
.none { color: #6e7077; text-align: center; padding-top: 18px; }
.stats { display: flex; flex-wrap: wrap; justify-content: center; align-items: center; gap: 2px 18px; height: calc(100% - 26px); }
.stat { text-align: center; } .stat b { font-weight: 500; } .stat small { display: block; color: #a0a2aa; font-size: 11px; }
.tick { fill: #9fa3ad; font-size: 10.5px; } .grid { stroke: #2a2e35; stroke-width: 1; }
.legend { margin: 0 8px; font-size: 11px; color: #c0c2ca; border-collapse: collapse; width: calc(100% - 16px); }
.legend td { padding: 0 6px 0 0; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; max-width: 0; }
.legend td:first-child { width: 70%; } .legend td + td { text-align: right; color: #9fa3ad; }
.legend i { display: inline-block; width: 12px; height: 3px; margin-right: 6px; vertical-align: middle; }
.table { font-size: 12px; border-collapse: collapse; margin: 2px 8px; width: calc(100% - 16px); }
.table th { text-align: left; font-weight: 500; color: #8ab8ff; padding: 3px 8px 3px 0; }
.table td { padding: 3px 8px 3px 0; border-top: 1px solid #24282d; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.bar { display: flex; align-items: center; gap: 8px; margin: 3px 8px; font-size: 11.5px; }
.bar span { width: 38%; text-align: right; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.bar div { flex: 1; background: #22252b; height: 14px; } .bar div div { height: 14px; } .bar em { width: 62px; font-style: normal; }
.error { color: #f2495c; padding: 8px; font-size: 11px; }
""".replace("@WIDTH@", str(WIDTH))

Json = dict[str, Any]


def page(document: Json, source: Source, chosen: Mapping[str, str]) -> tuple[str, int]:
    """The page and its height in pixels."""
    values = source.values_of(document, chosen)
    parts: list[str] = []
    bottom = 0.0
    for panel in document["panels"]:
        at = panel["gridPos"]
        left, top, wide, tall = at["x"] * COLUMN, at["y"] * LINE, at["w"] * COLUMN - GAP, at["h"] * LINE - GAP
        bottom = max(bottom, top + tall)
        place = f"left:{left:.0f}px;top:{top:.0f}px;width:{wide:.0f}px;height:{tall:.0f}px"
        title = html.escape(fill(panel["title"], values))
        if panel["type"] == "row":
            parts.append(f'<div class="row" style="{place}">{title}</div>')
            continue
        parts.append(f'<div class="panel" style="{place}"><h2>{title}</h2>{_inside(panel, source, values, wide, tall - 24)}</div>')
    shown = ", ".join(f"{name} {value}" for name, value in values.items() if name in ("node", "probe", "engine", "target", "window"))
    head = (f"<h1>{html.escape(document['title'])}</h1><p class='sub'>{html.escape(document['description'])} Drawn by efa-pulse's own "
            f"renderer from real data of the last {show(source.seconds, 's')}; {html.escape(shown)}</p>")
    text = (f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html.escape(document['title'])}</title>"
            f"<style>{STYLE}</style></head><body>{head}<div class='board' style='height:{bottom:.0f}px'>{''.join(parts)}</div></body>"
            "</html>")
    return text, int(bottom + 90)


def _inside(panel: Json, source: Source, values: Mapping[str, str], wide: float, tall: float) -> str:
    found: list[tuple[Json, list[Series]]] = []
    try:
        for target in panel["targets"]:
            expr = fill(target["expr"], values)
            found.append((target, source.instant(expr) if target.get("instant") else source.range(expr)))
    except (SourceError, KeyError) as error:
        return f'<div class="error">{html.escape(str(error))}</div>'
    if not any(series for _, series in found):
        return f'<div class="none">{html.escape(panel["fieldConfig"]["defaults"].get("noValue") or "nothing")}</div>'
    kind = panel["type"]
    if kind == "table":
        return _table(panel, found)
    named = [(_name(target, series), series, _overrides(panel, target, _name(target, series))) for target,
             all_of in found for series in all_of]
    if kind == "stat":
        return _stat(panel, named, tall)
    if kind == "bargauge":
        return _bars(panel, named)
    legend = min(len(named), MOST_LEGENDS) * 15.0 + 6 if kind == "timeseries" else 0.0
    frame = charts.Frame(wide, tall - legend, source.start, source.end)
    if kind == "timeseries":
        inner = charts.lines(panel, named, frame, source.step)
    elif kind == "heatmap":
        inner = charts.spread(panel, [series for _, series, _ in named], frame, source.step)
    else:
        inner = charts.rows(panel, [(name, series) for name, series, _ in sorted(named, key=lambda one: one[0])][:MOST_ROWS], frame,
                            source.step)
    drawing = f'<svg width="{wide:.0f}" height="{frame.height:.0f}">{inner}</svg>'
    return drawing + (_legend(panel, named) if kind == "timeseries" else "")


def _name(target: Json, series: Series) -> str:
    legend = target.get("legendFormat") or "__auto"
    if legend == "__auto":
        return ", ".join(f"{key} {value}" for key, value in sorted(series.labels.items()) if key != "__name__") or "value"
    return " ".join(re.sub(r"\{\{ *(\w+) *\}\}", lambda found: series.labels.get(found[1], ""), legend).split()) or "value"


def _overrides(panel: Json, target: Json, name: str) -> Json:
    found: Json = {}
    for override in panel["fieldConfig"].get("overrides") or ():
        matcher = override["matcher"]
        if (matcher["id"], matcher.get("options")) in (("byFrameRefID", target["refId"]), ("byName", name)):
            found |= {one["id"]: one["value"] for one in override["properties"]}
    return found


def _stat(panel: Json, named: Sequence[tuple[str, Series, Json]], tall: float) -> str:
    config = panel["fieldConfig"]["defaults"]
    size = min(34.0 if len(named) == 1 else 20.0, tall * 0.45)
    cells = []
    for name, series, _ in named:
        text = charts.word_of(series.last, config) or show(series.last, config["unit"], config.get("decimals"))
        label = f"<small>{html.escape(name)}</small>" if len(named) > 1 else ""
        cells.append(f'<div class="stat"><b style="font-size:{size:.0f}px;color:{charts.colour_of(series.last, config)}">'
                     f"{html.escape(text)}</b>{label}</div>")
    return f'<div class="stats">{"".join(cells)}</div>'


def _bars(panel: Json, named: Sequence[tuple[str, Series, Json]]) -> str:
    config = panel["fieldConfig"]["defaults"]
    top = float(config.get("max") or max((series.last for _, series, _ in named), default=1.0) or 1.0)
    parts = []
    for name, series, _ in sorted(named, key=lambda one: one[1].last):
        share = min(max(series.last / top, 0.0), 1.0)
        parts.append(f'<div class="bar"><span>{html.escape(name)}</span><div><div style="width:{share:.1%};background:'
                     f'{charts.colour_of(series.last, config)}"></div></div>'
                     f'<em>{html.escape(show(series.last, config["unit"]))}</em></div>')
    return "".join(parts)


def _legend(panel: Json, named: Sequence[tuple[str, Series, Json]]) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    parts = []
    for index, (name, series, properties) in enumerate(named[:MOST_LEGENDS]):
        shade = charts.colour((properties.get("color") or {}).get("fixedColor"), index)
        more = f" and {len(named) - MOST_LEGENDS} more" if index == MOST_LEGENDS - 1 and len(named) > MOST_LEGENDS else ""
        top = max((value for _, value in series.points if math.isfinite(value)), default=math.nan)
        parts.append(f'<tr><td><i style="background:{shade}"></i>{html.escape(name + more)}</td>'
                     f"<td>{html.escape(show(series.last, unit))}</td><td>{html.escape(show(top, unit))}</td></tr>")
    return f'<table class="legend">{"".join(parts)}</table>'


def _table(panel: Json, found: Sequence[tuple[Json, list[Series]]]) -> str:
    organize = next(one["options"] for one in panel["transformations"] if one["id"] == "organize")
    merged = _merged([(target["refId"] if len(found) > 1 else "", series) for target, series in found])
    order = organize["indexByName"]
    fields = sorted({name for row in merged for name in row}, key=lambda name: (order.get(name, 99), name))
    fields = [name for name in fields if name in order and any(name in row for row in merged)]
    titles = {name: organize["renameByName"].get(name, name) for name in fields}
    looks = {name: {one["id"]: one["value"] for override in panel["fieldConfig"]["overrides"] if override["matcher"].get("options") == title
                    for one in override["properties"]} for name, title in titles.items()}
    sort = (panel.get("options") or {}).get("sortBy") or []
    for by in sort:
        field = next((name for name, title in titles.items() if title == by["displayName"]), None)
        if field is not None:
            merged.sort(key=lambda row: (field in row, row.get(field, 0.0)), reverse=bool(by.get("desc")))
    head = "".join(f"<th>{html.escape(titles[name])}</th>" for name in fields)
    body = "".join("<tr>" + "".join(_cell(row.get(name), looks[name]) for name in fields) + "</tr>" for row in merged[:MOST_ROWS])
    return f'<table class="table"><tr>{head}</tr>{body}</table>'


def _merged(found: Sequence[tuple[str, Sequence[Series]]]) -> list[Json]:
    """Rows joined as Grafana's transformation `merge` does: where all shared fields are alike and no value is there yet."""
    made: list[Json] = []
    for ref, series in found:
        field = f"Value #{ref}" if ref else "Value"
        for one in series:
            labels = {key: value for key, value in one.labels.items() if key != "__name__"}
            fits = [row for row in made if field not in row and all(
                row.get(key, value) == value for key, value in labels.items()) and set(labels) & set(row)]
            for row in fits:
                row |= {**labels, field: one.last}
            if not fits:
                made.append({**labels, field: one.last})
    return made


def _cell(value: Any, look: Json) -> str:
    if value is None:
        return "<td></td>"
    if not isinstance(value, float):
        return f"<td>{html.escape(str(value))}</td>"
    config = {"mappings": look.get("mappings"), "thresholds": look.get("thresholds")}
    text = charts.word_of(value, config)
    text = text if text is not None else show(value, str(look.get("unit", "short")))
    shade = f' style="color:{charts.colour_of(value, config)}"' if "custom.cellOptions" in look else ""
    return f"<td{shade}>{html.escape(text)}</td>"
