"""SVG inside an HTML page, rewritten from matplotlib's files.

The page's policy refuses `style` attributes and `<style>` elements that it has no hash of, and all
pictures of a page share one space of ids. So each picture is rewritten once:

- a style becomes presentation attributes (`fill="#0072b2"`), which no policy refuses. Any rule of
  the page's style sheet is stronger than they are, so dark mode needs no classes:
  `svg [fill="#262626"] { fill: var(--ink) }` does it, and a saved file keeps its own colours;
- ids that something refers to get short names that are unique in the page; all others go;
- the outlines of letters stand once in the page, in `Sheet.letters`;
- places keep one decimal or two, and paths are written in steps from point to point;
- an artist's `gid` becomes attributes and a `<title>`, which browsers show on hover.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from xml.etree import ElementTree as ET

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
#: Properties of a style that may stand as attributes: words, and numbers.
_WORDS = {
    *("fill", "stroke", "fill-rule", "stroke-linecap", "stroke-linejoin", "stroke-dasharray"),
    *("clip-path", "image-rendering"),
}
_NUMBERS = {
    *("opacity", "fill-opacity", "stroke-opacity", "stroke-width", "stroke-dashoffset"),
    "stroke-miterlimit",
}
#: Properties that a group hands on to what stands in it.
_INHERITED = sorted((_WORDS | _NUMBERS) - {"opacity", "clip-path"})
_PLACES = ("x", "y", "width", "height")
_MOVE = re.compile(r"translate\(([-\d.e]+)[ ,]+([-\d.e]+)\)")
_TARGET = re.compile(r"#([^)\"]+)")
#: Attributes of elements, by the gid of the artist that drew each.
About = Mapping[str, Mapping[str, str]]


def policy(style: str, scripts: Iterable[str]) -> str:
    """Return a content security policy that allows a page its own contents alone."""

    def hash_all(texts: Iterable[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        named = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
        return named or "'none'"

    return (
        f"default-src 'none'; img-src data:; style-src {hash_all([style])}; "
        f"script-src {hash_all(scripts)}; base-uri 'none'; form-action 'none'"
    )


def pack(text: str) -> str:
    """Return a text compressed by gzip, in base64."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


class Sheet:
    """Pictures of one page, and the letters that they share."""

    def __init__(self) -> None:
        self._letters: dict[tuple[str, str], str] = {}  # ids by transform and outline
        self._pictures = 0

    def add(self, svg: bytes, about: About, label: str, digits: int = 1, **attributes: str) -> str:
        """Rewrite a picture as an element of the page, with further attributes.

        Places have so many `digits` behind the point. `about` holds attributes by gid, `title`
        among them. `label` is read out to those who do not see the picture. Raises ValueError for a
        style that has no attribute.
        """
        root = ET.fromstring(svg)  # noqa: S314 - matplotlib has just written it
        for element in root.iter():
            element.tag = element.tag.removeprefix(_SVG)
            element.text = element.tail = None
            element.attrib = dict(_read_attributes(element))
        for parent in [*root.iter()]:
            for child in [*parent]:
                if child.tag in ("metadata", "style") or _is_unseen(child):
                    parent.remove(child)
        self._rename(root, about)
        for element in root.iter():
            _round_places(element, digits)
        _flatten(root)
        view_box = " ".join(_write_decimal(float(n), 1) for n in root.attrib["viewBox"].split())
        # Matplotlib's style sheet rounds the joins of lines; as an attribute no policy refuses it.
        drawn = {"viewBox": view_box, "role": "img", "aria-label": label}
        root.attrib = drawn | {"stroke-linejoin": "round"} | attributes
        return ET.tostring(root, encoding="unicode").replace(" />", "/>")

    @property
    def letters(self) -> str:
        """The letters of all pictures added so far, as an element that shows nothing."""
        paths = "".join(
            f'<path id="{name}" transform="{transform}" d="{path}"/>'
            for (transform, path), name in self._letters.items()
        )
        return f'<svg hidden="" id="letters"><defs>{paths}</defs></svg>'

    def _rename(self, root: ET.Element, about: About) -> None:
        """Rename the ids that are referred to, and replace gids by attributes."""
        names = self._share_letters(root)
        prefix, self._pictures = f"p{self._pictures}", self._pictures + 1
        for element in root.iter():
            for key, value in element.attrib.items():
                if value.startswith("url(#") or (key == "href" and value.startswith("#")):
                    for target in _TARGET.findall(value):
                        names.setdefault(target, f"{prefix}-{len(names)}")
                    element.set(key, _TARGET.sub(lambda match: f"#{names[match[1]]}", value))
        for element in root.iter():
            own = element.attrib.pop("id", "")
            if own in names:
                element.set("id", names[own])
            elif own in about:
                attributes = dict(about[own])
                if text := attributes.pop("title", ""):
                    title = ET.Element("title")
                    title.text = text
                    element.insert(0, title)
                element.attrib |= attributes

    def _share_letters(self, root: ET.Element) -> dict[str, str]:
        """Take the letters out of a picture; return their ids in the page by those they had."""
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
    """Write a path in steps from point to point, rounded so that no error adds up."""
    point = start = (0, 0)
    steps, last = "", ""
    for command, numbers in re.findall(r"([MLQCZz])([^MLQCZz]*)", path):
        if command in "Zz":
            steps, point, last = f"{steps}z", start, "z"
            continue
        whole = [round(float(number) * 10**digits) for number in numbers.split()]
        points = [*zip(whole[::2], whole[1::2], strict=True)]
        moves = [number for x, y in points for number in (x - point[0], y - point[1])]
        texts = [_write_decimal(number / 10**digits, digits) for number in moves]
        joined = "".join(text if text.startswith("-") else f" {text}" for text in texts)
        # A line goes on after a move, and a command after itself, without its letter.
        repeats = command == "L" if last == "M" else command == last
        steps += joined if repeats else command.lower() + joined.lstrip()
        point, last = points[-1], command
        start = point if command == "M" else start
    return steps


