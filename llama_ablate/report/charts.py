"""Pictures on the page: Vega-Lite specifications, which the page's own script draws.

Satyanarayan et al. 2017, "Vega-Lite: A Grammar of Interactive Graphics". A page adds the signal
`lit`: the variant that the reader chose, or "".
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from llama_ablate.report.picture import (
    LAWS,
    VERDICTS,
    Cast,
    Costs,
    Dot,
    Dots,
    Lines,
    Panel,
    Picture,
)

Spec = dict[str, Any]
_FAR = 5.0  # times the median effect, beyond which an effect is out of a zoomed view
_WIDE = 5.0  # times the zoomed view, from which a chart begins with that
#: How numbers are written on hover, and what is said for a field's name.
_FORMS = {"difference": "+.4f", "loss": ".4f", "parameters": ",", "p": ".2~g", "cost": ",.4~r"}
_FORMS |= {"mean": ",.4~f", "low": ",.4~f", "high": ",.4~f", "x": ",.4~g"}
_TITLES = {"p": "p (corrected)", "interval": "difference"}
_DASHES = {"-": [1, 0], "--": [5, 3]}


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    The data stand in the specification's `datasets`, as rows, so that the page can share those of
    several charts. `description` names the chart for those who do not see it.
    """

    spec: Spec
    #: Channels whose axis the reader may make logarithmic.
    log: Sequence[str] = ()


def chart(picture: Picture, description: str) -> Chart:
    """Return the chart of a picture's first panel."""
    made = _chart(picture.panels[0])
    made.spec["description"] = description
    return made


@singledispatch
def _chart(panel: Panel) -> Chart:
    """Return the chart of a panel."""
    raise NotImplementedError


@_chart.register
def _(panel: Dots) -> Chart:
    known = [mark for mark in panel.marks if math.isfinite(mark.at.value)]
    whole = _widened([v for m in known for v in m.at] + [tick.value for tick in panel.ticks])
    near = _near(known)
    domain = _either("zoom", near, whole) if near else list(whole)
    x = _number("difference", panel.x.title, scale={"domain": domain, "nice": False})
    axis = {"grid": True, "ticks": False, "domain": False}
    order = [mark.name for mark in panel.marks]
    y: Spec = {"y": _nominal("variant", scale={"domain": order}, axis=axis)}
    common: Spec = {**y, "tooltip": _told(panel.marks), "opacity": _faded()}
    looks = _by_verdict(panel.marks)
    colour = {"color": looks["color"]}
    layers = [_zero("x")] if panel.x.at == 0 else []
    ends = _span("x", x)
    rule = {"strokeWidth": 2.2, "clip": True}
    layers.append(_layer("rule", rule, [_known("low")], **{**common, **ends, **colour}))
    if panel.ticks:
        told = [{"field": field} for field in ("variant", "run", "seed")]
        told.append(_number("difference", "difference", format=_FORMS["difference"]))
        tick = _layer("tick", {"clip": True, "thickness": 2, "size": 13}, x=x, **y, **colour)
        tick["encoding"] |= {"opacity": _faded(0.6), "tooltip": told}
        layers.append({"data": {"name": "ticks"}, **tick})
    for hollow in sorted({mark.hollow for mark in panel.marks}):
        look: Spec = {"size": 95, "clip": True, "strokeWidth": 2, "filled": not hollow}
        of = [{"filter": f"datum.hollow === {json.dumps(hollow)}"}]
        layers.append(_layer("point", look, of, x=x, **common, **looks))
    if panel.margin:
        layers.insert(0, _band(panel.margin))
    for side, test, at in _beyond(near) if near else ():
        look = {"shape": f"triangle-{side}", "filled": True, "size": 90}
        outside = [{"filter": f"zoom && {test}"}]
        layers.append(_layer("point", look, outside, x={"value": at}, **common, **colour))
    wide = near and whole[1] - whole[0] > _WIDE * (near[1] - near[0])
    params = [_checkbox("zoom", "zoom to small effects", on=bool(wide))] if near else []
    spec = _view(24 * len(order), layers, of="rows", params=params)
    verdicts = {mark.name: mark.verdict for mark in panel.marks}
    ticks = [
        {
            "variant": tick.name,
            "run": tick.run,
            "seed": tick.seed,
            "difference": tick.value,
            "verdict": verdicts.get(tick.name, ""),
        }
        for tick in panel.ticks
    ]
    spec["datasets"] = {"rows": [_row(mark) for mark in panel.marks], "ticks": ticks}
    return Chart(spec)


