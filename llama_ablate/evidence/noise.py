"""A memory of noise: what earlier experiments tell of how far the seeds of another will differ.

The variance over seeds of a paired difference falls with the length of training, and depends on
what is changed. A regression over earlier experiments predicts it, and how far it was off for each
experiment that it had not seen says how many degrees of freedom the prediction is worth (the
empirical Bayes prior of Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3, across experiments).
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib import resources
from io import StringIO
from typing import Self

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.text_error import StandardError

#: What a variant changes: a slot of the model, the training, or anything else.
KINDS = ("norm", "position", "attention", "feedforward", "block", "train", "other")
#: Experiments that say enough of how unlike another may be.
FEWEST = 5
#: Times the least and the most that was seen, beyond which nothing is predicted.
_FAR = 4.0
_HALVINGS = 60  # of an interval, to the precision of a float
_SPREAD = 1.0  # of the logarithm of a variance between rows: about what the packs have
_TEXT_DF = 2.0  # of the text's error, which differs between corpora as much


@dataclass(frozen=True)
class Seen:
    """The noise of all rows of an experiment that change the same kind of thing."""

    experiment: str
    corpus: str
    kind: str
    #: Of the baseline, without embeddings.
    parameters: int
    #: Of a run's training.
    tokens: int
    #: Of paired differences over seeds, in nats per token, with its degrees of freedom.
    sd: float
    df: int
    #: The standard error from the held-out text times the root of its documents; NaN if unknown.
    text: float


@dataclass(frozen=True)
class NoiseMemory:
    """What was seen, and what it predicts."""

    rows: tuple[Seen, ...]

    @classmethod
    def shipped(cls) -> Self:
        """Return what the packs of this repository have seen."""
        file = resources.files("llama_ablate.evidence") / "noise.csv"
        return cls.read(file.read_text("utf-8"))

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what `written` wrote."""
        types = {field.name: field.type for field in fields(Seen)}
        return cls(
            tuple(
                Seen(**{name: types[name](value) for name, value in row.items()})  # type: ignore[operator]
                for row in csv.DictReader(StringIO(text))
            )
        )

    def written(self) -> str:
        """Return the rows as a CSV, numbers with three digits."""
        text = StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(Seen)], lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            numbers = {key: f"{getattr(row, key):.3g}" for key in ("sd", "text")}
            writer.writerow({**asdict(row), **numbers})
        return text.getvalue()

    def without(self, experiment: str) -> "NoiseMemory":
        """Return what all other experiments have seen."""
        return NoiseMemory(tuple(row for row in self.rows if row.experiment != experiment))

    def expected(self, kind: str, parameters: int, tokens: int) -> StandardError | None:
        """Return the standard deviation over seeds that a row is to have, in nats, and its df.

        None where too little was seen, or nothing within four times the size and the length.
        """
        if self.experiments < FEWEST or not self._is_near(parameters, tokens):
            return None
        from scipy import special

        log = float(_features([(kind, parameters, tokens)])[0] @ self._fitted)
        # Of a scaled inverse chi-squared variance, whose logarithm this is the mean of.
        log += special.digamma(self.df / 2) - math.log(self.df / 2)
        return StandardError(math.exp(log / 2), self.df)

    def text(self, corpus: str, documents: int) -> StandardError | None:
        """Return the standard error that so many held-out documents will leave in a difference."""
        known = [row for row in self.rows if row.text > 0]
        own = [row.text for row in known if row.corpus == corpus] or [row.text for row in known]
        if not own or documents < 1:
            return None
        return StandardError(float(np.median(own)) / math.sqrt(documents), _TEXT_DF)

    @cached_property
    def df(self) -> float:
        """What a prediction is worth, in degrees of freedom, of an experiment that was not seen."""
        from scipy import special

        errors = []
        for experiment in self._experiments:
            fitted = _fit(self.without(experiment).rows)
            own = [row for row in self.rows if row.experiment == experiment]
            logs, noise = _logs(own)
            errors += list((logs - _of(own) @ fitted) ** 2 - noise)
        spread = max(float(np.mean(errors)), 0.01)
        low, high = 1e-3, 1e3
        for _ in range(_HALVINGS):  # the variance of a log variance falls with its df
            middle = math.sqrt(low * high)
            low, high = (middle, high) if special.polygamma(1, middle) > spread else (low, middle)
        return 2 * low

    @property
    def experiments(self) -> int:
        """How many experiments it has seen."""
        return len(self._experiments)

    @property
    def _experiments(self) -> list[str]:
        return [*dict.fromkeys(row.experiment for row in self.rows)]

    def _is_near(self, parameters: int, tokens: int) -> bool:
        seen = ([row.parameters for row in self.rows], [row.tokens for row in self.rows])
        return all(
            min(of) / _FAR <= value <= max(of) * _FAR
            for of, value in zip(seen, (parameters, tokens), strict=True)
        )

    @cached_property
    def _fitted(self) -> NDArray[np.float64]:
        return _fit(self.rows)


def _fit(rows: Sequence[Seen]) -> NDArray[np.float64]:
    """Fit log variances by weighted least squares, slopes and kinds shrunk a little to none."""
    logs, noise = _logs(rows)
    features, weights = _of(rows), 1 / (noise + _SPREAD)
    shrunk = np.diag([0.0] + [1.0] * (2 + len(KINDS)))
    normal = features.T @ (weights[:, None] * features) + shrunk
    return np.asarray(np.linalg.solve(normal, features.T @ (weights * logs)), float)


def _logs(rows: Sequence[Seen]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithms of variances, unbiased, and the variance that those are known to."""
    from scipy import special

    half = np.array([row.df for row in rows], float) / 2
    logs = 2 * np.log([row.sd for row in rows]) - special.digamma(half) + np.log(half)
    return logs, special.polygamma(1, half)


def _of(rows: Iterable[Seen]) -> NDArray[np.float64]:
    return _features([(row.kind, row.parameters, row.tokens) for row in rows])


def _features(of: Sequence[tuple[str, int, int]]) -> NDArray[np.float64]:
    """Return a constant, the logarithms of size and length, and the kind as 0 or 1."""
    return np.array(
        [
            [1.0, math.log(parameters / 1e6), math.log(tokens / 1e6)]
            + [float(kind == one) for one in KINDS]
            for kind, parameters, tokens in of
        ]
    )
