"""Compare the peak memory that `plan` predicts with that of workers on a CPU.

    python benchmarks/memory.py              # 12 variants of committed experiments, half an hour
    python benchmarks/memory.py FILE LABEL   # one variant of another file

Each variant is trained for three steps and evaluated once in a separate worker, whose record states
its peak memory. The closed-form prediction should be within a factor of 1.5 of it.
"""

import sys
import tempfile
from pathlib import Path

from llama_ablate.config import experiment
from llama_ablate.design.forecast import WITHIN, estimate_peak_bytes
from llama_ablate.design.plan import make
from llama_ablate.design.runs import count_optimizer_bytes
from llama_ablate.launch.local import Local
from llama_ablate.results import Settings, Store
from llama_ablate.training.compute import choose

ROOT = Path(__file__).parents[1] / "experiments"
CASES = (
    ("first.yaml", "baseline"),
    ("attention.yaml", "gqa"),
    ("moe.yaml", "top-2 of 8"),
    ("small/moe.yaml", "top-2 of 8"),
    ("small/hybrids.yaml", "delta"),
    ("width_transfer.yaml", "standard"),
    ("parts.yaml", "output gate by element"),
    ("dropout.yaml", "dropout=0.1"),
    ("small/dropout.yaml", "dropout=0.1"),
    ("norms.yaml", "layernorm"),
    ("claims/e10.yaml", "pre"),
    ("claims/e12.yaml", "sinusoidal"),
)
SHORT = (
    "budget=tokens",
    "train.steps=3",
    "train.evals=1",
    "train.branches=[]",
    "seeds=2",
    "measure=[kv_cache]",
    "tune={}",
)


def peaks(file: Path, label: str) -> tuple[int, int]:
    """Return the predicted and the measured peak memory of a variant, in bytes.

    The variant is taken from the experiment's last comparison table.
    """
    plan = make(experiment.load(file, (*SHORT, "hypotheses=[]", "guard=[]")))
    table = plan.tables[-1]
    names = [variant.label for variant in table.variants]
    if label not in names:
        sys.exit(f"memory.py: '{label}' is no variant of '{file}': {', '.join(names)}")
    variant = table.variants[names.index(label)]
    run = next(run for run in table.runs if run.variant == variant.id)
    train = plan.experiment.train.with_changes(run.train)
    compute = choose(plan.tables[0].baseline.spec, train, "cpu")
    state = count_optimizer_bytes(plan.experiment, variant, run.train)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "results")
        store.prepare()
        store.create(plan.model_copy(update={"compute": compute, "settings": Settings("none")}), "")
        launcher = Local(store, "cpu", workers=1)
        launcher.submit([run.id])
        while not launcher.poll().gone:
            pass
        record = store.record(run.id)
        assert record is not None, "a worker that ended leaves a record"
    return estimate_peak_bytes(variant.spec, train, compute, state), record.peak_memory_bytes


def main(words: list[str]) -> None:
    """Print a line per variant: predicted peak, measured peak, and their ratio."""
    cases = [(Path(words[0]), words[1])] if words else [(ROOT / f, label) for f, label in CASES]
    for file, label in cases:
        predicted, reached = peaks(file, label)
        ratio = predicted / reached
        beyond = "" if 1 / WITHIN <= ratio <= WITHIN else "  beyond the factor"
        print(
            f"{file.stem:24} {label:24} predicted {predicted / 1e6:6.0f} MB, "
            f"reached {reached / 1e6:6.0f} MB: {ratio:.2f}{beyond}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
