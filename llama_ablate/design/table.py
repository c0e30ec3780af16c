"""Tables of a plan: variants with equal text, size, matching and budget, and their runs."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import Any, Literal

from llama_ablate.config import labels, plugins
from llama_ablate.config.experiment import Data, Experiment, Train
from llama_ablate.config.registry import Choice
from llama_ablate.config.schema import Reading
from llama_ablate.config.spec import ModelSpec, digest
from llama_ablate.data.tokens import Tokens
from llama_ablate.design.variants import TableText, Variant, resolve_train_key, train_components
from llama_ablate.errors import ConfigError
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.counts import Counts, count, states
from llama_ablate.results.plan_document import (
    CONTEXTS,
    PlannedRun,
    PlannedSource,
    PlannedTable,
    PlannedVariant,
)
from llama_ablate.training.losses import LOSSES
from llama_ablate.training.optimizers import OPTIMIZERS, optimizer_bytes

#: Version of the meaning of a plan, part of every run's id. It is raised when the same plan would
#: train differently, as after a change of a default.
MEANING = 2
_ANEW = 1 << 32  # added to the seed of an A/A arm: larger than every seed in a file

Point = dict[str, Any]


def points(experiment: Experiment) -> list[Point]:
    """Return every combination of tuned values; a single empty combination without tuning.

    Raises ConfigError for a key that cannot be tuned, an invalid value, and fewer than two values.
    """
    axes = []
    for key, values in experiment.tune.items():
        read = [
            resolve_train_key(experiment.train, key, v, ("tune", key, i), tuned=True)
            for i, v in enumerate(values)
        ]
        if len({str(value) for value in read}) < max(2, len(read)):
            raise ConfigError(
                f"tuning '{key}' takes two values or more, all different", ("tune", key)
            )
        axes.append([(key, value) for value in read])
    return [dict(chosen) for chosen in itertools.product(*axes)]


def by_loss(spec: ModelSpec) -> bool:
    """Return whether a model balances its experts by an auxiliary loss over the whole step."""
    networks = (dict(choice.options) for choice in spec.feedforward.choices)
    return any(of.get("balance") == "loss" and of["balance_weight"] for of in networks)


@dataclass(frozen=True)
class Table:
    """Comparison table: variants with equal text, size, matching and budget, and their runs."""

    #: Name that distinguishes this table from the experiment's other tables; empty for a single
    #: table.
    name: str
    experiment: Experiment  # with this table's model size
    text: TableText  # of all variants without another tokenizer
    match: str
    budget: str
    #: How documents of held-out text are read; "" for the way in which the table's text is read.
    reading: Literal["", Reading]
    variants: tuple[Variant, ...]
    #: Changes of `train` in all runs: the learning rate, if it is scaled with model size.
    train: Mapping[str, Any]
    #: Measured seconds per step by variant id; a budget of seconds needs them.
    seconds: Mapping[str, float] | None = None

    @property
    def baseline(self) -> Variant:
        """The variant with which all other variants of the table are compared."""
        return self.variants[0]

    @property
    def tokens(self) -> Tokens:
        """Tokens of the table's text."""
        return self.text.tokens

    def _tokens_per_step(self, variant: Variant) -> int:
        batch: int = variant.train.get("batch", self.experiment.train.batch)
        return batch * variant.spec.context

    def span(self, data: Data) -> int | None:
        """Return the number of tokens that a step reads from each stream of documents.

        The number is the same for variants of every context. Return None if training windows are
        drawn at random positions instead (`order: windows`).
        """
        return self.experiment.model.context if data.order == "documents" else None

    @property
    def steps(self) -> int:
        """Optimizer steps of the baseline's runs."""
        train, sizes = self.experiment.train, self.experiment.sizes
        wanted = train.tokens or 0
        if sizes and sizes.tokens_per_parameter:
            wanted = round(sizes.tokens_per_parameter * self.counts[self.baseline.id].non_embedding)
        elif train.steps:
            return train.steps
        return max(1, round(wanted / self._tokens_per_step(self.baseline)))

    @property
    def tokens_per_run(self) -> int:
        """Tokens that each of the baseline's runs trains on."""
        return self.steps * self._tokens_per_step(self.baseline)

    @cached_property
    def counts(self) -> dict[str, Counts]:
        """Exact parameter counts and costs of each variant, by variant id."""
        return {v.id: count(v.spec) for v in self.variants}

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Runs of every variant, combination of tuned values and seed, race seeds first.

        The A/A arm with nothing changed has only the first `controls.repeat` reported seeds and no
        race, since it uses the baseline's tuned values. Results of a tuning race or of an interim
        analysis decide which later runs are needed. Seeds vary slowest, so that an interrupted
        experiment still has paired runs.
        """
        experiment = self.experiment
        repeated = experiment.seed_list[: experiment.controls.repeat]
        arms = [
            (variant, point, *self._identity(variant, point))
            for point, variant in itertools.product(points(experiment), self.variants)
        ]
        shared = [
            {
                "variant": variant.id,
                "steps": self.steps_of(variant),
                "train": train,
                "tuned": point,
                "optimizer_bytes": self.optimizer_bytes(variant, train),
            }
            for variant, point, train, _, _ in arms
        ]
        return tuple(
            PlannedRun(
                id=digest([*what, seed, *how]),
                seed=seed,
                init_seed=seed + _ANEW * (variant.reseed in ("init", "both")),
                order_seed=seed + _ANEW * (variant.reseed in ("order", "both")),
                **common,
            )
            for seed in experiment.race_seeds + experiment.seed_list
            for (variant, _, _, what, how), common in zip(arms, shared, strict=True)
            if variant.reseed != "none" or seed in repeated
        )

    def _identity(
        self, variant: Variant, point: Point
    ) -> tuple[dict[str, Any], list[object], list[object]]:
        """Return a run's changes of `train`, and the id parts before and after the seed."""
        changes = {**self.train, **variant.train, **point}
        train = self.experiment.train.with_changes(changes)
        trained = [variant.spec.identity(), train.identity("tokens", "steps")]
        what = [MEANING, *trained, self.steps_of(variant), *self._read(variant)]
        # In earlier versions, which lack this word in the id, experts were balanced in each
        # micro-batch.
        is_cut = train.accumulate > 1 or self.experiment.parallel.data > 1
        balanced = ["balance of the step"] * (is_cut and by_loss(variant.spec))
        return changes, what, [variant.reseed, *balanced, *_foreign_code(variant.spec, train)]

    def _read(self, variant: Variant) -> list[object]:
        """Return the parts of a run's id that identify its training text and its evaluation."""
        readings = self.experiment.evaluation.documents or [self.text.data.documents]
        data = self.data_of(variant)
        evaluated = readings != [data.documents] and {"evaluated": readings}
        parts = [
            [portion.fingerprint, portion.share, portion.tokens]
            for portion in self.mixture_of(variant)
        ]
        others = [self.span(data), evaluated, parts and {"mixture": parts}]
        return [self.text_of(variant).tokens.fingerprint, *filter(None, others)]

    def mixture_of(self, variant: Variant) -> list[PlannedSource]:
        """Return the sources of a variant's mixture, with the number of passes over each source.

        Raises ConfigError if the tokens of a source are fewer than one window.
        """
        portions, sources = self.data_of(variant).mixture, []
        read = self.steps_of(variant) * self._tokens_per_step(variant) if portions else 0
        for name, portion in portions.items():
            tokens, share = self.text_of(variant).sources[name], portion.weight
            repeated = portion.epochs and round(read * share / portion.epochs)
            limits = [size for size in (portion.limit, repeated) if size is not None]
            taken, mark = min([tokens.counts["train"], *limits]), tokens.fingerprint
            if taken <= variant.spec.context:
                message = f"'{name}' takes {taken:,} tokens, fewer than one window"
                raise ConfigError(message, variant.place("data.mixture") or ("data", "mixture"))
            epochs = read * share / taken
            sources.append(
                PlannedSource(name=name, fingerprint=mark, share=share, tokens=taken, epochs=epochs)
            )
        return sources

    def data_of(self, variant: Variant) -> Data:
        """Return the `data` section of a variant, with its changes."""
        return self.text_of(variant).data.with_changes(variant.data)

    def steps_of(self, variant: Variant) -> int:
        """Return the number of steps of a variant's runs within the budget.

        Raises ConfigError if one step costs more than twice the budget.
        """
        share = self._cost(self.baseline) / self._cost(variant)
        if self.budget != "seconds":  # in seconds, the cost is per step, not per token
            share *= self._tokens_per_step(self.baseline) / self._tokens_per_step(variant)
        if self.steps * share < 0.5:
            what = f"a step of '{variant.label}' is more than twice the budget of a run"
            raise ConfigError(what, variant.place("train.batch") or variant.where)
        return max(1, round(self.steps * share))

    def _cost(self, variant: Variant) -> float:
        """Return a variant's cost per token, in units of the budget.

        For a budget in seconds, return the cost per step.
        """
        if self.budget == "bytes":
            return self.text_of(variant).bytes_per_token
        if self.budget == "flops":
            return self.counts[variant.id].flops_per_token
        if self.budget == "seconds":
            assert self.seconds is not None, "paced() comes first"
            return self.seconds[variant.id]
        return 1.0

    def optimizer(self, changes: Mapping[str, Any]) -> Choice:
        """Return the optimizer of runs with these changes of `train`."""
        return OPTIMIZERS.resolve(changes.get("optimizer", self.experiment.train.optimizer))

    def optimizer_bytes(self, variant: Variant, changes: Mapping[str, Any]) -> int:
        """Compute the bytes of a checkpoint without the model's weights.

        Raises ConfigError for options that do not fit each other or the model.
        """
        return optimizer_bytes(variant.spec, self.optimizer(changes), self.losses(changes))

    def losses(self, changes: Mapping[str, Any]) -> tuple[Choice, ...]:
        """Return the training losses of runs with these changes of `train`."""
        entries = changes.get("losses", self.experiment.train.losses)
        return tuple(LOSSES.resolve(entry) for entry in entries)

    def text_of(self, variant: Variant) -> TableText:
        """Return the text that a variant reads."""
        return variant.text or self.text

    def names(self, variant: Variant) -> set[str]:
        """Return the names of a variant: label, id, and a baseline's aliases."""
        own_names = {variant.label, variant.id}
        if not variant.is_baseline:
            return own_names
        called = labels.baseline_aliases(self.experiment, variant.spec.to_dict(), self.text.data)
        return own_names | called - {v.label for v in self.variants[1:]}

    def planned(self) -> PlannedTable:
        """Return the table's entry in `plan.json`."""
        sizes = {key: getattr(self.experiment.model, key) for key in ("dim", "layers", "heads")}
        return PlannedTable(
            name=self.name,
            match=self.match,
            budget=self.budget,
            reading=self.reading,
            size=sizes,
            text=self.text.planned(),
            span=self.span(self.text.data),
            steps=self.steps,
            tokens_per_run=self.tokens_per_run,
            variants=[self._variant(variant) for variant in self.variants],
            runs=[*self.runs],
        )

    def _variant(self, variant: Variant) -> PlannedVariant:
        contexts = tuple(sorted({*CONTEXTS, *self.experiment.state_contexts}))
        growth = dict(zip(contexts, states(variant.spec, contexts), strict=True))
        counted = self.counts[variant.id].to_dict()
        trained = self.experiment.model.context
        if variant.spec.context != trained and not isnan(growth[trained]):
            (longer,) = states(variant.spec, (trained + 1,))
            counted["state_bytes"] = growth[trained]
            counted["kv_bytes_per_token"] = longer - growth[trained]
        return PlannedVariant(
            label=variant.label,
            id=variant.id,
            baseline=variant.is_baseline,
            role=variant.role,
            reseed=variant.reseed,
            residual=variant.residual,
            solved=variant.solved,
            levels=dict(variant.levels),
            level_labels=dict(variant.level_labels),
            covers=list(variant.covers),
            train=dict(variant.train),
            data=dict(variant.data),
            mixture=self.mixture_of(variant),
            model=variant.spec.to_dict(),
            text=variant.text.planned() if variant.text else None,
            state_growth={at: int(size) for at, size in growth.items() if not isnan(size)},
            **counted,
        )


