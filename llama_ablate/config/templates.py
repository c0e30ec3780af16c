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


def component(slot: str, code: Path) -> dict[Path, str]:
    """Return the files of a new component of a slot: its code, its test and an experiment.

    It is called as the file of its code. Raises ConfigError for a slot that there is not, and for a
    name that is none of Python's or hides a module.
    """
    from llama_ablate.config.spec import SLOTS  # later: help needs none of what it imports

    name, words = code.stem, code.stem.title().replace("_", "")
    if slot not in SLOTS:
        raise ConfigError(f"'{slot}' is not a slot{nearest(slot, SLOTS)}")
    if code.suffix != ".py" or not (name.isidentifier() and words.isidentifier()):
        raise ConfigError(
            f"--to {code}: must be a name of Python's and end in .py, as my_{slot}.py"
        )
    if find_spec(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"--to {code}: hides what is called '{name}' already; such as my_{name}.py"
        )
    instead = {"mine": name, "Mine": words, "SLOT": slot}
    files = {f"{slot}.py": f"{name}.py", "test.py": f"test_{name}.py", "plan.txt": f"{name}.yaml"}
    return {
        code.with_name(file): re.sub(
            "|".join(instead),
            lambda found: instead[found[0]],
            _file(f"{COMPONENT}/{template}").read_text("utf-8"),
        )
        for template, file in files.items()
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
