"""Families of Hugging Face models: conversion of config.json and parameter names, both ways.

A family is a kind of Hugging Face model, such as llama or gpt2, with an entry in families.yaml. The
entry has, for each key of config.json, the path of the equivalent option in the `model` section;
the keys with a fixed value; and the names of the parameters. A rule translates several keys at
once, and families share rules. There is no list of the specs that a family can express: to test a
spec, it is written to config.json, read back and compared.
"""

import copy
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llama_ablate.config.marked_yaml import load
from llama_ablate.config.spec import ModelSpec
from llama_ablate.errors import ConfigError
from llama_ablate.interop.canonical_spec import ROPE_OPTIONS, kv_heads_of, shared_heads
from llama_ablate.interop.stored_tensors import Entry, rename, spec_of

Config = Mapping[str, Any]

_NEEDED = object()
_DEEPEST = 1024  # layers: limits the lists that are built for a file's claim
_FULL, _SLIDING = "full_attention", "sliding_attention"
#: Keys of `rope_scaling` that may be absent: their defaults are those of our options.
_YARN_DEFAULTS = {"beta_slow", "beta_fast", "truncate"}


class Rule(Protocol):
    """Translation of several keys of config.json at once."""

    def read(self, config: Config, model: dict[str, Any]) -> None:
        """Update the `model` section from a config.json. Raises ConfigError for invalid values."""

    def write(self, spec: ModelSpec, config: dict[str, Any]) -> None:
        """Update a config.json from a spec."""


@dataclass(frozen=True)
class Family:
    """Config keys and parameter names of a family of Hugging Face models."""

    kind: str
    #: Path of each key in the `model` section, and the default of an absent key.
    keys: Mapping[str, tuple[str, Any]]
    #: Entries of the `model` section that are the same in the whole family.
    parts: Mapping[str, Any]
    #: Patterns of our parameter names and their replacements, applied in turn.
    names: Mapping[str, str]
    #: Name of the class in transformers; "" for a layout that is only read.
    architecture: str = ""
    rules: Sequence[Rule] = ()
    #: Keys that must have this value or be absent.
    fixed: Config = field(default_factory=dict)
    #: Keys that are written with this value, and not read through `keys`.
    written: Config = field(default_factory=dict)
    #: Parts of a layer that are stored as one tensor.
    joined: Sequence[Sequence[str]] = ()
    #: Whether matrices of the layers are stored as input x output.
    transposed: bool = False
    #: Parameters that are converted to ours by a factor from config.json and an addition.
    changed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Whether transformers refuses a number of heads that does not divide the width.
    divided: bool = False

    def model(self, config: Config) -> dict[str, Any]:
        """Convert a Hugging Face config.json to our `model` section. Raises ConfigError."""
        model = copy.deepcopy(dict(self.parts))
        for key, value in self.fixed.items():
            if config.get(key, value) != value:
                _refuse(key, config[key], [str(value)])
        said: dict[str, str] = {}
        for key, (path, usual) in self.keys.items():
            value = config.get(key, usual)
            if value is _NEEDED or (value is None and usual is _NEEDED):
                raise ConfigError(f"the key '{key}' is missing")
            part, _, option = path.rpartition(".")
            into = model.setdefault(part, {}) if part else model
            first = said.setdefault(path, key)
            if value is not None and into.setdefault(option, value) != value:
                is_one = f"{str(into[option]).lower()} and {key} another"
                _refuse(first, is_one, ["both alike"])
        if "multiple_of" not in model["feedforward"]:
            model["feedforward"].setdefault("width", 4 * model["dim"])  # GPT-2's default
        attention = model["attention"]
        if "name" not in attention:
            kv_heads = attention.pop("kv_heads", model["heads"])
            model["attention"] = shared_heads(model["heads"], kv_heads, attention)
        for rule in self.rules:
            rule.read(config, model)
        for change in self.changed.values():  # raises here if a key's value is no number
            _change(config, **change)
        return model

    def spec(self, config: Config, file: Path) -> ModelSpec:
        """Convert the content of a configuration file to a spec.

        Raises ConfigError, naming the file, for a configuration that our components cannot express.
        """
        try:
            model = self.model(config)
        except ConfigError as error:
            raise ConfigError(f"'{file}': {error.message}") from None
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            raise ConfigError(f"'{file}' has a value of the wrong kind: {error}") from None
        return spec_of(model, file)

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """Build the config.json of a spec, omitting options that the family cannot express.

        Raises ConfigError for sizes that transformers refuses.
        """
        if self.divided and spec.dim % spec.heads:
            raise ConfigError(f"dim {spec.dim} with {spec.heads} heads, which do not divide it")
        header = {"model_type": self.kind, "architectures": [self.architecture]}
        config: dict[str, Any] = {**header, **self.fixed, **self.written}
        for key, (path, _) in self.keys.items():
            if (value := self._said(spec, path)) is not _NEEDED:
                config[key] = value
        for rule in self.rules:
            rule.write(spec, config)
        return config

    def _said(self, spec: ModelSpec, path: str) -> Any:
        """Return the value at a path of a spec, in the first layer with the family's component.

        Return `_NEEDED` if no layer has this component and the actual component lacks the option.
        """
        slot, _, option = path.rpartition(".")
        if slot in ("", "dropout"):
            return getattr(spec.dropout if slot else spec, option)
        every = [getattr(spec, slot).at(i) for i in range(spec.layers)]
        names = (self.parts[slot]["name"],) if "name" in self.parts[slot] else ("mha", "gqa", "mqa")
        choice = next((choice for choice in every if choice.name in names), every[0])
        if option == "kv_heads":
            return kv_heads_of(spec.heads, choice)
        return dict(choice.options).get(option, _NEEDED)

    def entries(self, ours: Sequence[str], config: Config) -> Iterator[Entry]:
        """Yield the stored tensors, given the names of our parameters."""
        _, usually = self.keys.get("tie_word_embeddings", ("", True))
        tied = config.get("tie_word_embeddings", usually)
        for name in ours:
            parts = next((parts for parts in self.joined if any(p in name for p in parts)), [""])
            if parts[0] not in name:
                continue  # it is stored with the first of these parts
            stored_name = "embedding.weight" if tied and name == "head.weight" else name
            change = (of for pattern, of in self.changed.items() if re.search(pattern, name))
            yield Entry(
                rename(stored_name, self.names),
                tuple(name.replace(parts[0], part) for part in parts),
                transposed=self.transposed and bool(re.search(r"^blocks\..*\.weight$", name)),
                **_change(config, **next(change, {})),
            )


