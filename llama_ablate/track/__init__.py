"""Send learning curves, final metrics and configs of runs to experiment trackers.

Results are never read back from a tracker, and an error of a tracker cannot fail a run.
"""

from llama_ablate.track import trackers
from llama_ablate.track.sinks import SINKS, Sink, TrackedRun

__all__ = ["SINKS", "Sink", "TrackedRun", "trackers"]
