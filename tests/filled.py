"""Results of any number of finished runs, made in seconds: nothing is trained, nothing flushed."""

import math
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from llama_ablate.files import disk
from llama_ablate.results import CURVE, Store
from tests import plans
from tests.metrics import measured


def store(root: Path, variants: int, seeds: int, pending: int = 0) -> Store:
    """Write a store of all runs but the last `pending`, with its own writers, and their speeds.

    A variant's effect on the loss is its number in thousandths of a nat; each run of seed 7 of a
    thousand diverged.
    """
    filled = Store(root)
    planned = [
        plans.variant(
            f"v{n}",
            f"variant {n}" if n else "rope",
            model=plans.RECORD.model,
            kv_bytes_per_token=64 * (n + 1),
        )
        for n in range(variants)
    ]
    runs = [
        plans.run(f"{n:08x}", f"v{n % variants}", n // variants) for n in range(variants * seeds)
    ]
    lease = SimpleNamespace(
        held=True,
        set_once=lambda _key, value: value,
        number=1,
        folder=filled.working("all"),
        replace=disk.replace,
    )
    with mock.patch("llama_ablate.files.disk.os.fsync"):
        filled.create(plans.document(plans.table(planned, runs)), "name: x\n")
        for n, run in enumerate(runs[: len(runs) - pending]):
            of = planned[n % variants]
            loss = 1.5 + n % variants / 1000 + math.sin(n) / 100
            record = plans.record_of(
                run,
                label=of.label,
                outcome="diverged" if run.seed % 1000 == 7 else "ok",
                metrics={"perplexity": measured(test_loss_nats=loss)},
            )
            curve = [
                dict.fromkeys(CURVE, loss + 1 / step) | {"tokens": 32 * step}
                for step in range(1, 6)
            ]
            filled._commit(lease, record, curve, None)
        for of in planned:
            speed = measured(train_tokens_per_s=9.0)
            filled.add_metric(lease, filled.variant_folder(of.label, of.id), "train_speed", speed)
    return filled
