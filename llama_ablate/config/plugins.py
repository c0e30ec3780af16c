"""Plug-ins: components in a file named on the command line, or in an installed package.

Neither an experiment file nor results can make a command load code. The plan records the plug-ins
that were loaded; a worker process loads the same plug-ins, and only if they are the same byte for
byte.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType

from llama_ablate.errors import ConfigError

#: Entry-point group in which a package names a module that registers components on import.
GROUP = "llama_ablate.plugins"
#: Prefix of the name of an installed package among the loaded plug-ins.
INSTALLED = "package:"

_FILE = "llama_ablate_plugin_"
_CUT = 12  # letters of a hash in a module's name

_loaded: dict[str, str] = {}
_packages: dict[str, str] = {}


def load(files: Sequence[Path] = ()) -> None:
    """Import the plug-ins of installed packages, and the given files.

    Raises ConfigError for a file that is missing, is not Python, or fails on import.
    """
    from importlib.metadata import entry_points  # imported here, so that help starts fast

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
    """Return the loaded plug-ins: the SHA-256 of each file, the version of each package."""
    return dict(_loaded)


def code_of(component: Callable[..., object]) -> str:
    """Return the hash or version of a plug-in component's code; "" for a built-in component."""
    package = component.__module__.partition(".")[0]
    if package.startswith(_FILE):
        return package  # its name holds the hash of its file
    return "" if package == "llama_ablate" else f"{package} {_packages.get(package, '')}"


def is_recorded(component: Callable[..., object], recorded: Mapping[str, str]) -> bool:
    """Return whether a component's code is among recorded plug-ins, or is built in.

    `recorded` maps plug-ins to hashes and versions, as `loaded` returns them. Code without a known
    version counts as recorded.
    """
    code = code_of(component)
    mark = code.removeprefix(_FILE) if code.startswith(_FILE) else code.partition(" ")[2]
    # For a file, its hash, cut as in the module's name; for a package, its version.
    return not mark or mark in {
        accepted for digest in recorded.values() for accepted in (digest, digest[:_CUT])
    }


def missing(recorded: Iterable[str]) -> str:
    """Return the end of an error message that names the plug-ins that are not loaded.

    `recorded` are the plug-ins that were loaded when results were made. Return "" if all are
    loaded.
    """
    names = [name for name in recorded if name not in _loaded]
    flags = [name if name.startswith(INSTALLED) else f"--plugin {name}" for name in names]
    return f"; it was made with {' '.join(flags)}" if flags else ""


def load_recorded(recorded: Mapping[str, str]) -> None:
    """Load the plug-ins of another process. Raises ConfigError if a plug-in has changed."""
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
    if path.exists() and not path.is_file():
        raise ConfigError(f"--plugin {path}: is no regular file")
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
    """Loader that runs the bytes that were hashed, not the file or its `.pyc`."""

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
