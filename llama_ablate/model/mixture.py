"""Mixture of experts: a router sends each token to a few of many feed-forward networks.

Further letters for shapes: M tokens (B x T), N experts, J the `top_k` experts of a token, R rows,
which are pairs of a token and one of its experts.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.config.registry import Choice
from llama_ablate.errors import ConfigError, nearest, need
from llama_ablate.model.feedforward import FEEDFORWARDS
from llama_ablate.model.linear import Linear, numel

_MOST_EXPERTS = 4096


@FEEDFORWARDS.register("moe")
class MixtureOfExperts(nn.Module):
    """Route each token to `top_k` of `experts` feed-forward networks (Shazeer et al. 2017).

    arXiv:1701.06538. The router scores the experts by one `softmax` (Switch Transformers, Fedus et
    al. 2021, arXiv:2101.03961; Mixtral, Jiang et al. 2024, arXiv:2401.04088) or by a `sigmoid` each
    (DeepSeek-V3, 2024, arXiv:2412.19437). A token's output is the sum of its experts' outputs,
    weighted by their scores over the sum of the chosen scores. A single chosen expert is weighted
    by its score itself, as in Switch; otherwise the router would have no gradient. Every token also
    passes the `shared` experts, which are one network of `shared` times an expert's width.

    `inner` names the feed-forward network used as an expert. `width` is the hidden width of one
    expert; by default, a token passes as many hidden units in all its experts as in a single
    `inner` network, rounded up.

    `balance` keeps the load of the experts even by a `loss`, by a `bias`, or not at all (`none`).
    The loss is `balance_weight` times the number of experts times the sum over experts of load
    share times mean score (Switch, equation 4), which is the weight itself at uniform routing. Load
    shares are taken over the tokens of a whole step, and the loss is summed over layers. The bias
    is added to the scores only to choose experts, and moves by `balance_rate` after every optimizer
    step, up for experts whose load was below the mean and down for experts above (DeepSeek-V3,
    auxiliary-loss-free, Wang et al. 2024, arXiv:2408.15664).

    With a `capacity` factor, an expert takes at most `ceil(capacity * T * top_k / experts)` tokens
    of each sequence in training, the first ones; the expert adds nothing to later tokens. Because
    the limit is per sequence and in order of position, no token sees a later token or another
    sequence. Outside of training nothing is dropped, so a token's output does not depend on how
    many tokens are decoded at once. Without a capacity (null, dropless) nothing is dropped at all.
    T is the length of the whole training sequence, also if `data.documents` is `mask`: which tokens
    of a document an expert drops depends on the documents before this document in the sequence.

    Raises ConfigError for a number out of range, and for an inner network that cannot be an expert.
    """

    #: Tensor sizes depend on the routing, so a compiled training step leaves this module
    #: uncompiled: it would be compiled again for each split of the tokens.
    sizes_vary = True
    #: Bias of the scores for the choice of experts; exists only if `balance` is `bias`.
    balance_bias: Tensor
    #: Number of tokens routed to each expert since the last optimizer step.
    step_load: Tensor

    def __init__(
        self,
        dim: int,
        bias: bool,
        *,
        width: int | None = None,
        inner: str = "swiglu",
        experts: int = 8,
        top_k: int = 2,
        shared: int = 0,
        scoring: Literal["softmax", "sigmoid"] = "softmax",
        balance: Literal["loss", "bias", "none"] = "loss",
        balance_weight: float = 0.01,
        balance_rate: float = 0.001,
        capacity: float | None = None,
    ) -> None:
        super().__init__()
        most = _MOST_EXPERTS
        # With one expert there is nothing to route.
        need(2 <= experts <= most, f"experts {experts}: must be from 2 to {most:,}")
        need(1 <= top_k <= experts, f"top_k {top_k}: must be from 1 to the {experts} experts")
        need(0 <= shared <= most, f"shared {shared}: must be from 0 to {most:,}")
        message = f"capacity {capacity}: must be above 0, or null to drop nothing"
        need(capacity is None or 0 < capacity < math.inf, message)
        for name, value in (("balance_weight", balance_weight), ("balance_rate", balance_rate)):
            need(0 <= value < math.inf, f"{name} {value:g}: must be 0 or more")
        network = _inner(inner)
        if width is None:
            with torch.device("meta"):
                inner_width: int = _build(network, dim, bias).width
            width = -(-inner_width // (top_k + shared))
        self.width, self.top_k, self.scoring, self.capacity = width, top_k, scoring, capacity
        self.balance_weight = balance_weight if balance == "loss" else None
        self.balance_rate = balance_rate if balance == "bias" else None
        self.router = Linear(dim, experts, bias=False)
        expert = network.with_options(width=width)
        self.experts: Any = nn.ModuleList(_build(expert, dim, bias) for _ in range(experts))
        self.shared: Any = None
        if shared:
            self.shared = _build(network.with_options(width=shared * width), dim, bias)
        if self.balance_rate is not None:
            self.register_buffer("balance_bias", torch.zeros(experts))
        # Zero between steps, so no checkpoint needs it.
        self.register_buffer("step_load", torch.zeros(experts).double(), persistent=False)
        self.is_counting = False
        #: Share of the whole step's tokens that are routed to each expert; None if not known.
        self.step_share_N: Tensor | None = None

    def forward(self, x_BTD: Tensor, ctx: Any) -> Tensor:
        """Compute the weighted sum of the chosen experts' outputs, plus the shared experts'."""
        B, T, D = x_BTD.shape
        training = ctx.losses is not None
        x_MD = x_BTD.flatten(0, 1)
        scores_MN = self.scores(x_MD)
        chosen_MJ = self.chosen(scores_MN)
        weight_MJ = scores_MN.gather(1, chosen_MJ)
        if self.top_k > 1:
            weight_MJ = weight_MJ / weight_MJ.sum(1, keepdim=True)
        if training:
            self._balance(scores_MN, chosen_MJ, ctx)
        expert_MJ = chosen_MJ
        if training and self.capacity is not None:
            expert_MJ = self._within_capacity(chosen_MJ.view(B, T, -1)).view(B * T, -1)
        # A copy of a token for each of its experts: every row is then read and written once, so
        # that no gradient depends on the order of a sum.
        copies_RD = x_MD[:, None].expand(-1, self.top_k, -1).reshape(-1, D)
        y_MJD = self._experts(copies_RD, expert_MJ.flatten(), ctx).view(B * T, self.top_k, D)
        y_MD = (y_MJD * weight_MJ[:, :, None]).sum(1).to(y_MJD.dtype)
        y_BTD = y_MD.view(B, T, D)
        return y_BTD if self.shared is None else y_BTD + self.shared(x_BTD, ctx)

    def scores(self, x_MD: Tensor) -> Tensor:
        """Return the scores of all experts, (M, N), in float32 or wider, also under autocast."""
        wide = torch.promote_types(x_MD.dtype, torch.float32)
        with torch.autocast(x_MD.device.type, enabled=False):
            logits_MN = F.linear(x_MD.to(wide), self.router.weight.to(wide))
        return logits_MN.softmax(1) if self.scoring == "softmax" else logits_MN.sigmoid()

    def chosen(self, scores_MN: Tensor) -> Tensor:
        """Return the indices of each token's experts, (M, J), highest scores first."""
        if self.balance_rate is not None:
            scores_MN = scores_MN + self.balance_bias
        return scores_MN.topk(self.top_k, 1).indices

    def load(self, x_BTD: Tensor) -> Tensor:
        """Return the number of tokens that are routed to each expert, (N,)."""
        chosen_MJ = self.chosen(self.scores(x_BTD.flatten(0, 1)))
        return chosen_MJ.flatten().bincount(minlength=len(self.experts))

    @property
    def balances_by_loss(self) -> bool:
        """True if a loss balances the experts, which requires the load shares of the whole step."""
        return bool(self.balance_weight)

    @torch.no_grad()
    def know_step(self, mean: Callable[[Tensor], Tensor]) -> None:
        """Set the whole step's load shares from tokens counted in an extra forward pass.

        `mean` averages a tensor over the data-parallel ranks.
        """
        load_N = mean(self.step_load)
        self.step_share_N = load_N / load_N.sum()
        self.step_load.zero_()
        self.is_counting = False

    @torch.no_grad()
    def after_step(self, mean: Callable[[Tensor], Tensor]) -> None:
        """Update the balancing bias after an optimizer step.

        `mean` averages a tensor over the data-parallel ranks.
        """
        self.step_share_N = None
        if self.balance_rate is not None:
            load_N = mean(self.step_load)
            self.balance_bias += self.balance_rate * (load_N.mean() - load_N).sign()
            self.step_load.zero_()

    def flops(self) -> int:
        """Count forward FLOPs per token: router, chosen experts and shared experts."""
        routed: int = self.top_k * self.experts[0].flops()
        shared: int = 0 if self.shared is None else self.shared.flops()
        return 2 * self.router.weight.numel() + routed + shared

    def active_parameters(self) -> int:
        """Count the active parameters: all except the experts that a token is not routed to."""
        idle = (len(self.experts) - self.top_k) * numel(self.experts[0])
        return numel(self) - idle

    def _balance(self, scores_MN: Tensor, chosen_MJ: Tensor, ctx: Any) -> None:
        load_N = chosen_MJ.flatten().bincount(minlength=len(self.experts))
        if self.balance_rate is not None or self.is_counting:
            self.step_load += load_N
        if self.balance_weight is not None:
            share_N = self.step_share_N
            if share_N is None:
                share_N = load_N.double() / chosen_MJ.numel()
            share_N = share_N.to(scores_MN.dtype)
            mean_N = (scores_MN / scores_MN.sum(1, keepdim=True)).mean(0)
            ctx.add_loss("balance", len(share_N) * (share_N * mean_N).sum(), self.balance_weight)

    def _within_capacity(self, chosen_BTJ: Tensor) -> Tensor:
        """Return each token's experts, (B, T, J), with index N instead of an expert at capacity."""
        assert self.capacity is not None
        T, experts = chosen_BTJ.shape[1], len(self.experts)
        most = math.ceil(self.capacity * T * self.top_k / experts)
        takes_BTN = F.one_hot(chosen_BTJ, experts).sum(2)
        place_BTJ = takes_BTN.cumsum(1).gather(2, chosen_BTJ)
        return chosen_BTJ.where(place_BTJ <= most, experts)

    def _experts(self, x_RD: Tensor, expert_R: Tensor, ctx: Any) -> Tensor:
        """Apply to each row its assigned expert; rows with no expert get zeros.

        An expert without rows is applied to an empty tensor, so that all parameters have a
        gradient.
        """
        experts = len(self.experts)
        sizes = expert_R.bincount(minlength=experts)[:experts].tolist()
        order_R = expert_R.argsort(stable=True)[: sum(sizes)]
        groups = torch.split(x_RD.index_select(0, order_R), sizes)
        if _makes_code_for_sizes(x_RD):
            groups = tuple(F.pad(x, (0, 0, 0, _rounded(len(x)) - len(x))) for x in groups)
        outputs = [
            expert(group[None], ctx)[0, :size]
            for expert, group, size in zip(self.experts, groups, sizes, strict=True)
        ]
        y_RD = torch.cat(outputs)
        return y_RD.new_zeros(x_RD.shape).index_copy(0, order_R, y_RD)


def _makes_code_for_sizes(x: Tensor) -> bool:
    """Return whether oneDNN computes products of x.

    oneDNN generates and caches code for every size of a product.
    """
    is_cast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if is_cast else x.dtype
    return x.device.type == "cpu" and dtype == torch.bfloat16


def _rounded(size: int) -> int:
    """Round a size of 64 or more up, by at most a sixteenth, so that few distinct sizes occur."""
    step = 1 if size < 64 else 1 << size.bit_length() - 5
    return -(-size // step) * step


def _inner(name: str) -> Choice:
    allowed = [component for component in FEEDFORWARDS if component != "moe"]
    message = f"inner '{name}' is no network that an expert can be{nearest(name, allowed)}"
    need(name in allowed, message)
    return FEEDFORWARDS.resolve(name)


def _build(choice: Choice, dim: int, bias: bool) -> Any:
    try:
        return FEEDFORWARDS.build(choice, dim=dim, bias=bias)
    except KeyError as error:
        message = f"inner '{choice.name}' needs the size {error}, which an expert does not have"
        raise ConfigError(message) from None
