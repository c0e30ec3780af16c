"""Typed document of an experiment's plan, shared by its writer and all its readers."""

import contextlib
import hashlib
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    field_validator,
    model_validator,
)

from llama_ablate import __version__
from llama_ablate.config import labels, margins
from llama_ablate.config.experiment import Data, Experiment, Hypothesis, Train
from llama_ablate.config.schema import Reading
from llama_ablate.config.stored import Refusal, known_changes, read_stored
from llama_ablate.errors import ConfigError, Where, nearest
from llama_ablate.files import disk
from llama_ablate.files.fields import Count, Fingerprint, Id, Number, Options, Positive, Text, typed
from llama_ablate.files.strict_json import parse, sealed
from llama_ablate.results.archive import Files
from llama_ablate.results.leases import Lease
from llama_ablate.results.record import ComputeSettings, Settings

#: Version of the results layout: increased when other code would misread the files.
FORMAT = 5
#: Formats that this version reads: in format 4, metrics of runs have files of their own.
_READABLE = (4, 5)
#: The current plan.
PLAN = "plan.json"
#: Names of earlier plans, which contain the beginning of their SHA-256.
EARLIER = re.compile(r"plan-[0-9a-f]{8}\.json")
#: Validation and test text as one split, reported where nothing was chosen by validation.
HELD_OUT = "heldout"
#: Context lengths at which the growth of a state is plotted.
CONTEXTS = tuple(2**n for n in range(7, 18))
Table = TypeVar("Table")


class StoredPart(BaseModel):
    """Part of a stored document; keys unknown to this version are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PlannedOverlap(StoredPart):
    """Overlap of a table's held-out text with another text."""

    documents: Count
    tokens: Count
    all_documents: Positive
    all_tokens: Positive
    #: Share of the held-out passages of some 400 bytes that the other text contains, above 1%.
    parts: Number = 0


class PlannedText(StoredPart):
    """Tokenized text of a table, with the data needed to reproduce it elsewhere."""

    fingerprint: Fingerprint
    corpus: Fingerprint
    vocab: Positive
    tokens: dict[str, Positive]
    bytes: dict[str, Positive]
    #: Documents of each split; empty in plans of older versions.
    documents: dict[str, Count] = Field(default_factory=dict)
    #: An example of text that the tokenizer loses; empty where it loses none.
    lost: str = ""
    #: Overlap of held-out text with another text, by the other text's name: `corpus` or a source
    #: for training text, `test` for test text that also occurs in the validation split.
    overlaps: dict[str, PlannedOverlap] = Field(default_factory=dict)
    #: Number of held-out documents that were left out because they occur in training text.
    left_out: Count = 0
    source: Data
    #: Path of its section in the experiment file, token between documents, and opened tokens by
    #: name: its own are `corpus`, others are sources of mixtures. Known while planning, and never
    #: written.
    where: Where = Field(("data",), exclude=True)
    separator: int | None = Field(None, exclude=True)
    opened: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)

    @field_validator("source", mode="before")
    @classmethod
    def _read_source(cls, source: Any) -> Any:
        return read_stored(Data, source).section if isinstance(source, dict) else source

    @model_validator(mode="after")
    def _check_splits(self) -> "PlannedText":
        if "train" not in self.tokens or self.tokens.keys() != self.bytes.keys():
            raise ValueError("`tokens` and `bytes` are of the same splits, `train` among them")
        return self

    def size(self, split: str) -> tuple[int, int, int]:
        """Return the token, byte and document counts of a split; 0 for unknown documents."""
        of = [s for s in self.tokens if s != "train"] if split == HELD_OUT else [split]
        each = ((self.tokens[s], self.bytes[s], self.documents.get(s, 0)) for s in of)
        tokens, size, documents = map(sum, zip(*each, strict=True))
        return tokens, size, documents


class PlannedSource(StoredPart):
    """Source of a mixture, with its share of training tokens and its size in tokens."""

    name: Text
    fingerprint: Fingerprint
    share: Number = Field(gt=0, le=1)
    tokens: Positive
    #: Number of passes of a run over the source.
    epochs: Number


