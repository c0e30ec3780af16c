"""The registry of metrics, and what a metric is given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from llama_ablate.data.tokens import Tokens
from llama_ablate.experiment import Train
from llama_ablate.model.decoder import Decoder
from llama_ablate.registry import Registry
from llama_ablate.training.engine import Engine

Per = Literal["run", "variant"]
Metric = TypeVar("Metric", bound=Callable[..., dict[str, float]])


@dataclass(frozen=True)
class Subject:
    """What a metric looks at: a model on its device, its text, and how both compute."""

    model: Decoder
    tokens: Tokens
    train: Train
    engine: Engine


class Metrics(Registry):
    """Metrics by name. A metric is taken once per run, with trained weights, or per variant.

    Per-variant metrics are speeds and sizes: they are taken in one pass that interleaves the
    variants, one call of the metric a turn, and the median of the turns is reported.
    """

    def __init__(self) -> None:
        super().__init__("metric")
        self._per: dict[str, Per] = {}

    def add(self, name: str, *, per: Per) -> Callable[[Metric], Metric]:
        """Enter a metric (a decorator) under `name`."""
        self._per[name] = per
        return self.register(name)

    def per(self, name: str) -> Per:
        """Return whether a metric belongs to a run or to a variant."""
        return self._per[name]

    def measure(self, choice: Any, subject: Subject) -> dict[str, float]:
        """Take a metric of a subject."""
        values: dict[str, float] = self.get(choice.name)(subject, **dict(choice.options))
        return values


METRICS = Metrics()
