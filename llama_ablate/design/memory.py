"""How much memory a worker needs for the runs of a plan, and how many workers fit."""

from typing import TYPE_CHECKING

from llama_ablate.design.variants import Variant
from llama_ablate.results.record import Memory
from llama_ablate.training.peak import peak_bytes

if TYPE_CHECKING:
    from llama_ablate.design.plan import Plan
    from llama_ablate.training.compute import Compute


def needed(plan: "Plan", compute: "Compute") -> Memory | None:
    """Return the memory of the run that needs most, of those that are likely to.

    Of each table's baseline, the variant with the most parameters and the one with the most FLOPs:
    a forecast of each variant would take a second each. None where none can be forecast.
    """
    likely: dict[str, tuple[Variant, int | None]] = {}
    for table in plan.tables:
        counts = table.counts
        for variant in (
            table.baseline,
            max(table.variants, key=lambda v: counts[v.id].parameters),
            max(table.variants, key=lambda v: counts[v.id].flops_per_token),
        ):
            if variant.id not in likely:
                train = plan.experiment.train.with_changes(variant.train)
                likely[variant.id] = variant, peak_bytes(variant.spec, train, compute)
    known = [(size, variant.label) for variant, size in likely.values() if size is not None]
    unknown = tuple(variant.label for variant, size in likely.values() if size is None)
    return Memory(*max(known), unknown) if known else None


def fitting(memory: Memory, free: int, compute: "Compute") -> int:
    """Return how many workers fit in the free memory of a device: one at least.

    On a CPU the ranks of a run share it.
    """
    shared = compute.ranks if compute.device == "cpu" else 1
    return max(1, free // (memory.bytes * shared))
