"""Send learning curves, final metrics and configs of runs to experiment trackers.

Results are never read back from a tracker, and an error here cannot fail a run: a separate process,
started with the launcher, reads the results folder and sends new results.
"""

from llama_ablate.track import mlflow, tensorboard, wandb
from llama_ablate.track.sinks import SINKS, Sink, TrackedRun

__all__ = ["SINKS", "Sink", "TrackedRun", "mlflow", "tensorboard", "wandb"]
