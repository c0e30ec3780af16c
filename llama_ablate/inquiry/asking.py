"""An inquiry file: what a source says of identities, counts and timings, and what is found."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from llama_ablate.config.experiment import slug
from llama_ablate.config.marked_yaml import Marked
from llama_ablate.config.marked_yaml import load as load_yaml
from llama_ablate.config.registry import Choice, Entry
from llama_ablate.config.validation import Section
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.inquiry.checks import CHECKS

#: What a benchmark measured: table -> case -> to -> (value, low, high) of the ratio of times.
Ratios = Callable[[str, str, str], tuple[float, float, float]]


class Bench(Section):
    """Which micro-benchmark is run, and at what size."""

    name: str
    dim: int = Field(1024, gt=0, le=65536)
    rows: int = Field(4096, gt=0, le=1 << 20)
    rounds: int = Field(30, ge=6, le=1000)
    threads: int = Field(1, gt=0, le=256)
    dtype: Literal["float32", "bfloat16"] = "float32"


class Finding(Section):
    """What a source says of a number, as bounds, and which number."""

    #: A check by name, with its options; or a ratio of times of the file's benchmark.
    number: Entry | None = None
    table: str | None = None
    case: str | None = None
    to: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    claims: list[str] = Field(default_factory=list)
    source: str = ""
    said: str = ""

    @model_validator(mode="after")
    def _one_number_and_a_bound(self) -> "Finding":
        ratio = (self.table, self.case, self.to)
        if (self.number is None) == (None in ratio):
            raise ValueError("takes either a 'number', or 'table', 'case' and 'to' of a benchmark")
        if self.at_least is None and self.at_most is None:
            raise ValueError("needs 'at_least', 'at_most' or both: what the source says")
        if None not in (self.at_least, self.at_most) and self.at_least > self.at_most:  # type: ignore[operator]
            raise ValueError(f"at_least {self.at_least:g} is above at_most {self.at_most:g}")
        return self


class Inquiry(Section):
    """One file of findings."""

    name: str = Field(min_length=1, max_length=80)
    question: str = ""
    bench: Bench | None = None
    findings: list[Finding] = Field(min_length=1)

    @property
    def slug(self) -> str:
        """The name as a folder can bear it."""
        return slug(self.name)


def load(path: Path) -> tuple[Inquiry, Marked]:
    """Read an inquiry, and where everything stood. Raises ConfigError with file, line, column."""
    marked = load_yaml(path)
    try:
        inquiry = Inquiry.check(marked.values)
        _check_names(inquiry)
    except ConfigError as error:
        raise marked.locate(error) from None
    return inquiry, marked


def ask(inquiry: Inquiry, ratios: Ratios | None) -> list[dict[str, Any]]:
    """Return a row for each finding: `claim, claims, source, said, measured, low, high, finding`.

    `ratios` looks a ratio up in the benchmark that was run. A number, or all of its interval,
    within the bounds supports what the source says; outside refutes it; across leaves it undecided.
    """
    rows = []
    for i, entry in enumerate(inquiry.findings):
        if entry.number is None:
            assert ratios is not None
            value, low, high = ratios(str(entry.table), str(entry.case), str(entry.to))
            what = f"time of '{entry.case}' / '{entry.to}' ({entry.table})"
        else:
            choice = CHECKS.resolve(entry.number)
            try:
                value = low = high = _looked_up(choice)
            except ConfigError as error:
                raise error.under("findings", i, "number") from None
            what = _named(entry.number)
        rows.append(
            {
                "claim": f"{what} {_bounds(entry)}",
                "claims": ", ".join(entry.claims),
                "source": entry.source,
                "said": entry.said,
                "measured": value,
                "low": low,
                "high": high,
                "finding": _finding(entry, value, low, high),
            }
        )
    return rows


def _looked_up(choice: Choice) -> float:
    """Return a check's number. Raises ConfigError where its options lead nowhere."""
    try:
        return float(CHECKS.get(choice.name)(**dict(choice.options)))
    except (
        LookupError,
        ValueError,
        TypeError,
        ArithmeticError,
        AttributeError,
        RuntimeError,
    ) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"{choice}: {type(error).__name__}: {why}") from None


def _finding(entry: Finding, value: float, low: float, high: float) -> str:
    least = -math.inf if entry.at_least is None else entry.at_least
    most = math.inf if entry.at_most is None else entry.at_most
    if math.isnan(value):
        return "undecided"
    low, high = (value, value) if math.isnan(low) else (low, high)
    if least <= low and high <= most:
        return "supported"
    return "refuted" if high < least or low > most else "undecided"


def _bounds(entry: Finding) -> str:
    if entry.at_least == entry.at_most:
        return f"is {entry.at_least:.15g}"
    parts = [f"at least {entry.at_least:g}"] if entry.at_least is not None else []
    parts += [f"at most {entry.at_most:g}"] if entry.at_most is not None else []
    return "is " + " and ".join(parts)


def _named(number: Entry) -> str:
    """Write a check with the options that the file gives it."""
    if isinstance(number, str):
        return number
    return " ".join(
        str(value) if key == "name" else f"{key}={value}" for key, value in number.items()
    )


def _check_names(inquiry: Inquiry) -> None:
    from llama_ablate.bench import BENCHES

    if inquiry.bench and inquiry.bench.name not in BENCHES:
        given = inquiry.bench.name
        raise ConfigError(
            f"'{given}' is not a benchmark{nearest(given, BENCHES)}", ("bench", "name")
        )
    for i, entry in enumerate(inquiry.findings):
        if entry.number is not None:
            CHECKS.resolve(entry.number, ("findings", i, "number"))
        elif inquiry.bench is None:
            raise ConfigError("a ratio of times needs a 'bench' in the file", ("findings", i))
