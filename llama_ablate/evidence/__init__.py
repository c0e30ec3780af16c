"""Evidence: pure functions on arrays that turn measured numbers into intervals and verdicts."""

from llama_ablate.evidence.factorial import Contrast, contrasts
from llama_ablate.evidence.hypotheses import Expectation
from llama_ablate.evidence.intervals import Interval, bias, simultaneous
from llama_ablate.evidence.pairing import Effect, Summary, paired_effect, shape_alarm, summary
from llama_ablate.evidence.sequential import Standing
from llama_ablate.evidence.text_error import StandardError
from llama_ablate.evidence.verdicts import Ended, Verdict, judged, seeds_to_decide, verdict

__all__ = [
    "Contrast",
    "Effect",
    "Ended",
    "Expectation",
    "Interval",
    "StandardError",
    "Standing",
    "Summary",
    "Verdict",
    "bias",
    "contrasts",
    "judged",
    "paired_effect",
    "seeds_to_decide",
    "shape_alarm",
    "simultaneous",
    "summary",
    "verdict",
]
