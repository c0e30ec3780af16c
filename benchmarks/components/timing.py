"""Tables of interleaved timings over processes, their controls, and the calls that they time."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from llama_ablate.evidence.medians import Timing, ratio, timing
from llama_ablate.training.timing import interleave, seconds_of

#: Rounds: the first call compiles, the second may still allocate.
_WARM_UP = 2
#: How far from 1 a ratio of the same code may lie; a control's extra cost is at most ten of these.
MARGIN = 0.05
#: Behind the name of a case that is the same code once more.
AGAIN = ", again (A/A)"
#: Of rows or tokens, what a positive control has of them: enough to be seen on a noisy machine.
MORE = 1.2
Work = Callable[[], object]
Kind = Literal["aa", "positive"]


@dataclass(frozen=True)
class Check:
    """Whether a control holds, and why."""

    holds: bool
    why: str


@dataclass(frozen=True)
class Setup:
    """Where and how long to measure."""

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    dim: int = 1024
    rows: int = 4096  # vectors, that is tokens
    processes: int = 5  # fresh ones, one after another
    rounds: int = 15  # in each process
    compiled: bool = True

    @property
    def torch_dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    def tensors(self, rows: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random vectors that gradients flow to, and a fifth more of them for a control.

        The first are the beginning of the second: a tensor that its one case alone reads is not in
        the caches, and was read 1.2 to 1.4 times as slowly.
        """
        generator = torch.Generator().manual_seed(0)
        numbers = torch.randn(more(rows), dim, generator=generator)
        longer = numbers.to(self.device, self.torch_dtype)
        return longer[:rows].requires_grad_(), longer.detach().requires_grad_()


def more(count: int) -> int:
    """Return a fifth more than a count, and at least one more."""
    return max(count + 1, round(MORE * count))


@dataclass(frozen=True)
class Controls:
    """Two cases with a known answer, made from one of a table's own.

    `again` is the same code with weights of its own, `more` does more of it: `extra` says how much.
    """

    of: str
    again: Work
    more: Work
    extra: str


@dataclass(frozen=True)
class Table:
    """Seconds a call of every case by process and by round, and why a case could not be timed."""

    title: str
    #: The case that ratios are to.
    against: str
    seconds: dict[str, list[list[float]]]
    failed: dict[str, str]
    note: str
    #: The case of each control, and the case that it was made from.
    controls: dict[Kind, tuple[str, str]]

    def median_s(self, case: str) -> dict[str, float]:
        """Return the typical seconds of a call, in how many turns, and how far these lie apart.

        Without an interval: the processes of one sitting share the machine's speed of the hour,
        which cancels in a ratio alone.
        """
        typical = timing(self.seconds[case])
        kept = ("value", "processes", "turns", "spread")
        return {name: getattr(typical, name) for name in kept}

    def ratio(self, case: str, to: str | None = None) -> Timing:
        """Return how many times longer a case takes than another, round by round."""
        return ratio(self.seconds[case], self.seconds[to or self.against])

    def checks(self) -> dict[Kind, Check]:
        """Return whether each control holds, and why."""
        return {kind: self._check(kind, *cases) for kind, cases in self.controls.items()}

    def _check(self, kind: Kind, case: str, of: str) -> Check:
        if not {case, of} <= self.seconds.keys():
            return Check(holds=False, why=f"{case}: not measured")
        measured = self.ratio(case, of)
        low, high = measured.low, measured.high  # NaN of one process: nothing holds
        holds = (
            1 / (1 + MARGIN) <= low <= 1 <= high <= 1 + MARGIN
            if kind == "aa"
            else low > 1 and measured.value <= 1 + 10 * MARGIN
        )
        return Check(holds, f"{case}: {measured.times()}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "title": self.title,
            "against": self.against,
            "note": self.note,
            "cases": {
                case: {
                    "median_s": self.median_s(case),
                    "ratio": asdict(self.ratio(case)),
                    "ratio_by_process": [
                        self._of_process(i).ratio(case).value for i in range(len(turns))
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
    """How many times longer one case took than another: its name, and what was measured."""

    ratio: str
    timing: Timing
    #: Written behind the numbers.
    note: str = ""
    digits: int = 2

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; `measured` is the ratio in words."""
        measured = self.timing.times(self.digits) + (f"; {self.note}" if self.note else "")
        return {"ratio": self.ratio, "measured": measured, **asdict(self.timing)}


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
    """Time every case once a round, `setup.rounds` times, after the rounds that warm up.

    The order is another in every round.
    A case that cannot run at all (a compiler that is not there, say) is left out and says why.
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
    """Return the tables of several processes as one, with the cases that all of them timed."""
    first = tables[0]
    failed = {case: why for table in tables for case, why in table.failed.items()}
    seconds = {
        case: [turns for table in tables for turns in table.seconds[case]]
        for case in first.seconds
        if case not in failed
    }
    return Table(first.title, first.against, seconds, failed, first.note, first.controls)


def both_ways(module: nn.Module | Callable[..., torch.Tensor], x: torch.Tensor) -> Work:
    """Return a call of a module forward and backward, gradients dropped."""
    ones = torch.ones_like(x)

    def work() -> None:
        module(x).backward(ones)
        x.grad = None

    return work


def forward_only(module: nn.Module | Callable[..., torch.Tensor], x: torch.Tensor) -> Work:
    """Return a call of a module that keeps nothing for gradients."""

    def work() -> torch.Tensor:
        with torch.no_grad():
            y: torch.Tensor = module(x)
        return y

    return work


def compiled(module: nn.Module) -> nn.Module:
    """Compile a module for fixed shapes, at its first call."""
    module.compile(dynamic=False)
    return module


def copied(x: torch.Tensor) -> Work:
    """Return a call that reads and writes the same bytes once: what memory allows."""
    source, target = x.detach(), torch.empty_like(x)
    return lambda: target.copy_(source)
