"""Registries of components by name; a component's signature declares its options.

A component is any callable. Its positional parameters are sizes that the model supplies (`dim`,
`heads`, ...); its keyword-only parameters are the options, with their types and defaults. A class
whose `__init__` ends in `**options` has the options of its base class, too. So a component is
declared once, where it is written, and nowhere else.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import PydanticUserError, create_model

from llama_ablate.config import plugins
from llama_ablate.config.validation import Keys, quote
from llama_ablate.errors import ConfigError, Where, nearest

Component = TypeVar("Component", bound=Callable[..., Any])
#: A component's entry in YAML: its name, or a mapping with its name and options.
Entry = str | dict[str, Any]
_WORDS = {
    bool: "true or false",
    float: "number",
    int: "whole number",
    str: "text",
    types.NoneType: "null",
}


#: Base class that a component of each slot may inherit.
_BASES = {
    "norm": "torch.nn.Module",
    "position": "llama_ablate.model.positions.Position",
    "attention": "llama_ablate.model.mixers.attention.Attention",
    "feedforward": "llama_ablate.model.feedforward.FeedForward",
    "block": "llama_ablate.model.blocks.Block",
}


@dataclass(frozen=True)
class Choice:
    """Component chosen by name, with the values of all its options. Hashable."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    #: The declared default of each option.
    defaults: tuple[tuple[str, Any], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options)])

    def __getitem__(self, option: str) -> Any:
        return dict(self.options)[option]

    @property
    def choices(self) -> "tuple[Choice, ...]":
        """Components that the layers use in turn: only this component (a `Pattern` has several)."""
        return (self,)

    def at(self, layer: int) -> "Choice":
        """Return the component of a layer, which is this component for every layer."""
        del layer
        return self

    def with_options(self, **changes: Any) -> "Choice":
        """Return a copy with other values for some options; unknown options are ignored."""
        return replace(self, options=tuple((k, changes.get(k, v)) for k, v in self.options))

    def entry(self) -> Entry:
        """Return the YAML entry that resolves to this choice."""
        return {"name": self.name, **dict(self.options)} if self.options else self.name

    def identity(self) -> dict[str, Any]:
        """Return name and non-default options, for hashing.

        Defaults are left out, so that adding an option to a component changes no existing id.
        """
        defaults = dict(self.defaults)
        special = {k: v for k, v in self.options if k not in defaults or v != defaults[k]}
        return {"name": self.name, **special}

    def shortest(self) -> Entry:
        """Return the YAML entry of this choice without options at their defaults."""
        identity = self.identity()
        return identity if len(identity) > 1 else self.name


@dataclass(frozen=True)
class Option:
    """Option of a component: its type, default and description."""

    name: str
    kind: str
    default: Any
    #: Description of its effect.
    about: str


