"""Plans for tests that need results on disk, and no experiment behind them."""

from dataclasses import replace

from llama_ablate import __version__
from llama_ablate.config.experiment import Data, Experiment
from llama_ablate.config.spec import digest
from llama_ablate.results import Record
from llama_ablate.results.plan_document import (
    CONTEXTS,
    FORMAT,
    PlanDocument,
    PlannedRun,
    PlannedTable,
    PlannedText,
    PlannedVariant,
)

#: A record that ended ok; tests replace what they are about.
RECORD = Record(
    id="0123abcd",
    label="rope",
    variant="v1",
    seed=0,
    outcome="ok",
    reason="",
    steps_done=2,
    tokens_done=64,
    train_s=0.5,
    peak_memory_bytes=1000,
    model={"dim": 8},
    train={"lr": 0.1},
    data="f",
    compute={"device": "cpu"},
    environment={"packages": {"torch": "2"}, "code": "c", "processor": "p", "gpu": None},
)


def record_of(run, **changes):
    """Return the record of a planned run that ended ok, with changes."""
    own = {"id": run.id, "variant": run.variant, "label": run.variant, "seed": run.seed}
    return replace(RECORD, **{**own, **changes})


def id_of(*parts):
    """An id made of anything."""
    return digest(list(parts))


def variant(id_="v1", label=None, **changes):
    """A planned variant; what is not given is plausible."""
    values = {
        "id": id_,
        "label": label or id_,
        "model": {"dim": 8},
        "parameters": 1000,
        "non_embedding": 900,
        "flops_per_token": 2000,
        "kv_bytes_per_token": 64,
        **changes,
    }
    growth = {n: (values["kv_bytes_per_token"] or 0) * n for n in CONTEXTS}
    return PlannedVariant(**{"state_growth": growth, **values})


def run(id_, variant="v1", seed=0, **changes):
    """A planned run; what is not given is plausible."""
    seeds = {"seed": seed, "init_seed": seed, "order_seed": seed}
    return PlannedRun(**{"id": id_, "variant": variant, "steps": 2, **seeds, **changes})


def table(variants, runs, text=None, **changes):
    """A planned table. The first variant is its baseline where none is."""
    if not any(v.baseline for v in variants):
        variants = [variants[0].model_copy(update={"baseline": True}), *variants[1:]]
    tokens = {"train": 1000, "validation": 100, "test": 100}
    values = {"fingerprint": "f", "corpus": "c", "vocab": 61, "tokens": tokens, "bytes": tokens}
    text = PlannedText(**{**values, "source": Data(), **(text or {})})
    size = {"dim": 8, "layers": 1, "heads": 1}
    common = {"size": size, "text": text, "steps": 2, "tokens_per_run": 64}
    return PlannedTable(**{**common, "variants": variants, "runs": runs, **changes})


def document(*tables, name="x", **experiment):
    """A plan of some tables; `experiment` are sections of its file."""
    sections = {"train": {"steps": 2, "batch": 4}, "variants": {}, **experiment}
    checked = Experiment.check({"name": name, **sections})
    return PlanDocument(format=FORMAT, version=__version__, experiment=checked, tables=list(tables))


def of_runs(*ids, name="x"):
    """A plan of one table with one variant and runs of these ids, a seed each."""
    runs = [run(id_, seed=seed) for seed, id_ in enumerate(ids or ("0123abcd",))]
    return document(table([variant()], runs), name=name)
