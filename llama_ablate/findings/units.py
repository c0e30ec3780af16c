"""The unit in which a table compares losses."""

from dataclasses import dataclass

from llama_ablate.config import margins
from llama_ablate.results.plan import PlannedTable


@dataclass(frozen=True)
class Unit:
    """A unit of losses."""

    #: As it stands behind a number, and in full.
    name: str
    full: str
    #: A run's number in it is called `{split}_{number}`.
    number: str
    #: What is read, in such units of text.
    text: str


NATS = Unit(margins.NATS, "nats per token", "loss_nats", "training tokens")
BITS = Unit(margins.BITS, "bits per byte", "bits_per_byte", "training text (bytes)")


def unit_of(table: PlannedTable) -> Unit:
    """Return a table's unit: bits per byte where its variants have tokens of several kinds."""
    return BITS if table.has_tokenizers else NATS
