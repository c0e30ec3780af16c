"""A text as an experiment reads it: its section of the file, and its tokens."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from llama_ablate.config.experiment import Data
from llama_ablate.data.overlap import Overlap
from llama_ablate.data.tokens import Tokens
from llama_ablate.errors import Where
from llama_ablate.results.plan_document import PlannedOverlap, PlannedText


@dataclass(frozen=True)
class TableText:
    """A corpus with a tokenizer, prepared."""

    data: Data
    tokens: Tokens
    #: The place of its section in the file.
    where: Where = ("data",)
    #: Those that a mixture may name, by the same tokenizer; `corpus` is the text's own.
    sources: Mapping[str, Tokens] = field(default_factory=dict)
    #: Held-out text that also stands in a training text, by its name; and how many documents were
    #: left out for that.
    overlaps: Mapping[str, Overlap] = field(default_factory=dict)
    left_out: int = 0

    @property
    def bytes_per_token(self) -> float:
        """The mean over the training split."""
        return self.tokens.bytes["train"] / self.tokens.counts["train"]

    def planned(self) -> PlannedText:
        """Return the plan's entry."""
        tokens = self.tokens
        return PlannedText(
            fingerprint=tokens.fingerprint,
            corpus=tokens.corpus,
            vocab=tokens.vocab,
            tokens=tokens.counts,
            bytes=tokens.bytes,
            documents=tokens.document_counts,
            lost=tokens.lost or "",
            overlaps={
                name: PlannedOverlap(**asdict(found))
                for name, found in self.overlaps.items()
                if found.documents or found.tokens or found.near
            },
            left_out=self.left_out,
            source=self.data,
        )
