"""The experiment of a second gate: one variant again, on fresh seeds and a second text."""

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llama_ablate.config.experiment import Experiment, Model, Train
from llama_ablate.design import train_config
from llama_ablate.results.plan_document import PlannedRun, PlannedTable, PlannedVariant
from llama_ablate.training.registries import REGISTRIES

#: The first fresh seed: beyond the numbers of seeds that files give, below those of races.
FIRST_SEED = 500_000
#: From here on seeds are those of races.
_RACES = 1_000_000
_OF_TEXT = ("vocab", "separator")  # of a model: follow from the tokens


@dataclass(frozen=True)
class Gate:
    """The first gate's result for a variant: its verdict against the baseline, in nats."""

    #: The folder of its results.
    results: str
    #: What is to be confirmed: "better" or "equivalent".
    direction: str
    verdict: str
    difference: float
    low: float
    high: float
    seeds: int
    passed: bool
    #: Why its controls failed, where they did.
    controls: str = ""

    @property
    def sentence(self) -> str:
        """The verdict with its interval, and whether the gate was passed, in one line."""
        ends = f"{self.difference:+.4f} [{self.low:+.4f}, {self.high:+.4f}] nats"
        failed = f" (controls: {self.controls})" if self.controls else ""
        word = "passed" if self.passed else f"not passed{failed}"
        return f"{word}: {self.verdict}, {ends}, {self.seeds} seeds, {self.results}"


def fresh_seeds(count: int, used: Collection[int]) -> list[int]:
    """Return seeds that no run of the first gate and no race has used."""
    free = (s for s in itertools.chain(range(FIRST_SEED, _RACES), range(_RACES)) if s not in used)
    return list(itertools.islice(free, count))


def experiment(
    first: Experiment,
    table: PlannedTable,
    variant: PlannedVariant,
    chosen: Mapping[str, PlannedRun],
    gate: Gate,
    *,
    second: Any,
    margin: str,
    seeds: list[int],
    least: bool = False,
) -> dict[str, Any]:
    """Return the values of the experiment file of a second gate.

    Baseline and variant are those of a table of the first one, each with the train config of its
    chosen run; its text and the corpus `second` make a table each. The variant has a hypothesis of
    the gate's direction in both: to be better, by more than the margin where that is the `least`.
    Guards and controls are the first one's, with the baseline repeated.
    """
    base = table.baseline
    config = chosen[base.label].train_config(first.train).model_dump(mode="json")
    own = chosen[variant.label].train_config(first.train).model_dump(mode="json")
    model = {**base.model, "context": table.span or base.model["context"]}
    config["batch"] = first.train.batch  # of which a shorter context has made more
    base_entry, entry = (
        {"label": v.label}
        | {k: value for k, value in v.model.items() if value != model[k] and k not in _OF_TEXT}
        | ({"data.tokenizer": v.text.source.tokenizer} if v.text else {})
        for v in (base, variant)
    )
    entry |= {
        f"train.{key}": train_config.whole(key, own[key], REGISTRIES)
        for key in train_config.KEYS
        if own[key] != config[key]
    }
    corpus = absolute(table.text.source.corpus)
    names = [f"first text, {_name(corpus)}"[:60], f"second text, {_name(second)}"[:60]]
    read = table.text.source.model_dump(mode="json", exclude={"name", "corpus"})
    hypothesis: dict[str, Any] = {"variant": variant.label, "direction": gate.direction}
    if gate.direction == "equivalent" or least:
        hypothesis["margin"] = margin
    hypothesis |= {"source": gate.results, "said": gate.sentence}
    train = Train.model_validate({**config, "tokens": None, "steps": table.steps})
    values = {
        "name": f"{first.name[:38]} promoted {variant.label[:30]}",
        "question": f"Is {variant.label} {_question(gate.direction, base.label, margin)} on fresh "
        f"seeds and a second text too? The first gate: {gate.sentence}",
        "model": {k: v for k, v in model.items() if k in Model.model_fields and k not in _OF_TEXT},
        "variants": {
            "design": "list",
            "entries": [base_entry, entry],
            "baseline": base.label,
            "match": [table.match],
        },
        "texts": [
            {**read, "name": name, "corpus": text}
            for name, text in zip(names, (corpus, second), strict=True)
        ],
        "train": train.model_dump(mode="json", exclude_defaults=True),
        "budget": [table.budget],
        "controls": _controls(first, chosen),
        "seeds": seeds,
        "margin": margin,
        "hypotheses": [{**hypothesis, "table": name} for name in names],
        "measure": [*first.measure, *(["perplexity"] if _unscored(first) else [])],
    }
    if first.guard:
        values["guard"] = [one.model_dump(mode="json", exclude_none=True) for one in first.guard]
    if first.parallel.data > 1:
        values["parallel"] = first.parallel.model_dump(exclude_defaults=True)
    return values


def absolute(corpus: Any) -> Any:
    """Return a corpus with the path of its files from the root: a file may be read elsewhere."""
    if isinstance(corpus, str) or corpus.get("name") != "files" or "path" not in corpus:
        return corpus
    return {**corpus, "path": str(Path(corpus["path"]).expanduser().absolute())}


def written(values: Mapping[str, Any]) -> str:
    """Return the text of an experiment file."""
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=100)


def _question(direction: str, baseline: str, margin: str) -> str:
    if direction == "equivalent":
        return f"equivalent to {baseline} within {margin}"
    return f"better than {baseline}"


def _controls(first: Experiment, chosen: Mapping[str, PlannedRun]) -> dict[str, Any]:
    """Return the first gate's controls at the points that were chosen, and a repeated baseline."""
    positive = dict(first.controls.positive)
    if positive and "positive control" in chosen:
        tuned = chosen["positive control"].tuned
        positive = {
            f"train.{key}": train_config.whole(key, value, REGISTRIES)
            for key, value in tuned.items()
        } | positive
    return {"aa": list(dict.fromkeys(["none", *first.controls.aa])), "positive": positive}


def _unscored(first: Experiment) -> bool:
    return all(
        (entry if isinstance(entry, str) else entry.get("name")) != "perplexity"
        for entry in first.measure
    )


def _name(corpus: Any) -> str:
    """Name a corpus in a few words: its registered name, and of files where they lie."""
    if isinstance(corpus, str):
        return corpus
    words = [str(value) for key, value in corpus.items() if key in ("path", "dataset")]
    return words[0].rstrip("/").rpartition("/")[2] if words else str(corpus.get("name"))
