"""Repeated measurement of a finished run, with its model in a separate process.

Only the separate process loads the candidate's code. The process receives tokens and returns logits
as plain numbers, and the judging process computes the losses. Therefore no change that the
candidate makes to torch or to this package affects the losses. All logits are compared with logits
of a prefix of the tokens, which cannot depend on later tokens.
"""

import math
import secrets
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llama_ablate.config.schema import Train
from llama_ablate.design.plan import open_tokens
from llama_ablate.launch import measurement, processes
from llama_ablate.measure import METRICS, Subject
from llama_ablate.model.laws import PREFIX_TOLERANCE
from llama_ablate.results import Record, Store
from llama_ablate.results.record import Measurement, Value
from llama_ablate.training.compute import Compute

#: Metrics that are computed from logits alone; other metrics are measured in the candidate's
#: process.
LOGIT_METRICS = ("perplexity", "excess_loss", "skill", "calibration")
#: Largest accepted differences of a repeated measurement, for a number and for its samples; samples
#: are stored with four decimals.
_TOLERANCE, _SAMPLE_TOLERANCE = 1e-5, 2e-4
_MAX_NUMBERS = 1 << 24  # in one answer: 64 MiB
_MAX_WAIT_S = 600.0


@dataclass(frozen=True)
class _Sizes:
    """Values of a model specification that the windows of held-out text depend on."""

    vocab: int
    context: int
    separator: int | None


class RemoteModel:
    """Model in another process, with the interface that evaluation uses."""

    #: Placeholder for the embedding, from which evaluation reads the device of the weights.
    embedding = SimpleNamespace(weight=torch.empty(0))

    def __init__(self, connection: Connection, spec: _Sizes) -> None:
        self.spec = spec
        #: Reason why the answers of the process are unusable; "" while they are usable.
        self.fault = ""
        self._connection = connection

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return logits, (B, T, V), after a check that no logit depends on later tokens.

        The check compares the logits with the logits of random prefixes, for half of the sequences.
        """
        rows = max(1, _MAX_NUMBERS // (tokens.shape[1] * self.spec.vocab))
        return torch.cat(
            [self._check(tokens[at : at + rows]) for at in range(0, len(tokens), rows)]
        )

    def logits(self, logits: Tensor) -> Tensor:
        """Return the given logits, since `hidden` returns logits already."""
        return logits

    def _check(self, tokens: Tensor) -> Tensor:
        logits, (count, length) = self._ask(tokens), tokens.shape
        prefix = 1 + secrets.randbelow(length - 1) if length > 1 else 0
        if prefix:
            # Half of the sequences without the others, so that the rest of the batch gives nothing
            # away.
            some = sorted(secrets.SystemRandom().sample(range(count), -(-count // 2)))
            given, alone = logits[some, :prefix], self._ask(tokens[some, :prefix])
            if not (given - alone).abs().max() <= PREFIX_TOLERANCE * given.abs().max():
                self.fault = "its predictions depend on the tokens that they predict"
                raise ValueError(self.fault)
        return logits

    def _ask(self, tokens: Tensor) -> Tensor:
        shape = (*tokens.shape, self.spec.vocab)
        answer = b""
        try:
            self._connection.send((tokens.numpy(), self.spec.separator))
            if self._connection.poll(_MAX_WAIT_S):
                answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            pass
        # Bytes instead of objects, since unpickling would run code that the process put there.
        if len(answer) != 4 * math.prod(shape):
            self.fault = "it does not answer when it is measured again"
            raise ValueError(self.fault)
        return torch.from_numpy(np.frombuffer(answer, np.float32).reshape(shape).copy())


def serve_logits(_report: object, connection: Connection, root: str, run_id: str) -> None:
    """Answer requests for a finished run's logits, as the main function of a process."""
    model, _, compute = measurement.open_run(Store(Path(root)), run_id)
    while True:
        try:
            tokens, separator = connection.recv()
        except EOFError:
            return
        model.spec = replace(model.spec, separator=separator)
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens).to(compute.device)).float().cpu().contiguous()
        connection.send_bytes(logits.numpy().tobytes())


def find_difference(store: Store, record: Record, names: set[str]) -> str:
    """Measure a finished run again; describe the first difference from its record, or "".

    `names` selects the metrics by name. Raises ConfigError if the run's text cannot be read.
    """
    choices = [METRICS.resolve(entry) for entry in store.plan.experiment.measure]
    choices = [choice for choice in choices if choice.name in names]
    by_logits = [choice for choice in choices if choice.name in LOGIT_METRICS]
    measured_again = _measure_logits(store, record, by_logits)
    if isinstance(measured_again, str):
        return measured_again
    if others := [choice.entry() for choice in choices if choice not in by_logits]:
        address = str(store.root), record.id, others
        measured_again |= processes.call(measurement.measure_run, *address, log=store.log("again"))
    for name, measured in measured_again.items():
        recorded_rows = {row.name: row for row in record.metrics[name].rows}
        for row in measured.rows:
            if not _is_equal(row, recorded_rows.get(row.name)):
                recorded = recorded_rows[row.name].value if row.name in recorded_rows else "missing"
                return f"its {row.name} is {recorded}, by its weights {row.value}"
        if measured.error != record.metrics[name].error:
            return f"its {name} cannot be measured again: {measured.error}"
    return ""


def _measure_logits(
    store: Store, record: Record, choices: list[Any]
) -> dict[str, Measurement] | str:
    """Measure metrics from the logits of a separate process, or return an error message."""
    table = store.table_of(record.id)
    tokens = open_tokens(table.text_of(table.variant(record.variant)))
    spec = record.model
    sizes = _Sizes(spec["vocab"], spec["context"], spec.get("separator"))
    ours, theirs = Pipe()
    log = store.log("again")
    child = processes.start(serve_logits, theirs, str(store.root), record.id, log=log)
    theirs.close()
    try:
        model: Any = RemoteModel(ours, sizes)
        train = Train.model_validate(record.train)
        subject = Subject(model, tokens, train, Compute("cpu", 1, "float32", "math"))
        measured = METRICS.measure_all(choices, subject, store.plan.readings(table))
    finally:
        ours.close()
        child.end()
    if "does not answer" in model.fault:
        return f"{model.fault}: {processes.last_words(log)}"
    return model.fault or measured


def _is_equal(row: Value, known: Value | None) -> bool:
    if known is None or len(row.samples) != len(known.samples):
        return False
    return all(
        np.allclose(values, others, rtol=_TOLERANCE, atol=tolerance, equal_nan=True)
        for values, others, tolerance in (
            (row.value, known.value, _TOLERANCE),
            (row.samples, known.samples, _SAMPLE_TOLERANCE),
        )
    )