def refuse_other_code(
    spec: ModelSpec, recorded: Mapping[str, str], whose: str, train: Train | None = None
) -> None:
    """Raise ConfigError if a plug-in's code differs from the code that runs were made with.

    `recorded` is the recorded code, and `whose` names the runs in the message.
    """
    for name, component in _components(spec, train):
        if not plugins.is_recorded(component, recorded):
            raise ConfigError(
                f"the plugin that makes '{name}' is not the one that {whose} was made with"
            )


def _foreign_code(spec: ModelSpec, train: Train) -> list[str]:
    """Return the hashes or versions of plug-in code that a run uses."""
    return sorted({plugins.code_of(part) for _name, part in _components(spec, train)} - {""})


def _components(spec: ModelSpec, train: Train | None) -> list[tuple[str, Callable[..., Any]]]:
    """Return the components of a spec and of a train config, by name."""
    chosen = [(key, choice) for key in REGISTRIES for choice in getattr(spec, key).choices]
    inner = [(key, dict(choice.options).get("inner")) for key, choice in chosen]
    names = [(key, choice.name) for key, choice in chosen]
    names += [(key, name) for key, name in inner if name in REGISTRIES[key]]
    components = [(name, REGISTRIES[key].get(name)) for key, name in names]
    return components + (train_components(train) if train else [])
