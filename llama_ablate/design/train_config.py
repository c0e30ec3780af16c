"""Train configs: which keys may vary, the value of each checked, and components by their entries.

An entry of a train config is kept in its shortest form, without the options that have their
defaults: so `muon` and `{name: muon, momentum: 0.95}` are one run, and an option that a component
gains later changes none.
"""

from collections.abc import Callable, Mapping
from typing import Any

from llama_ablate.config.experiment import Train
from llama_ablate.config.registry import Registry, entry_text, laid_over, written
from llama_ablate.errors import ConfigError, Where, nearest

#: Of the length of a run, of how it is computed, and of when it is evaluated.
_LENGTH = ("tokens", "steps", "batch", "accumulate", "timeout_s")
_COMPUTED, _EVALUATED = ("precision", "kernel", "compile"), ("evals", "branches")
#: Keys of `train` that may be tuned: all others.
KEYS = tuple(k for k in Train.model_fields if k not in (*_LENGTH, *_COMPUTED, *_EVALUATED))

#: Those that may differ between variants.
VARIED = (*KEYS, "batch", "precision")

Registries = Mapping[str, Registry]


def resolved(train: Train, registries: Registries) -> Train:
    """Return a train config whose entries are in their shortest form.

    `registries` are looked up by the key of `train`. Raises ConfigError, at the key, for a
    component that there is not, and for an option that it does not have.
    """
    entries: dict[str, Any] = {}
    for key in registries.keys() & Train.model_fields.keys():
        value, registry = getattr(train, key), registries[key]
        entries[key] = (
            [registry.resolve(one, (key, i)).shortest() for i, one in enumerate(value)]
            if isinstance(value, list)
            else registry.resolve(value, (key,)).shortest()
        )
    schedule = entry_text(entries.get("schedule", train.schedule), options=False)
    if train.branches and schedule != "wsd":
        message = f"'branches' need the schedule 'wsd', not '{schedule}'"
        raise ConfigError(message, ("branches",))
    return train.model_copy(update=entries)


def changed(
    train: Train, key: str, value: Any, where: Where, registries: Registries, *, tuned: bool = False
) -> Any:
    """Return the value that a key of `train` gets, as plain JSON.

    An entry that names the config's own component changes only the options that it gives. Raises
    ConfigError for a key that may not vary, and for a value that it cannot have.
    """
    if key not in (allowed := KEYS if tuned else VARIED):
        raise ConfigError(
            f"'{key}' is not a key of train that may vary{nearest(key, allowed)}",
            where[:-1] if isinstance(where[-1], int) else where,
        )
    if key in registries and not isinstance(getattr(train, key), list):
        value = laid_over(getattr(train, key), value)
    try:
        config = resolved(Train.check({**train.model_dump(), key: value}), registries)
    except ConfigError as error:
        within = error.where[1:] if error.where[:1] == (key,) else ()
        raise ConfigError(error.message, (*where, *within)) from None
    return config.model_dump(mode="json")[key]


def components(train: Train, registries: Registries) -> list[tuple[str, Callable[..., Any]]]:
    """Return every component that a train config names, by name."""
    names = [
        (key, entry_text(entry, options=False))
        for key in registries.keys() & Train.model_fields.keys()
        for entry in _listed(getattr(train, key))
    ]
    return [(name, registries[key].get(name)) for key, name in names]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def label(key: str, value: Any, registries: Registries) -> str:
    """Return a short name of a key's value: `lr=0.003`, or of an entry `muon-momentum=0.9`."""
    if key not in registries:
        return f"{key}={written(value)}"
    name = "+".join(registries[key].label(entry) for entry in _listed(value)) or "none"
    return name if key == "optimizer" else f"{key}={name}"  # `linear` alone says too little
