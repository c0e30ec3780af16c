"""Load a model from a finished run, or from a checkpoint of another project."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors import SafetensorError

from llama_ablate.config import experiment, plugins
from llama_ablate.config.labels import UNCHANGED
from llama_ablate.config.spec import ModelSpec
from llama_ablate.data import tokenizer_files
from llama_ablate.data.tokenizer import Bytes, Tokenizer
from llama_ablate.design.plan_texts import open_tokens
from llama_ablate.design.runs import refuse_other_code
from llama_ablate.design.variants import resolve_preset
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.interop import huggingface, llama2c, meta
from llama_ablate.interop.stored_tensors import check_memory
from llama_ablate.model.components import spec_from
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import Decoder, build, new_model
from llama_ablate.model.weights import load_weights
from llama_ablate.results import Store, snapshot


@dataclass(frozen=True)
class OpenedModel:
    """Loaded model that is ready to run, with its tokenizer."""

    title: str
    model: Decoder
    #: Function that reads the tokenizer, called at its first use.
    read_tokenizer: Callable[[], Tokenizer | None]

    @cached_property
    def tokenizer_if_any(self) -> Tokenizer | None:
        """The tokenizer, or None. Raises ConfigError if it has more tokens than the model."""
        tokenizer = self.read_tokenizer()
        if tokenizer and tokenizer.vocab > self.model.spec.vocab:
            raise ConfigError(
                f"the tokenizer has {tokenizer.vocab:,} tokens and {self.title} "
                f"{self.model.spec.vocab:,}: they do not belong together"
            )
        return tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ConfigError if the model has none."""
        if self.tokenizer_if_any is None:
            raise ConfigError(
                f"no tokenizer lies beside {self.title} ({', '.join(tokenizer_files.FILES)}); "
                "give one with --tokenizer FILE"
            )
        return self.tokenizer_if_any

    def prompt(self, text: str, *, special: bool = False) -> list[int]:
        """Return the token ids of a prompt.

        If the model keeps documents apart (per-document mask), the ids begin with the separator, so
        that the prompt begins a document.
        """
        ids, separator = self.tokenizer.prompt(text, special=special), self.model.spec.separator
        return ids if separator is None or ids[:1] == [separator] else [separator, *ids]

    @property
    def stops(self) -> frozenset[int]:
        """Token ids that end generation: the tokenizer's, and the document separator if any."""
        separator = self.model.spec.separator
        return self.tokenizer.stops | frozenset(() if separator is None else (separator,))


def open_model(
    path: Path, *, tokenizer: Path | None = None, dtype: torch.dtype | None = None
) -> OpenedModel:
    """Open `results/<experiment>/<label or run id>`, the folder of a run, or a checkpoint.

    Checkpoints are a folder with config.json (Hugging Face) or params.json (Meta), or a llama2.c
    `.bin`. Raises ConfigError for any other path, and for an incomplete run or checkpoint.
    """
    if not path.name or ".." in path.parts:  # as '.' has neither a name nor parents
        path = path.resolve()
    store = snapshot.around(path)
    read_beside = partial(tokenizer_files.in_one_file, path if path.is_dir() else path.parent)
    if run := snapshot.run_at(path):
        opened = _run(*run, dtype)
    elif store and not path.exists():
        # A label may contain slashes: the rest of the path is the name.
        opened = _run(store, _run_id(store, str(path.relative_to(store.root))), dtype)
    elif (path / "config.json").is_file():
        opened = OpenedModel(f"'{path}'", huggingface.read(path, dtype), read_beside)
    elif (path / "params.json").is_file():
        opened = OpenedModel(f"'{path}'", meta.read(path, dtype), read_beside)
    elif path.is_file() and path.suffix == ".bin":
        opened = OpenedModel(f"'{path}'", llama2c.read(path, dtype), read_beside)
    else:
        raise ConfigError(_not_a_model(path))
    if tokenizer is None:
        return opened
    other = tokenizer_files.read(tokenizer.expanduser())
    return replace(opened, read_tokenizer=lambda: other)


