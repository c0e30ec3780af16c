"""Templates: commented experiments to begin with, shipped with the package.

Their one source is `experiments/` of the checkout, from which a wheel takes them along.
"""

import keyword
import re
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
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
COMPONENT = "component"


def text(name: str) -> str:
    """Return a template's YAML text, without a name: a copy has that of its file.

    Raises ConfigError for a name that there is not.
    """
    if name not in NAMES:
        raise ConfigError(f"'{name}' is not a template{nearest(name, NAMES)}")
    text = _file(f"{name}.yaml").read_text("utf-8")
    return re.sub(r"^name: .*\n", "", text, flags=re.MULTILINE)


def component(slot: str, name: str) -> dict[str, str]:
    """Return the files of a new component of a slot: its class, its test and an experiment.

    Raises ConfigError for a name that is no identifier, or that would hide a module.
    """
    words = "".join(part.capitalize() for part in name.split("_"))
    if not (name.isidentifier() and words.isidentifier()) or keyword.iskeyword(name):
        raise ConfigError(f"'{name}' is no name of Python's; allowed: such as my_{slot}")
    if find_spec(name):
        raise ConfigError(f"'{name}' would hide the module of that name; allowed: my_{name}")
    instead = {"mine": name, "Mine": words, "SLOT": slot}

    def filled(file: str) -> str:
        text = _file(f"{COMPONENT}/{file}").read_text("utf-8")
        return re.sub("|".join(instead), lambda found: instead[found[0]], text)

    return {
        f"{name}.py": filled(f"{slot}.py"),
        f"test_{name}.py": filled("test.py"),
        f"{name}.yaml": filled("experiment.txt"),
    }


def _file(name: str) -> Traversable:
    shipped = resources.files("llama_ablate") / "templates" / name
    if shipped.is_file():
        return shipped
    experiments = Path(__file__).parents[2] / "experiments"
    own = experiments / "templates" / name
    return own if own.is_file() else experiments / name


def question(name: str) -> str:
    """Return what a template asks."""
    return str(parse(text(name), f"{name}.yaml").values["question"])
