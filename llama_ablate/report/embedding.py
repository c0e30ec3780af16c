"""SVG pictures inside an HTML page, rewritten from matplotlib's files.

The page's content security policy blocks `style` attributes, and `<style>` elements without a known
hash. All pictures of a page share one namespace of ids. So each picture is rewritten:

- style declarations become presentation attributes (`fill="#0072b2"`), which no policy blocks. Any
  rule of the page's style sheet overrides them, so that dark mode needs no classes, only rules such
  as `svg [fill="#262626"] { fill: var(--ink) }`, while a saved file keeps its colours;
- referenced ids get short names that are unique in the page; other ids are removed;
- the outlines of letters are shared by all pictures of the page, in `Sheet.letters`;
- coordinates keep one or two decimals, and paths are written in relative coordinates;
- an artist's `gid` becomes attributes and a `<title>`, which browsers show on hover.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from xml.etree import ElementTree as ET

import numpy as np

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
#: Style properties that are also SVG attributes, with words or with numbers as values.
_WORDS = {
    *("fill", "stroke", "fill-rule", "stroke-linecap", "stroke-linejoin", "stroke-dasharray"),
    *("clip-path", "image-rendering"),
}
_NUMBERS = {
    *("opacity", "fill-opacity", "stroke-opacity", "stroke-width", "stroke-dashoffset"),
    "stroke-miterlimit",
}
#: Properties that the elements of an SVG group inherit from the group.
_INHERITED = (_WORDS | _NUMBERS) - {"opacity", "clip-path"}
_PLACES = ("x", "y", "width", "height")
_MOVE = re.compile(r"translate\(([-\d.e]+)[ ,]+([-\d.e]+)\)")
_COMMAND = re.compile(r"([MLQCZz])([^MLQCZz]*)")
_POINTS = {"M": 1, "L": 1, "Q": 2, "C": 3}  # points of each path command
#: Substitutions that shorten numbers. They remove zeros at the end of decimals, points without
#: decimals, zeros before a point, the sign of 0, and spaces before a minus sign.
_SHORTER = [
    (re.compile(pattern), short)
    for pattern, short in (
        (r"(\.\d*?)0+ ", r"\1 "),
        (r"\. ", " "),
        (r"(?<!\d)0\.", "."),
        (r"-0 ", "0 "),
        (r" -", "-"),
    )
]
#: Attributes of elements, by the gid of the artist that drew each.
About = Mapping[str, Mapping[str, str]]


def policy(style: str, scripts: Iterable[str]) -> str:
    """Return a content security policy that allows only a page's own contents."""

    def hash_all(texts: Iterable[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        named = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
        return named or "'none'"

    return (
        f"default-src 'none'; img-src data:; style-src {hash_all([style])}; "
        f"script-src {hash_all(scripts)}; base-uri 'none'; form-action 'none'"
    )


def pack(text: str) -> str:
    """Compress a text with gzip, and encode it in base64."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


class Sheet:
    """Shared ids and glyphs of all SVG pictures of an HTML page."""

    def __init__(self) -> None:
        self._letters: dict[tuple[str, str], str] = {}  # ids by transform and outline
        self._pictures = 0

    def add(self, svg: bytes, about: About, label: str, digits: int = 1, **attributes: str) -> str:
        """Return a matplotlib SVG as an element of the page, with further `attributes`.

        Coordinates are rounded to `digits` decimals. `about` holds attributes by gid, including the
        hover text `title`. `label` is the text for screen readers. Raises ValueError for a style
        property that has no SVG attribute.
        """
        root = ET.fromstring(svg)  # noqa: S314 - matplotlib has just written it
        for element in root.iter():
            element.tag = element.tag.removeprefix(_SVG)
            element.text = element.tail = None
            element.attrib = _read_attributes(element)
        for parent in [*root.iter()]:
            for child in [*parent]:
                if child.tag in ("metadata", "style") or (
                    child.tag == "path" and _is_unseen(child)
                ):
                    parent.remove(child)
        self._rename(root, about)
        for element in root.iter():
            _round_places(element, digits)
        _flatten(root)
        view_box = _join(map(float, root.attrib["viewBox"].split()), 1)
        # Replaces the rounded line joins of matplotlib's style sheet, which was removed.
        svg_attributes = {"viewBox": view_box, "role": "img", "aria-label": label}
        root.attrib = svg_attributes | {"stroke-linejoin": "round"} | attributes
        return ET.tostring(root, encoding="unicode").replace(" />", "/>")

    @property
    def letters(self) -> str:
        """Glyphs of all pictures added so far, as a hidden element."""
        paths = "".join(
            f'<path id="{name}" transform="{transform}" d="{path}"/>'
            for (transform, path), name in self._letters.items()
        )
        return f'<svg hidden="" id="letters"><defs>{paths}</defs></svg>'

    def _rename(self, root: ET.Element, about: About) -> None:
        """Give referenced ids unique short names, and replace the gids in `about` by attributes."""
        names = self._share_letters(root)
        prefix, self._pictures = f"p{self._pictures}", self._pictures + 1
        for element in root.iter():
            for key, value in element.attrib.items():
                if value.startswith("url(#") or (key == "href" and value.startswith("#")):
                    before, _, target = value.rstrip(")").partition("#")
                    name = names.setdefault(target, f"{prefix}-{len(names)}")
                    element.set(key, f"{before}#{name}" + ")" * value.endswith(")"))
        for element in root.iter():
            identifier = element.attrib.pop("id", "")
            if identifier in names:
                element.set("id", names[identifier])
            elif identifier in about:
                attributes = dict(about[identifier])
                if text := attributes.pop("title", ""):
                    title = ET.Element("title")
                    title.text = text
                    element.insert(0, title)
                element.attrib |= attributes

    def _share_letters(self, root: ET.Element) -> dict[str, str]:
        """Move a picture's glyphs to the page; return new ids by old ids."""
        names = {}
        for parent in root.iter():
            for defs in parent.findall("defs"):
                for path in defs.findall("path"):
                    transform = path.get("transform", "")
                    if transform.startswith("scale("):
                        outline = (transform, write_steps(path.get("d", ""), 0))
                        name = self._letters.setdefault(outline, f"l{len(self._letters)}")
                        names[path.get("id", "")] = name
                        defs.remove(path)
        return names


def write_steps(path: str, digits: int = 1) -> str:
    """Convert an SVG path to relative coordinates, rounded without accumulating errors."""
    point = start = np.zeros(2)
    steps, last = "", ""
    for command, numbers in _join_commands(path):
        if command == "z":
            steps, point, last = f"{steps}z", start, "z"
            continue
        # All points of a curve are relative to its start.
        points = np.rint(np.array(numbers, float) * 10**digits).reshape(-1, _POINTS[command], 2)
        begins = np.concatenate([point[None], points[:-1, -1]])
        moves = points - begins[:, None]
        joined = _join((moves.ravel() / 10**digits).tolist(), digits)
        # The letter of a line command may be left out after a move.
        is_on = command == "L" and last == "M"
        steps += command.lower() * (not is_on) + " " * (is_on and joined[0] != "-") + joined
        point, last = points[-1, -1], command
        start = points[0, 0] if command == "M" else start
    return steps


def _join_commands(path: str) -> list[tuple[str, list[str]]]:
    """Parse an SVG path into commands with their numbers; join repeated commands."""
    joined: list[tuple[str, list[str]]] = []
    for command, text in _COMMAND.findall(path):
        if command in "Zz":
            joined.append(("z", []))
        elif joined and joined[-1][0] == command != "M":
            joined[-1][1].extend(text.split())
        else:
            joined.append((command, text.split()))
    return joined


def _join(numbers: Iterable[float], digits: int) -> str:
    """Format numbers for SVG as shortly as possible, with at most `digits` decimals."""
    each = tuple(numbers)
    text = f"%.{digits}f " * len(each) % each
    for pattern, short in _SHORTER if digits else _SHORTER[-2:]:
        text = pattern.sub(short, text)
    return text.strip()


def _read_attributes(element: ET.Element) -> dict[str, str]:
    """Return an element's attributes, with its style converted to attributes."""
    attributes = {}
    for key, value in element.attrib.items():
        if key == "style":
            for declaration in filter(str.strip, value.split(";")):
                name, text = _turn_into_attribute(declaration)
                attributes[name] = text
        elif key != "type":
            attributes[key.removeprefix(_XLINK)] = value
    return attributes


@cache
def _turn_into_attribute(declaration: str) -> tuple[str, str]:
    """Convert a style declaration to an attribute's name and value.

    Raises ValueError for a property that has no attribute.
    """
    key, _, value = map(str.strip, declaration.partition(":"))
    if key in _NUMBERS:
        return key, _join([float(value)], 2)
    if key not in _WORDS:
        raise ValueError(f"no attribute for '{declaration.strip()}'")
    return key, value


def _is_unseen(path: ET.Element) -> bool:
    """Return whether a path is invisible: transparent, or without fill and stroke."""
    is_bare = path.get("fill") == "none" and path.get("stroke", "none") == "none"
    return is_bare or path.get("opacity") == "0"


def _round_places(element: ET.Element, digits: int) -> None:
    """Round the coordinates of an element, except for the scale factors of glyphs."""
    for key, value in element.attrib.items():
        if key == "d":
            element.set(key, write_steps(value, digits))
        elif key in _PLACES and element.tag != "svg":
            element.set(key, _join([float(value)], digits))
    if move := _MOVE.match(element.get("transform", "")):
        x, y = _join([float(move[1])], digits), _join([float(move[2])], digits)
        rest = move.string[move.end() :]
        if element.tag == "use" and not rest and "x" not in element.attrib:
            del element.attrib["transform"]
            element.attrib |= {"x": x, "y": y} if y != "0" else {"x": x}
        else:
            element.set("transform", f"translate({x} {y}){rest}")


def _flatten(element: ET.Element) -> None:
    """Move attributes that all elements of a group share to the group, recursively.

    Empty groups are removed, and groups without attributes are replaced by their elements.
    """
    children: list[ET.Element] = []
    for child in element:
        if len(child):
            _flatten(child)
        children += _replace_group(child) if child.tag in ("g", "defs") else [child]
    element[:] = children
    shapes = [child for child in element if child.tag not in ("defs", "title")]
    if element.tag == "g" and len(shapes) > 1:
        for key in sorted(_INHERITED & shapes[0].attrib.keys()):
            values = [child.get(key) for child in shapes]
            if values.count(values[0]) == len(values):
                element.set(key, values[0] or "")
                for child in shapes:
                    del child.attrib[key]


def _replace_group(group: ET.Element) -> list[ET.Element]:
    """Return the elements that replace a group: itself, its elements, or its only path.

    A group without attributes is dropped, and the attributes of a group with a single path are
    moved to the path. A group with a `use` element (a marker) is kept: the element's position would
    also move the group's clip path.
    """
    if not len(group):
        return []
    if group.tag == "g" and not group.attrib:
        return [*group]
    *titles, last = group
    is_alone = last.tag == "path" and all(child.tag == "title" for child in titles)
    if group.tag == "g" and is_alone and "transform" not in last.attrib:
        last.attrib = {**group.attrib, **last.attrib}
        last[:] = titles
        return [last]
    return [group]
