"""Training losses: cross-entropy, the entries of `train.losses`, and losses of components.

Held-out loss is cross-entropy alone, whatever the training losses. Layers that belong to a loss are
not counted, neither in parameters nor in FLOPs: an experiment with a budget of FLOPs requires the
same losses for all variants.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Protocol

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from llama_ablate.config.experiment import Train
from llama_ablate.config.registry import Choice, Registry
from llama_ablate.errors import ConfigError, nearest, under
from llama_ablate.model.decoder import Decoder
from llama_ablate.model.dropout import Dropout
from llama_ablate.model.initialisation import drawing_from, fill
from llama_ablate.training.token_losses import TokenLoss, rows_at_once, token_means

#: Inputs that the parameters of a loss may name: `logits` (B, T, V) in float32, `targets` (B, T),
#: `hidden` (B, T, D) that the output head reads, `tokens` (B, T) that the model reads, the `model`;
#: and, for a loss with layers of its own, `losses`, to which components add by name, and `dropout`.
#: A loss that is a mean over tokens names `token_logits` instead of `logits`, and otherwise only
#: `targets`: if the logits of a batch are large, it is called for some tokens at a time.
INPUTS = ("logits", "token_logits", "targets", "hidden", "tokens", "model", "losses", "dropout")


class LossModule(Protocol):
    """Interface of a loss that is a class; its constructor may take the `model`."""

    def forward(self, *asked: Any) -> Tensor:
        """Compute the weighted loss; the names of the method's parameters select the inputs."""


LOSSES = Registry("loss", sizes=INPUTS, interface=LossModule)

#: Name of the part of the total loss that is not in the registry.
CROSS_ENTROPY = "cross_entropy"
#: Factor of a loss when it is added to cross-entropy.
LossWeight = Annotated[float, Field(ge=0, le=1e6)]
#: Function that is called with the inputs that its positional parameters name, and returns the
#: weighted loss.
Loss = Callable[..., Tensor]


@LOSSES.register("z_loss")
def z_loss(token_logits: Tensor, *, weight: LossWeight = 1e-4) -> Tensor:
    """Keep the softmax's normalizer near one: weight x mean (log Z)^2 (PaLM 2022, 2204.02311).

    Z is the sum of the exponentials of a token's logits.
    """
    return weight * token_logits.logsumexp(-1).square().mean()


