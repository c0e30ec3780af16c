"""What the page holds in itself: data of charts as JSON, images as addresses, and its policy."""

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from llama_ablate.report.charts import Chart
from llama_ablate.report.parts import Made

_DIGITS = 6  # of a number that a chart draws
_UNSEEN = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->|<\?xml.*?\?>|<!DOCTYPE.*?>", re.DOTALL)
_PLAIN = " !$&'()*+,-./:;=?@[]_{|}~^`"  # what an address in double quotes may hold as it is


def policy(style: str, scripts: Iterable[str]) -> str:
    """Return a content security policy under which a page runs and shows what is in it alone."""

    def hashes(texts: Iterable[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        named = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
        return named or "'none'"

    return (
        f"default-src 'none'; img-src data:; style-src {hashes([style])}; "
        f"script-src {hashes(scripts)}; base-uri 'none'; form-action 'none'"
    )


def packed(text: str) -> str:
    """Return a text compressed by gzip, in base64: a third of its size."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def image(svg: str) -> str:
    """Return the address of an SVG image that is the image itself, without what is not drawn.

    Numbers stay as they are: rounded, coordinates would save a twentieth, and letters, which
    matplotlib scales by 0.015625, would be wrong.
    """
    short = " ".join(_UNSEEN.sub("", svg).split()).replace("> <", "><").replace('"', "'")
    return "data:image/svg+xml," + quote(short, safe=_PLAIN)


def charts(made: Sequence[Made[Chart]]) -> str:
    """Return data, specifications and charts as JSON for the page's script, each of them once.

    `data` are columns, in which a text that repeats stands once; `charts` name by chart and by
    table the place of a specification and those of its data.
    """
    data: dict[str, int] = {}
    specs: dict[str, int] = {}
    places: dict[str, dict[str, Any]] = {}
    for one in made:
        spec = dict(one.part.spec)
        named = {
            name: data.setdefault(to_json(_columns(values)), len(data))
            for name, values in spec.pop("datasets", {}).items()
        }
        at = specs.setdefault(to_json(spec), len(specs))
        place = {"spec": at, "data": named, "log": list(one.part.log)}
        places.setdefault(one.name, {})[one.table] = place
    return f'{{"data":[{",".join(data)}],"specs":[{",".join(specs)}],"charts":{to_json(places)}}}'


def to_json(values: Any) -> str:
    """Write JSON that ends no script: `<` is spelled out."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _columns(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(values[0]) if values else []
    return {"n": len(values), "columns": {k: _column([row[k] for row in values]) for k in names}}


def _column(values: Sequence[Any]) -> Any:
    """Return a column of plain values: each text once where any repeats, numbers rounded."""
    values = [_plain(value) for value in values]
    texts = list(dict.fromkeys(values))
    if all(isinstance(text, str) for text in texts) and len(texts) < len(values):
        places = {text: place for place, text in enumerate(texts)}
        return {"texts": texts, "of": [places[value] for value in values]}
    return values


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a number rounded, and none where it is not finite."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
