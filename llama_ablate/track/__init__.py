"""Send curves, final metrics and recipes of runs to the trackers that people use elsewhere.

Results are never read back from a tracker, and nothing here can fail a run: a process beside the
launcher reads the results folder and sends what is new.
"""

from llama_ablate.track import mlflow, tensorboard, wandb
from llama_ablate.track.sinks import SINKS, Sink, TrackedRun

__all__ = ["SINKS", "Sink", "TrackedRun", "mlflow", "tensorboard", "wandb"]
