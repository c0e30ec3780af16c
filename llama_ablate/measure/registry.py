"""The registry of metrics, and what a metric is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from llama_ablate.config.experiment import Train
from llama_ablate.config.registry import Choice, Registry
from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.errors import ConfigError
from llama_ablate.model.decoder import Decoder
from llama_ablate.results import ERROR
from llama_ablate.training.compute import Compute

Per = Literal["run", "variant"]
_SECONDS = 600  # of one turn: there are several, of every variant
#: A metric's own check: of a recipe, its text and the metric's options, before anything is trained.
Check = Callable[..., None]
Metric = TypeVar("Metric", bound=Callable[..., dict[str, float]])


@dataclass(frozen=True)
class Subject:
    """What a metric looks at: a model on its device, its text, and how both compute."""

    model: Decoder
    tokens: Tokens
    train: Train
    compute: Compute


class Metrics(Registry):
    """Metrics by name. A metric is taken once per run, with trained weights, or per variant.

    Per-variant metrics are speeds and sizes: they are taken in one pass that interleaves the
    variants, one call of the metric a turn, and the median of the turns is reported.
    """

    def __init__(self) -> None:
        super().__init__("metric")
        self._per: dict[str, Per] = {}
        self._checks: dict[str, Check] = {}

    def add(self, name: str, *, per: Per, check: Check | None = None) -> Callable[[Metric], Metric]:
        """Enter a metric (a decorator) under `name`.

        `check` is called with a recipe, its text and the metric's options, at planning and before
        each measurement. It raises ConfigError for an option that cannot be measured.
        """
        self._per[name] = per
        if check:
            self._checks[name] = check
        return self.register(name)

    def per(self, name: str) -> Per:
        """Return whether a metric belongs to a run or to a variant."""
        return self._per[name]

    def check(self, choice: Choice, spec: ModelSpec, tokens: Tokens) -> None:
        """Raise ConfigError where a metric's options cannot be measured of a recipe and a text."""
        if choice.name in self._checks:
            self._checks[choice.name](spec, tokens, **dict(choice.options))

    def measure(self, choice: Choice, subject: Subject) -> dict[str, float]:
        """Take a metric of a subject. Raises whatever the metric raises."""
        self.check(choice, subject.model.spec, subject.tokens)
        values = self.get(choice.name)(subject, **dict(choice.options))
        return {str(name): float(value) for name, value in values.items()}

    def measured(self, choices: Sequence[Choice], subject: Subject) -> dict[str, dict[str, Any]]:
        """Take metrics one after another; one that fails leaves its reason under `ERROR`."""
        found: dict[str, dict[str, Any]] = {}
        for choice in choices:
            try:
                found[choice.name] = self.measure(choice, subject)
            except Exception as error:  # noqa: BLE001  the run and its other metrics stand
                found[choice.name] = {ERROR: reason(error)}
        return found


def reason(error: Exception) -> str:
    """Return in one line why a metric failed."""
    text = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *text[:1]])


def check_seconds(seconds: float) -> None:
    """Raise ConfigError for seconds of a turn that are none, or that nobody would wait for."""
    if not 0 <= seconds <= _SECONDS:
        message = f"seconds {seconds:g}: must be from 0 to {_SECONDS}, for each turn"
        raise ConfigError(message, ("seconds",))


METRICS = Metrics()
