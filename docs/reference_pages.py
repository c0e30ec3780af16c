"""Generated reference pages on registries, experiment-file keys, commands and columns."""

import inspect
import re
from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from llama_ablate.commands import components
from llama_ablate.commands.cli import COMMANDS, parser
from llama_ablate.commands.help import EXIT_CODES
from llama_ablate.config import schema
from llama_ablate.findings.columns import COLUMNS
from llama_ablate.model.components import REGISTRIES
from llama_ablate.report import columns

DOCS = Path(__file__).parent

#: Sections of an experiment file with their pydantic models, in reading order.
SECTIONS: dict[str, type[BaseModel]] = {
    "The file": schema.Experiment,
    "`model`": schema.Model,
    "`model.dropout`": schema.DropoutKeys,
    "`variants`": schema.Variants,
    "`data`, and each of `texts`": schema.Data,
    "`mixture` of `data`, each source": schema.Portion,
    "`train`": schema.Train,
    "`evaluation`": schema.Evaluation,
    "`seeds`, in looks": schema.Looks,
    "`answer`": schema.AnswerKeys,
    "`hypotheses`, each": schema.Hypothesis,
    "`guard`, each": schema.Guard,
    "`controls`": schema.Controls,
    "`sizes`": schema.Sizes,
    "`models` of `sizes`, each": schema.Size,
    "`parallel`": schema.Parallel,
    "`ray`": schema.RayTask,
}
_SLOTS = [
    *("norm", "position", "attention", "feedforward", "block", "init", "parametrization"),
    *("optimizer", "schedule", "losses"),
]


def pages() -> dict[Path, str]:
    """Return the text of every generated page by its path."""
    made = {
        "experiment-file": _experiment_file(),
        "components": _components(),
        "metrics": _metrics(),
        "data": _data(),
        "commands": _commands(),
        "columns": _columns(),
    }
    return {DOCS / "reference" / f"{name}.md": text for name, text in made.items()}


