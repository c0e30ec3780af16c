"""Templates: commented experiments to begin with, shipped with the package.

Their one source is `experiments/` of the checkout, from which a wheel takes them along.
"""

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from llama_ablate.config.marked_yaml import parse
from llama_ablate.errors import ConfigError, nearest

#: By which editors complete the keys of an experiment file, and mark mistakes in it.
SCHEMA = Path(__file__).with_name("experiment.schema.json")
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
    "confirm",
)


def text(name: str) -> str:
    """Return a template's YAML text, without a name: a copy has that of its file.

    Its line for editors says where the schema is on this machine. Raises ConfigError for a name
    that there is not.
    """
    if name not in NAMES:
        raise ConfigError(f"'{name}' is not a template{nearest(name, NAMES)}")
    nameless = re.sub(r"^name: .*\n", "", _file(name).read_text("utf-8"), flags=re.MULTILINE)
    return re.sub(r"(?<=\$schema=)\S+", SCHEMA.as_uri(), nameless)


def _file(name: str) -> Traversable:
    shipped = resources.files("llama_ablate") / "templates" / f"{name}.yaml"
    if shipped.is_file():
        return shipped
    experiments = Path(__file__).parents[2] / "experiments"
    own = experiments / "templates" / f"{name}.yaml"
    return own if own.is_file() else experiments / f"{name}.yaml"


def question(name: str) -> str:
    """Return what a template asks."""
    return str(parse(text(name), f"{name}.yaml").values["question"])
