"""Audit files: what a source says of identities, counts and timings, and what is measured.

Nothing is trained. A finding bounds one number: that of a check, or a ratio of times of the file's
micro-benchmark.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field, model_validator

from analysis.claims import counts, identities, norms  # noqa: F401  registers the checks
from analysis.claims.checks import CHECKS
from benchmarks.components import BENCHES
from benchmarks.components import run as run_bench
from benchmarks.components import tables as bench_tables
from benchmarks.components.timing import AGAIN, Setup, Table
from llama_ablate.config.experiment import slug
from llama_ablate.config.marked_yaml import Marked
from llama_ablate.config.marked_yaml import load as load_yaml
from llama_ablate.config.registry import Choice, Entry
from llama_ablate.config.validation import Keys
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.evidence import medians
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, write_json, write_text
from llama_ablate.launch.environment import environment
from llama_ablate.report import tables
from llama_ablate.training.compute import pick_device

FILE = "findings.json"


class Bench(Keys):
    """A micro-benchmark, and at what size it runs."""

    name: str
    dim: int = Field(1024, gt=0, le=65536)
    rows: int = Field(4096, gt=0, le=1 << 20)
    processes: int = Field(5, ge=2, le=100)
    rounds: int = Field(15, ge=2, le=1000)
    threads: int = Field(1, gt=0, le=256)
    dtype: Literal["float32", "bfloat16"] = "float32"
    #: What the sources speak of: on another device the audit is not run.
    device: Literal["auto", "cpu", "cuda"] = "auto"


class Finding(Keys):
    """A number, and the bounds that a source puts on it."""

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
    #: Who puts the number on it: `ours` where the source gives none.
    bound: Literal["", "ours"] = ""
    #: Whether this is the scale that the claims speak of, such as a GPU's.
    at_scale: bool = False

    @model_validator(mode="after")
    def _one_number_and_a_bound(self) -> "Finding":
        ratio = (self.table, self.case, self.to)
        if (self.number is None) == (None in ratio):
            raise ValueError("takes either a 'number', or 'table', 'case' and 'to' of a benchmark")
        least, most = self.at_least, self.at_most
        if least is None and most is None:
            raise ValueError("needs 'at_least', 'at_most' or both: what the source says")
        if least is not None and most is not None and least > most:
            raise ValueError(f"at_least {least:g} is above at_most {most:g}")
        return self

    @property
    def statement(self) -> str:
        """The claim as a sentence: "future_seen is at most 0"."""
        if self.number is None:
            what = f"time of '{self.case}' / '{self.to}' ({self.table})"
        elif isinstance(self.number, str):
            what = self.number
        else:
            options = (f"{k}={v}" for k, v in self.number.items() if k != "name")
            what = " ".join([str(self.number["name"]), *options])
        if self.at_least == self.at_most:
            return f"{what} is {self.at_least:.15g}"
        bounds = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        bounds += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        return f"{what} is " + " and ".join(bounds)

    def verdict(self, value: float, low: float, high: float) -> str:
        """Return supported where all of the interval lies within the bounds, refuted outside."""
        if math.isnan(value):
            return "undecided"
        least = -math.inf if self.at_least is None else self.at_least
        most = math.inf if self.at_most is None else self.at_most
        low, high = (value, value) if math.isnan(low) else (low, high)
        if least <= low and high <= most:
            return "supported"
        return "refuted" if high < least or low > most else "undecided"


class Audit(Keys):
    """One file of findings."""

    name: str = Field(min_length=1, max_length=80)
    question: str = ""
    bench: Bench | None = None
    findings: list[Finding] = Field(min_length=1)


def load(path: Path) -> tuple[Audit, Marked]:
    """Read an audit file, and where everything stands in it.

    Raises ConfigError with file, line and column.
    """
    marked = load_yaml(path)
    try:
        audit = Audit.check(marked.values)
        _check_names(audit)
    except ConfigError as error:
        raise marked.locate(error) from None
    return audit, marked


def _check_names(audit: Audit) -> None:
    if audit.bench and audit.bench.name not in BENCHES:
        name = audit.bench.name
        raise ConfigError(f"'{name}' is not a benchmark{nearest(name, BENCHES)}", ("bench", "name"))
    for i, finding in enumerate(audit.findings):
        if finding.number is not None:
            CHECKS.resolve(finding.number, ("findings", i, "number"))
        elif audit.bench is None:
            raise ConfigError("a ratio of times needs a 'bench' in the file", ("findings", i))


def measure(audit: Audit, timed: list[Table]) -> list[dict[str, Any]]:
    """Return one row for each finding.

    Keys: `claim, claims, source, said, measured, low, high, finding, why`. `timed` are the tables
    of the audit's benchmark; the ends are those of the ratio alone, before `judged` widens them.
    """
    stored = [table.to_dict() for table in timed]
    rows = []
    for i, finding in enumerate(audit.findings):
        if finding.number is None:
            value, low, high = _ratio(timed, finding)
        else:
            try:
                value = low = high = _number(CHECKS.resolve(finding.number))
            except ConfigError as error:
                raise error.under("findings", i, "number") from None
        row = {
            "claim": finding.statement,
            "claims": ", ".join(finding.claims),
            "source": finding.source,
            "said": finding.said,
            "measured": value,
            "low": low,
            "high": high,
        }
        words = judged(finding, row, stored)
        rows.append(row | {key: words[key] for key in ("finding", "why")})
    return rows


def judged(
    finding: Finding, row: Mapping[str, Any], timed: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a row with its test result, and its interval widened by the same code's under A/A.

    `timed` are the tables of the audit's benchmark as they are stored. That a ratio is near 1 needs
    a positive control that was seen; that it is far from 1 does not.
    """
    value, low, high = (_number_of(row[key]) for key in ("measured", "low", "high"))
    table = next((t for t in timed if t["title"] == finding.table), None)
    if table is None or finding.number is not None:
        return {**row, "finding": finding.verdict(value, low, high), "why": ""}
    again_low, again_high = _again(table)
    low, high = low / max(1.0, again_high), high / min(1.0, again_low)
    word, positive = finding.verdict(value, low, high), table["controls"]["positive"]
    if low <= 1 <= high and not positive["holds"]:
        why = f"the control fails: {positive['why']}"
        return {**row, "low": low, "high": high, "finding": "no verdict", "why": why}
    return {**row, "low": low, "high": high, "finding": word, "why": ""}


