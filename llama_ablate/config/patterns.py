"""Patterns over depth: components that repeat down the layers of a model.

    attention: {pattern: [{name: mha, window: 64}, mha], layers: {-1: mqa}}

The list repeats down the layers; `layers` sets single ones, from 0 or, below 0, from the last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from llama_ablate.config.registry import Choice, Entry, Registry
from llama_ablate.config.validation import shown
from llama_ablate.errors import ConfigError, Where, nearest

_KEYS = ("pattern", "layers")


@dataclass(frozen=True)
class Pattern:
    """Components of one slot over depth: `choices` repeat down the layers. Hashable.

    `choices` is the shortest list that gives the same layers, so two ways to write them are equal.
    """

    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        return " / ".join(map(str, self.choices))

    @property
    def name(self) -> str:
        """The names of the components, `mha/gqa`."""
        return "/".join(dict.fromkeys(choice.name for choice in self.choices))

    def at(self, layer: int) -> Choice:
        """Return the component of a layer, counted from 0."""
        return self.choices[layer % len(self.choices)]

    def with_options(self, **changes: Any) -> "Choice | Pattern":
        """Return a copy in which the components that have these options have other values."""
        return over_depth([choice.with_options(**changes) for choice in self.choices])

    def entry(self) -> Entry:
        """Return what one would write in YAML to get this pattern again."""
        return {"pattern": [choice.entry() for choice in self.choices]}

    def identity(self) -> dict[str, Any]:
        """Return what is hashed: of each component the name, and what differs from its defaults.

        RoPE without rotation in every n-th layer is hashed as its own option, as it was before
        there were patterns: finished runs keep their ids. (Where n was beyond the depth it changed
        nothing, and is `rope` alone now, another id.)
        """
        *others, last = self.choices
        if last.name == "none" and others[0].name == "rope" and len(set(others)) == 1:
            return others[0].identity() | {"nope_every": len(self.choices)}
        return {"pattern": [choice.identity() for choice in self.choices]}


#: What a slot of a model holds.
Slot = Choice | Pattern


def over_depth(layers: Sequence[Choice]) -> Slot:
    """Return the shortest pattern of these layers; the component itself where all are alike."""
    period = next(
        n
        for n in range(1, len(layers) + 1)
        if all(choice == layers[i % n] for i, choice in enumerate(layers))
    )
    return layers[0] if period == 1 else Pattern(tuple(layers[:period]))


def resolve(registry: Registry, entry: Entry, layers: int, where: Where = ()) -> Slot:
    """Resolve a component, or a pattern of components over `layers` layers.

    Raises ConfigError for an unknown component or option, a pattern longer than the model is deep,
    and a layer out of range.
    """
    if not _is_pattern(entry):
        return over_depth(_without_nope(registry, registry.resolve(entry, where), layers, where))
    for key in entry:
        if key not in _KEYS:
            raise ConfigError(f"a pattern has no key '{key}'{nearest(key, _KEYS)}", (*where, key))
    period = entry.get("pattern")
    at: Where = (*where, "pattern")
    if not isinstance(period, Sequence) or isinstance(period, str) or not period:
        raise ConfigError(f"a pattern is a list of components, not {shown(period)}", at)
    if len(period) > layers:
        deep = f"{layers} layer{'s' if layers > 1 else ''}"
        raise ConfigError(f"a pattern of {len(period)} components is longer than {deep}", at)
    chosen = [registry.resolve(one, (*at, i)) for i, one in enumerate(period)]
    by_layer = [chosen[layer % len(chosen)] for layer in range(layers)]
    for layer, choice in _single(registry, entry.get("layers", {}), layers, (*where, "layers")):
        by_layer[layer] = choice
    return over_depth(by_layer)


def label(registry: Registry, entry: Entry, where: Where = ()) -> str:
    """Return a short name of an entry: a component's, or `mha-window=64/mha` of a pattern."""
    if not _is_pattern(entry):
        return registry.label(entry, where)
    names = [registry.label(one, (*where, "pattern", i)) for i, one in enumerate(entry["pattern"])]
    single = entry.get("layers", {}).items()
    names += [f"{layer}={registry.label(one, (*where, 'layers'))}" for layer, one in single]
    return "/".join(names)


def _is_pattern(entry: Entry) -> TypeGuard[dict[str, Any]]:
    return isinstance(entry, dict) and "name" not in entry and bool({*_KEYS} & {*entry})


def _single(
    registry: Registry, entries: Any, layers: int, where: Where
) -> list[tuple[int, Choice]]:
    """Return the layers that are set one by one, and their components."""
    if not isinstance(entries, Mapping):
        raise ConfigError(f"'layers' maps layers to components, not {shown(entries)}", where)
    chosen: dict[int, Choice] = {}
    for key, entry in entries.items():
        at: Where = (*where, key)
        try:
            layer = int(str(key))
        except ValueError:
            layer = layers
        if not -layers <= layer < layers:
            raise ConfigError(
                f"layer {shown(key)}: must be a whole number from {-layers} to {layers - 1}", at
            )
        if layer % layers in chosen:
            raise ConfigError(f"layer {layer} is set twice, from the first and from the last", at)
        chosen[layer % layers] = registry.resolve(entry, at)
    return list(chosen.items())


def _without_nope(
    registry: Registry, choice: Choice, layers: int, where: Where
) -> Sequence[Choice]:
    """Return the layers of a component: RoPE's `nope_every: n` is a pattern with `none`."""
    every = dict(choice.options).get("nope_every")
    if every is None:
        return [choice]
    if every < 1:
        raise ConfigError(f"nope_every {every} must be 1 or more", (*where, "nope_every"))
    rope, none = choice.with_options(nope_every=None), registry.resolve("none")
    return [none if (layer + 1) % every == 0 else rope for layer in range(layers)]