@dataclass(frozen=True)
class Rope:
    """Rule for the rotary embedding, in the three layouts of keys that transformers has used."""

    theta: float = 10000.0

    def read(self, config: Config, model: dict[str, Any]) -> None:
        """Read the base (theta) and scaling of the frequencies."""
        nested: dict[str, Any] = {}
        for key in ("rope_scaling", "rope_parameters"):
            nested |= config.get(key) or {}
        plain = {"rope_theta": self.theta, "partial_rotary_factor": 1.0, **config, **nested}
        rope = {**model["position"], "name": "rope", "theta": float(plain["rope_theta"])}
        if float(plain["partial_rotary_factor"]) != 1:
            _refuse("partial_rotary_factor", plain["partial_rotary_factor"], ["1"])
        kind = nested.get("rope_type", nested.get("type", "default"))
        if kind not in (allowed := ("default", "linear", *ROPE_OPTIONS)):
            _refuse("rope_type", kind, allowed)
        if kind != "default":
            rope |= {"scaling": kind, "factor": float(_need(nested, "factor"))}
        for option, key in ROPE_OPTIONS.get(kind, {}).items():
            if nested.get(key) is not None or key not in _YARN_DEFAULTS:
                rope[option] = _need(nested, key)
        if kind == "yarn":
            _check_attention_factor(rope["factor"], nested)
        model["position"] = rope

    def write(self, spec: ModelSpec, config: dict[str, Any]) -> None:
        """Write the base (theta) and scaling of the frequencies."""
        every = (spec.position.at(i) for i in range(spec.layers))
        rope = next((dict(choice.options) for choice in every if choice.name == "rope"), {})
        config["rope_theta"] = rope.get("theta", 10000.0)
        scaling: dict[str, Any] = {}
        if (kind := rope.get("scaling")) in ("linear", *ROPE_OPTIONS):
            keys = ROPE_OPTIONS.get(kind, {}).items()
            scaling = {"rope_type": kind, "factor": rope["factor"]}
            scaling |= {key: rope[option] for option, key in keys}
        if scaling:
            config["rope_scaling"] = scaling


