"""Comparison table of an experiment: its plan, with frames of its runs and measured values."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import pandas as pd

from llama_ablate.config import margins
from llama_ablate.config.experiment import Experiment
from llama_ablate.evidence.intervals import ALPHA
from llama_ablate.results.plan_document import HELD_OUT, PlannedTable, Unit

#: Function that returns the learning curve of a run, by its id.
Curves = Callable[[str], Sequence[Mapping[str, float]]]
#: A variant with a loss this many nats below the loss of token frequencies has learned more than
#: token frequencies.
CLEARLY_BELOW = 0.1
#: Splits of held-out text; the first measured split is reported.
SPLITS = (HELD_OUT, "test", "validation")
#: Splits that are reported as one text if nothing was chosen by the loss on one of them.
HELD_OUT_SPLITS = ("validation", "test")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, eq=False)
class Table:
    """Comparison table: variants that are trained on one text and compared with one baseline."""

    plan: PlannedTable
    experiment: Experiment
    #: A row for each planned run, with the columns of `RUNS` and one for each measured number. The
    #: column `use` is as known before any look: `reported`, `trial` or `race`.
    planned: pd.DataFrame
    #: A row for each measured value of a run or variant, with a column for each coordinate.
    measured: pd.DataFrame
    #: A row for each attempt to measure a metric.
    attempts: pd.DataFrame
    #: Hardware and software of each run with a record, one row for each run.
    machines: pd.DataFrame
    curve: Curves
    #: Labels of variants in hypotheses that are about no row of the comparison.
    asked: Collection[str] = ()
    #: Of a union: the tables that it joins, within which variants are paired.
    parts: tuple["Table", ...] = ()
    #: Two-sided error level that the intervals of the comparison's rows share.
    level: float = field(default=ALPHA, kw_only=True)

    @property
    def base(self) -> str:
        """Id of the baseline."""
        return self.plan.baseline.id

    @property
    def unit(self) -> Unit:
        """Unit in which losses are compared."""
        return self.plan.unit

    @cached_property
    def split(self) -> str:
        """Reported split: all held-out text, or test text if tuning used validation text."""
        return first_split(s for s in SPLITS if f"{s}_loss_nats" in self.planned) or "test"

    @property
    def split_name(self) -> str:
        """Name of the reported split for readers."""
        return "held-out" if self.split == HELD_OUT else self.split

    @property
    def loss(self) -> str:
        """Name of the reported loss, among the columns of runs."""
        return f"{self.split}_{self.unit.number}"

    @property
    def chance(self) -> float:
        """Loss of the baseline's model if all tokens were equally likely."""
        text = self.plan.text
        return math.log(text.vocab) * self.plan.scale(self.plan.baseline, self.split)

    @property
    def margin(self) -> float | None:
        """Equivalence margin in the table's unit; None if the experiment states no margin."""
        return margins.loss_margin(self.experiment.margin)

    @cached_property
    def has_learned(self) -> bool:
        """Learning status: true if some variant's loss is clearly below the unigram loss.

        Variants with losses near the unigram loss are alike because they have learned no more than
        token frequencies.
        """
        runs = self.planned
        counted = (
            runs["use"].eq("reported") & runs["outcome"].eq("ok") & runs["role"].ne("positive")
        )
        names = ["unigram_loss_nats", "validation_loss_nats"]
        unigram, loss = (runs.loc[counted].get(name, pd.Series(dtype=float)) for name in names)
        return not (unigram - loss).max() < CLEARLY_BELOW  # NaN in records of older versions

    @property
    def equivalence(self) -> float | None:
        """Equivalence margin; None without a margin, or if no variant has learned the text."""
        return self.margin if self.has_learned else None

    @property
    def allowed(self) -> float | None:
        """Difference in loss up to which a variant is not worse; None unless the file states it."""
        return margins.loss_margin(self.experiment.answer.not_worse_by)

    @property
    def experiments(self) -> Mapping[str, str]:
        """Names of the experiments that contain each variant, by variant id."""
        parts = self.parts or (self,)
        names: dict[str, list[str]] = {variant.id: [] for variant in self.plan.variants}
        for part in parts:
            for variant in part.plan.variants:
                names[variant.id].append(part.experiment.name)
        return {id_: " + ".join(of) for id_, of in names.items()}

    @cached_property
    def cache(self) -> dict[Any, Any]:
        """Results of functions that are computed once for each table."""
        return {}


def once(
    compute: Callable[Concatenate[Table, Arguments], Result],
) -> Callable[Concatenate[Table, Arguments], Result]:
    """Cache a function's result for each table and further arguments."""

    @wraps(compute)
    def computed(table: Table, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        key = (compute, args, *sorted(options.items()))
        if key not in table.cache:
            table.cache[key] = compute(table, *args, **options)
        result: Result = table.cache[key]
        return result

    return computed


def first_split(measured: Collection[Any] | Any) -> str:
    """Return the split to report among the splits with a measurement; "" for none."""
    return min((str(s) for s in measured if s in SPLITS), key=SPLITS.index, default="")
