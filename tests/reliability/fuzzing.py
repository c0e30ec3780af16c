"""Makes broken experiment files of whole ones, and changes values of documents."""

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache

#: A key and its value, where that is one word or one bracket.
_PAIR = re.compile(r"([\w.]+): ([\w.+/%-]+|\[[^\[\]{}]*\]|\{[^\[\]{}]*\})")
_WORDS = """
~ '' [] {} [[]] no Off Null ! !!str !!float * &a *a | > % @ ` - ? : , << = # --- ... !!set 羊驼
0 -1 1_ 1__0 017 0o17 0x10 1:30 2026-01-01 1e400 -1e400 5e-324 1e308 .inf .nan NaN 1.5.2 4,5 5% 7s
65537 4294967296 1_000_000_000_000 99999999999999999999999999999 [1,[2,[3]]] {<<:{a:1}} !!binary
/dev/zero ../../../etc/passwd ~/x.yaml "\\0" "\\x1b[2J" "\\ud800" "\\U00110000" "\\q" "a\\nb"
"""
_STRANGE = [
    *_WORDS.split(),
    *("!!python/object/apply:os.system [ls]", "{name: {name: rope}}", "a: b", "\t", "\x85"),
    *("'a\u2028b'", "'\u202e'", "'<script>alert(1)</script>'", "9" * 5000, "x" * 2000),
    *("[" * 1000, "[" * 1000 + "]" * 1000, "{a: " * 1000 + "1" + "}" * 1000),
    "[" + "1, " * 2000 + "1]",
]
_BYTES = [
    *(bytes([byte]) for byte in b"\0\r\n\t\x7f\x85\xff&*!'\"{}[]#,|>%@`"),
    *(b"\xfe\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xef\xbb\xbf", b"\x1b[2J", b"%YAML 9.9\n"),
]


def mutant(number: int, files: Sequence[str]) -> bytes:
    """Return the broken file of a number, which is always the same one."""
    rng = random.Random(number)
    text = rng.choice(files)
    for _ in range(rng.choice((1, 1, 2, 3))):
        change = rng.choice((*[_with_a_value] * 5, _with_a_key, _with_lines))
        text = change(rng, text, tuple(files))
    data = text.encode("utf-8", "surrogatepass")
    return _with_bytes(rng, data) if rng.random() < 0.2 else data


@cache
def _values(files: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the values that any of the files has, by their keys."""
    found: dict[str, list[str]] = {}
    for pair in _PAIR.finditer("\n".join(files)):
        found.setdefault(pair[1], []).append(pair[2])
    return found


def _with_a_value(rng: random.Random, text: str, files: tuple[str, ...]) -> str:
    """Put another value behind a key: one that it has elsewhere, another key's, a strange one."""
    values = _values(files)
    pairs = [*_PAIR.finditer(text)]
    pair = rng.choice(pairs) if pairs else None
    if pair is None:
        return text + rng.choice(_STRANGE)
    own = values.get(pair[1], _STRANGE)
    value = rng.choice(rng.choice((*[own] * 4, rng.choice([*values.values()]), _STRANGE)))
    return text[: pair.start(2)] + value + text[pair.end(2) :]


def _with_a_key(rng: random.Random, text: str, files: tuple[str, ...]) -> str:
    """Give a value another key."""
    keys = [*re.finditer(r"[\w.]+(?=:)", text)]
    key = rng.choice(keys) if keys else re.match("", text)
    return text[: key.start()] + rng.choice([*_values(files), *_STRANGE]) + text[key.end() :]


def _with_lines(rng: random.Random, text: str, files: tuple[str, ...]) -> str:
    """Delete, repeat, move, indent or join a line, or add one of another file."""
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    foreign = rng.choice(rng.choice(files).split("\n"))
    changed = rng.choice(([], [lines[at]] * 2, [foreign], [foreign, lines[at]], [" " + lines[at]]))
    if rng.random() < 0.3:
        lines.insert(other, lines.pop(at))
    else:
        lines[at : at + rng.choice((1, 1, 2))] = changed
    return "\n".join(lines)


def _with_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change, remove, add or repeat some bytes, or cut off the end."""
    at = rng.randrange(len(data) + 1)
    end = at + rng.choice((0, 1, 2, 40))
    new = rng.choice((rng.choice(_BYTES), bytes([rng.randrange(256)]), b"", data[at:end] * 2))
    return data[:at] if rng.random() < 0.1 else data[:at] + new + data[end:]


def paths(document: object, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of everything in a document; of a list, of its first two."""
    if path:
        yield path
    inside = dict(enumerate(document[:2])) if isinstance(document, list) else document
    if isinstance(inside, dict):
        for key, inner in inside.items():
            yield from paths(inner, (*path, key))


def at(document: object, path: tuple) -> object:
    """Return what stands at a path of a document."""
    for key in path:
        document = document[key]
    return document