def open_preset(
    name: str,
    sets: Sequence[str] = (),
    *,
    seed: int = 0,
    tokenizer: Path | None = None,
    dtype: torch.dtype | None = None,
) -> OpenedModel:
    """Build a preset with the initial weights of a run with this seed, without training.

    Without a tokenizer file the tokens are bytes. Raises ConfigError for an unknown preset, and for
    a preset whose weights do not fit into free memory, before anything is built.
    """
    spec, _ = resolve_preset(name, sets)
    check_memory(4 * count(spec).parameters, f"drawing the weights of '{name}'")
    model = new_model(spec, seed).to(dtype or torch.float32)
    model = model.eval().requires_grad_(requires_grad=False)
    read: Tokenizer = tokenizer_files.read(tokenizer.expanduser()) if tokenizer else Bytes()
    return OpenedModel(f"'{name}', untrained", model, lambda: read)


def open_spec(path: Path) -> ModelSpec:
    """Return the model spec of a path that `open_model` accepts.

    For a Hugging Face checkpoint, no weights are read.
    """
    if (path / "config.json").is_file():
        return huggingface.describe(path)[-1]
    return open_model(path).model.spec


def _run(store: Store, run_id: str, dtype: torch.dtype | None) -> OpenedModel:
    record, file = store.record(run_id), store.weights(run_id)
    if record is None or file is None:
        why = "it has not finished"
        if record:
            why = store.why_no_weights(run_id) if record.ok else f"it ended {record.outcome}"
        raise ConfigError(f"run {run_id} of '{store.root}' has no weights: {why}")
    table = store.table_of(run_id)
    text = table.text_of(table.variant(record.variant))
    made_with = record.environment.get("plugins", {})
    try:
        spec = spec_from(record.model)
    except ConfigError as error:
        files = {Path(file).name: file for file in store.plan.settings.plugins}
        lacking = plugins.missing(files.get(name, name) for name in made_with)
        raise ConfigError(f"run {run_id}: {error.message}{lacking}") from None
    refuse_other_code(spec, made_with, f"run {run_id}")
    try:
        model = load_weights(build(spec), file)
    except (SafetensorError, RuntimeError) as error:
        raise ConfigError(f"'{file}' is damaged: {str(error).splitlines()[0]}") from None
    model = model.to(dtype or torch.float32).eval().requires_grad_(requires_grad=False)
    title = f"'{record.label}', seed {record.seed}, of {store.root}"

    def tokenizer() -> Tokenizer:
        saved = store.tokenizer(text.fingerprint)
        return tokenizer_files.restore(saved) if saved else open_tokens(text).tokenizer

    return OpenedModel(title, model, tokenizer)


def _run_id(store: Store, name: str) -> str:
    """Return a run's id, given a run id, or a variant's label or id.

    A variant's label or id refers to the variant's first run with weights.
    """
    plan = store.plan.named()
    if name in plan.runs:
        return name
    called = plan.called(name)
    for run in plan.runs.values():
        if run.variant in called and store.weights(run.id):
            return run.id
    if called:
        raise ConfigError(
            f"no run of '{name}' in '{store.root}' has weights: none has finished, "
            "or none were kept"
        )
    labels = [variant.label for table in plan.tables for variant in table.variants]
    labels.append(UNCHANGED)
    raise ConfigError(f"'{name}' is no variant or run of '{store.root}'{nearest(name, labels)}")


def _not_a_model(path: Path) -> str:
    """Describe why a path that names no model does not."""
    if snapshot.is_experiment(path):
        labels = ", ".join(v.label for v in Store.open(path).plan.tables[0].variants)
        return f"'{path}' is a whole experiment; name one of its variants after it: {labels}"
    if not path.exists() and len(path.parts) == 1:
        hint = nearest(path, experiment.presets())
        return f"there is no run and no checkpoint '{path}', nor a preset of that name{hint}"
    what = "holds neither" if path.exists() else "does not exist, so it is neither"
    return (
        f"'{path}' {what} a run (record.json), a Hugging Face checkpoint (config.json), a Meta "
        "checkpoint (params.json) nor a llama2.c .bin"
    )