class Registry:
    """Registry of the components of one slot, such as `norm`, by name.

    `sizes` are the names that positional parameters of components may have; None allows any name.
    `interface` is a Protocol that every component must implement: its methods are checked when a
    component is registered, its properties and annotated attributes when a component is built.
    `options` are the options that every component must have. `adapt(component, name)` wraps a
    component that has only a part of the interface.
    """

    def __init__(
        self,
        slot: str,
        *,
        sizes: Iterable[str] | None = None,
        interface: type | None = None,
        options: Iterable[str] = (),
        adapt: Callable[[Callable[..., Any], str], Callable[..., Any]] = lambda one, _name: one,
    ) -> None:
        self.slot = slot
        self._allowed = None if sizes is None else tuple(sizes)
        members = vars(interface) if interface else {}
        public = {name: member for name, member in members.items() if not name.startswith("_")}
        self._methods = {k: v for k, v in public.items() if inspect.isfunction(v)}
        self._attributes = {*public, *members.get("__annotations__", ())} - {*self._methods}
        self._needed, self._adapt = tuple(options), adapt
        self._hint = (base := _BASES.get(slot, "")) and (
            f"; inherit {base}, or begin with what `llama-ablate init component {slot}` writes"
        )
        self._one = f"{'an' if slot[0] in 'aeiou' else 'a'} {slot}"
        self._components: dict[str, Callable[..., Any]] = {}
        self._schemas: dict[str, type[Keys]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def __contains__(self, name: object) -> bool:
        return name in self._components

    def register(self, name: str) -> Callable[[Component], Component]:
        """Return a decorator that registers a component under `name`.

        Raises ConfigError for a name that is registered already, and for a component that lacks a
        part of the slot's interface.
        """

        def enter(component: Component) -> Component:
            if name in self._components:
                raise ConfigError(f"the {self.slot} '{name}' is registered already")
            try:
                fields: dict[str, Any] = {
                    parameter.name: (hint, parameter.default)
                    for parameter, hint in _options(component)
                }
                adapted = self._adapt(component, name)
                self._check(adapted, fields)
                self._schemas[name] = create_model(name, __base__=Keys, **fields)
            except (TypeError, PydanticUserError) as error:
                why = str(error).splitlines()[0]
                raise ConfigError(f"the {self.slot} '{name}' cannot be registered: {why}") from None
            self._components[name] = adapted
            return component

        return enter

    def get(self, name: str) -> Callable[..., Any]:
        """Return the component (a class or function) that is registered under `name`."""
        return self._components[name]

    def options(self, name: str) -> list[Option]:
        """List the options of the component `name`, which YAML may set."""
        component = self._components[name]
        return [
            Option(p.name, _in_words(hint), p.default, _about(component, p.name))
            for p, hint in _options(component)
        ]

    def sizes(self, name: str) -> list[str]:
        """Return the sizes that the model passes to the component `name` by position."""
        return _sizes(self._components[name])

    def summary(self, name: str) -> str:
        """Return the first paragraph of the component's docstring."""
        component = self._components[name]
        # A class without a docstring would inherit that of nn.Module, which does not describe it.
        doc = vars(component).get("__doc__") if isinstance(component, type) else component.__doc__
        return " ".join(inspect.cleandoc(doc or "").split("\n\n")[0].split())

    def resolve(self, entry: Entry, where: Where = ()) -> Choice:
        """Turn `rope` or `{name: rope, theta: 5.0e5}` into a Choice with every option filled in.

        Raises ConfigError for an unknown name or option, or a wrong type.
        """
        named = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(named, dict):
            what = f"a name or a mapping, not {quote(entry)}"
            raise ConfigError(f"{self._one} is {what}", where)
        if "pattern" in named and "name" not in named:
            raise ConfigError(f"{self._one} is one component here, not a pattern", where)
        if "name" not in named:
            raise ConfigError(f"{self._one} is a name, or a mapping that has the key 'name'", where)
        named = dict(named)
        name = named.pop("name")
        if not isinstance(name, str) or name not in self._components:
            at = where if isinstance(entry, str) else (*where, "name")
            hint = nearest(name, self, otherwise="; one of your own needs --plugin FILE")
            raise ConfigError(f"{quote(name)} is not {self._one}{hint}", at)
        for option in [o for o in named if o not in self._schemas[name].model_fields]:
            if having := [n for n, s in self._schemas.items() if option in s.model_fields]:
                raise ConfigError(
                    f"'{name}' has no option '{option}'; it is an option of {', '.join(having)}",
                    (*where, option),
                )
        values = self._schemas[name].check(named, where)
        options = ((key, _plain(getattr(values, key))) for key in type(values).model_fields)
        defaults = ((k, _plain(f.default)) for k, f in type(values).model_fields.items())
        return Choice(name, tuple(options), tuple(defaults))

    def build(self, choice: Choice, **sizes: Any) -> Any:
        """Build the component of a choice with the sizes that its signature names.

        Raises ConfigError if the component lacks a part of the interface, or if a plug-in's
        component fails. MemoryError and RuntimeError are not converted.
        """
        component = self._components[choice.name]
        wanted = _sizes(component)
        try:
            part = component(*(sizes[name] for name in wanted), **dict(choice.options))
        except (ConfigError, MemoryError, RuntimeError):
            raise
        except Exception as error:
            if not plugins.code_of(component):
                raise
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            raise ConfigError(f"the {self.slot} '{choice.name}' cannot be made: {why}") from error
        interface = [*self._methods, *self._attributes]
        if missing := [name for name in interface if _lacks(part, name)]:
            lacks = f"has no {_quoted(missing)}{self._hint}"
            raise ConfigError(f"the {self.slot} '{choice.name}' {lacks}")
        return part

    def _check(self, component: Callable[..., Any], options: Iterable[str]) -> None:
        """Raise TypeError for a component without the sizes, options or methods of the slot."""
        for size in _sizes(component):
            if self._allowed is not None and size not in self._allowed:
                raise TypeError(
                    f"the model supplies no size '{size}' (an option stands after '*')"
                    f"{nearest(size, self._allowed)}"
                )
        if missing := set(self._needed) - set(options):
            raise TypeError(f"it needs the option {_quoted(missing)}")
        if inspect.isclass(component):  # a function's result is checked when it is built
            abstract = getattr(component, "__abstractmethods__", ())
            lacking = {name for name in self._methods if _lacks(component, name)}
            if missing := lacking | set(abstract):
                raise TypeError(f"it has no {_quoted(missing)}{self._hint}")
            for name, call in self._methods.items():
                _check_call(name, call, inspect.getattr_static(component, name))


def laid_over(base: Entry, level: Any) -> Any:
    """Merge a component's entry over the base's entry.

    If `base` and `level` name the same component, options that `level` does not give keep the
    values in `base`. Otherwise `level` replaces the base's entry.
    """
    base_entry, entry = ({"name": e} if isinstance(e, str) else e for e in (base, level))
    same = isinstance(entry, dict) and entry.get("name", "") == base_entry.get("name")
    return {**base_entry, **entry} if same else level


def _parameters(component: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    yield from inspect.signature(component).parameters.values()


def _options(component: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Yield the options of a component, each with its type.

    For an option that several classes declare, the most derived class decides. Raises TypeError for
    an option without a type or a default.
    """
    documented: set[str] = set()
    for function in _declarations(component):
        hints = typing.get_type_hints(function, include_extras=True)
        for parameter in _parameters(function):
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in documented:
                documented.add(parameter.name)
                if parameter.default is parameter.empty:
                    raise TypeError(f"its option '{parameter.name}' needs a default")
                if parameter.name not in hints:
                    raise TypeError(f"its option '{parameter.name}' needs a type")
                yield parameter, hints[parameter.name]


def _about(component: Callable[..., Any], option: str) -> str:
    """Return the sentence of a component's docstring that describes an option.

    Without such a sentence, return the general description of options with this name, or "". A
    plug-in's option has no general description.
    """
    docstrings = [component.__doc__]
    if inspect.isclass(component):
        docstrings = [vars(cls).get("__doc__") for cls in component.__mro__[:-1]]
    for docstring in docstrings:
        text = " ".join((docstring or "").split())
        for sentence in re.split(r"(?<=[.;:]) (?=[A-Z`])", text):
            if re.search(rf"`{option}[`:=]", sentence):
                return sentence
    own = component.__module__.partition(".")[0] == __package__.partition(".")[0]
    return _general_options().get(option, "") if own else ""


@cache
def _general_options() -> dict[str, str]:
    """Return general descriptions of options by name, for components that give none."""
    import yaml

    read: dict[str, str] = yaml.safe_load((Path(__file__).parent / "options.yaml").read_text())
    return read


def _declarations(component: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield the functions whose signatures declare a component's options.

    An `__init__` with `**options` passes options on to the base class, so the options that the base
    class declares count, too.
    """
    if not inspect.isclass(component):
        yield component
        return
    for cls in component.__mro__:
        function = vars(cls).get("__init__")
        if function:
            yield function
            if not any(p.kind is p.VAR_KEYWORD for p in _parameters(function)):
                return


def _lacks(part: object, name: str) -> bool:
    """Return whether `part` lacks an attribute, or has only torch's placeholder for `forward`."""
    member = getattr(part, name, None)
    return not hasattr(part, name) or getattr(member, "__name__", "") == "_forward_unimplemented"


def _check_call(name: str, call: Callable[..., Any], method: object) -> None:
    """Raise TypeError for a component's method that cannot be called as the model calls it."""
    wanted = inspect.signature(call).parameters.values()
    asks = any(p.kind is p.VAR_POSITIONAL for p in wanted)  # it takes the arguments that it names
    if asks or not inspect.isfunction(method):
        return
    signature = inspect.signature(method)
    positional = [p.name for p in wanted if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = {p.name: None for p in wanted if p.kind is p.KEYWORD_ONLY}
    try:
        signature.bind(*positional, **keywords)
    except TypeError:
        called = ", ".join([*positional[1:], *(f"{key}=..." for key in keywords)])
        raise TypeError(f"the model calls its {name}({called}), and it takes {signature}") from None


@cache  # called whenever a model is built: thousands of times for a large grid
def _sizes(component: Callable[..., Any]) -> list[str]:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in _parameters(component) if p.kind in positional]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def _in_words(hint: Any) -> str:
    """Describe a type for error messages: `whole number or null`, `list of numbers`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _in_words(inner[0])  # without the bounds of its values
    if origin is typing.Literal:
        return " or ".join(map(str, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, inner))
    if inner:
        return f"list of {_WORDS.get(inner[0], 'value')}s"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
