"""The command `track`: send an experiment's finished runs to a tracker, such as TensorBoard."""

from dataclasses import dataclass

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import ResultsOptions, option
from llama_ablate.errors import ConfigError, require

HELP = "send curves, metrics and recipes of finished runs to TensorBoard, W&B or MLflow"
EXAMPLE = "track results/first --to tensorboard"


@dataclass(frozen=True, kw_only=True)
class TrackOptions(ResultsOptions):
    """Options of `track`: results and trackers ("sinks")."""

    sinks: tuple[str, ...] = option(
        ..., "tensorboard, wandb, mlflow, or a plugin's; may be repeated", "SINK", flag="--to"
    )


def run(options: TrackOptions) -> Answer:
    """Send finished runs and their comparison to trackers.

    Raises ConfigError for a tracker that fails, or whose package is not installed.
    """
    from llama_ablate.results import Results
    from llama_ablate.track import SINKS
    from llama_ablate.track.replay import replay, send_comparison
    from llama_ablate.track.sinks import checked

    names, results = checked(options.sinks, "--to"), Results.open(options.folder)
    for name in names:
        if package := getattr(SINKS.get(name), "package", ""):
            require(package, f"--to {name}")
    results.refuse_links()
    sent, failures = replay(results, names)
    for name, reason in (failures or send_comparison(results, names)).items():
        raise ConfigError(f"--to {name}: {reason}; {sent} runs were sent")
    lines = [f"{options.folder}: {sent} runs sent to {', '.join(names)}"]
    viewers = (getattr(SINKS.get(name), "viewer", "") for name in names)
    lines += [f"to view them: {how.format(folder=results.track)}" for how in viewers if how]
    return Answer("\n".join(lines), {"sent": dict.fromkeys(names, sent)})
