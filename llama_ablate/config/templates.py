"""Templates shipped with the package: commented experiments to start from, and plug-ins.

The templates come from `experiments/` of the repository, which is copied into a wheel when it is
built.
"""

import ast
import keyword
import re
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

from llama_ablate.errors import ConfigError, nearest

#: JSON Schema by which editors complete and check the keys of an experiment file.
SCHEMA = Path(__file__).with_name("experiment.schema.json")
#: Experiment templates in the order of listings: introductions, one per slot, one per design.
NAMES = (
    *("first", "quickstart"),
    *("norm", "position", "attention", "feedforward", "block"),
    *("factorial", "path", "tune", "ladder", "confirm"),
)
COMPONENT = "component"
PLUGIN = "plugin"


def text(name: str) -> str:
    """Return a template's YAML text without the key `name`, since copies have other names.

    A copy is named after its file. The line `$schema`, which editors read, gets the schema's path
    on this machine. Raises ConfigError for an unknown name.
    """
    if name not in NAMES:
        raise ConfigError(f"'{name}' is not a template{nearest(name, NAMES)}")
    nameless = re.sub(r"^name: .*\n", "", _read(f"{name}.yaml"), flags=re.MULTILINE)
    return re.sub(r"(?<=\$schema=)\S+", SCHEMA.as_uri(), nameless)


def component(slot: str, code: Path) -> dict[Path, str]:
    """Return a new component's files by path: code, test and experiment.

    The component is named after the code's file. Raises ConfigError for an unknown slot, and for a
    file name that is not a Python identifier or hides an existing module.
    """
    from llama_ablate.config.spec import SLOTS  # imported here, so that help starts fast

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
    """Return the source code of a shipped plug-in. Raises ConfigError for an unknown name."""
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
    """List the templates of `init`, each with its question or first docstring line."""
    from llama_ablate.config.marked_yaml import parse  # imported here, so that help starts fast

    questions = {name: str(parse(text(name), name).values["question"]) for name in NAMES}
    return questions | {
        f"{PLUGIN} {name}": (ast.get_docstring(ast.parse(plugin(name))) or "").splitlines()[0]
        for name in plugin_names()
    }


def _read(name: str) -> str:
    return next(place for place in _places(name) if place.is_file()).read_text("utf-8")


def _places(name: str) -> tuple[Traversable, ...]:
    """Return the possible paths of a template: in an installed package, or in a checkout."""
    experiments = Path(__file__).parents[2] / "experiments"
    shipped = resources.files("llama_ablate") / "templates" / name
    return shipped, experiments / "templates" / name, experiments / name