def _again(table: Mapping[str, Any]) -> tuple[float, float]:
    """Return the 95% interval, over processes, of the ratio of a case to its own code once more."""
    for case, values in table["cases"].items():
        of = case.removesuffix(AGAIN)
        if of != case and of in table["cases"]:
            pairs = zip(
                values["ratio_by_process"], table["cases"][of]["ratio_by_process"], strict=True
            )
            of_process = medians.timing([[own / base] for own, base in pairs])
            return of_process.low, of_process.high
    return 1.0, 1.0


def _number_of(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _ratio(timed: list[Table], finding: Finding) -> tuple[float, float, float]:
    """Return a ratio of times with its interval; NaN where one of both was not timed."""
    table = next((t for t in timed if t.title == finding.table), None)
    case, to = str(finding.case), str(finding.to)
    if table is None or not {case, to} <= table.seconds.keys():
        return math.nan, math.nan, math.nan
    ratio = table.ratio(case, to)
    return ratio.value, ratio.low, ratio.high


def _number(choice: Choice) -> float:
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


def run(
    path: Path, results: Path, device: str = "auto", processes: int | None = None
) -> tuple[str, Path | None]:
    """Measure all findings of an audit file and write them to a folder of `results`.

    `processes` are how many its benchmark takes turns in, where not as many as the file says.
    Returns the findings as a table for a terminal, and the path of the report; None, and what is
    there stays, where the audit is for a device that is not there. Raises ConfigError.
    """
    audit, marked = load(path)
    timed: list[Table] = []
    setup: Setup | None = None
    try:
        if audit.bench:
            setup = _setup(audit.bench, device, processes)
            if setup is None:
                return f"{audit.name}: not tested: no GPU", None
            try:
                timed = run_bench(audit.bench.name, setup)
            except ConfigError as error:
                raise error.under("bench") from None
        rows = measure(audit, timed)
    except ConfigError as error:
        raise marked.locate(error) from None
    stored = [table.to_dict() for table in timed]
    cells = pd.DataFrame(
        {
            "claim": [row["claim"] for row in rows],
            "source": [row["source"] for row in rows],
            "source said": [row["said"] for row in rows],
            "measured": [
                written(judged(finding, row, stored))
                for finding, row in zip(audit.findings, rows, strict=True)
            ],
            "finding": [": ".join(filter(None, (row["finding"], row["why"]))) for row in rows],
        }
    )
    values = {
        "name": audit.name,
        "question": audit.question,
        "findings": rows,
        "setup": asdict(setup) if setup else None,
        "tables": stored,
        "environment": environment(),
    }
    folder = results / slug(audit.name)
    report = folder / "report.md"
    parts = [f"# {audit.name}", audit.question, tables.markdown(cells).rstrip()]
    if audit.bench:
        parts.append(f"```\n{bench_tables.text(values | {'ratios': []})}\n```")
    try:
        disk.make(folder)
        write_json(folder / FILE, values)
        write_text(report, "\n\n".join(parts) + "\n")
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"the results folder '{folder}' cannot be written: {why}") from None
    return tables.text(cells), report


def _setup(bench: Bench, device: str, processes: int | None) -> Setup | None:
    """Return where and how long to measure; None where the audit is for a GPU and there is none."""
    wanted = device if bench.device == "auto" else bench.device
    if device not in ("auto", wanted):
        return None
    try:
        picked = pick_device(wanted)
    except ConfigError:
        if device == "auto":
            return None
        raise
    sizes = bench.model_dump(exclude={"name", "device"})
    return Setup(**{**sizes, "device": picked, "processes": processes or bench.processes})


def timing_controls(audit: Mapping[str, Any]) -> str:
    """Say of how many tables of an audit or a benchmark, as stored, the timing controls hold."""
    holding = [
        all(check["holds"] for check in table["controls"].values())
        for table in audit["tables"]
        if "controls" in table
    ]
    if not holding:
        return "in the check itself"
    return "hold" if all(holding) else f"hold in {sum(holding)} of {len(holding)} tables"


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what every audit file in a folder of results found, by the folder's name."""
    return {file.parent.name: read_json(file) for file in sorted(folder.glob(f"*/{FILE}"))}


def written(row: Mapping[str, Any]) -> str:
    """Write what was measured, with its interval where it has one."""
    value, low, high = (_number_of(row[key]) for key in ("measured", "low", "high"))
    if math.isnan(value):
        return "not measured"
    if low == high or math.isnan(low):
        return f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}"
    return f"{value:.2f}x [{low:.2f}, {high:.2f}]"
