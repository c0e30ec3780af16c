"""Interleaved timing of cases over processes, with controls, and helpers to make cases."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from llama_ablate.evidence.medians import find_ratio, summarize_turns
from llama_ablate.training.timing import interleave, seconds_of

#: Warm-up rounds: the first call compiles, and the second may still allocate memory.
_WARM_UP = 2
#: Largest deviation from 1 of a ratio between equal codes; the measured extra cost of a positive
#: control may be at most ten times as large.
MARGIN = 0.05
#: Suffix for the name of a case that repeats the code of another case.
AGAIN = ", again (A/A)"
#: Factor of rows or tokens in a positive control: its effect is visible on a noisy machine.
MORE = 1.2
Work = Callable[[], object]
Kind = Literal["aa", "positive"]


@dataclass(frozen=True)
class Check:
    """Result of a control: whether it holds, and the measured ratio."""

    holds: bool
    why: str


@dataclass(frozen=True)
class Setup:
    """Set-up of a benchmark: device, precision, sizes, and numbers of processes and rounds."""

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    dim: int = 1024
    rows: int = 4096  # vectors (tokens)
    processes: int = 5  # new processes, one after another
    rounds: int = 15  # timed rounds in each process
    compiled: bool = True

    @property
    def torch_dtype(self) -> torch.dtype:
        """Precision as a torch dtype."""
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    def tensors(self, rows: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random vectors (rows, dim), and a fifth more vectors for a positive control.

        Both require gradients. The first tensor is a slice of the second: a separate tensor that
        only one case reads would not be in the CPU's caches, and was read 1.2 to 1.4 times as
        slowly.
        """
        generator = torch.Generator().manual_seed(0)
        numbers = torch.randn(more(rows), dim, generator=generator)
        longer = numbers.to(self.device, self.torch_dtype)
        return longer[:rows].requires_grad_(), longer.detach().requires_grad_()


def more(count: int) -> int:
    """Return a count increased by a fifth, and at least by one."""
    return max(count + 1, round(MORE * count))


@dataclass(frozen=True)
class Controls:
    """Two control cases with known results, made from the case `of` of a table.

    `again` runs the same code with separate weights, and `more` does additional work, which `extra`
    describes.
    """

    of: str
    again: Work
    more: Work
    extra: str


