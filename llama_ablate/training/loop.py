"""The training loop: a pure function of recipe, seed and text, that can stop and go on anywhere."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from llama_ablate.data.tokens import Tokens
from llama_ablate.experiment import Train
from llama_ablate.model.decoder import Decoder
from llama_ablate.results import Outcome
from llama_ablate.training import checkpoint
from llama_ablate.training.engine import Engine, update
from llama_ablate.training.optimizer import learning_rate, make_optimizer, set_learning_rate

_ROWS = 100  # of a learning curve
_CURVE_TOKENS = 8_192  # of the validation split that the curve looks at
_CHECKPOINT_S = 30.0

Row = dict[str, float]
Progress = Callable[[int, float], None]
Stop = Callable[[], bool]


@dataclass
class Trained:
    """How a run ended: its outcome, its curve, and the step that it reached."""

    outcome: Outcome
    reason: str = ""
    steps_done: int = 0
    train_s: float = 0.0
    curve: list[Row] = field(default_factory=list)


@dataclass
class _State:
    """What changes from step to step, apart from model and optimizer."""

    step: int = 0
    train_s: float = 0.0
    loss_sum: float = 0.0
    loss_steps: int = 0
    curve: list[Row] = field(default_factory=list)


def train(
    model: Decoder,
    tokens: Tokens,
    recipe: Train,
    *,
    steps: int,
    seed: int,
    engine: Engine,
    saved: Path | None = None,
    progress: Progress = lambda _step, _loss: None,
    stop: Stop = lambda: False,
) -> Trained:
    """Train a model in place for `steps` steps, and say how that ended.

    With `saved`, the state is kept there every half minute and when `stop` says so, and a call
    that finds a state there goes on from it: the numbers are those of an uninterrupted run.
    A loss or gradient that is not finite ends the run as `diverged`, at the step of the next row.
    """
    engine.prepare(model)
    optimizer = make_optimizer(model, recipe)
    state = _resume(saved, model, optimizer)
    run = _Run(model, optimizer, tokens, recipe, steps, seed, engine)
    began = last_saved = time.perf_counter()
    while state.step < steps:
        now, stopping = time.perf_counter(), stop()
        late = recipe.timeout_s is not None and now - began > recipe.timeout_s
        if saved and (stopping or late or now - last_saved > _CHECKPOINT_S):
            run.save(saved, state)
            last_saved = now
        if stopping:
            return _ended("cancelled", f"stopped at step {state.step}", state)
        if late:
            reason = f"step {state.step} of {steps} after timeout_s {recipe.timeout_s:g}"
            return _ended("timeout", reason, state)
        norm = run.step(state)
        if state.step % run.row_every == 0 or state.step == steps:
            row = run.row(state, norm)
            progress(state.step, row["train_loss_nats"])
            if not all(math.isfinite(row[k]) for k in ("train_loss_nats", "grad_norm")):
                return _ended(
                    "diverged", f"loss or gradient not finite by step {state.step}", state
                )
    first, last = state.curve[0]["train_loss_nats"], state.curve[-1]["train_loss_nats"]
    if last > first + 0.1 and last > math.log(model.spec.vocab):
        reason = f"the loss ended at {last:.3f}, above chance and above its start {first:.3f}"
        return _ended("diverged", reason, state)
    return _ended("ok", "", state)


class _Run:
    def __init__(
        self,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        tokens: Tokens,
        recipe: Train,
        steps: int,
        seed: int,
        engine: Engine,
    ) -> None:
        self.model, self.optimizer, self.engine = model, optimizer, engine
        self.tokens, self.recipe, self.steps, self.seed = tokens, recipe, steps, seed
        self.context = model.spec.context
        self.row_every = -(-steps // _ROWS)
        self.eval_every = self.row_every * max(1, -(-steps // recipe.evals) // self.row_every)
        self.sample = windows(tokens.split("validation"), self.context, _CURVE_TOKENS)

    def step(self, state: _State) -> torch.Tensor:
        """Do one optimizer step; return the gradient's norm before clipping."""
        began = time.perf_counter()
        rate = learning_rate(self.recipe, state.step, self.steps)
        set_learning_rate(self.optimizer, rate)
        batch = torch.from_numpy(
            self.tokens.batch(self.seed, state.step, self.recipe.batch, self.context)
        )
        parts = batch.to(self.engine.device).chunk(self.recipe.accumulate)
        loss, norm = update(self.model, self.optimizer, parts, self.recipe, self.engine)
        state.step += 1
        # On a GPU reading the loss waits for the step; it is small beside launching the next one.
        state.loss_sum += loss.item()
        state.loss_steps += 1
        state.train_s += time.perf_counter() - began
        return norm

    def row(self, state: _State, norm: torch.Tensor) -> Row:
        """Add a row to the curve: means since the last one, and held-out loss now and then."""
        row = {
            "step": state.step,
            "tokens": state.step * self.recipe.batch * self.context,
            "lr": learning_rate(self.recipe, state.step - 1, self.steps),
            "train_loss_nats": state.loss_sum / state.loss_steps,
            "grad_norm": norm.item(),
            "train_s": state.train_s,
        }
        if state.step % self.eval_every == 0 or state.step == self.steps:
            row["validation_loss_nats"] = float(losses(self.model, self.sample, self.engine).mean())
        state.loss_sum, state.loss_steps = 0.0, 0
        state.curve.append(row)
        return row

    def save(self, path: Path, state: _State) -> None:
        """Write all that the next process needs."""
        values: dict[str, Any] = dict(vars(state))
        values |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        checkpoint.save(path, values)


def _resume(saved: Path | None, model: Decoder, optimizer: torch.optim.Optimizer) -> _State:
    values = checkpoint.load(saved) if saved else None
    if values is None:
        return _State()
    model.load_state_dict(values.pop("model"))
    optimizer.load_state_dict(values.pop("optimizer"))
    return _State(**values)


def _ended(outcome: Outcome, reason: str, state: _State) -> Trained:
    return Trained(outcome, reason, state.step, state.train_s, state.curve)


def windows(
    tokens: NDArray[np.integer], context: int, most: int | None = None
) -> list[NDArray[np.int64]]:
    """Cut a split into windows of `context` predictions that do not overlap, (N, context + 1).

    Every token but the first is predicted once: the last, shorter window is an array of its own.
    With `most`, only the first that many predictions.
    """
    predictions = min(len(tokens) - 1, most or len(tokens))
    whole = predictions // context
    index = np.arange(whole)[:, None] * context + np.arange(context + 1)
    cut = [tokens[index].astype(np.int64)] if whole else []
    if rest := predictions - whole * context:
        cut.append(tokens[None, whole * context : whole * context + rest + 1].astype(np.int64))
    return cut


@torch.no_grad()
def losses(
    model: Decoder, cut: list[NDArray[np.int64]], engine: Engine, batch_tokens: int = 8192
) -> NDArray[np.float64]:
    """Return the loss in nats of every prediction of `windows`, in reading order."""
    found = []
    for part in cut:
        rows = max(1, batch_tokens // part.shape[1])
        for start in range(0, len(part), rows):
            tokens = torch.from_numpy(part[start : start + rows]).to(engine.device)
            with engine.autocast():
                logits_BTV = model(tokens[:, :-1])
            loss = F.cross_entropy(
                logits_BTV.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
            )
            found.append(loss.double().cpu().numpy())
    return np.concatenate(found)
