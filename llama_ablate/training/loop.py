"""The training loop: a pure function of train config, seed and text; resumable at any step."""

import copy
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llama_ablate.config import plugins
from llama_ablate.config.experiment import Train
from llama_ablate.data.batches import Batches
from llama_ablate.data.tokens import Tokens
from llama_ablate.model.decoder import Decoder
from llama_ablate.model.dropout import Dropout
from llama_ablate.results import Outcome
from llama_ablate.results.record import CURVE_TOKENS, Value, row
from llama_ablate.training import checkpoint
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.evaluation import document_mode, heldout_windows, losses, unigram_loss
from llama_ablate.training.losses import CROSS_ENTROPY, Objective, losses_of
from llama_ablate.training.optimizers import (
    Optimizer,
    evaluation_weights,
    make_optimizer,
    set_learning_rate,
)
from llama_ablate.training.ranks import ALONE, Ranks
from llama_ablate.training.schedules import cooldown, learning_rate
from llama_ablate.training.spikes import stability_values

_POINTS = 100  # points of a learning curve
_LOSS = "validation_loss_nats"  # key of the curve's points with an evaluation
#: Nats below the unigram loss within which a run has learned no more than token frequencies;
#: collapsed runs were observed within 0.018 of it.
_PLATEAU = 0.05
#: Thresholds of a stopped loss. It has stopped if its mean over the last third of the evaluations
#: is below the mean over the third before by at most this share of the distance from chance: the
#: share was at most 0.015 in twenty runs that had stopped (results/reference), and at least 0.047
#: in twenty runs of 156 steps that still fell. Near chance, where that distance is short, the
#: second threshold applies, in nats: a learning rate of 1e-8 makes a loss fall by 1e-5.
_STOPPED, _STILL = 0.03, 0.01
_THIRD = 2  # least evaluations in a third, for a meaningful mean
_VANISHED = 1e-8  # gradient norm without effect: AdamW's epsilon dominates below it

CurvePoint = dict[str, float]
#: Callback after every step: the step, the mean recent loss, and the curve so far.
Progress = Callable[[int, float, Sequence[CurvePoint]], None]
Stop = Callable[[], bool]


@dataclass
class Trained:
    """Result of a training run: its outcome, curve, and number of steps."""

    outcome: Outcome
    reason: str = ""
    steps_done: int = 0
    train_s: float = 0.0
    curve: list[CurvePoint] = field(default_factory=list)
    #: Spikes, gradient norms, and held-out losses at the ends of branches.
    values: list[Value] = field(default_factory=list)


@dataclass
class _State:
    """State of a run in a checkpoint, without model and optimizer.

    A branch is an early decay of the learning rate, as at the end of a shorter run.
    """

    step: int = 0
    train_s: float = 0.0
    #: Seconds of earlier attempts since the last timeout.
    clock_s: float = 0.0
    #: Losses and gradient norms of every step so far.
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    #: Minimised losses other than cross-entropy, by name.
    parts: dict[str, list[float]] = field(default_factory=dict)
    curve: list[CurvePoint] = field(default_factory=list)
    #: Held-out loss at the end of each branch, by its steps and by split.
    branches: dict[tuple[int, str], float] = field(default_factory=dict)


def train(
    model: Decoder,
    tokens: Tokens,
    config: Train,
    *,
    steps: int,
    seed: int,
    compute: Compute,
    saved: Path | None = None,
    checkpoint_s: float = 30.0,
    progress: Progress = lambda _step, _loss, _curve: None,
    stop: Stop = lambda: False,
    ranks: Ranks = ALONE,
    init_seed: int | None = None,
    batches: Batches | None = None,
    reading: str = "",
) -> Trained:
    """Train a model in place for `steps` steps; return the result of the run.

    `seed` orders the batches; `init_seed` (default: `seed`) initializes the weights of losses. The
    model is trained on `batches` (default: windows of `tokens`), and reads held-out text in the
    document mode `reading` (`evaluation.document_mode`). In the curve, `train_loss_nats` is
    cross-entropy alone; each other training loss has a column `loss_NAME_nats`, which includes the
    loss' weight.

    With `saved`, checkpoints are written to that folder every `checkpoint_s` seconds and when
    `stop` returns True; a call that finds a checkpoint resumes from it, with the numbers of an
    uninterrupted run. With `ranks`, every rank calls this function with the same arguments. A loss
    or gradient that is not finite ends the run as `diverged`, at the next point of the curve.
    """
    compute.prepare(model)
    objective = Objective(model, losses_of(config), seed if init_seed is None else init_seed)
    optimizer = make_optimizer(objective, config)
    state = _resume(saved, objective, optimizer, compute, ranks)
    batches = batches or tokens.batch
    run = _Run(objective, optimizer, tokens, config, steps, seed, compute, ranks, batches, reading)
    last_saved = time.perf_counter()
    began = last_saved - state.clock_s
    while state.step < steps:
        now = time.perf_counter()
        late = config.timeout_s is not None and now - began > config.timeout_s
        due = now - last_saved > checkpoint_s
        stopping, late, due = ranks.agreed(ranks.first and stop(), late, due)
        state.clock_s = now - began
        if saved and (stopping or late or due):
            run.save(saved, state)
            last_saved = now
        if late:
            reason = f"step {state.step} of {steps} after timeout_s {config.timeout_s:g}"
            return run.ended("timeout", reason, state)
        if stopping:
            return run.ended("cancelled", f"stopped at step {state.step}", state)
        if run.branch(state, stop):
            continue  # a stop during a branch is handled above
        run.step(state)
        if state.step % run.point_every == 0 or state.step == steps:
            run.add_point(state)
        progress(state.step, run.late_loss(state), state.curve)
        for point in state.curve[-1:]:
            if not (math.isfinite(point["train_loss_nats"]) and math.isfinite(point["grad_norm"])):
                reason = f"loss or gradient not finite by step {state.step}"
                return run.ended("diverged", reason, state)
    if hasattr(optimizer, "eval"):
        optimizer.eval()  # metrics and saved weights use its evaluation weights
    run.unigram = unigram_loss(tokens, run.sample)
    return run.ended(*outcome(state.curve, math.log(model.spec.vocab), run.unigram), state)


