"""Jinja templates of a report: the page, notes, captions and a paper's set-up."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from llama_ablate.evidence.written import count, size
from llama_ablate.terminal import listed, plural


@cache
def environment(*, html: bool) -> jinja2.Environment:
    """Return the environment of this package's templates.

    With `html`, inserted values are escaped.
    """
    loader = jinja2.PackageLoader("llama_ablate.report", "")
    strict: dict[str, Any] = {"undefined": jinja2.StrictUndefined, "trim_blocks": html}
    templates = jinja2.Environment(loader=loader, autoescape=html, **strict)  # noqa: S701 - by `html`
    templates.filters |= {"prose": write_prose, "listed": listed, "plural": plural}
    templates.filters |= {"count": count, "size": size}
    return templates


def write_block(template: str, block: str, values: Mapping[str, Any]) -> str:
    """Return the text of a block of a template in one line."""
    source = environment(html=False).get_template(template)
    pieces = source.blocks[block](source.new_context(dict(values)))
    return " ".join("".join(pieces).split())


def write_prose(text: str) -> Markup:
    """Convert text to HTML, with text in backticks as code elements."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 escaped


def packaged(name: str) -> str:
    """Return the text of a data file in this package."""
    return resources.files("llama_ablate.report").joinpath(name).read_text("utf-8")
