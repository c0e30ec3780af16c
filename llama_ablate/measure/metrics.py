"""The METRICS registry: registration, checks and measurement of metrics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeVar

from llama_ablate.config.experiment import Train
from llama_ablate.config.registry import Choice, Registry
from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.errors import NotProvidedError
from llama_ablate.model.decoder import Decoder
from llama_ablate.results.record import Measurement, Value, row, scalar
from llama_ablate.training.compute import Compute
from llama_ablate.training.evaluation import document_mode

Per = Literal["run", "variant"]
Worse = Literal["lower", "higher"]
#: A metric's own check, called with the spec, the tokens and the metric's options.
Check = Callable[..., None]
#: Function that returns rows, or numbers by name if they have no coordinates.
Metric = TypeVar("Metric", bound=Callable[..., Iterable[Value] | Mapping[str, float]])


@dataclass(frozen=True)
class Subject:
    """The argument of a metric: a model on its device, its text, train config and compute."""

    model: Decoder
    tokens: Tokens
    train: Train
    compute: Compute


class Unmeasured(Exception):  # noqa: N818  not an error: the model has nothing of the kind
    """Signal that a metric does not apply to a model; values already yielded are kept."""

    rows: tuple[Value, ...] = ()


@dataclass(frozen=True)
class _Kind:
    """Properties of a metric beside its options, as for `Metrics.add`."""

    per: Per
    check: Check | None
    timed: bool
    reads_text: bool
    worse: Mapping[str, Worse]


class Metrics(Registry):
    """Registry of metrics, each measured per run (with its trained weights) or per variant.

    Per-variant metrics are speeds and sizes. A timed metric is measured in several new processes,
    in rounds that interleave the variants with one call each, and the median is reported. A metric
    that is not timed gives the same values in every call, and is called once.
    """

    def __init__(self) -> None:
        super().__init__("metric")
        self._kinds: dict[str, _Kind] = {}

    def add(
        self,
        name: str,
        *,
        per: Per,
        check: Check | None = None,
        timed: bool = False,
        reads_text: bool = True,
        worse: Mapping[str, Worse] | None = None,
    ) -> Callable[[Metric], Metric]:
        """Return a decorator that registers a metric under `name`, `timed` if it is a speed.

        `check` is called with the spec, the tokens and the metric's options, when an experiment is
        planned and before each measurement. It raises ConfigError for an option out of range. A
        metric with `reads_text=False` takes nothing but counts from the tokens, and can be measured
        where the corpus is gone.
        `worse` says for each of the metric's quantities whether lower or higher is worse. A guard
        (a limit on how much worse a variant may be) uses the first of these quantities unless the
        guard names another quantity.
        """
        self._kinds[name] = _Kind(per, check, timed, reads_text, worse or {})
        return self.register(name)

    def per(self, name: str) -> Per:
        """Return whether a metric is measured per run or per variant."""
        return self._kinds[name].per

    def worse(self, name: str) -> Mapping[str, Worse]:
        """Return the worse direction of a metric's quantities, as declared."""
        return self._kinds[name].worse if name in self._kinds else {}

    def timed(self, name: str) -> bool:
        """Return whether a per-variant metric is a speed, which differs from call to call."""
        return self._kinds[name].timed

    def reads_text(self, name: str) -> bool:
        """Return whether a metric reads the tokens of its text."""
        return self._kinds[name].reads_text

    def check(self, choice: Choice, spec: ModelSpec, tokens: Tokens) -> None:
        """Raise ConfigError if a metric's options do not fit a spec and its text."""
        if check := self._kinds[choice.name].check:
            check(spec, tokens, **dict(choice.options))

    def measure(self, choice: Choice, subject: Subject) -> list[Value]:
        """Measure one metric. Raises the metric's errors; Unmeasured has the rows so far."""
        self.check(choice, subject.model.spec, subject.tokens)
        values: list[Value] = []
        try:
            returned = self.get(choice.name)(subject, **dict(choice.options))
            if isinstance(returned, Mapping):
                returned = [row(str(name), value) for name, value in returned.items()]
            values.extend(_plain(value) for value in returned)  # up to where it raises
        except (Unmeasured, NotProvidedError) as error:
            missing = Unmeasured(str(error))
            missing.rows = tuple(values)
            raise missing from None
        if len({value.name for value in values}) < len(values):
            raise ValueError(f"{choice.name} has several values of one name")
        return values

    def measure_all(
        self,
        choices: Sequence[Choice],
        subject: Subject,
        readings: Mapping[str, str] = MappingProxyType({"": ""}),
    ) -> dict[str, Measurement]:
        """Measure metrics in every document mode; a failed metric has an error instead of rows.

        `readings` maps a suffix of the metrics' names to a document mode (`mask` or `continue`);
        the mode "" is the model's own.
        """
        metrics: dict[str, Measurement] = {}
        for suffix, documents in readings.items():
            with document_mode(subject.model, subject.tokens, documents):
                for choice in choices:
                    try:
                        measured = self.attempt(choice, subject)
                    except Exception as error:  # noqa: BLE001  the run and its other metrics stand
                        measured = Measurement(error=reason(error))
                    metrics[choice.name + suffix] = replace(measured, entry=choice.shortest())
        return metrics

    def attempt(self, choice: Choice, subject: Subject) -> Measurement:
        """Measure one metric; if it does not apply to the model, return the reason as the error.

        Raises any other error of the metric.
        """
        try:
            return Measurement(tuple(self.measure(choice, subject)))
        except Unmeasured as missing:
            return Measurement(missing.rows, reason(missing))


def _plain(value: Value) -> Value:
    """Convert torch and numpy scalars to Python's; raise TypeError for other coordinates."""
    coordinates = {key: scalar(coordinate) for key, coordinate in value.coordinates.items()}
    for key, coordinate in coordinates.items():
        if not isinstance(coordinate, str | int | float):
            kind = type(coordinate).__name__
            raise TypeError(f"{value.name}: coordinate '{key}' is a {kind}, not a text or number")
    quantity = value.quantity or value.name
    return replace(
        value, value=float(scalar(value.value)), quantity=quantity, coordinates=coordinates
    )


def reason(error: Exception) -> str:
    """Return an exception as one line: its type and the first line of its message.

    Unmeasured gives its message alone, since nothing went wrong.
    """
    text = str(error).strip().splitlines()
    if isinstance(error, Unmeasured):
        return text[0]
    return ": ".join([type(error).__name__, *text[:1]])


METRICS = Metrics()