@dataclass(frozen=True)
class Table:
    """Timings of a benchmark's cases: seconds per call, by case, process and round.

    `failed` has the error messages of cases that could not be timed.
    """

    title: str
    #: Case that is the denominator of ratios.
    against: str
    seconds: dict[str, list[list[float]]]
    failed: dict[str, str]
    note: str
    #: For each control: its case, and the case from which it was made.
    controls: dict[Kind, tuple[str, str]]

    def median_s(self, case: str) -> dict[str, float]:
        """Return the typical seconds per call, numbers of processes and rounds, and the spread.

        There is no interval, since all processes share the machine's current speed, which cancels
        only in ratios.
        """
        typical = summarize_turns(self.seconds[case])
        return {name: typical[name] for name in ("value", "processes", "turns", "spread")}

    def ratio(self, case: str, to: str | None = None) -> dict[str, Any]:
        """Return the ratio of a case's time to another's, computed round by round."""
        return find_ratio(self.seconds[case], self.seconds[to or self.against])

    def checks(self) -> dict[Kind, Check]:
        """Return for each control whether it holds, with the measured ratio."""
        return {kind: self._check(kind, *cases) for kind, cases in self.controls.items()}

    def _check(self, kind: Kind, case: str, of: str) -> Check:
        if not {case, of} <= self.seconds.keys():
            return Check(holds=False, why=f"{case}: not measured")
        measured = self.ratio(case, of)
        low, high = measured["low"], measured["high"]  # NaN for one process: the control fails
        holds = (
            1 / (1 + MARGIN) <= low <= 1 <= high <= 1 + MARGIN
            if kind == "aa"
            else low > 1 and measured["value"] <= 1 + 10 * MARGIN
        )
        return Check(holds, f"{case}: {write_ratio(measured)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values for JSON."""
        return {
            "title": self.title,
            "against": self.against,
            "note": self.note,
            "cases": {
                case: {
                    "median_s": self.median_s(case),
                    "ratio": self.ratio(case),
                    "ratio_by_process": [
                        self._of_process(i).ratio(case)["value"] for i in range(len(turns))
                    ],
                }
                for case, turns in self.seconds.items()
            },
            "controls": {kind: asdict(check) for kind, check in self.checks().items()},
            "failed": self.failed,
        }

    def _of_process(self, i: int) -> "Table":
        seconds = {case: [turns[i]] for case, turns in self.seconds.items()}
        return Table(self.title, self.against, seconds, self.failed, self.note, self.controls)


@dataclass(frozen=True)
class Ratio:
    """Named ratio of the times of two cases, with its interval."""

    ratio: str
    timing: Mapping[str, Any]
    #: Text that follows the number.
    note: str = ""
    digits: int = 2

    def to_dict(self) -> dict[str, Any]:
        """Return the ratio as plain values for JSON; `measured` is its formatted text."""
        measured = write_ratio(self.timing, self.digits) + (f"; {self.note}" if self.note else "")
        return {"ratio": self.ratio, "measured": measured, **self.timing}


def write_ratio(ratio: Mapping[str, Any], digits: int = 2) -> str:
    """Format a ratio of times, with its interval if known."""
    alone = f"{ratio['value']:.{digits}f}x"
    if math.isnan(ratio["low"]):
        return alone
    return f"{alone} [{ratio['low']:.{digits}f}, {ratio['high']:.{digits}f}]"


def in_turns(
    title: str,
    cases: Mapping[str, Work],
    setup: Setup,
    *,
    against: str,
    controls: Controls,
    note: str = "",
    warm_up: int = _WARM_UP,
) -> Table:
    """Time all cases and controls once per round, in `setup.rounds` rounds of random order.

    `warm_up` rounds precede. A case that raises an error (for example without a compiler) is left
    out, and its error message is stored in the table.
    """
    synchronize = torch.cuda.synchronize if setup.device == "cuda" else lambda: None
    aa, positive = f"{controls.of}{AGAIN}", f"{controls.of}, {controls.extra} (control)"
    works = {**cases, aa: controls.again, positive: controls.more}
    seconds, errors = interleave(
        {case: partial(seconds_of, work, synchronize) for case, work in works.items()},
        setup.rounds,
        warm_up=warm_up,
        shuffle=random.shuffle,
    )
    return Table(
        title,
        against,
        {case: [turns] for case, turns in seconds.items()},
        {
            case: f"{type(error).__name__}: {error}".splitlines()[0][:120]
            for case, error in errors.items()
        },
        note,
        {"aa": (aa, controls.of), "positive": (positive, controls.of)},
    )


def joined(tables: Sequence[Table]) -> Table:
    """Join the tables of several processes, with the cases that all of them timed."""
    first = tables[0]
    failed = {case: why for table in tables for case, why in table.failed.items()}
    seconds = {
        case: [turns for table in tables for turns in table.seconds[case]]
        for case in first.seconds
        if case not in failed
    }
    return Table(first.title, first.against, seconds, failed, first.note, first.controls)


def both_ways(module: nn.Module | Callable[..., torch.Tensor], x: torch.Tensor) -> Work:
    """Return a function that runs a module forward and backward.

    The gradient of the input is dropped.
    """
    ones = torch.ones_like(x)

    def work() -> None:
        module(x).backward(ones)
        x.grad = None

    return work


def forward_only(module: nn.Module | Callable[..., torch.Tensor], x: torch.Tensor) -> Work:
    """Return a function that runs a module forward without recording gradients."""

    def work() -> torch.Tensor:
        with torch.no_grad():
            y: torch.Tensor = module(x)
        return y

    return work


def compiled(module: nn.Module) -> nn.Module:
    """Return a module that is compiled for fixed shapes at its first call."""
    module.compile(dynamic=False)
    return module


def copied(x: torch.Tensor) -> Work:
    """Return a function that copies a tensor, which is limited by the memory's bandwidth."""
    source, target = x.detach(), torch.empty_like(x)
    return lambda: target.copy_(source)
