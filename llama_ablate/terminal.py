"""Terminal output: width, colours, progress; control characters are escaped."""

import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from math import isfinite
from typing import Any

#: User and password in an address, up to the last `@` before its path; a path has one slash less.
_USER = re.compile(r"(?<=:/)(/?)[^/'\"]*@")
#: Control characters but for line feeds and tabs, and those that turn or hide what stands beside
#: them: of width zero, of the direction of writing, and tags.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\U000e0000-\U000e007f]"
)
#: How words of a table are coloured: SGR codes of ECMA-48. Every word stands for itself without.
_COLOURS = {
    "32": ("better", "supported", "holds", "ok"),
    "33": ("worse", "refuted"),
    "36": ("equivalent", "equal", "running"),
    "31": ("diverged", "collapsed", "failed", "fails", "oom", "timeout", "error"),
    "2": ("inconclusive", "too short", "undecided", "undecidable", "no verdict", "pending"),
}
_SGR = {word: code for code, words in _COLOURS.items() for word in words}
# A cell of its own: two spaces stand before it, and two, a bracket or the line's end behind.
_CELL = re.compile(rf"(?m)(?<=  )(?:{'|'.join(_SGR)})(?=  | \(|:|,|$)")
_LINE_S = 60.0  # between two lines of progress where there is no terminal
_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=*#"


def visible(text: str) -> str:
    """Return text with characters escaped that control a terminal, or turn or hide others."""
    return _CONTROLS.sub(lambda match: _spelled(match[0]), text)


def printable(text: str) -> str:
    """Return text as standard output shows it, with what its encoding lacks escaped."""
    text = visible(text)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding) if lacks(text) else text


def in_one_line(text: str) -> str:
    """Return text in one line, with everything that does not print escaped.

    Addresses are without the user and the password that stand in them.
    """
    return "".join(c if c.isprintable() else _spelled(c) for c in _USER.sub(r"\1", text))


def _spelled(character: str) -> str:
    return repr(character)[1:-1]


def say(text: str) -> None:
    """Print a status line on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{in_one_line(text)}\n")
        sys.stderr.flush()


def width() -> int | None:
    """Return how many columns standard output has, or COLUMNS; None where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def dumb() -> bool:
    """Return whether the terminal knows no control sequences."""
    return os.environ.get("TERM", "dumb") == "dumb"


def lacks(text: str) -> bool:
    """Return whether the encoding of standard output lacks a character of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def columns(text: str) -> int:
    """Return how many columns of a terminal a line of text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Write some names one after another, and of many how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def plural(count: float | str, noun: str) -> str:
    """Return a noun as it stands behind a count: `run`, `runs`, `processes`."""
    if count in (1, "1"):
        return noun
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def shortened(text: str, most: int) -> str:
    """Return a line in at most so many columns, shortened in the middle."""
    if columns(text) <= most:
        return text
    mark = "..." if lacks("…") else "…"
    left, right = text, ""
    for length in range(most, -1, -1):
        left, right = text[: (length + 1) // 2], text[len(text) - length // 2 :]
        if columns(left) + len(mark) + columns(right) <= most:
            break
    return left + mark + right


def coloured(text: str) -> str:
    """Return text with the verdicts and outcomes that are cells of a table in colours.

    Not where standard output is no terminal or a dumb one, unless FORCE_COLOR is set, and never
    where NO_COLOR is.
    """
    is_able = os.environ.get("FORCE_COLOR") or (sys.stdout.isatty() and not dumb())
    if os.environ.get("NO_COLOR") or not is_able:
        return text
    return _CELL.sub(lambda match: f"\x1b[{_SGR[match[0]]}m{match[0]}\x1b[0m", text)


def small_curve(values: Sequence[float], most: int = 16) -> str:
    """Draw a curve in one line of at most so many characters: means of neighbours, low to high.

    In ASCII where standard output lacks the characters for it. What is not finite leaves a gap.
    """
    bars = _PLAIN_BARS if lacks(_BARS) else _BARS
    count = min(len(values), most)
    ends = [round(i * len(values) / count) for i in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    finite = [mean for mean in means if isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    step = (high - low) / (len(bars) - 1) or 1.0
    return "".join(bars[round((m - low) / step)] if isfinite(m) else " " for m in means)


class Bar(AbstractContextManager["Bar"]):
    """Progress bar of counted work, shown from the first update on.

    `unit` is that of a size, such as bytes; without one, turns are counted.
    """

    def __init__(self, name: str, unit: str = "") -> None:
        self._name, self._unit = name, unit
        self._bar: Any = None
        self._said = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, done: int, total: int | None) -> None:
        """Show `done` of `total`, which may be unknown; without a terminal in a line a minute."""
        if not sys.stderr.isatty():
            if time.monotonic() - self._said > _LINE_S:
                self._said = time.monotonic()
                of = f" of {total:,}" if total else ""
                sys.stderr.write(f"{self._name}: {done:,}{of} {self._unit}".rstrip() + "\n")
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                desc=self._name,
                delay=0.4,  # what is quickly done needs no bar
                mininterval=0.1,
                unit=self._unit or "it",
                unit_scale=bool(self._unit),
            )
        self._bar.update(done - self._bar.n)


@contextmanager
def screen() -> Iterator[Callable[[str], None]]:
    """Return a function that redraws a text on the alternate screen.

    As many of its lines as the terminal has. Afterwards it shows again what it did before.
    """

    def draw(text: str) -> None:
        height = shutil.get_terminal_size().lines
        lines = "".join(
            f"{line}\x1b[K\n" for line in coloured(visible(text)).split("\n")[: height - 1]
        )
        sys.stdout.write(f"\x1b[H{lines}\x1b[J")
        sys.stdout.flush()

    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[H\x1b[J")  # alternate screen, no cursor
    try:
        yield draw
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
