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
_PLACES = re.compile(r'(?:translate\(| d=")[^")]*')
_PLAIN = " !$'()*+,-./:;=?@[]_{|}~^`"  # what an address in double quotes may hold as it is


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

    What repeats stands once under a short name: a style is a class, and ids are numbered. Places
    have three decimals; the scale of letters, 0.015625, stays whole, or they would be too large.
    """
    short = " ".join(_UNSEEN.sub("", svg).split()).replace("> <", "><")
    ids, styles = (_numbered(re.findall(f' {key}="([^"]*)"', short)) for key in ("id", "style"))
    short = re.sub(r'(#| id=")([^")]+)', lambda m: m[1] + ids.get(m[2], m[2]), short)
    short = re.sub(r' style="([^"]*)"', lambda m: f' class="{styles[m[1]]}"', short)
    rules = "".join(f".{name}{{{style}}}" for style, name in styles.items())
    short = re.sub("(<svg[^>]*>)", rf"\1<style>{rules}</style>", short, count=1)
    short = _PLACES.sub(lambda m: re.sub(r"(\.\d{3})\d+", r"\1", m[0]), short)
    return "data:image/svg+xml," + quote(short.replace('"', "'"), safe=_PLAIN)


def _numbered(texts: Iterable[str]) -> dict[str, str]:
    return {text: f"a{at}" for at, text in enumerate(dict.fromkeys(texts))}


def charts(made: Sequence[Made[Chart]], runs: Mapping[str, object]) -> str:
    """Return charts as JSON for the page's script, by name and table, and `runs` as they are."""
    places: dict[str, dict[str, Any]] = {}
    for one in made:
        spec = dict(one.part.spec)
        data = {
            name: [{key: plain(value) for key, value in row.items()} for row in values]
            for name, values in spec.pop("datasets", {}).items()
        }
        chart = {"spec": spec, "data": data, "log": list(one.part.log)}
        places.setdefault(one.name, {})[one.table] = chart
    return to_json({"charts": places, "runs": runs})


def to_json(values: object) -> str:
    """Write JSON without spaces."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def plain(value: object, digits: int = _DIGITS) -> object:
    """Return a value as JSON has it: a number rounded, and none where it is not finite."""
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded
