"""Evidence: pure functions on arrays that turn measured numbers into intervals and verdicts."""

from llama_ablate.evidence.pairing import Effect, Summary, paired_effect, summary, verdict

__all__ = ["Effect", "Summary", "paired_effect", "summary", "verdict"]
