"""What a launch decides for its runs, and what a finished one leaves."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from llama_ablate.results.metrics import Measurement

Outcome = Literal["ok", "diverged", "collapsed", "oom", "timeout", "error", "cancelled"]
#: Outcomes that say something about the variant; the others are tried again by the next `run`.
FINAL = ("ok", "diverged", "collapsed")
#: Tokens of the validation split that the losses of a learning curve are taken from.
CURVE_TOKENS = 8_192
CURVE = ("step", "tokens", "lr", "train_loss_nats", "grad_norm", "validation_loss_nats", "train_s")


@dataclass(frozen=True)
class Record:
    """What a finished run leaves behind, apart from its curve, weights and metrics."""

    id: str
    label: str
    variant: str
    seed: int
    outcome: Outcome
    reason: str
    steps_done: int
    tokens_done: int
    train_s: float
    peak_memory_bytes: int
    model: dict[str, Any]
    train: dict[str, Any]
    data: str
    compute: dict[str, Any]
    environment: dict[str, Any]
    metrics: dict[str, Measurement] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        metrics = {name: metric.to_dict() for name, metric in self.metrics.items()}
        return {**asdict(replace(self, metrics={})), "metrics": metrics}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Record":
        """Make the record that `to_dict` wrote. Raises TypeError for anything else."""
        metrics = {k: Measurement.from_dict(v) for k, v in values["metrics"].items()}
        return cls(**{**values, "metrics": metrics})

    @property
    def ok(self) -> bool:
        """Whether the run went to its end."""
        return self.outcome == "ok"

    @property
    def numbers(self) -> dict[str, float]:
        """All measured numbers of the run, by name."""
        return {k: v for metric in self.metrics.values() for k, v in metric.numbers.items()}

    @property
    def unmeasured(self) -> dict[str, str]:
        """Why a metric failed, by metric."""
        return {name: metric.error for name, metric in self.metrics.items() if metric.error}


@dataclass(frozen=True)
class ComputeSettings:
    """How a machine computes: device, threads, precision and attention kernel."""

    device: str = "cpu"
    threads: int = 1
    precision: str = "float32"
    kernel: str = "fused"
    #: Processes that share the batches of one run.
    ranks: int = 1
    #: Whether each of them keeps only a part of weights, gradients and the optimizer's state.
    shards: bool = False
    #: The precision in which held-out text is predicted.
    evaluation: str = "float32"
    #: FLOP/s of a training step of one layer, where a forecast or `compile: auto` took it.
    flops_per_s: float = 0.0
    #: Median seconds of that step for every pair of precision and kernel that was timed. Older
    #: versions chose by it.
    tried_s: tuple[tuple[str, float], ...] = ()

    #: Whether training steps are compiled, and the seconds that this was predicted to take a
    #: variant; 0 where it was not tried.
    compiled: bool = False
    compile_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; of speed, compiling and shards only where there are any."""
        values = asdict(self)
        if not (self.compiled or self.compile_s):
            del values["compiled"], values["compile_s"]
        if not self.shards:
            del values["shards"]
        if not self.flops_per_s:
            del values["flops_per_s"], values["tried_s"]
        return values


@dataclass(frozen=True)
class Memory:
    """The most that a worker is forecast to take at once, and the label of whose run does.

    `unknown` are the labels of variants that may take more, and have no forecast.
    """

    bytes: int
    variant: str
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What a launch decides for all runs and no number depends on; part of the plan."""

    #: Of finished runs: none, those of each variant's best run in every table, or all.
    keep_weights: Literal["none", "best", "all"] = "all"
    checkpoint_s: float = 30.0
    #: What was loaded to register components: files and their SHA-256, packages and their versions.
    plugins: Mapping[str, str] = field(default_factory=dict)