def _list(rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown list of words and their meanings."""
    return "".join(f"- {word}: {' '.join(meaning.split())}\n" for word, meaning in rows)


def keys() -> dict[str, dict[str, str]]:
    """Return the descriptions of an experiment file's keys, by model of the schema."""
    found: dict[str, dict[str, str]] = yaml.safe_load((DOCS / "keys.yaml").read_text("utf-8"))
    return found


def _experiment_file() -> str:
    about = keys()
    parts = [
        "# Keys of an experiment file",
        "A file with most of its sections:",
        f"```yaml\n{(DOCS / 'complete.yaml').read_text('utf-8')}```",
        "Keys left out have the defaults below, or those of `base`. A key without a type "
        "is a text; sections have headings. The schema "
        "(`llama_ablate/config/experiment.schema.json`) has the limits of numbers. "
        "`--set train.lr=3e-4` overrides a key.",
        "An entry is a name, or a "
        "mapping of a `name` and options: `{name: rope, theta: 5.0e+5}`. A slot also takes a "
        "pattern over depth: `{pattern: [{name: mha, window: 64}, gated_delta], layers: {-1: "
        "mha}}` repeats its list down the layers, and `layers` sets single ones.",
    ]
    for title, model in SECTIONS.items():
        if model is schema.Size:  # its keys are those of `model`
            continue
        described = about[model.__name__]
        rows = [
            (_key(key, field, described.get(key, "")), described.get(key, ""))
            for key, field in model.model_json_schema()["properties"].items()
            if _takes(field) != "section"  # a section has a heading
        ]
        parts += [f"## {title}", _list(rows)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


#: Names of the values that a key takes by JSON type, in singular and plural.
_KINDS = {
    "integer": ("integer", "integers"),
    "number": ("number", "numbers"),
    "string": ("text", "texts"),
    "boolean": ("true or false", "true or false"),
    "object": ("mapping", "mappings"),
    "section": ("section", "sections"),
    "entry": ("entry", "entries"),
    "any": ("value", "values"),
}


def _key(key: str, field: dict[str, Any], about: str) -> str:
    """Return a key with its default, and its type where neither default nor description say it."""
    default, taken = _default(field), _takes(field)
    shown = f"`{key}: {default}`" if default else f"`{key}`"
    if default and _kind(field) in ("integer", "number", "string", "boolean", "entry"):
        return shown
    words = re.findall(r"`[^`]+`", taken)
    is_said = taken in ("text", "section") or (words and all(word in about for word in words))
    return shown if is_said else f"{shown} ({taken})"


def _takes(field: dict[str, Any]) -> str:
    """Describe the values that a key takes, from its JSON schema."""
    kind = _kind(field)
    if kind == "one of":
        kinds = [_takes(one) for one in field["anyOf"] if one.get("type") != "null"]
        return ", or ".join(dict.fromkeys(kinds))
    if kind == "words":
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if kind == "array":
        items = field.get("items", {})
        if "prefixItems" in field:
            return "two numbers"
        if _kind(items) == "words":
            return f"one or several of {_takes(items)}"
        return f"list of {_KINDS[_kind(items)][1]}"
    return _KINDS[kind][0]


def _kind(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        kinds = [one.get("type") for one in field["anyOf"]]
        return "entry" if kinds == ["string", "object"] else "one of"
    if "$ref" in field:
        return "section"
    if "enum" in field or "const" in field:
        return "words"
    kind: str = field.get("type", "any")
    return kind


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    if default is None or isinstance(default, dict) or default == "":
        return ""
    if isinstance(default, list):
        return f"[{', '.join(map(str, default))}]" if default else ""
    written = {True: "true", False: "false"}.get(default) if isinstance(default, bool) else None
    return written or (f"{default:g}" if isinstance(default, float) else str(default))


def _entries(slot: str) -> str:
    """Return a Markdown list of a slot's components with options.

    Options that several components inherit from a base class are described once, below the list.
    """
    rows, inherited = [], {}
    for row in components.listing(slot):
        own, bases = {}, _bases(slot, row["name"])
        for name, option in row["options"].items():
            base = bases.get(name)
            options = own if base is None else inherited.setdefault(base, ({}, []))[0]
            options[name] = components.format_default(option["default"])
            if base and row["name"] not in inherited[base][1]:
                inherited[base][1].append(row["name"])
        options = f" {_defaults(own)}." if own else ""
        rows.append((f"`{row['name']}`", f"{row['summary']}{options}"))
    shared = [
        f"Of {_names(names, [name for name, _ in rows])}: {_defaults(options)}.\n\n- "
        + _one_a_line((inspect.getdoc(base) or "").split("\n\n", 1)[-1])
        for base, (options, names) in inherited.items()
    ]
    return _list(rows) + "".join(f"\n{text}\n" for text in shared)


def _names(chosen: Sequence[str], every: Sequence[str]) -> str:
    """Return the chosen names in backticks, or all but one of every name."""
    others = [name for name in every if name.strip("`") not in chosen]
    if len(others) > 1:
        return ", ".join(f"`{name}`" for name in chosen)
    return f"all but {others[0]}" if others else "all"


def _one_a_line(text: str) -> str:
    """Begin a list item at each sentence that begins with the name of an option."""
    return re.sub(r"(?<=\.) (?=`)", "\n- ", " ".join(text.split()))


def _defaults(options: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}: {default}`" for name, default in options.items())


def _bases(slot: str, name: str) -> dict[str, type]:
    """Return the base classes that declare options of a component, by option.

    Options that the component itself, or another registered component, declares are left out.
    """
    registry: Any = REGISTRIES.get(slot)
    component = registry.get(name) if registry else None
    if not inspect.isclass(component):
        return {}
    registered = {registry.get(other) for other in registry}
    return {
        parameter.name: cls
        for cls in reversed(component.__mro__)
        if cls not in registered and "__init__" in vars(cls)
        for parameter in inspect.signature(vars(cls)["__init__"]).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
    }


def _components() -> str:
    parts = [
        "# Components",
        "    llama-ablate components attention",
        "prints the same with the types of options, which stand here with their defaults. "
        "[How to add one](../component.md).",
    ]
    for slot in _SLOTS:
        parts += [f"## `{slot}`", _entries(slot)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _metrics() -> str:
    return (
        "# Metrics\n\n    llama-ablate measure results/first perplexity\n\nadds a metric to "
        "finished runs without training, where weights were kept. Entries of `measure`, with "
        "options and defaults: quality is measured for each run, speed and memory for each variant "
        "in one interleaved pass after training.\n\n" + _entries("metric")
    )


def _data() -> str:
    return (
        "# Corpora and tokenizers\n\n    llama-ablate components corpus\n\nEntries of "
        "`data.corpus` and `data.tokenizer`, with options and defaults. Splits are shares of "
        "training, validation and test text.\n\n## `corpus`\n\n"
        + _entries("corpus")
        + "\n## `tokenizer`\n\n"
        + _entries("tokenizer")
    )


def _exit_codes() -> str:
    rows = "".join(f"| {code} | {about} |\n" for code, about in EXIT_CODES.items())
    return f"| exit code | what it says |\n|---|---|\n{rows}"


def _commands() -> str:
    parts = [
        "# Commands",
        "    llama-ablate help all",
        "shows an example of each; `llama-ablate COMMAND --help` explains its arguments. Every "
        "command takes `--json` (print one JSON document) and `--plugin FILE` (a Python file that "
        "registers components; repeatable); those that print tables `--wide` (all columns), those "
        "that compute `--device {auto,cpu,cuda}`.",
        _exit_codes(),
    ]
    (chosen,) = (a for a in parser()._actions if isinstance(a, _SubParsersAction))  # noqa: SLF001
    rows = [
        (f"**`{name}`**", f"{command.HELP}. {_arguments(chosen.choices[name])}")
        for name, command in COMMANDS.items()
    ]
    parts.append(_list(rows))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _places(rows: Mapping[str, Iterable[tuple[str, str]]]) -> dict[tuple[str, str], list[str]]:
    """Return the names of the lists in which each row stands."""
    places = defaultdict(list)
    for name, listed in rows.items():
        for row in listed:
            places[row].append(name)
    return places


def _arguments(command: ArgumentParser) -> str:
    """Return the arguments of a command without those that many commands take."""
    common = {"help", "plugins", "json", "wide", "device"}
    return ", ".join(
        _written(a)
        for a in command._actions  # noqa: SLF001
        if a.dest not in common and a.help != SUPPRESS and not isinstance(a, _SubParsersAction)
    )


def _written(action: Action) -> str:
    """Return an argument as typed on a command line, such as `--seed N`, in backticks."""
    shown = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    shown = shown if isinstance(shown, str) else " ".join(shown)
    if not action.option_strings:
        return f"`{shown}`"
    value = "" if action.nargs == 0 else f" {shown}"
    return f"`{action.option_strings[-1]}{value}`"


def _heading(frame: str, column: str) -> str:
    """Return a column's name, with its heading in a report's table where that differs."""
    declared = COLUMNS["comparison"] if frame == "comparison()" else {}
    title = declared[column].title if column in declared else ""
    title = re.sub(r"\{\w*context:,\}", "N", title)
    return f"`{column}`" + (f" (*{title}*)" if title.split(" ")[0] not in ("", column) else "")


def _columns() -> str:
    """Return the columns of the frames that `llama_ablate.open` gives; those of several, once."""
    frames = {
        "tables": columns.TABLES,
        "runs": columns.RUNS,
        "curves": columns.CURVES,
        "metrics": columns.METRICS,
        "comparison()": columns.COMPARISON,
    }
    places = _places({name: frame.items() for name, frame in frames.items()})
    shared = [
        (f"`{column}` ({'all' if len(found) == len(frames) else ', '.join(found)})", about)
        for (column, about), found in places.items()
        if len(found) > 1
    ]
    parts = [
        "# Columns of data frames",
        '```py\nllama_ablate.open("results/first").comparison().columns\n```',
        "Frames of `llama_ablate.open`; `runs.csv` and `curves.csv` have the same. Names stay; "
        "others may be added behind them. Units stand at the end of a name: `_nats` per token, "
        "`_bytes`, `_s` seconds. Losses and differences are in the `unit` of their row. A number "
        "that was not measured is missing (NaN).\n\n`runs` has a further column for each "
        "number that was measured of a run (`test_loss_nats`, `spikes`), `metrics` for each "
        "coordinate of a value (`split`, `context`), `curves` for each further loss. Headings of "
        "the report's table stand in italics; N is a context.",
        "## In several frames",
        _list(shared),
    ]
    for name, frame in frames.items():
        alike = defaultdict(list)  # columns of one difference: its value, and the interval's ends
        for column, about in frame.items():
            if places[column, about] == [name]:
                alike[about.rpartition(": ")[0] or about].append((column, about))
        rows = [
            (
                ", ".join(_heading(name, column) for column, _ in same),
                about if len(same) > 1 else same[0][1],
            )
            for about, same in alike.items()
        ]
        parts += [f"## `{name}`", _list(rows)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"