def _write_decimal(number: float, digits: int) -> str:
    """Write a number with so many decimals at most."""
    text = f"{number:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else re.sub(r"^(-?)0\.", r"\1.", text)


def _read_attributes(element: ET.Element) -> Iterator[tuple[str, str]]:
    """Yield an element's attributes, and those that its style sets."""
    for key, value in element.attrib.items():
        if key == "style":
            for declaration in filter(str.strip, value.split(";")):
                yield _turn_into_attribute(declaration)
        elif key != "type":
            yield key.removeprefix(_XLINK), value


def _turn_into_attribute(declaration: str) -> tuple[str, str]:
    """Return a declaration of a style as an attribute."""
    key, _, value = map(str.strip, declaration.partition(":"))
    if key in _NUMBERS:
        return key, _write_decimal(float(value), 2)
    if key not in _WORDS:
        raise ValueError(f"no attribute for '{declaration.strip()}'")
    return key, value


def _is_unseen(element: ET.Element) -> bool:
    """Return whether a path has neither a fill nor a line, as a transparent background."""
    bare = element.get("fill") == "none" and element.get("stroke", "none") == "none"
    return element.tag == "path" and (bare or element.get("opacity") == "0")


def _round_places(element: ET.Element, digits: int) -> None:
    """Round the places of an element; the scales of letters stay as they are."""
    for key, value in element.attrib.items():
        if key == "d":
            element.set(key, write_steps(value, digits))
        elif key in _PLACES and element.tag != "svg":
            element.set(key, _write_decimal(float(value), digits))
        elif key == "transform":
            element.set(key, _MOVE.sub(lambda match: _round_move(match, digits), value))
    move = re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
    if element.tag == "use" and move and "x" not in element.attrib:
        del element.attrib["transform"]
        places = zip("xy", move.groups(), strict=True)
        element.attrib |= {key: place for key, place in places if place != "0"}


def _round_move(match: re.Match[str], digits: int) -> str:
    x, y = (_write_decimal(float(number), digits) for number in match.groups())
    return f"translate({x} {y})"


def _flatten(element: ET.Element) -> None:
    """Move to a group what all its parts share, and drop groups without attributes."""
    children: list[ET.Element] = []
    for child in element:
        _flatten(child)
        children += _replace_group(child) if child.tag in ("g", "defs") else [child]
    element[:] = children
    drawn = [child for child in element if child.tag not in ("defs", "title")]
    if element.tag == "g" and len(drawn) > 1:
        for key in _INHERITED:
            values = {child.get(key) for child in drawn}
            if len(values) == 1 and None not in values:
                element.set(key, values.pop() or "")
                for child in drawn:
                    del child.attrib[key]


def _replace_group(group: ET.Element) -> list[ET.Element]:
    """Replace a group by its parts or its one path, where it adds nothing.

    A mark, which is a `use` with a place, keeps its group: the clip of the group would move too.
    """
    if not len(group):
        return []
    if group.tag == "g" and not group.attrib:
        return [*group]
    *titles, last = group
    is_alone = last.tag == "path" and all(one.tag == "title" for one in titles)
    if group.tag == "g" and is_alone and "transform" not in last.attrib:
        last.attrib = {**group.attrib, **last.attrib}
        last[:] = titles
        return [last]
    return [group]