@dataclass
class _Run:
    objective: Objective
    optimizer: Optimizer
    tokens: Tokens
    config: Train
    steps: int
    seed: int
    compute: Compute
    ranks: Ranks
    batch: Batches
    documents: str
    #: The loss of token frequencies on the sample, once the run has done all its steps.
    unigram: float | None = None

    def __post_init__(self) -> None:
        self.model = self.objective.model
        self.trained = self.ranks.wrap(self.compute.wrap(self.objective))
        self.context = self.model.spec.context
        self.point_every = -(-self.steps // _POINTS)
        most = -(-self.steps // self.config.evals)  # steps between two evaluations
        self.eval_every = self.point_every * max(1, most // self.point_every)
        with self.read_heldout():
            self.sample = heldout_windows(self.model, self.tokens, "validation", CURVE_TOKENS)

    def read_heldout(self) -> AbstractContextManager[None]:
        """Return a context in which the model reads held-out text in its document mode."""
        return document_mode(self.model, self.tokens, self.documents)

    def heldout_loss(self, cut: list[NDArray[np.int64]]) -> float:
        """Compute the mean loss of windows of held-out text."""
        with self.read_heldout(), evaluation_weights(self.optimizer):
            return float(losses(self.model, cut, self.compute).mean())

    def step(self, state: _State) -> None:
        """Run one optimizer step; record the losses, and the gradient norm before clipping."""
        began = time.perf_counter()
        parts, norm = self._update(state.step, learning_rate(self.config, state.step, self.steps))
        state.step += 1
        # On a GPU, reading the loss waits for the step, a small cost compared with launching the
        # next.
        for name, value in parts.items():
            series = state.losses if name == CROSS_ENTROPY else state.parts.setdefault(name, [])
            series.append(value.item())
        state.norms.append(norm.item())
        state.train_s += time.perf_counter() - began

    def _update(self, step: int, rate: float) -> tuple[Mapping[str, torch.Tensor], torch.Tensor]:
        set_learning_rate(self.optimizer, rate)
        batch = torch.from_numpy(self.batch(self.seed, step, self.config.batch, self.context))
        parts = batch.to(self.compute.device).chunk(self.config.accumulate)
        dropout = Dropout.for_step(self.model.spec, self.seed, step, self.config.batch)
        return update(
            self.trained, self.optimizer, parts, self.config, self.compute, self.ranks, dropout
        )

    def add_point(self, state: _State) -> None:
        """Add a point to the curve: mean loss since the last point, periodically held-out loss."""
        since = int(state.curve[-1]["step"]) if state.curve else 0
        point = {
            "step": state.step,
            "tokens": state.step * self.config.batch * self.context,
            "lr": learning_rate(self.config, state.step - 1, self.steps),
            "train_loss_nats": sum(state.losses[since:]) / (state.step - since),
            "grad_norm": state.norms[-1],
            "train_s": state.train_s,
            **{
                f"loss_{name}_nats": sum(values[since:]) / (state.step - since)
                for name, values in state.parts.items()
            },
        }
        if state.step % self.eval_every == 0 or state.step == self.steps:
            point[_LOSS] = self.heldout_loss(self.sample)
        state.curve.append(point)

    def late_loss(self, state: _State) -> float:
        """Return the mean loss of the last `point_every` steps."""
        late = state.losses[-self.point_every :]
        return sum(late) / len(late)

    def branch(self, state: _State, stop: Stop) -> bool:
        """Run each branch that starts at this step: decay, evaluate, and restore the state.

        A branch decays the learning rate as at the end of a shorter run. Weights and optimizer
        state are restored afterwards. Returns whether `stop` interrupted a branch; an interrupted
        branch records nothing, and is repeated when the run resumes.
        """
        for share in self.config.branches:
            steps = round(share * self.steps)
            fall = cooldown(self.config, steps)
            if state.step != steps - fall or (steps, self.tokens.heldout[0]) in state.branches:
                continue
            before = copy.deepcopy((self.objective.state_dict(), self.optimizer.state_dict()))
            for step in range(steps - fall, steps):
                if self.ranks.agreed(self.ranks.first and stop())[0]:
                    self._restore(*before)
                    return True
                self._update(step, learning_rate(self.config, step, steps))
            for split in self.tokens.heldout:
                with self.read_heldout():
                    cut = heldout_windows(self.model, self.tokens, split)
                state.branches[steps, split] = self.heldout_loss(cut)
            self._restore(*before)
        return False

    def ended(self, outcome: Outcome, reason: str, state: _State) -> Trained:
        """Return the result of the run, with the values measured during training."""
        values = stability_values(state.losses, state.norms)
        if self.unigram is not None:
            what = ("nats", "unigram_loss")
            values.append(row("unigram_loss_nats", self.unigram, *what, split="validation"))
        for (steps, split), loss in state.branches.items():
            tokens, share = steps * self.config.batch * self.context, steps / self.steps
            name = f"{split}_loss_at_{tokens}_tokens_nats"
            values.append(row(name, loss, "nats", "loss", split=split, share=share, tokens=tokens))
        return Trained(outcome, reason, state.step, state.train_s, state.curve, values)

    def _restore(self, weights: dict[str, Any], optimizer: dict[str, Any]) -> None:
        self.objective.load_state_dict(weights)
        self.optimizer.load_state_dict(optimizer)

    def save(self, folder: Path, state: _State) -> None:
        """Write a checkpoint, on the first rank only, since all ranks have the same state."""
        if not self.ranks.first:
            return
        values: dict[str, Any] = dict(vars(state))
        values |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        values |= {"objective": self.objective.losses.state_dict()}
        checkpoint.save(folder, state.step, values | {"numerics": _numerics(self.compute)})


def outcome(
    curve: Sequence[CurvePoint], chance: float, unigram: float | None
) -> tuple[Outcome, str]:
    """Return the outcome of a run that completed all its steps, and the reason.

    `unigram` is the loss of a model that predicts token frequencies; None for text on which even
    the best model is hardly better. A run that ends near or above this loss has `collapsed` if the
    loss no longer falls, or if the gradient has vanished. Otherwise the outcome is `ok`, and the
    reason means that the run was too short.
    """
    first, last = curve[0]["train_loss_nats"], curve[-1]
    loss, held_out = last["train_loss_nats"], last[_LOSS]
    evaluations = [point[_LOSS] for point in curve if _LOSS in point]
    # One batch may be high by chance: held-out text has to confirm it.
    rose = held_out > chance and (held_out > min(evaluations) + 0.1 or held_out > chance + 1)
    if loss > first + 0.1 and loss > chance and rose:
        reason = f"the loss ended at {loss:.3f}, above chance and above its start {first:.3f}"
        return "diverged", reason
    if unigram is None or held_out < unigram - _PLATEAU:
        return "ok", ""
    comparison = f"{held_out:.3f}, and token frequencies alone give {unigram:.3f}"
    if last["grad_norm"] < _VANISHED:
        return "collapsed", f"the gradient vanished; the loss ended at {comparison}"
    if len(evaluations) < 3 * _THIRD:
        return (
            "ok",
            f"the loss ended at {comparison}; too few evaluations to tell whether it still fell",
        )
    if _has_stopped(evaluations, chance):
        return "collapsed", f"the loss stopped at {comparison}"
    return "ok", f"the loss ended at {comparison}"


def _has_stopped(losses: Sequence[float], chance: float) -> bool:
    """Return whether the held-out losses of a run that began at chance no longer fall.

    The mean over the last third is compared with the mean over the third before, since a single
    loss may be high or low by chance.
    """
    third = len(losses) // 3
    before, last = fmean(losses[-2 * third : -third]), fmean(losses[-third:])
    return before - last <= max(_STOPPED * (chance - last), _STILL)


def _numerics(compute: Compute) -> dict[str, Any]:
    """Return the settings that determine a step's exact numbers, for comparison on resuming.

    The run, the processor and the number of ranks are left out: another number of ranks may resume
    from a checkpoint, though it sums gradients in another order. A plug-in may be in another
    folder, so only the plug-in's file name and content hash count.
    """
    alone = replace(compute, ranks=1).to_dict()
    loaded = {f"{Path(name).name} {digest}": digest for name, digest in plugins.loaded().items()}
    return {"torch": str(torch.__version__), "plugins": loaded, **alone}


def _resume(
    saved: Path | None, objective: Objective, optimizer: Optimizer, compute: Compute, ranks: Ranks
) -> _State:
    values = checkpoint.load(saved) if saved else None
    if saved is None or values is None:
        return _State()
    if values.pop("numerics", None) != _numerics(compute):
        sys.stderr.write("checkpoints of another compute, torch or plugin: started again\n")
        if ranks.first:
            checkpoint.forget(saved)
        return _State()
    objective.model.load_state_dict(values["model"])
    objective.losses.load_state_dict(values["objective"])
    optimizer.load_state_dict(values["optimizer"])
    return _State(
        **{field.name: values[field.name] for field in fields(_State) if field.name in values}
    )
