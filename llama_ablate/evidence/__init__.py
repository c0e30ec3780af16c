"""Evidence: pure functions on arrays that turn measured numbers into intervals and verdicts."""

from llama_ablate.evidence.factorial import Contrast, contrasts
from llama_ablate.evidence.intervals import NOTHING, Interval, bound_bias, simultaneous
from llama_ablate.evidence.pairing import measure_pairing
from llama_ablate.evidence.sequential import Standing
from llama_ablate.evidence.text_error import StandardError
from llama_ablate.evidence.verdicts import (
    Difference,
    Ended,
    Expectation,
    Verdict,
    judged,
    seeds_to_decide,
    verdict,
)

__all__ = [
    "NOTHING",
    "Contrast",
    "Difference",
    "Ended",
    "Expectation",
    "Interval",
    "StandardError",
    "Standing",
    "Verdict",
    "bound_bias",
    "contrasts",
    "judged",
    "measure_pairing",
    "seeds_to_decide",
    "simultaneous",
    "verdict",
]
