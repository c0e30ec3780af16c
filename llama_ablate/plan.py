"""From an experiment to its plan: data prepared, variants resolved and counted, runs named."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llama_ablate import grid
from llama_ablate.data import tokens
from llama_ablate.data.corpora import CORPORA
from llama_ablate.data.tokenizers import TOKENIZERS
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.experiment import Experiment, Source
from llama_ablate.grid import Run, Variant
from llama_ablate.model.counts import Counts, count
from llama_ablate.model.decoder import REGISTRIES
from llama_ablate.registry import Choice


@dataclass(frozen=True)
class Plan:
    """All that is known before a step is trained."""

    experiment: Experiment
    tokens: tokens.Tokens
    variants: tuple[Variant, ...]
    runs: tuple[Run, ...]
    measures: tuple[Choice, ...]

    @property
    def steps(self) -> int:
        """Optimizer steps of each run."""
        train = self.experiment.train
        per_step = train.batch * self.experiment.model.context
        return train.steps or max(1, round((train.tokens or 0) / per_step))

    @property
    def tokens_per_run(self) -> int:
        """Tokens that each run trains on."""
        return self.steps * self.experiment.train.batch * self.experiment.model.context

    @cached_property
    def counts(self) -> dict[str, Counts]:
        """Exact sizes and costs, by variant id."""
        return {v.id: count(v.spec) for v in self.variants}

    def to_dict(self) -> dict[str, Any]:
        """Return what `plan.json` holds: enough to read the results without making the plan."""
        return {
            "experiment": self.experiment.model_dump(mode="json"),
            "question": self.experiment.question,
            "data": {
                "fingerprint": self.tokens.fingerprint,
                "corpus": self.tokens.corpus,
                "vocab": self.tokens.vocab,
                "tokens": self.tokens.counts,
                "bytes": self.tokens.bytes,
            },
            "steps": self.steps,
            "tokens_per_run": self.tokens_per_run,
            "variants": [
                {
                    "label": v.label,
                    "id": v.id,
                    "baseline": v.is_baseline,
                    "residual": v.residual,
                    "levels": dict(v.levels),
                    "model": v.spec.to_dict(),
                    **self.counts[v.id].to_dict(),
                }
                for v in self.variants
            ],
            "runs": [{"id": r.id, "variant": r.variant.id, "seed": r.seed} for r in self.runs],
        }


def make(source: Source) -> Plan:
    """Return the plan of an experiment; reads the corpus, trains nothing.

    Raises ConfigError, with file, line and column, for whatever in the file cannot be done.
    """
    from llama_ablate.measure import METRICS

    experiment = source.experiment
    try:
        measures = tuple(
            METRICS.resolve(entry, ("measure", i)) for i, entry in enumerate(experiment.measure)
        )
        text = tokens.prepare(
            CORPORA.resolve(experiment.data.corpus, ("data", "corpus")),
            TOKENIZERS.resolve(experiment.data.tokenizer, ("data", "tokenizer")),
        )
        _check_size(experiment, text)
        _check_floor(measures, text)
        variants = grid.variants(experiment, REGISTRIES, text.vocab, _cost(experiment))
        for variant in variants:
            grid.costed(variant, count)
        _check_hypotheses(experiment, [variant.label for variant in variants])
    except ConfigError as error:
        raise source.locate(error) from None
    return Plan(
        experiment, text, variants, grid.runs(experiment, variants, text.fingerprint), measures
    )


def open_tokens(experiment: Experiment, fingerprint: str) -> tokens.Tokens:
    """Open the tokens that a plan was made with; on another machine, make them again.

    Raises ConfigError where the corpus has changed since.
    """
    folder = tokens.cache_folder() / "tokens" / fingerprint
    if (folder / "manifest.json").is_file():
        return tokens.load(folder)
    text = tokens.prepare(
        CORPORA.resolve(experiment.data.corpus), TOKENIZERS.resolve(experiment.data.tokenizer)
    )
    if text.fingerprint != fingerprint:
        raise ConfigError(
            f"the corpus has changed since these runs were planned: its fingerprint is "
            f"{text.fingerprint}, theirs {fingerprint}"
        )
    return text


def _cost(experiment: Experiment) -> grid.Cost | None:
    kinds: dict[str, grid.Cost] = {
        "parameters": lambda spec: count(spec).non_embedding,
        "flops": lambda spec: count(spec).flops_per_token,
    }
    return kinds.get(experiment.variants.match)


def _check_hypotheses(experiment: Experiment, labels: list[str]) -> None:
    for i, hypothesis in enumerate(experiment.hypotheses):
        for key in ("variant", "against"):
            name = getattr(hypothesis, key)
            if name is not None and name not in labels:
                message = f"no variant is called '{name}'{nearest(name, labels)}"
                raise ConfigError(message, ("hypotheses", i, key))
    if experiment.hypotheses and len(experiment.seed_list) < 2:
        raise ConfigError("a hypothesis needs an interval, and an interval two seeds or more",
                          ("seeds",))  # fmt: skip


def _check_floor(measures: tuple[Choice, ...], text: tokens.Tokens) -> None:
    for i, choice in enumerate(measures):
        if choice.name == "excess_loss" and text.source is None:
            raise ConfigError(
                "'excess_loss' needs a corpus whose floor is known (hmm, lag-copy, markov, recall) "
                "and the tokenizer 'chars'",
                ("measure", i),
            )


def _check_size(experiment: Experiment, text: tokens.Tokens) -> None:
    context = experiment.model.context
    batch = experiment.train.batch * context + 1
    for split, needed in {"train": batch, **dict.fromkeys(text.heldout, context + 1)}.items():
        if text.counts.get(split, 0) < needed:
            raise ConfigError(
                f"the {split} split has {text.counts.get(split, 0):,} tokens, smaller than one "
                f"{'batch' if split == 'train' else 'window'} of {needed:,}",
                ("data", "corpus"),
            )
