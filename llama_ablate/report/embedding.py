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


def charts(made: Sequence[Made[Chart]], runs: Mapping[str, Any]) -> str:
    """Return data, specifications and charts as JSON for the page's script, each of them once.

    `charts` name by chart and by table the place of a specification and those of its `data`; `runs`
    stand as they are given.
    """
    data: dict[str, int] = {}
    specs: dict[str, int] = {}
    places: dict[str, dict[str, Any]] = {}
    for one in made:
        spec = dict(one.part.spec)
        named = {
            name: data.setdefault(
                to_json([{k: plain(v) for k, v in row.items()} for row in values]), len(data)
            )
            for name, values in spec.pop("datasets", {}).items()
        }
        at = specs.setdefault(to_json(spec), len(specs))
        place = {"spec": at, "data": named, "log": list(one.part.log)}
        places.setdefault(one.name, {})[one.table] = place
    shared = f'"data":[{",".join(data)}],"specs":[{",".join(specs)}]'
    return f'{{{shared},"charts":{to_json(places)},"runs":{to_json(runs)}}}'


def to_json(values: Any) -> str:
    """Write JSON without spaces."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def plain(value: Any, digits: int = _DIGITS) -> Any:
    """Return a value as JSON has it: a number rounded, and none where it is not finite."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded
