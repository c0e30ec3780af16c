"""Tables of interleaved timings, and the calls that they time."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from llama_ablate.evidence.medians import Median, median, ratio
from llama_ablate.training.timing import interleave, seconds_of

_WARM_UP = 2  # rounds: the first call compiles, the second may still allocate
Work = Callable[[], object]


@dataclass(frozen=True)
class Setup:
    """Where and how long to measure."""

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    dim: int = 1024
    rows: int = 4096  # vectors, that is tokens
    rounds: int = 30
    compiled: bool = True

    @property
    def torch_dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    def tensor(self, *shape: int) -> torch.Tensor:
        """Return random numbers that gradients flow to."""
        generator = torch.Generator().manual_seed(0)
        numbers = torch.randn(shape, generator=generator).to(self.device, self.torch_dtype)
        return numbers.requires_grad_()


@dataclass(frozen=True)
class Table:
    """Seconds a call of every case, round by round, and why a case could not be timed."""

    title: str
    #: The case that ratios are to.
    against: str
    seconds: dict[str, list[float]]
    failed: dict[str, str]
    note: str

    def median_s(self, case: str) -> Median:
        """Return the median seconds of a call."""
        return median(self.seconds[case])

    def ratio(self, case: str, to: str | None = None) -> Median:
        """Return how many times longer a case takes than another, round by round."""
        return ratio(self.seconds[case], self.seconds[to or self.against])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "title": self.title,
            "against": self.against,
            "note": self.note,
            "cases": {
                case: {"median_s": vars(self.median_s(case)), "ratio": vars(self.ratio(case))}
                for case in self.seconds
            },
            "failed": self.failed,
        }


@dataclass(frozen=True)
class Ratio:
    """How many times longer one case took than another, in words."""

    ratio: str
    measured: str


def in_turns(
    title: str, cases: Mapping[str, Work], setup: Setup, *, against: str, note: str = ""
) -> Table:
    """Time every case once a round, `setup.rounds` times; two rounds before that warm up.

    A case that cannot run at all (a compiler that is not there, say) is left out and says why.
    """
    synchronize = torch.cuda.synchronize if setup.device == "cuda" else lambda: None
    calls = len(cases) * (_WARM_UP + setup.rounds)

    def show(calls_over: int) -> None:
        bar.update(calls_over - bar.n)

    with tqdm(total=calls, desc=title, file=sys.stderr, leave=False, disable=None) as bar:
        seconds, errors = interleave(
            {case: partial(seconds_of, work, synchronize) for case, work in cases.items()},
            setup.rounds,
            warm_up=_WARM_UP,
            progress=show,
        )
    failed = {
        case: f"{type(error).__name__}: {error}".splitlines()[0][:120]
        for case, error in errors.items()
    }
    return Table(title, against, seconds, failed, note)


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
    """Return the control: one read and one write of the same bytes."""
    source, target = x.detach(), torch.empty_like(x)
    return lambda: target.copy_(source)