class PlannedVariant(StoredPart):
    """Variant of a table: its architecture with all defaults, and its exact sizes."""

    label: Text
    id: Id
    baseline: bool = False
    #: Kind of a control; for an A/A arm, the random draws that differ: "init", "order" or "both".
    role: Literal["", "aa", "positive"] = ""
    reseed: str = ""
    #: Relative deviation from the budget after matching, and the matched size, as in
    #: "feed-forward width 176".
    residual: Number = 0.0
    solved: str = ""
    #: In a factorial design: the index of each factor's value on its axis.
    levels: dict[str, int] = Field(default_factory=dict)
    #: Labels of these values by factor, where the file gives them.
    level_labels: dict[str, str] = Field(default_factory=dict)
    #: Levels of the file that change nothing and therefore coincide with this variant.
    covers: list[str] = Field(default_factory=list)
    #: Changes of the experiment's `train` section, and of its text's `data` section.
    train: Options = Field(default_factory=dict)
    data: Options = Field(default_factory=dict)
    #: Sources of the training text, where it is a mixture.
    mixture: list[PlannedSource] = Field(default_factory=list)
    #: The architecture: sizes, and a component with all its options in every slot.
    model: Options
    #: Tokenized text, where it differs from the table's.
    text: PlannedText | None = None
    parameters: Positive
    non_embedding: Count
    #: None where a user's mixer does not count its FLOPs.
    flops_per_token: Count | None = None
    #: State of one sequence (KV cache or recurrent state) at the experiment's training context: the
    #: bytes that one further token adds, and the bytes of the whole state. None if a user's mixer
    #: does not count them.
    kv_bytes_per_token: Count | None = None
    state_bytes: Count | None = None
    active_parameters: Count | None = None
    #: Bytes of the state of one sequence in a 16-bit format, by context length.
    state_growth: dict[Count, Count] = Field(default_factory=dict)
    #: The resolved architecture, and the paths in the file of the keys that the variant changes.
    #: Known while planning, and never written.
    spec: Any = Field(None, exclude=True, repr=False)
    varied: dict[str, Where] = Field(default_factory=dict, exclude=True, repr=False)

    _known_train = field_validator("train")(partial(known_changes, Train))
    _known_data = field_validator("data")(partial(known_changes, Data))

    @property
    def active(self) -> int:
        """Number of parameters that a token uses: all except the parameters of skipped experts."""
        return self.parameters if self.active_parameters is None else self.active_parameters

    @property
    def flops(self) -> float:
        """Training FLOPs per token, backward twice forward; NaN where not counted."""
        return math.nan if self.flops_per_token is None else 3 * self.flops_per_token

    @property
    def work(self) -> float:
        """Training FLOPs per token; where not counted, six per active parameter.

        Two of the six are for the forward pass, four for the backward pass.
        """
        return 6 * self.active if self.flops_per_token is None else self.flops


class PlannedRun(StoredPart):
    """Training run of a variant with one seed at one tuning point."""

    id: Id
    variant: Id
    seed: Count
    init_seed: Count
    order_seed: Count
    steps: Positive
    #: Changes of the experiment's `train` section, tuned values included.
    train: Options = Field(default_factory=dict)
    tuned: dict[str, Any] = Field(default_factory=dict)
    #: Bytes of the optimizer state; None in plans of older versions, which all used AdamW.
    optimizer_bytes: Count | None = None

    _known_train = field_validator("train")(partial(known_changes, Train))

    def train_config(self, experiment: Train) -> Train:
        """Return the run's train config: the experiment's `train` with this run's changes."""
        return experiment.with_changes(self.train)


@dataclass(frozen=True)
class Unit:
    """Unit of a loss."""

    #: Abbreviation after a number, and full name.
    name: str
    full: str
    #: Suffix of metric names in this unit: `{split}_{number}`.
    number: str
    #: Name of the amount of training text that the unit divides by.
    text: str


NATS = Unit(margins.NATS, "nats per token", "loss_nats", "training tokens")
BITS = Unit(margins.BITS, "bits per byte", "bits_per_byte", "training text (bytes)")


