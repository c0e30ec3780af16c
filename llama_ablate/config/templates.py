"""Templates: commented experiments to begin with, shipped with the package.

Their one source is `experiments/` of the checkout, from which a wheel takes them along.
"""

import keyword
import re
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from llama_ablate.errors import ConfigError, nearest

#: By which editors complete the keys of an experiment file, and mark mistakes in it.
SCHEMA = Path(__file__).with_name("experiment.schema.json")
#: In the order in which they are listed: to begin with, one a slot, one a design.
NAMES = (
    *("first", "quickstart"),
    *("norm", "position", "attention", "feedforward", "block"),
    *("factorial", "path", "tune", "ladder", "confirm"),
)
COMPONENT = "component"


def text(name: str) -> str:
    """Return a template's YAML text, without a name: a copy has that of its file.

    Its line for editors says where the schema is on this machine. Raises ConfigError for a name
    that there is not.
    """
    if name not in NAMES:
        raise ConfigError(f"'{name}' is not a template{nearest(name, NAMES)}")
    nameless = re.sub(r"^name: .*\n", "", _read(f"{name}.yaml"), flags=re.MULTILINE)
    return re.sub(r"(?<=\$schema=)\S+", SCHEMA.as_uri(), nameless)


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
            "mine|Mine|SLOT", lambda found: instead[found[0]], _read(f"{COMPONENT}/{template}")
        )
        for template, file in files.items()
    }


def _read(name: str) -> str:
    experiments = Path(__file__).parents[2] / "experiments"
    shipped = resources.files("llama_ablate") / "templates" / name
    places = (shipped, experiments / "templates" / name, experiments / name)
    return next(place for place in places if place.is_file()).read_text("utf-8")


def question(name: str) -> str:
    """Return what a template asks."""
    from llama_ablate.config.marked_yaml import parse  # later: help needs no YAML

    return str(parse(text(name), f"{name}.yaml").values["question"])
