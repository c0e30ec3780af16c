"""What a candidate's processes may do: a list of what is sealed, held by an audit hook.

A hook sees what Python opens, moves and starts; it keeps mistakes and shortcuts out, and is no
sandbox: native code, or Python that takes the hook's own state apart, goes past it.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from llama_ablate.config.plugins import INSTALLED
from llama_ablate.errors import ConfigError

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events that change the disk, and how many of their arguments are paths.
_CHANGES = {
    **dict.fromkeys(("os.rename", "os.link", "os.symlink"), 2),
    **dict.fromkeys(("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod"), 1),
}
#: Events that lead out of the process, where no hook sees.
_OUT = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "socket.connect")
_PACKAGE = __name__.partition(".")[0]
_WRAPPED = (staticmethod, classmethod)
_OTHERS = ("numpy", "builtins", "json", "hashlib", "math")  # torch replaces names of its own


@dataclass(frozen=True)
class Bounds:
    """What a process is held to."""

    #: The one folder in which it may write, and there what bears the id of its run.
    own: str
    #: Files and folders that it may not read.
    sealed: tuple[str, ...] = ()
    #: The plug-ins that runs of the best need: those load no other.
    of_best: tuple[str, ...] = ()
    run: str = ""


#: The variable of a command that a judge starts: what its processes are held to, as JSON, or null.
VARIABLE = "LLAMA_ABLATE_BOUNDS"
_stated = json.loads(os.environ.get(VARIABLE, "null"))
#: What the processes that this one starts are held to.
given: Bounds | None = _stated and Bounds(**_stated)
_held: list[Bounds] = []  # at most one
_broken: list[str] = []
_before: dict[tuple[str, str], tuple[int, ...]] = {}


def hold(bounds: Bounds | None) -> None:
    """Hold this process to bounds from now on; to none, it is free."""
    if bounds and not _before:
        sys.dont_write_bytecode = True
        sys.addaudithook(_hook)
    _before.update(_names() if bounds else {})
    _held[:] = [bounds] if bounds else []


def narrow(run: str, label: str, plugins: Mapping[str, str]) -> Mapping[str, str]:
    """Hold this process to one run, where it is held, and return the plug-ins that the run loads.

    Of the best those of the best alone, by the label of its variant: what a candidate's code
    changes of torch would change its opponent, too.
    """
    _held[:] = [replace(bounds, run=run) for bounds in _held]
    of_best = _held[0].of_best if _held and label == "best" else plugins
    return {
        name: own for name, own in plugins.items() if name in of_best or name.startswith(INSTALLED)
    }


def check() -> None:
    """Raise ConfigError where this process went past its bounds, though it went on."""
    if _held:
        now = _names()
        replaced = (
            f"replaces {'.'.join(at)}" for at, was in _before.items() if now.get(at, was) != was
        )
        if said := next(iter(_broken), "") or next(replaced, ""):
            raise ConfigError(f"the candidate's code {said}, which is sealed")


def _names() -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Return what names stand for, by identity: all of this package, functions of a few others.

    Of a function also its code and its defaults.
    """
    found = {}
    for module, of_module in list(sys.modules.items()):
        is_ours = module.partition(".")[0] == _PACKAGE
        if not (is_ours or module in _OTHERS):
            continue
        for name, value in list(vars(of_module).items()):
            if name.startswith("__") or not (is_ours or callable(value)):
                continue
            found[module, name] = _identity(value)
            if isinstance(value, type) and value.__module__ == module:
                inner = {f"{name}.{key}": _identity(own) for key, own in list(vars(value).items())}
                found |= {(module, key): own for key, own in inner.items()}
    return found


def _identity(value: Any) -> tuple[int, ...]:
    function = getattr(value, "__func__", value) if isinstance(value, _WRAPPED) else value
    if not isinstance(function, FunctionType):
        return (id(value),)
    named = (function.__kwdefaults__ or {}).values()
    return (id(value), id(function.__code__), id(function.__defaults__), *map(id, named))


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _held:
        return
    bounds = _held[0]
    if event == "open":
        path, _mode, flags = arguments
        if isinstance(path, int) or path is None:
            return
        if isinstance(flags, int) and flags & _WRITING:
            _refuse_outside(path, bounds)
        elif _is_below(path, *bounds.sealed):
            _refuse(f"reads '{os.fsdecode(path)}'")
    elif event in _CHANGES:
        is_folder = event == "os.mkdir"  # of the run's, or above it
        for path in arguments[: _CHANGES[event]]:
            _refuse_outside(path, replace(bounds, run="") if is_folder else bounds)
    elif event in _OUT:
        _refuse(f"calls {event}")


def _refuse_outside(path: Any, bounds: Bounds) -> None:
    if isinstance(path, int) or path == os.devnull:
        return
    if not _is_below(path, bounds.own) or bounds.run not in os.path.realpath(os.fsdecode(path)):
        _refuse(f"writes '{os.fsdecode(path)}'")


def _is_below(path: Any, *places: str) -> bool:
    real = os.path.realpath(os.fsdecode(path))  # asks the disk: once, however many places there are
    return any(real == place or real.startswith(place + os.sep) for place in places)


def _refuse(said: str) -> None:
    _broken.append(said)
    raise PermissionError(f"the candidate's code {said}, which is sealed")