class PlannedTable(StoredPart):
    """Table of an experiment: variants that share text, size, matching and budget."""

    #: Name that distinguishes it from the experiment's other tables; empty for a single table.
    name: str = ""
    match: str = "none"
    budget: str = "tokens"
    #: Document mode of held-out text, where the experiment states it; "" for the text's mode.
    reading: Literal["", Reading] = ""
    size: dict[str, Count]
    text: PlannedText
    #: With documents in random order: the tokens that a step reads from each document stream.
    span: Positive | None = None
    steps: Positive
    tokens_per_run: Positive
    variants: list[PlannedVariant]
    runs: list[PlannedRun]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if [variant.baseline for variant in self.variants].count(True) != 1:
            raise ValueError("a table has one baseline")
        if unknown := {run.variant for run in self.runs} - {v.id for v in self.variants}:
            raise ValueError(f"a run is of the variant {min(unknown)}, which the table lacks")
        if len({(run.variant, run.seed, str(run.tuned)) for run in self.runs}) < len(self.runs):
            raise ValueError("two runs are of one variant, seed and tuned point")
        return self

    @property
    def baseline(self) -> PlannedVariant:
        """Variant with which the others are compared."""
        return next(variant for variant in self.variants if variant.baseline)

    @cached_property
    def repeated(self) -> dict[str, str]:
        """Id of the baseline for each A/A arm that repeats the baseline, by arm id.

        An A/A arm is a variant without a change; only arms with the baseline's own random draws are
        included.
        """
        return {v.id: self.baseline.id for v in self.variants if v.reseed == "none"}

    @cached_property
    def has_tokenizers(self) -> bool:
        """Presence of a variant with another tokenizer; losses then compare in bits per byte."""
        return any(variant.text for variant in self.variants)

    @property
    def unit(self) -> Unit:
        """Unit of compared losses: bits per byte with several tokenizers, else nats per token."""
        return BITS if self.has_tokenizers else NATS

    @property
    def texts(self) -> list[PlannedText]:
        """Distinct texts: the table's, and the variants' with other tokenizers."""
        every = (self.text, *(variant.text for variant in self.variants))
        return list({text.fingerprint: text for text in every if text}.values())

    def text_of(self, variant: PlannedVariant) -> PlannedText:
        """Return the tokenized text of a variant."""
        return variant.text or self.text

    @property
    def evaluated_on(self) -> tuple[str, str, str]:
        """Evaluation conditions: text fingerprint, document modes of training and held-out text."""
        return self.text.fingerprint, self.text.source.documents, self.read_as

    @property
    def read_as(self) -> str:
        """Document mode of held-out text: documents kept apart, or read as one text."""
        return self.reading or self.text.source.documents

    def passes(self, variant: PlannedVariant) -> float:
        """Return a run's passes over a variant's text; for a mixture, the maximum over sources."""
        once = self.tokens_per_run / self.text_of(variant).tokens["train"]
        return max((source.epochs for source in variant.mixture), default=once)

    def pairs(self, variant: PlannedVariant, experiment: Experiment) -> bool:
        """Return whether a variant reads the same text as the baseline at every step."""

        def read(one: PlannedVariant) -> list[Any]:
            batch = one.train.get("batch", experiment.train.batch)
            data = read_stored(Data, {**self.text.source.model_dump(), **one.data}).section
            return [batch * (one.model.get("context") or 1), data.order, data.mixture]

        return read(variant) == read(self.baseline)

    def text_per_token(self, variant: PlannedVariant) -> float:
        """Return the training bytes per token of a variant relative to the baseline."""
        own_text, base = (self.text_of(v) for v in (variant, self.baseline))
        if own_text.fingerprint == base.fingerprint:
            return 1.0
        return (
            own_text.bytes["train"]
            / own_text.tokens["train"]
            * base.tokens["train"]
            / base.bytes["train"]
        )

    def scale(self, variant: PlannedVariant, split: str) -> float:
        """Return the factor from nats per token of a split to the table's unit."""
        if not self.has_tokenizers:
            return 1.0
        tokens, size, _ = self.text_of(variant).size(split)
        return tokens / size / math.log(2)

    @property
    def matching(self) -> str:
        """Description of the size matching: the quantity in which variants match the baseline."""
        return "not matched" if self.match == "none" else f"matched on {self.match}"

    def variant(self, id_: str) -> PlannedVariant:
        """Return the variant with an id."""
        return next(variant for variant in self.variants if variant.id == id_)