@_chart.register
def _(panel: Lines) -> Chart:
    means = [point for point in panel.points if not point.part]
    rows = [
        _placed(p.name, p.x, p.at.value, low=p.at.low, high=p.at.high, n=p.n, chosen=p.chosen)
        for p in means
    ]
    form = {"bytes": "~s", "count": "~s"}.get(panel.x.form, "~g")
    x = _number("x", panel.x.title, axis={"format": form})
    if panel.x.log:
        x["scale"] = {"type": "log", "nice": False, "padding": 14}
    y = _number("mean", panel.y.title, scale={"zero": panel.y.at == 0})
    params = []
    if panel.zoom:
        late = max(point.x for point in means) / 2
        values = [(p.x, v) for p in means for v in p.at if math.isfinite(v)]
        values += [(x, tick.value) for x, tick in panel.ticks]
        end, whole = (_widened(v for x, v in values if x >= after) for after in (late, 0))
        y["scale"] = {"domain": _either("zoom", end, whole), "nice": False}
        params = [_checkbox("zoom", "zoom to the end")]
    looks = _by_line(panel.cast, {point.name for point in means})
    colour = {key: value for key, value in looks.items() if key != "strokeDash"}
    ends = _span("y", y)
    clip = {"clip": True}
    layers = [_zero("y")] if panel.y.at == 0 else []
    if not panel.ticks:
        band = {"x": x, **ends, **colour, "opacity": _faded(0.15, 0.02)}
        layers.append(_layer("area", clip, [_known("low")], **band))
    else:
        seeds = _layer(
            "line", {**clip, "strokeWidth": 0.8}, x=x, y=y, **looks, opacity=_faded(0.45, 0.05)
        )
        seeds["encoding"] |= {
            "detail": {"field": "run"},
            "tooltip": [{"field": f} for f in ("variant", "run", "seed")],
        }
        layers.append({"data": {"name": "ticks"}, **seeds})
    layers.append(_layer("line", {**clip, "strokeWidth": 2.4}, x=x, y=y, **looks, opacity=_faded()))
    titles = {"x": panel.x.title, "mean": "mean", "low": "from", "high": "to"}
    numbers = [_number(f, title, format=_FORMS[f]) for f, title in titles.items()]
    told = [{"field": "variant"}, *numbers, {"field": "n"}]
    point = {"x": x, "y": y, **colour, "opacity": _faded(), "tooltip": told}
    layers.append(_layer("point", {**clip, "filled": True, "size": 45}, **point))
    if any(one.chosen for one in means):
        ring = {"size": 190, "strokeWidth": 2}
        layers.append(_layer("point", ring, [{"filter": "datum.chosen"}], **point))
    laws = [
        {"variant": p.name, "part": p.part, "x": p.x, "mean": p.at.value}
        for p in panel.points
        if p.part in LAWS
    ]
    spec = _view(300, layers, of="points", params=params)
    spec["datasets"] = {"points": rows}
    if panel.ticks:
        spec["datasets"]["ticks"] = [
            _placed(tick.name, x, tick.value, run=tick.run, seed=tick.seed)
            for x, tick in panel.ticks
        ]
    if laws:
        dash = {"domain": [*LAWS], "range": [list(dash) for _, dash in LAWS.values()]}
        thin = _layer("line", {"strokeWidth": 1}, x=x, y=y, **colour, opacity=_faded())
        thin["encoding"]["strokeDash"] = _nominal("part", scale=dash, legend=None)
        spec["layer"].append({"data": {"name": "laws"}, **thin})
        spec["datasets"]["laws"] = laws
        spec["resolve"] = {"scale": {"strokeDash": "independent"}}
    return Chart(spec, log=[] if panel.x.log else ["x"])


