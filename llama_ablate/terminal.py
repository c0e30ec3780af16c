"""Terminal output: width, colours, progress bars, and escaping of control characters."""

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

#: User and password in a URL, up to the last `@` before its path. After `:/`, an optional further
#: slash is kept: a file path has one slash less than a URL.
_USER = re.compile(r"(?<=:/)(/?)[^/'\"]*@")
#: Control characters except line feeds and tabs, and characters that reorder or hide their
#: neighbours: zero-width characters, marks of the writing direction, and tag characters.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\U000e0000-\U000e007f]"
)
#: Words of tables by colour (SGR codes of ECMA-48). The words are complete without the colours.
_COLOURS = {
    "32": ("better", "supported", "holds", "ok"),
    "33": ("worse", "refuted"),
    "36": ("equivalent", "equal", "running"),
    "31": ("diverged", "collapsed", "failed", "fails", "oom", "timeout", "error"),
    "2": ("inconclusive", "too short", "undecided", "undecidable", "no verdict", "pending"),
}
_SGR = {word: code for code, words in _COLOURS.items() for word in words}
# A coloured word as a whole table cell: two spaces precede it, and two spaces, a bracket, a colon,
# a comma or the end of the line follow.
_CELL = re.compile(rf"(?m)(?<=  )(?:{'|'.join(_SGR)})(?=  | \(|:|,|$)")
_LINE_S = 60.0  # seconds between two lines of progress without a terminal
_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=*#"


def visible(text: str) -> str:
    """Escape characters that control a terminal, or that reorder or hide other characters."""
    return _CONTROLS.sub(lambda match: _spelled(match[0]), text)


def printable(text: str) -> str:
    """Escape control characters, and characters that standard output's encoding lacks."""
    text = visible(text)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding) if lacks(text) else text


def in_one_line(text: str) -> str:
    """Return text as one line, with unprintable characters escaped.

    User names and passwords are removed from URLs.
    """
    return "".join(c if c.isprintable() else _spelled(c) for c in _USER.sub(r"\1", text))


def _spelled(character: str) -> str:
    return repr(character)[1:-1]


def say(text: str) -> None:
    """Print a status line to standard error if standard error is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{in_one_line(text)}\n")
        sys.stderr.flush()


def width() -> int | None:
    """Return the width of the terminal in columns, or None without a terminal.

    Standard output is examined. The environment variable COLUMNS overrides the width.
    """
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def dumb() -> bool:
    """Return whether the terminal does not support control sequences (TERM is `dumb` or unset)."""
    return os.environ.get("TERM", "dumb") == "dumb"


def lacks(text: str) -> bool:
    """Return whether standard output's encoding lacks any character of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def columns(text: str) -> int:
    """Return the width of a line of text in terminal columns."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Join at most `most` names with commas; count the remaining names."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def plural(count: float | str, noun: str) -> str:
    """Return the singular or plural of a noun for a count: `run`, `runs`, `processes`."""
    if count in (1, "1"):
        return noun
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def shortened(text: str, most: int) -> str:
    """Shorten a line of text in its middle to at most `most` terminal columns."""
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
    """Colour the verdicts and outcomes in the table cells of a text.

    Colours need a terminal with control sequences as standard output, or FORCE_COLOR in the
    environment; NO_COLOR turns them off in any case.
    """
    is_able = os.environ.get("FORCE_COLOR") or (sys.stdout.isatty() and not dumb())
    if os.environ.get("NO_COLOR") or not is_able:
        return text
    return _CELL.sub(lambda match: f"\x1b[{_SGR[match[0]]}m{match[0]}\x1b[0m", text)


def small_curve(values: Sequence[float], most: int = 16) -> str:
    """Draw a curve as one line of at most `most` block characters (a sparkline).

    Each character shows the mean of neighbouring values, scaled from the lowest to the highest
    mean. Means that are not finite become spaces. ASCII characters are used if standard output's
    encoding lacks the block characters.
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
    """Progress bar on standard error, shown from the first update on.

    `unit` is the unit of the counted work, such as bytes; without a unit, iterations are counted.
    """

    def __init__(self, name: str, unit: str = "") -> None:
        self._name, self._unit = name, unit
        self._bar: Any = None
        self._began, self._said = 0.0, time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, done: int, total: int | None) -> None:
        """Show `done` of `total` units (None: unknown).

        Without a terminal, print a line at most once a minute, with the seconds left.
        """
        if not sys.stderr.isatty():
            now = time.monotonic()
            self._began = self._began or now
            if now - self._said > _LINE_S:
                self._said = now
                of = f" of {total:,}" if total else ""
                left_s = (now - self._began) * (total / done - 1) if total and done else 0
                left = f", about {left_s:.0f} s left" * bool(left_s)
                sys.stderr.write(f"{self._name}: {done:,}{of} {self._unit}".rstrip() + f"{left}\n")
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                desc=self._name,
                delay=0.4,  # seconds: quick work shows no bar
                mininterval=0.1,
                unit=self._unit or "it",
                unit_scale=bool(self._unit),
            )
        self._bar.update(done - self._bar.n)


@contextmanager
def screen() -> Iterator[Callable[[str], None]]:
    """Provide a function that redraws a text on the terminal's alternate screen.

    Lines beyond the terminal's height are cut. At the end, the previous screen is restored.
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