@dataclass(frozen=True)
class Gate:
    """Rule for the activation of a gated feed-forward network."""

    key: str = "hidden_act"
    usual: str = "silu"

    def read(self, config: Config, model: dict[str, Any]) -> None:
        """Read the kind of gated network from the activation."""
        if (activation := config.get(self.key) or self.usual) not in _GATES:
            _refuse(self.key, activation, _GATES)
        model["feedforward"] |= _GATES[activation]

    def write(self, spec: ModelSpec, config: dict[str, Any]) -> None:
        """Write the activation, or the default for a network that the family cannot express."""
        choice = spec.feedforward.at(0)
        said = {"name": choice.name, **dict(choice.options)}.items()
        able = (name for name, gate in _GATES.items() if gate.items() <= said)
        config[self.key] = next(able, self.usual)


@dataclass(frozen=True)
class Windows:
    """Rule for sliding windows of attention, and for the layers that have windows."""

    #: Default of the key `sliding_window`.
    usual: int | None = 4096
    #: Whether the key `layer_types` says for each layer if it has a window.
    typed: bool = False
    #: Whether windows are used only if the key `use_sliding_window` is true.
    switched: bool = False
    #: Without `layer_types`, layers have windows from `max_window_layers` (default `first`) on, if
    #: their index is a multiple of `every`.
    first: int = 0
    every: int = 1

    def read(self, config: Config, model: dict[str, Any]) -> None:
        """Read the window of each layer."""
        window = config.get("sliding_window", self.usual)
        if self.switched and not config.get("use_sliding_window"):
            window = None
        kinds = config.get("layer_types") if self.typed else None
        if kinds is None:
            first = config.get("max_window_layers", self.first) if self.typed else 0
            each = range(min(model["layers"], _DEEPEST))
            kinds = [_FULL if i < (first or 0) or i % self.every else _SLIDING for i in each]
        if other := [kind for kind in kinds if kind not in (_FULL, _SLIDING)]:
            _refuse("layer_types", f"[..., {other[0]}, ...]", [_FULL, _SLIDING])
        attention = model["attention"]
        model["attention"] = _layers(
            "layer_types",
            [attention | {"window": window if kind == _SLIDING else None} for kind in kinds],
            model,
        )

    def write(self, spec: ModelSpec, config: dict[str, Any]) -> None:
        """Write the window, and the layers that have a window."""
        every = (spec.attention.at(i) for i in range(spec.layers))
        windows = [dict(attention.options).get("window") for attention in every]
        window = next(filter(None, windows), None)
        config["sliding_window"] = window
        if self.typed:
            config["layer_types"] = [_SLIDING if window else _FULL for window in windows]
        if self.switched and window:
            config |= {"use_sliding_window": True, "max_window_layers": windows.index(window)}
        elif self.typed and not self.switched:  # transformers always requires one
            config["sliding_window"] = window or spec.context


@dataclass(frozen=True)
class MetaRope:
    """Rule for the rotary embedding of Meta's params.json, which also implies the context.

    A file that scales the frequencies often lacks the factor. It is then the published one of a
    model of this width, 8 for Llama 3.1 and 32 for Llama 3.2, as in transformers' conversion script
    `convert_llama_weights_to_hf.py`.
    """

    def read(self, config: Config, model: dict[str, Any]) -> None:
        """Read the base (theta) and scaling of the frequencies, and infer the context."""
        theta = float(config.get("rope_theta", 10000.0))
        model["position"] = {"name": "rope", "layout": "interleaved", "theta": theta}
        if not config.get("use_scaled_rope"):
            model["context"] = _CONTEXTS.get(theta, 2048 if model["norm"]["eps"] == 1e-6 else 4096)
            return
        factor = config.get("rope_scale_factor") or _FACTORS.get(model["dim"])
        if factor is None:
            raise ConfigError(
                "use_scaled_rope without rope_scale_factor: add it, such as 8 for Llama 3.1, or 32 "
                "for Llama 3.2"
            )
        model["position"] |= {"scaling": "llama3", "factor": float(factor)}
        model["context"] = 131_072

    def write(self, spec: ModelSpec, config: dict[str, Any]) -> None:
        """Write nothing: these checkpoints are only read."""


