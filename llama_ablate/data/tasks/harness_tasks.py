"""Tasks in lm-evaluation-harness' YAML: fields and Jinja templates of a data set's rows.

Multiple choice and log-likelihood are read, without examples in the prompt. What would run code of
a task's own, or need another task's file, is refused. `interop/lm_eval` is no second reader: there
the harness, an extra, asks a model and reports means; here runs are paired by their items' answers.
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_ablate.config.marked_yaml import load
from llama_ablate.config.validation import shown
from llama_ablate.data.corpora import hub_datasets
from llama_ablate.data.tasks.items import (
    Item,
    Kind,
    Task,
    checked_answer,
    checked_choices,
    text_of,
)
from llama_ablate.errors import ConfigError, nearest

_KINDS: Mapping[str, Kind] = {
    "multiple_choice": "multiple choice",
    "loglikelihood": "last words",
}
_NEEDED = ("task", "dataset_path", "output_type", "doc_to_text", "doc_to_target")
_READ = (
    *_NEEDED,
    *("dataset_name", "dataset_kwargs", "test_split", "validation_split"),
    *("doc_to_choice", "target_delimiter", "num_fewshot"),
)
#: What changes no item's text, and no score that is made here.
_UNUSED = (
    *("tag", "group", "task_alias", "metadata", "metric_list", "repeats", "training_split"),
    *("fewshot_split", "should_decontaminate", "doc_to_decontamination_query"),
)
#: What the harness has, and this does not.
_REFUSED = ("include", "process_docs", "process_results", "description", "gen_prefix")


def read(path: Path) -> Task:
    """Read a task. Raises ConfigError, with file, line and column, for what cannot be done."""
    try:
        marked = load(path)
    except ConfigError as error:
        raise ConfigError(error.message, ("task",)) from None
    try:
        return _task(marked.values, path)
    except ConfigError as error:
        message = str(marked.locate(error)) if error.where else f"{path}: {error.message}"
        raise ConfigError(message, ("task",)) from None


def _task(values: Mapping[str, Any], path: Path) -> Task:
    _check(values)
    made, split = [], values.get("test_split") or values.get("validation_split")
    if not isinstance(split, str):
        raise ConfigError("needs a 'test_split' or 'validation_split'")
    for number, row in enumerate(_rows(values, split), 1):
        try:
            made.append(_item(values, row, f"{path}: row {number} of '{split}'"))
        except ConfigError as error:
            raise ConfigError(f"row {number} of '{split}': {error.message}", error.where) from None
    if not made:
        raise ConfigError(f"the split '{split}' holds no rows", ("dataset_path",))
    return Task(text_of(values, "task"), _KINDS[values["output_type"]], tuple(made))


def _check(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for keys that are missing, unknown, or not read here."""
    for key in values:
        if key in _REFUSED:
            raise ConfigError("is not read here: write its text into the fields", (key,))
        if key not in (*_READ, *_UNUSED):
            raise ConfigError(f"unknown key{nearest(key, (*_READ, *_UNUSED))}", (key,))
    for key in _NEEDED:
        if key not in values:
            raise ConfigError(f"the key '{key}' is needed here")
    output = values["output_type"]
    if output not in _KINDS:
        message = f"{shown(output)} is not read here{nearest(output, _KINDS)}"
        raise ConfigError(message, ("output_type",))
    if values.get("num_fewshot"):
        message = "examples in the prompt are not made here: must be 0"
        raise ConfigError(message, ("num_fewshot",))
    if output == "multiple_choice" and "doc_to_choice" not in values:
        raise ConfigError("multiple_choice needs 'doc_to_choice'", ("output_type",))


def _rows(values: Mapping[str, Any], split: str) -> list[dict[str, Any]]:
    """Return the rows of a split: of local files, or of a data set of the hub."""
    import datasets

    path, where = text_of(values, "dataset_path"), ("dataset_path",)
    options = values.get("dataset_kwargs") or {}
    if not isinstance(options, dict) or options.keys() - {"data_files", "data_dir"}:
        raise ConfigError("takes 'data_files' or 'data_dir'", ("dataset_kwargs",))
    datasets.disable_progress_bars()
    if path not in ("json", "csv", "parquet", "text") and not Path(path).is_dir():
        hub_datasets.reach(path)
    try:
        loaded = datasets.load_dataset(
            path,
            values.get("dataset_name"),
            split=split,
            download_mode="reuse_cache_if_exists",
            **options,
        )
    except Exception as error:  # noqa: BLE001  the library raises whatever its readers do
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"'{path}' could not be loaded: {reason}", where) from None
    return [*loaded]


def _item(values: Mapping[str, Any], row: Mapping[str, Any], place: str) -> Item:
    context = _made(values, "doc_to_text", row)
    if not isinstance(context, str):
        message = f"{shown(context)}: contexts to choose between are not read here"
        raise ConfigError(message, ("doc_to_text",))
    target = _made(values, "doc_to_target", row)
    if values["output_type"] == "loglikelihood":
        if not isinstance(target, str) or not target.strip():
            raise ConfigError(f"{shown(target)}: must be text", ("doc_to_target",))
        return Item(context, (target,), 0, place=place)
    choices = _made(values, "doc_to_choice", row)
    if isinstance(choices, str):
        try:
            choices = ast.literal_eval(choices)
        except (SyntaxError, ValueError):
            raise ConfigError(f"{shown(choices)}: must be a list", ("doc_to_choice",)) from None
    if isinstance(choices, dict):
        choices = list(choices.values())
    checked = checked_choices(choices)
    if isinstance(target, str) and target.isdigit():
        target = int(target)
    answer = checked_answer(target, checked)
    return Item(context, checked, answer, str(values.get("target_delimiter", " ")), place=place)


def _made(values: Mapping[str, Any], key: str, row: Mapping[str, Any]) -> Any:
    """Return what a key says of a row: the field that it names, what its template makes, itself."""
    stated = values[key]
    if not isinstance(stated, str):
        return stated
    if stated in row:
        return row[stated]
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    try:
        return environment.from_string(stated).render(**row)
    except Exception as error:  # noqa: BLE001  a template computes
        raise ConfigError(f"the template fails: {error}", (key,)) from None
