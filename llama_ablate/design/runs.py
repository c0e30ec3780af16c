"""Runs of a plan: their steps within a budget, their seeds and their ids."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from llama_ablate.config import plugins
from llama_ablate.config.experiment import Experiment, Train
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import ModelSpec, digest
from llama_ablate.design.variants import find_place, resolve_train_key, train_components
from llama_ablate.errors import ConfigError
from llama_ablate.model.components import REGISTRIES
from llama_ablate.results.plan_document import (
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

TuningPoint = dict[str, Any]


def points(experiment: Experiment) -> list[TuningPoint]:
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
    return any(of.get("balance") == "loss" and of.get("balance_weight") for of in networks)


def tokens_per_step(experiment: Experiment, variant: PlannedVariant) -> int:
    """Return the tokens that a variant reads in a training step."""
    batch: int = variant.train.get("batch", experiment.train.batch)
    return batch * int(variant.model["context"])


def plan_steps(experiment: Experiment, baseline: PlannedVariant) -> int:
    """Return the optimizer steps of the runs of a table's baseline."""
    train, sizes = experiment.train, experiment.sizes
    wanted = train.tokens or 0
    if sizes and sizes.tokens_per_parameter:
        wanted = round(sizes.tokens_per_parameter * baseline.non_embedding)
    elif train.steps:
        return train.steps
    return max(1, round(wanted / tokens_per_step(experiment, baseline)))


def with_runs(
    experiment: Experiment, table: PlannedTable, seconds: Mapping[str, float] | None = None
) -> PlannedTable:
    """Return a table with the runs of every variant, combination of tuned values and seed.

    Race seeds come first. `seconds` are measured seconds per step by variant id; with a budget of
    seconds and none measured, all variants take as many steps. The A/A arm with nothing changed has
    only the first `controls.repeat` reported seeds and no race, since it uses the baseline's tuned
    values. Results of a tuning race or of an interim analysis decide which later runs are needed.
    Seeds vary slowest, so that an interrupted experiment still has paired runs. Raises ConfigError
    for a variant that the budget does not suit.
    """
    costs = {v.id: _cost(table, v, seconds) for v in table.variants}
    steps = {v.id: _steps_of(experiment, table, v, costs) for v in table.variants}
    mixed = [
        variant.model_copy(
            update={"mixture": _mixture_of(experiment, table, variant, steps[variant.id])}
        )
        for variant in table.variants
    ]
    repeated = experiment.seed_list[: experiment.controls.repeat]
    scaled = scaled_rate(experiment, table)
    arms = []
    for point, variant in itertools.product(points(experiment), mixed):
        changes = {**scaled, **variant.train, **point}
        common = {
            "variant": variant.id,
            "steps": steps[variant.id],
            "train": changes,
            "tuned": point,
            "optimizer_bytes": count_optimizer_bytes(experiment, variant, changes),
        }
        arms.append((variant, common, *_identity(experiment, table, variant, common)))
    runs = [
        PlannedRun(
            id=digest([*what, seed, *how]),
            seed=seed,
            init_seed=seed + _ANEW * (variant.reseed in ("init", "both")),
            order_seed=seed + _ANEW * (variant.reseed in ("order", "both")),
            **common,
        )
        for seed in experiment.race_seeds + experiment.seed_list
        for variant, common, what, how in arms
        if variant.reseed != "none" or seed in repeated
    ]
    return PlannedTable(**{**dict(table), "variants": mixed, "runs": runs})


def _identity(
    experiment: Experiment, table: PlannedTable, variant: PlannedVariant, run: Mapping[str, Any]
) -> tuple[list[object], list[object]]:
    """Return the parts of a run's id before and after the seed."""
    train, spec = experiment.train.with_changes(run["train"]), variant.spec
    trained = [spec.identity(), train.identity("tokens", "steps")]
    what = [MEANING, *trained, run["steps"], *_read(experiment, table, variant)]
    # In earlier versions, which lack this word in the id, experts were balanced in each
    # micro-batch.
    is_cut = train.accumulate > 1 or experiment.parallel.data > 1
    balanced = ["balance of the step"] * (is_cut and by_loss(spec))
    return what, [variant.reseed, *balanced, *_foreign_code(spec, train)]


