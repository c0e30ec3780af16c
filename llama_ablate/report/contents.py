"""Data frames behind a report's pictures: a comparison table's rows, runs, curves and values."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from llama_ablate.findings import factors, tuning
from llama_ablate.findings.compare import pair_differences
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.stages import find_reported, find_runs
from llama_ablate.findings.table import Table
from llama_ablate.report import columns
from llama_ablate.results.plan_document import BITS

#: Colours with a contrast of at least 3 to white and to the page's dark background. Neighbours are
#: distinct for colour-blind readers, too (after Okabe & Ito 2008, Color Universal Design).
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#8a63c9"),
    *("#a06a00", "#cc79a7", "#2a9bd6", "#5b8c00"),
)
BASELINE, OTHER = "#555555", "#9a9aa2"  # colours of baselines, and of variants without a name
#: Columns of a path's steps, by the names that pictures and tables give to differences.
STEP_COLUMNS = {"marginal": "difference", "marginal_low": "low", "marginal_high": "high"}
#: Most variants that all have a name in pictures; of more, the lowest losses, and the highest one.
MAX_NAMED, _BEST = 10, 6


@dataclass(frozen=True)
class Styles:
    """Colours of variants, their keys in SVG elements, and the variants named in pictures."""

    colours: Mapping[str, str]
    #: Short keys for the artists' ids, by variant.
    keys: Mapping[str, str]
    named: Collection[str]

    @classmethod
    def of(cls, names: Collection[str], baseline: str = "") -> "Styles":
        """Return the styles of variants that are all named, in their order."""
        others = (name for name in names if name != baseline)
        colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(others)}
        keys = {name: f"v{i}" for i, name in enumerate(names)}
        return cls(colours | {baseline: BASELINE}, keys, list(names))

    def colour(self, name: str) -> str:
        """Return the colour of a variant: grey without a name in pictures."""
        return self.colours.get(name, OTHER) if name in self.named else OTHER

    def key(self, name: str) -> str:
        """Return the key of a variant in SVG elements."""
        return self.keys.get(name, name)


def list_variants(frames: Frames) -> list[str]:
    """List the labels of all tables' variants, each once, in the plan's order."""
    tables = frames.plan.tables
    return list(dict.fromkeys(variant.label for table in tables for variant in table.variants))


@dataclass(frozen=True, eq=False)
class TableContents:
    """Data frames of one comparison table, for its pictures."""

    #: Frames of the whole experiment, and the table.
    experiment: Frames
    table: Table

    @property
    def name(self) -> str:
        """Name of the table; "" if the experiment has one table."""
        return self.table.plan.name if len(self.experiment.tables) > 1 else ""

    @property
    def baseline(self) -> str:
        """Label of the baseline."""
        return self.table.plan.baseline.label

    @cached_property
    def alone(self) -> Frames:
        """Frames of this table alone."""
        return self.experiment.only(self.table)

    @cached_property
    def comparison(self) -> pd.DataFrame:
        """Rows of the comparison in reading order, as in `order_rows`."""
        rows = order_rows(self.table, columns.comparison(self.alone))
        return rows.set_index(rows["variant"].rename(None))

    @cached_property
    def ranked(self) -> pd.DataFrame:
        """Rows of the comparison without the positive control, whose effect is large."""
        return self.comparison[self.comparison["role"] != "positive"]

    @cached_property
    def styles(self) -> Styles:
        """Styles of the variants, the same in all pictures and tables of a report."""
        every = Styles.of(list_variants(self.experiment), self.baseline)
        rows = self.comparison[self.comparison["role"] == ""]
        names = [*rows.loc[rows["loss"].notna(), "variant"]]
        if len(names) > MAX_NAMED:
            names = [*dict.fromkeys([self.baseline, *names[: _BEST + 1], names[-1]])]
        return Styles(every.colours, every.keys, names)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Points of the reported runs' curves, with losses in the table's unit.

        The column `read` counts training text: tokens, or bytes if variants have tokenizers of
        their own.
        """
        points = columns.curves(self.alone)
        points = points[(points["use"] == "reported") & points["variant"].isin(self.ranked.index)]
        plan, variants = self.table.plan, self.table.plan.variants
        sizes_of = {v.label: _token_bytes(self.table, v.label) for v in variants}
        scaled = {"read": points["tokens"] * points["variant"].map(sizes_of).astype(float)}
        for split in ("train", "validation"):
            scales = {v.label: plan.scale(v, split) for v in variants}
            scaled[split] = points[f"{split}_loss_nats"] * points["variant"].map(scales).astype(
                float
            )
        return points.assign(**scaled)

    @cached_property
    def seeds(self) -> dict[str, list[float]]:
        """Differences of single seeds from the baseline, by variant."""
        return pair_differences(self.table, find_runs(self.table))

    @cached_property
    def rates(self) -> pd.DataFrame:
        """Losses by variant, seed and learning rate; the chosen rate of a variant is marked."""
        table, reported = self.table, find_reported(self.table)
        rates = [json.loads(tuned).get("lr") for tuned in reported["tuned"]]
        chosen = dict(zip(reported["label"], rates, strict=True))
        tried = tuning.rates(find_runs(table), table.loss, table.chance)
        return tried.assign(best=tried["label"].map(chosen).eq(tried["lr"]))

    @cached_property
    def effects(self) -> pd.DataFrame:
        """Effects of a factorial design in reading order; empty for other designs."""
        rows = factors.estimate_factors(self.table)
        return rows[rows["verdict"].ne(factors.NOT_ESTIMABLE)]

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Differences of a path's steps, each from the step before; empty for other designs."""
        return factors.describe_steps(self.table).rename(columns=STEP_COLUMNS)

    @cached_property
    def rungs(self) -> pd.DataFrame:
        """Comparison rows of all model sizes; empty unless the experiment has several."""
        rows = [columns.comparison(self.experiment.only(rung)) for rung in self.experiment.rungs]
        return pd.concat(rows) if len(rows) > 1 else self.comparison.iloc[:0]

    @cached_property
    def state(self) -> pd.DataFrame:
        """Bytes of one sequence's state by variant and context, in 16-bit numbers."""
        rows = [
            (variant.label, context, float(size))
            for variant in self.table.plan.variants
            for context, size in variant.state_growth.items()
            if size is not None
        ]
        return pd.DataFrame(rows, columns=["variant", "context", "bytes"])


def order_rows(table: Table, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table's rows in reading order: baseline, other variants by loss, then controls.

    The steps of a path keep their order.
    """
    if table.experiment.variants.design == "path":
        return rows
    place = {"is_other": ~rows["baseline"], "is_control": rows["role"].ne("")}
    keys = [*place, "difference"]
    return rows.loc[rows.assign(**place).sort_values(keys, kind="stable").index]


def list_tables(frames: Frames, experiment: Frames) -> Iterator[TableContents]:
    """Yield the contents of comparison tables of an experiment, whose frames are `experiment`."""
    for table in frames.tables:
        yield TableContents(experiment, table)


def _token_bytes(table: Table, label: str) -> float:
    """Return the bytes of a training token; 1 if losses are per token."""
    if table.unit != BITS:
        return 1.0
    variant = next(v for v in table.plan.variants if v.label == label)
    text = table.plan.text_of(variant)
    return text.bytes["train"] / text.tokens["train"]
