"""What the page's interactive charts are made of: parts of specifications.

A chart is a Vega-Lite specification (Satyanarayan et al. 2017, "Vega-Lite: A Grammar of Interactive
Graphics"), drawn by the page's own script.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Spec = dict[str, Any]
Row = Mapping[str, Any]
#: The two ends of an axis.
Ends = tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """A chart of the page; its maker's docstring is the caption.

    The data stand in the specification's `datasets`, as rows, so that the page can share those of
    several charts. `description` names the chart for those who do not see it. The page adds the
    signal `lit`: the variant that the reader chose, or "".
    """

    spec: Spec
    #: The section beside which it stands.
    section: str = ""
    #: The static figures that stand for it where scripts are off.
    figures: Sequence[str] = ()
    #: Channels whose axis the reader may make logarithmic.
    log: Sequence[str] = ()


#: Each verdict's colour (Okabe & Ito 2008, Color Universal Design) and shape: better and worse
#: point to their side of the line.
VERDICTS = {
    "better": ("#0072b2", "triangle-left"),
    "worse": ("#d55e00", "triangle-right"),
    "equivalent": ("#009e73", "square"),
    "inconclusive": ("#808080", "circle"),
    "too short": ("#808080", "triangle-up"),
    "diverged": ("#cc79a7", "cross"),
    "collapsed": ("#e69f00", "triangle-down"),
    "failed": ("#707070", "cross"),
    "pending": ("#a0a0a0", "diamond"),
    "baseline": ("#808080", "circle"),
}
#: Colours of variants; beyond them the same ones dashed, and beyond that all are grey.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#808080")
_DASHES = ([1, 0], [5, 3])
_FAR = 5.0  # times the median effect, beyond which an effect is out of a zoomed view
_WIDE = 5.0  # times the zoomed view, from which a chart begins with that
#: How numbers are written on hover, and what is said for a field's name.
_FORMS = {"difference": "+.4f", "loss": ".4f", "mean loss": ".4f", "parameters": ",", "p": ".2~g"}
_FORMS |= {"without": "+.4f", "with": "+.4f", "cost": ",.4~r"}
_TITLES = {"p": "p (corrected)", "interval": "difference"}

#: What is told of a variant on hover.
OF_VARIANT = ("variant", "n", "loss", "interval", "p", "verdict", "parameters", "speed")


def view(height: int, layers: Sequence[Spec], *, of: str, **more: Any) -> Spec:
    """Return a specification as wide as its place, of layers that draw the dataset `of`."""
    return {"data": {"name": of}, "width": "container", "height": height, **more, "layer": layers}


def layer(kind: str, look: Spec | None = None, where: Sequence[Spec] = (), **encoding: Any) -> Spec:
    """Return a layer of marks of a kind: how they look, which data they draw, and by what."""
    transform = {"transform": list(where)} if where else {}
    return {**transform, "mark": {"type": kind, **(look or {})}, "encoding": encoding}


def number(field: str, title: str = "", **more: Any) -> Spec:
    """Return the encoding of a field of numbers."""
    return {"field": field, "type": "quantitative", "title": title or None, **more}


def logarithmic(field: str, title: str, form: str = "~s") -> Spec:
    """Return the encoding of a field of numbers along a logarithmic axis."""
    scale = {"type": "log", "nice": False, "padding": 14}
    return number(field, title, scale=scale, axis={"format": form})


def lines_of(order: Sequence[str], field: str = "variant") -> Spec:
    """Return the encoding of names, a line of the chart each."""
    axis = {"grid": True, "ticks": False, "domain": False}
    scale = {"domain": list(order)}
    return {"field": field, "type": "nominal", "title": None, "scale": scale, "axis": axis}


def known(field: str) -> Spec:
    """Return the filter that leaves out what has no number in a field."""
    return {"filter": f"isValid(datum.{field})"}


def faded(value: float = 1.0, unlit: float = 0.12) -> Spec:
    """Return an opacity, which is `unlit` for a variant while another one is lit."""
    test = "lit !== '' && datum.variant !== lit"
    return {"condition": {"test": test, "value": unlit}, "value": value}


def told(*fields: str) -> list[Spec]:
    """Return what is told of a mark on hover."""
    return [
        {
            "field": field,
            "title": _TITLES.get(field, field),
            **({"type": "quantitative", "format": _FORMS[field]} if field in _FORMS else {}),
        }
        for field in fields
    ]


def zero(axis: str) -> Spec:
    """Return the line at which there is no difference."""
    other, end = ("y", "height") if axis == "x" else ("x", "width")
    at: Spec = {axis: {"datum": 0, "type": "quantitative"}, other: {"value": 0}}
    mark = layer("rule", {"color": "currentColor", "opacity": 0.5}, **at)
    mark["encoding"][f"{other}2"] = {"value": {"expr": end}}
    return {"data": {"values": [{}]}, **mark}


def by_verdict(shown: Sequence[Row]) -> Spec:
    """Return colours and shapes of verdicts, with a legend of those that there are."""
    seen = {row["verdict"] for row in shown}
    named = [verdict for verdict in VERDICTS if verdict in seen and verdict != "baseline"]
    return {
        channel: {
            "field": "verdict",
            "type": "nominal",
            "title": None,
            "scale": {"domain": list(VERDICTS), "range": [look[at] for look in VERDICTS.values()]},
            "legend": {"values": named, "orient": "bottom", "symbolStrokeWidth": 0},
        }
        for at, channel in enumerate(("color", "shape"))
    }


def coloured(shown: Sequence[Row]) -> Spec:
    """Return colours of verdicts alone, with the same legend: all layers of a chart need it."""
    return {"color": by_verdict(shown)["color"]}


def by_variant(order: Sequence[str], few: Sequence[str] = ()) -> Spec:
    """Return colours and dashes of variants.

    Of more than there are, those of `few` have colours, the others are grey.
    """
    if len(order) > len(_COLOURS) * len(_DASHES):
        named = {"test": among(few), **_nominal(few, _COLOURS[: len(few)])}
        grey = {"condition": named, "value": "#888888"}
        return {"color": grey if few else {"value": "#888888"}, "detail": {"field": "variant"}}
    places = [divmod(n, len(_COLOURS)) for n in range(len(order))]
    ranges: dict[str, list[Any]] = {
        "color": [_COLOURS[place] for _turn, place in places],
        "strokeDash": [_DASHES[turn] for turn, _place in places],
    }
    return {channel: _nominal(order, values) for channel, values in ranges.items()}


def among(few: Sequence[str]) -> str:
    """Return the expression that a row is of one of some variants."""
    return f"indexof({json.dumps(list(few))}, datum.variant) >= 0"


def _nominal(order: Sequence[str], values: Sequence[Any]) -> Spec:
    """Return the encoding of variants by values of a channel, with a legend."""
    return {
        "field": "variant",
        "type": "nominal",
        "title": None,
        "legend": {"orient": "bottom"},
        "scale": {"domain": list(order), "range": list(values)},
    }


def intervals(order: Sequence[str], shown: Sequence[Row], seeds: Sequence[Row], **of: Any) -> Spec:
    """Return a chart of the dataset `rows`: means with intervals, a line each, and a tick a seed.

    `of` has the axis' `title`, the `margin` or None, and what is `told` on hover.
    """
    whole, near = limits([*shown, *seeds]), _zoom(shown)
    domain = either("zoom", near, whole) if near else list(whole)
    x: Spec = number("difference", of["title"], scale={"domain": domain, "nice": False})
    y: Spec = {"y": lines_of(order)}
    common: Spec = {**y, "tooltip": told(*of["told"]), "opacity": faded()}
    colour = coloured(shown)
    mean = {"filled": True, "size": 95, "clip": True}
    tick = {"clip": True, "thickness": 2, "size": 13}
    layers = [
        zero("x"),
        layer(
            "rule",
            {"strokeWidth": 2.2, "clip": True},
            [known("low")],
            **{**common, "x": {**x, "field": "low"}, "x2": {"field": "high"}, **colour},
        ),
        {
            "data": {"name": "by_seed"},
            **layer("tick", tick, x=x, **y, **colour, opacity=faded(0.6)),
        },
        layer("point", mean, x=x, **common, **by_verdict(shown)),
    ]
    layers[2]["encoding"]["tooltip"] = told("variant", "run", "seed", "difference")
    if not seeds:
        del layers[2]
    if of["margin"]:
        layers.insert(0, _band(of["margin"]))
    for side, test, at in _beyond(near) if near else ():
        look = {"shape": f"triangle-{side}", "filled": True, "size": 90}
        outside = [{"filter": f"zoom && {test}"}]
        layers.append(layer("point", look, outside, x={"value": at}, **common, **colour))
    wide = near and whole[1] - whole[0] > _WIDE * (near[1] - near[0])
    params = [checkbox("zoom", "zoom to small effects", on=bool(wide))] if near else []
    only = [{"filter": {"field": "variant", "oneOf": list(order)}}]
    return view(24 * len(order), layers, of="rows", params=params, transform=only)


def _beyond(near: Ends) -> Iterable[tuple[str, str, Any]]:
    """Return on which side what test leaves the axis, and where its arrow stands."""
    yield "left", f"datum.difference < {near[0]}", 5
    yield "right", f"datum.difference > {near[1]}", {"expr": "width - 5"}


def _band(margin: float) -> Spec:
    """Return the band of differences that count as none."""
    x: Spec = {"x": {"datum": -margin, "type": "quantitative"}, "x2": {"datum": margin}}
    y: Spec = {"y": {"value": 0}, "y2": {"value": {"expr": "height"}}}
    return {
        "data": {"values": [{}]},
        **layer("rect", {"color": "#888888", "opacity": 0.14, "clip": True}, **x, **y),
    }


def of_means(points: Sequence[Row], x: Spec, title: str) -> Spec:
    """Return a chart of means over seeds with their 95% intervals as bands.

    `points` become its dataset of that name: rows of `variant, loss, low, high, n` and the field
    of `x`, as `drawing.over_seeds` takes them.
    """
    named = by_variant(list(dict.fromkeys(point["variant"] for point in points)))
    colour: Spec = {key: value for key, value in named.items() if key != "strokeDash"}
    mean: Spec = {"x": x, "y": number("loss", title, scale={"zero": False}), "opacity": faded()}
    ends: Spec = {"y": number("low", title, scale={"zero": False}), "y2": {"field": "high"}}
    hover: list[Spec] = [
        {"field": "variant"},
        number(x["field"], x["title"], format=",.4~g"),
        {"field": "loss", "format": ".4f", "title": "mean loss"},
        {"field": "low", "format": ".4f", "title": "interval from"},
        {"field": "high", "format": ".4f", "title": "to"},
        {"field": "n"},
    ]
    point = layer("point", {"filled": True, "size": 55}, **mean, **colour)
    point["encoding"]["tooltip"] = hover
    layers = [
        layer("area", {}, x=x, **ends, **colour, opacity=faded(0.15, 0.02)),
        layer("line", {}, **mean, **named),
        point,
    ]
    return view(300, layers, of="points", datasets={"points": points})


def checkbox(name: str, label: str, *, on: bool = True) -> Spec:
    """Return a signal that the reader turns on and off."""
    return {"name": name, "value": on, "bind": {"input": "checkbox", "name": label}}


def menu(name: str, label: str, choices: Mapping[str, str]) -> Spec:
    """Return a signal that the reader chooses from values with their titles."""
    names = {"options": list(choices), "labels": list(choices.values())}
    bind = {"input": "select", "name": label, **names}
    return {"name": name, "value": next(iter(choices)), "bind": bind}


def either(signal: str, a: Ends, b: Ends) -> list[Spec]:
    """Return the domain of an axis: one where a checkbox is set, else the other."""
    return [{"expr": f"{signal} ? {x:.6g} : {y:.6g}"} for x, y in zip(a, b, strict=True)]


def limits(shown: Sequence[Row]) -> Ends:
    """Return the ends of an axis on which all differences and intervals have room, and 0."""
    return widened([value for row in shown for value in _extremes(row)])


def widened(values: Iterable[float]) -> Ends:
    """Return the ends of an axis on which all values have room, and 0."""
    values = [0.0, *values]
    more = 0.06 * (max(values) - min(values)) or 1e-3
    return min(values) - more, max(values) + more


def _extremes(row: Row) -> list[float]:
    ends = (row.get(key, math.nan) for key in ("difference", "low", "high"))
    return [value for value in ends if math.isfinite(value)]


def _zoom(shown: Sequence[Row]) -> Ends | None:
    """Return the ends of an axis for the small effects; None where none is far beyond the rest."""
    sizes = {n: max(map(abs, of)) for n, row in enumerate(shown) if (of := _extremes(row))}
    near = _FAR * float(np.median(list(sizes.values()))) if sizes else math.nan
    small = [shown[n] for n, size in sizes.items() if size <= near]
    return limits(small) if 0 < len(small) < len(sizes) else None
