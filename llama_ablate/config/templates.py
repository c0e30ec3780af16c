"""Templates: commented experiments to begin with, shipped with the package.

Their one source is `experiments/` of the checkout, from which a wheel takes them along.
"""

from importlib import resources
from pathlib import Path

from llama_ablate.config.marked_yaml import parse
from llama_ablate.errors import ConfigError, nearest

#: In the order in which they are listed.
NAMES = (
    "first",
    "quickstart",
    "norm",
    "position",
    "attention",
    "feedforward",
    "block",
    "factorial",
    "path",
    "tune",
    "ladder",
)


def text(name: str) -> str:
    """Return a template's YAML text. Raises ConfigError for a name that there is not."""
    if name not in NAMES:
        raise ConfigError(f"'{name}' is not a template{nearest(name, NAMES)}")
    shipped = resources.files("llama_ablate") / "templates" / f"{name}.yaml"
    if shipped.is_file():
        return shipped.read_text("utf-8")
    experiments = Path(__file__).parents[2] / "experiments"
    folder = experiments / "templates"
    if not (folder / f"{name}.yaml").is_file():
        folder = experiments
    return (folder / f"{name}.yaml").read_text("utf-8")


def question(name: str) -> str:
    """Return what a template asks."""
    return str(parse(text(name), f"{name}.yaml").values["question"])
