"""Runs of a table: each variant with each seed at each tuned point, and the id of each."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_ablate.config.experiment import Experiment, Train
from llama_ablate.config.spec import ModelSpec, digest
from llama_ablate.design import train_config
from llama_ablate.design.train_config import Registries
from llama_ablate.design.variants import Variant
from llama_ablate.errors import ConfigError
from llama_ablate.results.plan_document import PlannedRun

#: The version of what a plan's words mean, part of every run's id: raised when the same plan would
#: train differently, as when a default gets another value.
MEANING = 2
_ANEW = 1 << 32  # added to the seed of an A/A arm: beyond every seed that a file may give

Point = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A variant trained from one seed on one text, at one point of what is tuned."""

    variant: Variant
    seed: int
    steps: int
    #: Changes of the experiment's `train`, the tuned point included.
    train: Mapping[str, Any]
    tuned: Mapping[str, Any]
    id: str

    @property
    def init_seed(self) -> int:
        """The seed of the initial weights."""
        return self.seed + _ANEW * (self.variant.reseed in ("init", "both"))

    @property
    def order_seed(self) -> int:
        """The seed of the order of training batches."""
        return self.seed + _ANEW * (self.variant.reseed in ("order", "both"))

    def planned(self, optimizer_bytes: int) -> PlannedRun:
        """Return the plan's entry."""
        return PlannedRun(
            id=self.id,
            variant=self.variant.id,
            seed=self.seed,
            init_seed=self.init_seed,
            order_seed=self.order_seed,
            steps=self.steps,
            train=dict(self.train),
            tuned=dict(self.tuned),
            optimizer_bytes=optimizer_bytes,
        )


def points(experiment: Experiment, registries: Registries) -> list[Point]:
    """Return every combination of tuned values; one empty point where nothing is tuned.

    Raises ConfigError for a key that cannot be tuned, a value that it cannot have, and fewer than
    two values.
    """
    axes = []
    for key, values in experiment.tune.items():
        read = [
            train_config.changed(experiment.train, key, v, ("tune", key, i), registries, tuned=True)
            for i, v in enumerate(values)
        ]
        if len({str(value) for value in read}) < max(2, len(read)):
            raise ConfigError(
                f"tuning '{key}' takes two values or more, all different", ("tune", key)
            )
        axes.append([(key, value) for value in read])
    return [dict(chosen) for chosen in itertools.product(*axes)]


def runs(
    table: Point,
    experiment: Experiment,
    variants: Sequence[Variant],
    steps: Callable[[Variant], int],
    text: Callable[[Variant], Sequence[object]],
    registries: Registries,
    code: Callable[[ModelSpec, Train], Sequence[str]],
) -> tuple[Run, ...]:
    """Return every variant at every point with every seed, those of a race first.

    The baseline repeated with nothing changed has the first `controls.repeat` of the seeds, and no
    race: it is at the baseline's point. Which runs are needed after a race or a look depends on
    what those find: `report.stages`. Seeds are outermost, so a grid cut short is still paired.
    `table` is what all runs of the table change of `train`, `text` what identifies a variant's
    tokens and their order, `code` names the code of plug-ins that a spec and a train config use.
    """
    seeds = experiment.race_seeds + experiment.seed_list
    arms = []  # a variant at a point each, whose runs differ by the seed alone
    for point, variant in itertools.product(points(experiment, registries), variants):
        changes = {**table, **variant.train, **point}
        train = experiment.train.with_changes(changes)
        length = steps(variant)
        trained = [variant.spec.identity(), train.identity("tokens", "steps"), length]
        what = [MEANING, *trained, *text(variant)]
        # In versions without this word the balance of experts was each micro-batch's own.
        is_cut = train.accumulate > 1 or experiment.parallel.data > 1
        balanced = ["balance of the step"] * (is_cut and by_loss(variant.spec))
        how = [variant.reseed, *balanced, *code(variant.spec, train)]
        arms.append((partial(Run, variant, steps=length, train=changes, tuned=point), what, how))
    repeated = experiment.seed_list[: experiment.controls.repeat]
    return tuple(
        run(seed=seed, id=digest([*what, seed, *how]))
        for seed in seeds
        for run, what, how in arms
        if how[0] != "none" or seed in repeated
    )


def by_loss(spec: ModelSpec) -> bool:
    """Return whether the experts of a mixture are balanced by a loss, of the whole step."""
    networks = (dict(choice.options) for choice in spec.feedforward.choices)
    return any(of.get("balance") == "loss" and of["balance_weight"] for of in networks)
