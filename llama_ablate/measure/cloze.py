"""Accuracy on tasks that are scored by the likelihood of texts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.task_items import Task, tasks
from llama_ablate.data.tokenizer import Tokenizer
from llama_ablate.data.tokens import Tokens
from llama_ablate.errors import ConfigError
from llama_ablate.measure.likelihood import Encoded, encode, likelihoods
from llama_ablate.measure.metrics import METRICS, Subject
from llama_ablate.results.record import Value, row


def _check(
    spec: ModelSpec, tokens: Tokens, *, task: str | Sequence[str], limit: int | None
) -> None:
    for loaded_task in tasks(task, limit):
        _encoded(loaded_task, tokens.tokenizer, spec.context)


@METRICS.add(
    "cloze",
    per="run",
    check=_check,
    worse={
        "accuracy": "lower",
        "accuracy_norm": "lower",
        "accuracy_per_token": "lower",
        "target_loss": "higher",
        "target_perplexity": "higher",
    },
)
def cloze(
    subject: Subject, *, task: str | Sequence[str] = "minimal-pairs", limit: int | None = None
) -> Iterator[Value]:
    """Accuracy on tasks: multiple choice, last words (LAMBADA) and minimal pairs (BLiMP).

    `task` is a built-in task (minimal-pairs) or a `.jsonl` file of items, or a list of both.
    `_accuracy` is the share of items whose right choice is the likeliest; in a tie of k choices the
    right choice counts 1/k. `_accuracy_norm` divides log-likelihoods by the UTF-8 bytes of the
    choice (lm-evaluation-harness' acc_bytes; its acc_norm divides by characters),
    `_accuracy_per_token` by its tokens. For last words, `_accuracy` is the share of items whose
    target greedy decoding writes, and `_target_perplexity` is the perplexity per whole target, as
    in LAMBADA. The samples are the values of each item. A text without a context is scored after
    the document separator. A text longer than the model's context loses its beginning, and
    `_cut_items` counts the items with such texts.
    """
    for loaded_task in tasks(task, limit):
        yield from _measured(loaded_task, subject)


def _measured(task: Task, subject: Subject) -> Iterator[Value]:
    context = subject.model.spec.context
    encoded = _encoded(task, subject.tokens.tokenizer, context)
    flat = iter(likelihoods(subject.model, [text for texts in encoded for text in texts]))
    scored = [[next(flat) for _ in texts] for texts in encoded]
    nats = [np.array([option.nats for option in item]) for item in scored]
    if task.kind == "last words":
        scores = {"accuracy": np.array([float(item[0].is_greedy) for item in scored])}
        lost = -np.concatenate(nats)
        yield _row(task, "target_nats", lost, "nats", "target_loss")
        yield _row(task, "target_perplexity", np.exp(min(float(lost.mean()), 700.0)))
    else:
        over: dict[str, Sequence[Sequence[int]]] = {
            "accuracy": [[1]] * len(nats),
            "accuracy_norm": [[len(choice.encode()) for choice in i.choices] for i in task.items],
            "accuracy_per_token": [[len(text.continuation) for text in of] for of in encoded],
        }
        scores = {
            name: _right(task, [item / of for item, of in zip(nats, sizes, strict=True)])
            for name, sizes in over.items()
        }
    for quantity, right in scores.items():
        yield _row(task, quantity, right)
    yield from _group_accuracies(task, scores["accuracy"])
    if (chance := task.chance) is not None:
        yield _row(task, "chance", chance)
    yield row(
        f"{task.name}_items",
        len(task.items),
        quantity="items",
        task=task.name,
        fingerprint=task.fingerprint,
    )
    cut = sum(any(len(t.context + t.continuation) > context + 1 for t in of) for of in encoded)
    yield _row(task, "cut_items", cut)


def _row(
    task: Task, name: str, value: NDArray[np.float64] | float, unit: str = "", quantity: str = ""
) -> Value:
    """Return a row of a task: a mean with a sample per item, or a single value."""
    mean = float(np.mean(value))
    plain = row(f"{task.name}_{name}", mean, unit, quantity or name, task=task.name)
    samples = tuple(np.round(value, 4).tolist()) if isinstance(value, np.ndarray) else ()
    return replace(plain, samples=samples)


def _group_accuracies(task: Task, right: NDArray[np.float64]) -> Iterator[Value]:
    groups = np.array([item.group for item in task.items])
    for group in dict.fromkeys(groups.tolist()):
        if group:
            name = f"{task.name}_{group.replace(' ', '_')}_accuracy"
            value = right[groups == group].mean()
            yield row(name, value, quantity="accuracy", task=task.name, group=group)
    if groups.any():  # an item without a group is a group by itself
        named = [group or f"\0{i}" for i, group in enumerate(groups.tolist())]
        places = {group: float(i) for i, group in enumerate(dict.fromkeys(named))}
        count = row(f"{task.name}_groups", len(places), quantity="groups", task=task.name)
        yield replace(count, samples=tuple(places[group] for group in named))


def _right(task: Task, scores: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return each item's score: 1 if the right choice scores highest, 0 if not, a share if tied."""
    best = [score == score.max() for score in scores]
    return np.array([b[item.answer] / b.sum() for b, item in zip(best, task.items, strict=True)])


def _encoded(task: Task, tokenizer: Tokenizer, context: int) -> list[list[Encoded]]:
    """Encode the choices of every item. Raises ConfigError for an item that cannot be scored."""
    first = tokenizer.separator if tokenizer.separator is not None else tokenizer.bos
    encoded = []
    for item in task.items:
        try:
            texts = [encode(tokenizer, item.context, text, first) for text in item.continuations]
            for length in (len(text.continuation) for text in texts):
                if not 0 < length <= context:
                    what = f"a text to be scored has {length:,} tokens"
                    raise ConfigError(f"{what}: must be 1 to {context:,}, the context")  # noqa: TRY301
        except ConfigError as error:
            raise ConfigError(f"{item.place}: {error.message}", ("task",)) from None
        encoded.append(texts)
    return encoded