class PlanDocument(StoredPart):
    """Contents of `plan.json`, sufficient to read the results without planning again."""

    format: int
    #: Version of the program that wrote it; empty in plans of older versions.
    version: str = ""
    experiment: Experiment
    tables: list[PlannedTable] = Field(min_length=1)
    #: Compute settings of the runs, once measured.
    compute: ComputeSettings | None = None
    #: Launch settings of all runs.
    settings: Settings = Settings()
    #: Sentences on how plug-ins differ in behaviour from this package's components.
    notes: list[str] = Field(default_factory=list)
    #: Keys of the stored experiment that today's schema refuses; never written to a file.
    refused: list[Refusal] = Field(default_factory=list, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _read_experiment(cls, values: Any) -> Any:
        if not (isinstance(values, dict) and isinstance(values.get("experiment"), dict)):
            return values
        experiment, refused = read_stored(Experiment, values["experiment"])
        return {**values, "experiment": experiment, "refused": refused}

    @model_validator(mode="after")
    def _names_its_metrics(self) -> Self:
        if any(
            not isinstance(entry, str) and "name" not in entry for entry in self.experiment.measure
        ):
            raise ValueError("a metric that is measured has a name")
        return self

    @model_validator(mode="after")
    def _changes_what_there_is(self) -> Self:
        tables = self.tables
        if any(table.read_as not in self.readings(table).values() for table in tables):
            raise ValueError("a table is read in a way that the experiment does not state")
        tuned = {frozenset(run.tuned) for table in tables for run in table.runs}
        if len(tuned) > 1 or not tuned <= {frozenset(), frozenset(self.experiment.tune)}:
            raise ValueError("runs are tuned in other keys than the experiment states")
        changes = [{}, *(variant.train for table in tables for variant in table.variants)]
        changes += [run.train for table in tables for run in table.runs]
        for change in {str(change): change for change in changes}.values():
            changed = {**self.experiment.train.model_dump(), **change}
            train, refused = read_stored(Train, changed)
            if wrong := [refusal for refusal in refused if refusal.where[0] in change]:
                raise ValueError(f"a run is trained with another {wrong[0].where[0]}")
            optimizer = train.optimizer
            if not isinstance(optimizer, str) and "name" not in optimizer:
                raise ValueError("an optimizer has a name")
        return self

    @cached_property
    def runs(self) -> dict[str, PlannedRun]:
        """Runs of all tables by id, each once: tables may share runs."""
        return {run.id: run for table in self.tables for run in table.runs}

    @property
    def run_bounds(self) -> tuple[frozenset[str], frozenset[str]]:
        """Smallest and largest sets of planned runs that may be needed, as run ids.

        The tuning point that a race will choose is unknown; the first tuning point of the table
        stands for the chosen point.
        """
        experiment = self.experiment
        if not experiment.is_staged:
            every = frozenset(self.runs)
            return every, every
        most = {
            run.id: run.seed
            for table in self.tables
            for run in table.runs
            if run.seed in experiment.race_seeds or run.tuned == table.runs[0].tuned
        }
        first = experiment.race_seeds + experiment.seed_list[: experiment.looks[0]]
        return frozenset(id_ for id_, seed in most.items() if seed in first), frozenset(most)

    @property
    def variant_ids(self) -> list[str]:
        """Variant ids of all tables, each once."""
        return list({variant.id: None for table in self.tables for variant in table.variants})

    @property
    def architectures(self) -> dict[str, Options]:
        """Architecture of each variant by id, with every option."""
        return {variant.id: variant.model for table in self.tables for variant in table.variants}

    def only(self, runs: Collection[str]) -> "PlanDocument":
        """Return the plan restricted to some runs: their tables, variants and baselines."""
        tables = []
        for table in self.tables:
            runs_kept = [run for run in table.runs if run.id in runs]
            ids = {run.variant for run in runs_kept}
            of = {
                "runs": runs_kept,
                "variants": [v for v in table.variants if v.baseline or v.id in ids],
            }
            # A copy would carry cached properties that were computed from all runs.
            tables += [PlannedTable.model_construct(**{**dict(table), **of})] * bool(runs_kept)
        return PlanDocument.model_construct(**{**dict(self), "tables": tables})

    def identity(self) -> dict[str, Any]:
        """Return the values that decide whether two plans are the same.

        Keys of the experiment with default values are left out, so that a new default does not
        change the identity. The ids of variants and runs represent their architectures and train
        configs, the fingerprint of a text represents its documents.
        """
        identity_values: dict[str, Any] = {
            "variants": {"__all__": {"model", "state_bytes", "active_parameters", "state_growth"}},
            "runs": {"__all__": {"optimizer_bytes"}},
            "text": {"documents", "overlaps"},
        }
        values = self.model_dump(
            mode="json",
            exclude={"version": True, "experiment": True, "tables": {"__all__": identity_values}},
        )
        experiment = self.experiment.model_dump(mode="json", exclude_defaults=True)
        return {**values, "experiment": experiment, "refused": self.refused}

    def named(self) -> Self:
        """Return the plan with axis values as the label of each unchanged model."""

        def name(v: PlannedVariant, data: Data) -> PlannedVariant:
            if v.label != labels.UNCHANGED:
                return v
            label = labels.name_baseline(self.experiment, v.model, data, compared=v.baseline)
            return v.model_copy(update={"label": label})

        tables = []
        for table in self.tables:
            variants = [name(variant, table.text.source) for variant in table.variants]
            tables.append(table.model_copy(update={"variants": variants}))
        return self.model_copy(update={"tables": tables})

    @property
    def arms(self) -> list[tuple[PlannedVariant, PlannedTable]]:
        """Variants of all tables, each once, with the first table that contains it."""
        arms: dict[str, tuple[PlannedVariant, PlannedTable]] = {}
        for table in self.tables:
            for variant in table.variants:
                arms.setdefault(variant.id, (variant, table))
        return list(arms.values())

    def train_of(self, variant: PlannedVariant, table: PlannedTable) -> Train:
        """Return the train config of a variant's runs, without tuned values."""
        changes = next(
            (run.train for run in table.runs if run.variant == variant.id), variant.train
        )
        untuned = {key: value for key, value in changes.items() if key not in self.experiment.tune}
        return self.experiment.train.with_changes(untuned)

    def variant(self, name: str, table: PlannedTable) -> PlannedVariant | None:
        """Find a variant of a table by its label, short label or id; None for an unknown name.

        The baseline also has the name `baseline` and the names of its axis values, unless another
        variant has that label.
        """
        sources = self.experiment, table.baseline.model, table.text.source
        short = labels.shorten_labels([variant.label for variant in table.variants])
        called = (v for v in table.variants if name in (v.label, v.id, short[v.label]))
        return next(called, table.baseline if name in labels.baseline_aliases(*sources) else None)

    def called(self, name: str) -> set[str]:
        """Return the ids of the variants with a given name, over all tables."""
        return {match.id for table in self.tables if (match := self.variant(name, table))}

    def readings(self, table: PlannedTable) -> dict[str, str]:
        """Return the document modes of a table's held-out text, by metric-name suffix.

        The first mode has an empty suffix; another mode has its name as the suffix, as in `.mask`.
        """
        modes = self.experiment.evaluation.documents or [table.text.source.documents]
        return {f".{way}" if i else "": way for i, way in enumerate(modes)}

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """Stated hypotheses, with variants named by their labels."""
        return [self._labelled(entry) for entry in self.experiment.hypotheses]

    def _labelled(self, entry: Hypothesis) -> Hypothesis:
        tables = {table.name: table for table in self.tables}
        table = tables.get(entry.table or "", self.tables[0])

        def label(name: str | None) -> str | None:
            match = self.variant(name, table) if name else None
            return match.label if match else name

        names = {key: label(getattr(entry, key)) for key in ("variant", "against")}
        return entry.model_copy(update=names)

    def run_name(self, run: PlannedRun) -> str:
        """Return the display name of a run, such as `relu s0 (dim 64, lr=0.01)`.

        It consists of the label, the seed, the table if there are several, and the tuned values.
        """
        table = self.table_of(run.id)
        label = table.variant(run.variant).label
        details = [table.name] * bool(table.name) + [f"{k}={v}" for k, v in run.tuned.items()]
        return f"{label} s{run.seed}" + f" ({', '.join(details)})" * bool(details)

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of the tokens of all texts, each once."""
        every = (text.fingerprint for table in self.tables for text in table.texts)
        return list(dict.fromkeys(every))

    def table_of(self, run: str) -> PlannedTable:
        """Return the first table that contains a run. Raises KeyError if none does."""
        return self._table_of[run]

    @cached_property
    def _table_of(self) -> dict[str, PlannedTable]:
        return {run.id: table for table in reversed(self.tables) for run in table.runs}


def find_table(tables: Mapping[str, Table], name: str | None) -> Table:
    """Return the table of a given name; the first table for None.

    Raises ConfigError for an unknown name.
    """
    if name is None:
        return next(iter(tables.values()))
    if name not in tables:
        if len(tables) == 1:
            raise ConfigError("the experiment has one table, which needs no name")
        raise ConfigError(f"there is none of that name{nearest(name, tables)}")
    return tables[name]


_PLAN = TypeAdapter(PlanDocument)


class FormatError(ConfigError):
    """Error for results in the format of another program version."""


def read_plan(file: Path, files: Files = disk) -> PlanDocument:
    """Read a plan. Raises FormatError for another format, ConfigError for a damaged file."""
    raw = files.read(file)
    try:
        values = parse(raw, file, file.name)
    except ConfigError:
        _refuse_unsealed(parse(raw, file), file)
        raise
    return validated(values, file)


def _refuse_unsealed(values: Mapping[str, Any], file: Path) -> None:
    """Raise FormatError for a plan of a later format, whose seal may differ."""
    number = values.get("format")
    if isinstance(number, int) and number > FORMAT:
        validated(values, file)


def validated(values: Mapping[str, Any], file: Path) -> PlanDocument:
    """Return the values of an intact plan file as a typed document.

    Raises FormatError for a document of another version: a document with another format number, or
    with missing or invalid keys.
    """
    number, version = values.get("format"), values.get("version")
    which = f" ({version!s:.40})" if version else ""  # whatever stands there
    ours = f"this is version {__version__}, which reads format {FORMAT}"
    if number not in _READABLE:
        who = "an earlier" if isinstance(number, int) and number < FORMAT else "a later"
        what = f"'{file.parent}' is of format {number!s:.40}: {who} version{which} wrote it"
        raise FormatError(f"{what}; {ours}")
    try:
        plan = typed(_PLAN, values, "it")
        if not all(table.runs for table in plan.tables):
            raise ConfigError("a table has no runs")  # noqa: TRY301
    except ConfigError as error:
        who = (
            "another state of this version" if version == __version__ else f"another version{which}"
        )
        what = f"'{file}': {who} wrote it, or it was changed"
        raise FormatError(f"{what}; {ours} ({error})") from None
    return plan


def sound_plan(file: Path) -> PlanDocument | None:
    """Return the plan in a file; None for a damaged or missing file.

    Raises FormatError for a plan of another version, which no command may replace.
    """
    try:
        return read_plan(file)
    except FormatError:
        raise
    except (ConfigError, FileNotFoundError):
        return None


def refuse_another_experiment(file: Path, current: PlanDocument, plan: PlanDocument) -> None:
    """Raise ConfigError if the current plan belongs to an experiment of another name."""
    if current.experiment.name != plan.experiment.name:
        raise ConfigError(
            f"'{file.parent}' holds the results of '{current.experiment.name}', not of "
            f"'{plan.experiment.name}': choose another name, or another --results"
        )


def keep_plan(
    file: Path, current: PlanDocument, now: PlanDocument, finished: set[str], lease: Lease
) -> None:
    """Keep a copy of the current plan if its replacement drops finished runs."""
    if finished & current.runs.keys() - now.runs.keys():
        raw = disk.read(file)
        name = f"plan-{hashlib.sha256(raw).hexdigest()[:8]}.json"
        # The copy keeps the stored keys, since another version may know more than this one.
        lease.replace(file.parent / name, sealed(parse(raw, file, file.name), name))


def earlier_plans(root: Path, runs: set[str]) -> list[Path]:
    """Return the undamaged earlier plans that contain some of these runs."""
    plans = []
    for file in sorted(path for path in root.iterdir() if EARLIER.fullmatch(path.name)):
        with contextlib.suppress(ConfigError):
            plans += [file] * bool(runs & read_plan(file).runs.keys())
    return plans
