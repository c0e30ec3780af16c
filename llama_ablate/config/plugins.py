"""Plug-ins: components in a file named on the command line, or in an installed package.

Nothing in an experiment file, and nothing in results, makes a command load code. What was loaded is
part of the plan; a worker loads the same again, and only if it is the same byte for byte.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType

from llama_ablate.errors import ConfigError

#: Packages name a module here that registers components when it is imported.
GROUP = "llama_ablate.plugins"
#: Before the name of an installed package in what was loaded.
INSTALLED = "package:"

_FILE = "llama_ablate_plugin_"
_CUT = 12  # letters of a hash in a module's name

_loaded: dict[str, str] = {}
_packages: dict[str, str] = {}


def load(files: Sequence[Path] = ()) -> None:
    """Import the plugins of installed packages, and these files.

    Raises ConfigError for a file that is not there, is no Python, or fails.
    """
    from importlib.metadata import entry_points  # later: help needs no packages

    for point in entry_points(group=GROUP):
        distribution = point.dist
        version = distribution.version if distribution else "?"
        if INSTALLED + point.name not in _loaded:
            _guarded(point.load, f"the installed plugin '{point.name}'")
            _loaded[INSTALLED + point.name] = version
            _packages[point.module.partition(".")[0]] = version
    for file in files:
        path = file.resolve()
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"--plugin {str(path)!a}: its name must be UTF-8") from None
        if str(path) not in _loaded:
            _loaded[str(path)] = _import(path)


def loaded() -> dict[str, str]:
    """Return the loaded plug-ins: SHA-256 by file, version by package."""
    return dict(_loaded)


def list_flags() -> list[str]:
    """Return the words with which another command loads the plug-in files of this process."""
    files = [name for name in _loaded if not name.startswith(INSTALLED)]
    return [word for file in files for word in ("--plugin", file)]


def source(name: str) -> bytes:
    """Return the source of a plug-in file that was loaded, as it was then.

    Raises ConfigError where it has changed since.
    """
    content = Path(name).read_bytes()
    if hashlib.sha256(content).hexdigest() != _loaded[name]:
        raise _changed(name)
    return content


def code_of(component: Callable[..., object]) -> str:
    """Return the hash or version of a plug-in component's code; "" for a built-in one."""
    package = component.__module__.partition(".")[0]
    if package.startswith(_FILE):
        return package  # its name holds the hash of its file
    return "" if package == "llama_ablate" else f"{package} {_packages.get(package, '')}"


def is_recorded(component: Callable[..., object], recorded: Mapping[str, str]) -> bool:
    """Return whether a component's code has a recorded hash or version; true where it has none.

    `recorded` is of the form that `loaded` returns.
    """
    code = code_of(component)
    mark = code.removeprefix(_FILE) if code.startswith(_FILE) else code.partition(" ")[2]
    # Of a file its hash, cut in its module's name; of a package its version.
    return not mark or mark in {
        accepted for digest in recorded.values() for accepted in (digest, digest[:_CUT])
    }


def missing(recorded: Iterable[str]) -> str:
    """Name recorded plug-ins that are not loaded, as the end of a sentence; "" if none."""
    names = [name for name in recorded if name not in _loaded]
    flags = [name if name.startswith(INSTALLED) else f"--plugin {name}" for name in names]
    return f"; it was made with {' '.join(flags)}" if flags else ""


def load_recorded(recorded: Mapping[str, str]) -> None:
    """Load the plug-ins of another process. Raises ConfigError where one has changed since."""
    if not recorded:
        return
    load()
    for name, digest in recorded.items():
        if name not in _loaded and not name.startswith(INSTALLED):
            _loaded[name] = _import(Path(name), digest)
        if _loaded.get(name) != digest:
            raise _changed(name)


def _changed(name: str) -> ConfigError:
    return ConfigError(f"the plugin '{name}' is not what these runs were planned with")


def _import(path: Path, expected: str | None = None) -> str:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--plugin {path}: {error.strerror}") from None
    digest = hashlib.sha256(source).hexdigest()
    if expected not in (None, digest):
        raise _changed(str(path))
    name = f"{_FILE}{digest[:_CUT]}"
    if path.suffix != ".py":
        raise ConfigError(f"--plugin {path}: is no Python file (its name must end in .py)")
    loader = _Hashed(path, source)
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # as an import does: dataclasses and pickles look there
    _guarded(lambda: loader.exec_module(module), f"--plugin {path}")
    return digest


class _Hashed(SourceLoader):
    """Loads a module from the bytes that were hashed, not from the file or its `.pyc`."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path, self._source = path, source

    def get_filename(self, _name: str) -> str:
        return str(self._path)

    def get_data(self, _path: object) -> bytes:
        return self._source


def _guarded(run: Callable[[], object], what: str) -> None:
    try:
        run()
    except ConfigError as error:  # a component that does not fit its slot
        raise ConfigError(f"{what}: {error.message}") from error
    except (Exception, SystemExit) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"{what}: {type(error).__name__}: {first}") from error