def _read(experiment: Experiment, table: PlannedTable, variant: PlannedVariant) -> list[object]:
    """Return the parts of a run's id that identify its training text and its evaluation."""
    readings = experiment.evaluation.documents or [table.text.source.documents]
    text = table.text_of(variant)
    data = text.source.with_changes(variant.data)
    other_reading = readings != [data.documents] and {"evaluated": readings}
    parts = [[source.fingerprint, source.share, source.tokens] for source in variant.mixture]
    span = experiment.model.context if data.order == "documents" else None
    return [text.fingerprint, *filter(None, [span, other_reading, parts and {"mixture": parts}])]


def _mixture_of(
    experiment: Experiment, table: PlannedTable, variant: PlannedVariant, steps: int
) -> list[PlannedSource]:
    """Return the sources of a variant's mixture, with the number of passes over each source.

    Raises ConfigError if the tokens of a source are fewer than one window.
    """
    text, sources = table.text_of(variant), []
    read = steps * tokens_per_step(experiment, variant)
    for name, portion in text.source.with_changes(variant.data).mixture.items():
        tokens, share = text.opened[name], portion.weight
        repeated = portion.epochs and round(read * share / portion.epochs)
        limits = [size for size in (portion.limit, repeated) if size is not None]
        taken, mark = min([tokens.counts["train"], *limits]), tokens.fingerprint
        if taken <= variant.model["context"]:
            message = f"'{name}' takes {taken:,} tokens, fewer than one window"
            place = find_place(variant.varied, "data.mixture", ("data", "mixture"))
            raise ConfigError(message, place)
        epochs = read * share / taken
        sources.append(
            PlannedSource(name=name, fingerprint=mark, share=share, tokens=taken, epochs=epochs)
        )
    return sources


def _steps_of(
    experiment: Experiment,
    table: PlannedTable,
    variant: PlannedVariant,
    costs: Mapping[str, float],
) -> int:
    """Return the number of steps of a variant's runs within the budget.

    `costs` are costs by variant id: per token, and with a budget of seconds per step. Raises
    ConfigError if one step costs more than twice the budget.
    """
    share = costs[table.baseline.id] / costs[variant.id]
    if table.budget != "seconds":
        share *= tokens_per_step(experiment, table.baseline) / tokens_per_step(experiment, variant)
    if table.steps * share < 0.5:
        what = f"a step of '{variant.label}' is more than twice the budget of a run"
        raise ConfigError(what, find_place(variant.varied, "train.batch"))
    return max(1, round(table.steps * share))


def _cost(
    table: PlannedTable, variant: PlannedVariant, seconds: Mapping[str, float] | None
) -> float:
    """Return a variant's cost in units of the budget: per token, or of seconds per step."""
    text = table.text_of(variant)
    if table.budget == "bytes":
        return text.bytes["train"] / text.tokens["train"]
    if table.budget == "flops":
        return variant.flops_per_token or 0
    return seconds[variant.id] if seconds else 1.0


def scaled_rate(experiment: Experiment, table: PlannedTable) -> dict[str, Any]:
    """Return the learning rate of a table's model size as a change of `train`, or {}.

    The learning rate is the first size's learning rate, scaled by 1/dim. Return {} if `sizes.lr` is
    `same`, or if the learning rate is tuned.
    """
    sizes = experiment.sizes
    if sizes is None or sizes.lr == "same" or "lr" in experiment.tune:
        return {}
    first = sizes.models[0].dim or experiment.model.dim
    return {"lr": experiment.train.lr * first / table.size["dim"]}


def optimizer_of(experiment: Experiment, changes: Mapping[str, Any]) -> Choice:
    """Return the optimizer of runs with these changes of `train`."""
    return OPTIMIZERS.resolve(changes.get("optimizer", experiment.train.optimizer))


def count_optimizer_bytes(
    experiment: Experiment, variant: PlannedVariant, changes: Mapping[str, Any]
) -> int:
    """Count the bytes of a checkpoint without the model's weights.

    Raises ConfigError for options that do not fit each other or the model.
    """
    entries = changes.get("losses", experiment.train.losses)
    losses = tuple(LOSSES.resolve(entry) for entry in entries)
    return optimizer_bytes(variant.spec, optimizer_of(experiment, changes), losses)


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