class Objective(nn.Module):
    """Training objective: a model with losses, which maps tokens to the total loss and its parts.

    Losses that are modules are built here, with random numbers seeded by (`seed`, name), as in the
    model. The parameters of the losses are trained and saved together with the model's parameters,
    but do not belong to the model.

    Raises ConfigError for a loss that does not fit the model.
    """

    def __init__(self, model: Decoder, choices: Sequence[Choice] = (), seed: int = 0) -> None:
        super().__init__()
        self.model, self.parametrization = model, model.parametrization
        self.losses = nn.ModuleDict()
        self._calls: dict[str, tuple[Loss, list[str]]] = {}
        device = model.embedding.weight.device
        for i, choice in enumerate(choices):
            with under(("losses", i)):
                loss = _loss(choice, model, seed)
            self._calls[choice.name] = loss, _list_arguments(loss)
            if isinstance(loss, nn.Module):
                self.losses[choice.name] = loss
        #: Whether logits may be computed for some tokens at a time, as no loss needs all logits at
        #: once.
        self._cuts = not any("logits" in wanted for _, wanted in self._calls.values())
        self._by_token: dict[str, TokenLoss] = {CROSS_ENTROPY: cross_entropy}
        for name, (loss, wanted) in self._calls.items():
            if "token_logits" in wanted:
                self._by_token[name] = _wrap_token_loss(name, loss, wanted)
        if self.losses and device.type != "meta":
            modules = nn.Module()  # so that names begin as they do in this module's state
            modules.losses = self.losses
            fill(modules, model.spec, model.parametrization, seed)
        self.losses.to(device)

    def forward(
        self, tokens_BT1: Tensor, dropout: Dropout | None = None, *, sampled: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the total loss, and the parts of the loss by name, `cross_entropy` first.

        Cross-entropy is the mean over all tokens but the first, in nats. The other parts include
        their weights, so the total is the sum of all parts. With `sampled`, targets are drawn from
        the model's own predictions, in each row by a generator that the row's tokens seed.
        """
        tokens_BT, targets_BT = tokens_BT1[:, :-1], tokens_BT1[:, 1:]
        if sampled:
            targets_BT = self._draw_targets(tokens_BT, dropout)
        parts: dict[str, Tensor] = {}
        hidden_BTD = self.model.hidden(tokens_BT, losses=parts, dropout=dropout)
        if self._cuts and rows_at_once(self.model, targets_BT.numel()) < targets_BT.numel():
            trained = self.losses.parameters()
            total, means = token_means(
                self.model, hidden_BTD, targets_BT, self._by_token, [*trained]
            )
            logits_BTV = None
        else:
            logits_BTV = self.model.logits(hidden_BTD).float()
            total = cross_entropy(logits_BTV, targets_BT)
            means = {CROSS_ENTROPY: total}
        values = logits_BTV, logits_BTV, targets_BT, hidden_BTD, tokens_BT, self.model, parts
        inputs = dict(zip(INPUTS, (*values, dropout), strict=True))
        for name, (loss, wanted) in self._calls.items():
            if name not in means:
                value = loss(**{key: inputs[key] for key in wanted})
                parts[name] = parts[name] + value if name in parts else value
        total = sum(parts.values(), start=total)
        return total, means | {k: v + means[k] if k in means else v for k, v in parts.items()}

    @torch.no_grad()
    def _draw_targets(self, tokens_BT: Tensor, dropout: Dropout | None) -> Tensor:
        """Draw a target for each token from the model's predictions, (B, T).

        A row's targets do not depend on the other rows, so that micro-batches and ranks change
        nothing.
        """
        chances_BTV = self.model(tokens_BT, dropout=dropout).float().softmax(-1)
        generator = torch.Generator(tokens_BT.device)
        samples = [
            torch.multinomial(chances_TV, 1, generator=generator.manual_seed(int(tokens_T.sum())))
            for tokens_T, chances_TV in zip(tokens_BT, chances_BTV, strict=True)
        ]
        return torch.stack(samples).squeeze(-1)


def losses_of(train: Train) -> list[Choice]:
    """Return the losses that a train config names. Raises ConfigError for an unknown loss."""
    return [LOSSES.resolve(entry, ("train", "losses", i)) for i, entry in enumerate(train.losses)]


def mean_cross_entropy(model: Decoder, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Compute the mean cross-entropy in nats from hidden states, with few logits at a time."""
    if rows_at_once(model, targets_BT.numel()) == targets_BT.numel():
        return cross_entropy(model.logits(hidden_BTD), targets_BT)
    return token_means(model, hidden_BTD, targets_BT, {CROSS_ENTROPY: cross_entropy})[0]


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Compute the mean cross-entropy in nats."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


def _loss(choice: Choice, model: Decoder, seed: int) -> Loss:
    component = LOSSES.get(choice.name)
    if not inspect.isclass(component):
        return partial(component, **dict(choice.options))
    # Random numbers are drawn on the CPU, the same for every device.
    meta = model.embedding.weight.device.type == "meta"
    with drawing_from(seed, f"losses.{choice.name}"), torch.device("meta" if meta else "cpu"):
        loss: Loss = LOSSES.build(choice, model=model)
    if unknown := sorted(set(_list_arguments(loss)) - set(INPUTS)):
        raise ConfigError(
            f"the loss '{choice.name}' asks for '{unknown[0]}'{nearest(unknown[0], INPUTS)}"
        )
    return loss


def _wrap_token_loss(name: str, loss: Loss, wanted: Sequence[str]) -> TokenLoss:
    """Wrap a loss with a parameter `token_logits` as a function of logits and targets."""
    if other := [key for key in wanted if key not in ("token_logits", "targets")]:
        raise ConfigError(
            f"the loss '{name}' asks for 'token_logits' and '{other[0]}': beside some tokens' "
            "logits there are their 'targets' alone; 'logits' are those of all tokens"
        )

    def mean(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        given = {"token_logits": logits_BTV, "targets": targets_BT}
        return loss(**{key: given[key] for key in wanted})

    return mean


def _list_arguments(loss: Loss) -> list[str]:
    """Return the names of a loss's arguments."""
    call = loss.forward if isinstance(loss, nn.Module) else loss
    parameters = inspect.signature(call).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