#: Factors of scaled frequencies by width: Llama 3.1 of 8B, 70B, 405B, and Llama 3.2 of 1B, 3B.
_FACTORS = {4096: 8.0, 8192: 8.0, 16384: 8.0, 2048: 32.0, 3072: 32.0}
#: Contexts by theta: of Llama 3, and of Code Llama (arXiv:2308.12950).
_CONTEXTS = {500_000.0: 8192, 1_000_000.0: 16_384}
_GATES: dict[str, dict[str, Any]] = {
    "silu": {"name": "swiglu"},
    "gelu": {"name": "geglu", "approximate": "none"},
    "relu": {"name": "reglu"},
    "gelu_pytorch_tanh": {"name": "geglu", "approximate": "tanh"},
}
_RULES: dict[str, Callable[..., Rule]] = {
    "rope": Rope,
    "gate": Gate,
    "windows": Windows,
    "meta_rope": MetaRope,
}


def _families() -> Iterator[Family]:
    """Yield the families of families.yaml, in which `like` names a family to inherit from."""
    tables: dict[str, Any] = {}
    for kind, table in load(Path(__file__).with_suffix(".yaml")).values.items():
        parent, without = tables.get(table.pop("like", ""), {}), table.pop("without", ())
        tables[kind] = table
        for part, inherited in parent.items():
            inner = table.setdefault(part, inherited)
            if isinstance(inner, dict):  # own entries first: names are replaced in this order
                table[part] = inner | {k: v for k, v in inherited.items() if k not in inner}
        table["keys"] = {key: path for key, path in table["keys"].items() if key not in without}
        keys = {
            key: (path, _NEEDED) if isinstance(path, str) else next(iter(path.items()))
            for key, path in table["keys"].items()
        }
        rules = [_RULES[name](**options) for name, options in table.get("rules", {}).items()]
        yield Family(kind, **{**table, "keys": keys, "rules": rules})


_EVERY = {family.kind: family for family in _families()}
META = _EVERY.pop("meta")
#: Families of Hugging Face models by `model_type`.
FAMILIES = _EVERY


def _check_attention_factor(factor: float, scaling: Config) -> None:
    """Raise ConfigError if YaRN's factor of queries and keys differs from ours."""

    def growth(scale: float = 1.0) -> float:
        return 1 + 0.1 * scale * math.log(max(factor, 1))

    given = scaling.get("attention_factor")
    numerator, denominator = (scaling.get(key) for key in ("mscale", "mscale_all_dim"))
    if given is None:
        given = growth()
        if numerator and denominator:
            given = growth(numerator) / growth(denominator)
    if not math.isclose(given, growth(), rel_tol=1e-6):
        _refuse("attention_factor", f"{given:g}", [f"{growth():g}, which is 1 + ln(factor) / 10"])


def _change(
    config: Config, key: str = "", usual: float = 1.0, power: float = 1.0, plus: float = 0.0
) -> dict[str, float]:
    return {"scale": float(config.get(key, usual)) ** power, "offset": plus}


def _layers(key: str, entries: list[Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pattern of one entry per layer. Raises ConfigError for another number of entries."""
    if len(entries) != model["layers"]:
        _refuse(key, f"a list of {len(entries)}", ["one for each of num_hidden_layers"])
    return {"pattern": entries}


def _need(config: Config, key: str) -> Any:
    if key not in config:
        raise ConfigError(f"the key '{key}' is missing")
    return config[key]


def _refuse(key: str, value: object, allowed: Iterable[str]) -> None:
    raise ConfigError(f"{key} is {value}; supported: {', '.join(allowed)}")