@_chart.register
def _(panel: Costs) -> Chart:
    rows = [
        _row(mark)
        | {f"{c}{end}": v for c, of in mark.cost.items() for end, v in zip(_ENDS, of, strict=True)}
        for mark in panel.marks
    ]
    titles = {cost: axis.title for cost, axis in panel.costs.items()}
    x = _number("x", " ", scale={"zero": False, "padding": 62}, axis={"format": "~s"})
    y = _number("difference", panel.y.title, scale={"zero": False, "padding": 8})
    at: Spec = {"x": x, "y": y}
    name: Spec = {"text": {"expr": f"({json.dumps(titles)})[cost]"}, "fontSize": 12}
    name |= {"x": {"expr": "width / 2"}, "y": {"expr": "height + 34"}, "color": "currentColor"}
    first: list[Spec] = [{"window": [{"op": "row_number", "as": "k"}]}, {"filter": "datum.k === 1"}]
    line: Spec = {"interpolate": "step-after", "color": "#888888", "opacity": 0.6}
    looks = _by_verdict(panel.marks)
    shared: Spec = {"color": looks["color"], "opacity": _faded(), "tooltip": _told(panel.marks)}
    shared["tooltip"].append(_number("x", "cost", format=_FORMS["cost"]))
    beside = {"dy": -11, "fontSize": 10, "limit": 120}
    lit = [_BEST, {"filter": f"{_ON_FRONTIER} || datum.variant === lit"}]
    ends = _span("y", y)
    measured = _span("x", x, "x_")
    whisker = {"strokeWidth": 2}
    layers = [
        _layer("text", name, first),
        _layer("line", line, [_BEST, {"filter": _ON_FRONTIER}], **at, order={"field": "x"}),
        _layer("rule", whisker, [_known("low")], x=x, **ends, **shared),
        _layer("rule", whisker, [_known("x_low")], y=y, **measured, **shared),
        _layer("point", {"filled": True, "size": 90}, **at, **shared | looks),
        _layer("text", beside, lit, **at, text={"field": "variant"}, opacity=_faded(1.0, 0.0)),
    ]
    spec = _view(320, layers, of="rows", params=[_menu("cost", "cost", titles)])
    spec["transform"] = [
        *({"calculate": f"datum[cost + '{end}']", "as": f"x{end}"} for end in _ENDS),
        _known("x"),
    ]
    spec["datasets"] = {"rows": rows}
    return Chart(spec, log=["x"])


_ENDS = ("", "_low", "_high")
#: The lowest difference up to a cost: what reaches it is on the frontier.
_BEST: Spec = {
    "window": [{"op": "min", "field": "difference", "as": "best"}],
    "sort": [{"field": "x"}, {"field": "difference"}],
    "frame": [None, 0],
}
_ON_FRONTIER = "datum.difference <= datum.best"


def _row(mark: Dot) -> Spec:
    """Return a mark as a row of data."""
    value, low, high = mark.at
    row = {"variant": mark.name, "difference": value, "low": low, "high": high}
    return {**mark.told, **row, "verdict": mark.verdict, "hollow": mark.hollow}


def _placed(name: str, x: float, mean: float, **more: object) -> Spec:
    """Return a value of a line, or of a seed beside it, as a row of data."""
    return {"variant": name, "x": x, "mean": mean, **more}


def _view(height: int, layers: Sequence[Spec], *, of: str, **more: object) -> Spec:
    """Return a specification as wide as its place, of layers that draw the dataset `of`."""
    return {"data": {"name": of}, "width": "container", "height": height, **more, "layer": layers}


def _layer(kind: str, look: Spec, where: Sequence[Spec] = (), **encoding: object) -> Spec:
    """Return a layer of marks of a kind: how they look, which data they draw, and by what."""
    transform = {"transform": list(where)} if where else {}
    return {**transform, "mark": {"type": kind, **look}, "encoding": encoding}


def _number(field: str, title: str = "", **more: object) -> Spec:
    """Return the encoding of a field of numbers."""
    return {"field": field, "type": "quantitative", "title": title or None, **more}


def _nominal(field: str, **more: object) -> Spec:
    """Return the encoding of a field of names."""
    return {"field": field, "type": "nominal", "title": None, **more}


def _span(axis: str, of: Spec, named: str = "") -> Spec:
    """Return the encoding of an interval along an axis, from the field `low` to `high`."""
    return {axis: {**of, "field": f"{named}low"}, f"{axis}2": {"field": f"{named}high"}}


def _known(field: str) -> Spec:
    """Return the filter that leaves out what has no number in a field."""
    return {"filter": f"isValid(datum.{field})"}


def _faded(value: float = 1.0, unlit: float = 0.12) -> Spec:
    """Return an opacity, which is `unlit` for a variant while another one is lit."""
    test = "lit !== '' && datum.variant !== lit"
    return {"condition": {"test": test, "value": unlit}, "value": value}


def _told(marks: Sequence[Dot]) -> list[Spec]:
    """Return the tooltip of a mark."""
    fields = ["variant", *(marks[0].told if marks else ()), "verdict"]
    return [
        {
            "field": field,
            "title": _TITLES.get(field, field),
            **({"type": "quantitative", "format": _FORMS[field]} if field in _FORMS else {}),
        }
        for field in fields
    ]


