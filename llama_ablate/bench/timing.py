"""Timing in turns: A B C A B C, so that what the machine does meanwhile hits all alike."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from llama_ablate.evidence.medians import Median, median, ratio

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
        drawn = torch.randn(shape, generator=generator).to(self.device, self.torch_dtype)
        return drawn.requires_grad_()


@dataclass
class Table:
    """Seconds a call of every case, turn by turn, and what could not be measured."""

    title: str
    #: The case that ratios are to.
    against: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def median_s(self, case: str) -> Median:
        """Return the median seconds of a call."""
        return median(self.seconds[case])

    def ratio(self, case: str, to: str | None = None) -> Median:
        """Return how many times longer a case takes than another, turn by turn."""
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
    table = Table(title, against, note=note)
    ready: dict[str, Work] = {}
    calls = len(cases) * (setup.rounds + 1)
    with tqdm(total=calls, desc=title, file=sys.stderr, leave=False, disable=None) as bar:
        for case, work in cases.items():
            try:
                work()
                work()
            except Exception as error:  # noqa: BLE001  compilers fail in ways of their own
                table.failed[case] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
                continue
            ready[case] = work
            bar.update()
        for _ in range(setup.rounds):
            for case, work in ready.items():
                wait(setup.device)
                began = time.perf_counter()
                work()
                wait(setup.device)
                table.seconds.setdefault(case, []).append(time.perf_counter() - began)
                bar.update()
    return table


def wait(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


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
