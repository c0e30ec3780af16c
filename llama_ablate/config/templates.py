"""Templates: commented experiments to begin with, and plug-ins, shipped with the package.

Their one source is `experiments/` of the checkout, from which a wheel takes them along.
"""

import ast
import keyword
import re
from importlib import resources
from importlib.resources.abc import Traversable
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
PLUGIN = "plugin"


def text(name: str) -> str:
    """Return a template's YAML text without its `name`; a copy is named after its file.

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


def plugin(name: str) -> str:
    """Return the code of a plug-in. Raises ConfigError for an unknown name."""
    names = plugin_names()
    if not name:
        raise ConfigError(f"{PLUGIN} needs a name: {', '.join(names)}")
    if name not in names:
        raise ConfigError(f"'{name}' is not a plug-in{nearest(name, names)}")
    return _read(f"plugins/{name}.py")


def plugin_names() -> list[str]:
    """List the plug-ins that the package ships."""
    folder = next(place for place in _places("plugins") if place.is_dir())
    return sorted(file.name[:-3] for file in folder.iterdir() if file.name.endswith(".py"))


def list_templates() -> dict[str, str]:
    """List what `init` writes, each with its question or the first line of its docstring."""
    from llama_ablate.config.marked_yaml import parse  # later: help needs no YAML

    questions = {name: str(parse(text(name), name).values["question"]) for name in NAMES}
    return questions | {
        f"{PLUGIN} {name}": (ast.get_docstring(ast.parse(plugin(name))) or "").splitlines()[0]
        for name in plugin_names()
    }


def _read(name: str) -> str:
    return next(place for place in _places(name) if place.is_file()).read_text("utf-8")


def _places(name: str) -> tuple[Traversable, ...]:
    """Return where a template may lie: in an installed package, or in a checkout."""
    experiments = Path(__file__).parents[2] / "experiments"
    shipped = resources.files("llama_ablate") / "templates" / name
    return shipped, experiments / "templates" / name, experiments / name