def _zero(axis: str) -> Spec:
    """Return the line at which there is no difference."""
    other, end = ("y", "height") if axis == "x" else ("x", "width")
    at: Spec = {axis: {"datum": 0, "type": "quantitative"}, other: {"value": 0}}
    mark = _layer("rule", {"color": "currentColor", "opacity": 0.5}, **at)
    mark["encoding"][f"{other}2"] = {"value": {"expr": end}}
    return {"data": {"values": [{}]}, **mark}


def _band(margin: float) -> Spec:
    """Return the band of differences that count as none."""
    x: Spec = {"x": {"datum": -margin, "type": "quantitative"}, "x2": {"datum": margin}}
    y: Spec = {"y": {"value": 0}, "y2": {"value": {"expr": "height"}}}
    look = {"color": "#888888", "opacity": 0.14, "clip": True}
    return {"data": {"values": [{}]}, **_layer("rect", look, **x, **y)}


def _by_verdict(marks: Sequence[Dot]) -> Spec:
    """Return colours and shapes of verdicts, with a legend of those that there are."""
    seen = {mark.verdict for mark in marks}
    legend = {
        "values": [verdict for verdict in VERDICTS if verdict in seen and verdict != "baseline"],
        "orient": "bottom",
        "symbolStrokeWidth": 0,
    }
    ranges = {
        "color": [look.colour for look in VERDICTS.values()],
        "shape": [look.shape for look in VERDICTS.values()],
    }
    return {
        channel: _nominal("verdict", scale={"domain": [*VERDICTS], "range": of}, legend=legend)
        for channel, of in ranges.items()
    }


def _by_line(cast: Cast, drawn: Iterable[str]) -> Spec:
    """Return colours and dashes of lines with a legend; those without a style are grey."""
    named = {name: style for name, style in cast.named.items() if name in {*drawn}}
    ranges: Mapping[str, list[Any]] = {
        "color": [style.colour for style in named.values()],
        "strokeDash": [_DASHES[style.dash] for style in named.values()],
    }
    looks = {
        channel: _nominal(
            "variant", scale={"domain": [*named], "range": of}, legend={"orient": "bottom"}
        )
        for channel, of in ranges.items()
    }
    if not cast.thin:
        return looks
    among = {"test": f"indexof({json.dumps([*named])}, datum.variant) >= 0"}
    grey = {"condition": {**among, **looks["color"]}, "value": "#888888"}
    return {"color": grey, "detail": {"field": "variant"}}


def _checkbox(name: str, label: str, *, on: bool = True) -> Spec:
    """Return a signal that the reader turns on and off."""
    return {"name": name, "value": on, "bind": {"input": "checkbox", "name": label}}


def _menu(name: str, label: str, choices: Mapping[str, str]) -> Spec:
    """Return a signal that the reader chooses from values with their titles."""
    names = {"options": list(choices), "labels": list(choices.values())}
    bind = {"input": "select", "name": label, **names}
    return {"name": name, "value": next(iter(choices)), "bind": bind}


_Ends = tuple[float, float]


def _either(signal: str, a: _Ends, b: _Ends) -> list[Spec]:
    """Return the domain of an axis: one where a checkbox is set, else the other."""
    return [{"expr": f"{signal} ? {x:.6g} : {y:.6g}"} for x, y in zip(a, b, strict=True)]


def _beyond(near: _Ends) -> Iterable[tuple[str, str, object]]:
    """Return on which side what test leaves the axis, and where its arrow stands."""
    yield "left", f"datum.difference < {near[0]}", 5
    yield "right", f"datum.difference > {near[1]}", {"expr": "width - 5"}


def _widened(values: Iterable[float]) -> _Ends:
    """Return the ends of an axis on which all values have room, and 0."""
    values = [0.0, *(value for value in values if math.isfinite(value))]
    more = 0.06 * (max(values) - min(values)) or 1e-3
    return min(values) - more, max(values) + more


def _near(marks: Sequence[Dot]) -> _Ends | None:
    """Return the ends of an axis for the small effects; None where none is far beyond the rest."""
    sizes = [max(abs(end) for end in mark.at if math.isfinite(end)) for mark in marks]
    near = _FAR * float(np.median(sizes)) if sizes else math.nan
    small = [mark for mark, size in zip(marks, sizes, strict=True) if size <= near]
    if not 0 < len(small) < len(marks):
        return None
    return _widened(end for mark in small for end in mark.at)
