"""Checks of identities of norms: each returns an error, 0 where the identity holds."""

from typing import Any, Literal

import torch
import torch.nn.functional as F

from analysis.claims.checks import CHECKS
from analysis.claims.identities import drawn
from llama_ablate.model.decoder import REGISTRIES


def _norm(name: str, dim: int, **options: Any) -> Any:
    registry = REGISTRIES["norm"]
    module = registry.build(registry.resolve({"name": name, **options}), dim=dim, bias=True)
    return module.double()


@CHECKS.register("norm_error")
def norm_error(*, norm: Literal["rmsnorm", "layernorm"] = "rmsnorm", dim: int = 256) -> float:
    """Return how far a norm is from its formula in float64, at most over 1,000 vectors."""
    x = 3 * drawn(1000, dim) + 1
    if norm == "rmsnorm":
        formula = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    else:
        centred = x - x.mean(-1, keepdim=True)
        formula = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)
    return float((_norm(norm, dim)(x) - formula).detach().abs().max())


@CHECKS.register("divided_by_variance")
def divided_by_variance(*, dim: int = 256) -> float:
    """Return how far LayerNorm is from the centred vector over its variance, not its deviation."""
    x = 3 * drawn(100, dim) + 1
    centred = x - x.mean(-1, keepdim=True)
    wrong = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5)
    return float((_norm("layernorm", dim)(x) - wrong).detach().abs().max())


@CHECKS.register("norm_rescaled")
def norm_rescaled(
    *,
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm",
    factor: float = 2.0,
    eps: float = 0.0,
    sign: Literal[1, -1] = 1,
) -> float:
    """Return how far y(factor x) is from sign y(x): 0 where a norm is blind to scale."""
    x, module = drawn(100, 64), _norm(norm, 64, eps=eps)
    return float((module(factor * x) - sign * module(x)).detach().abs().max())


@CHECKS.register("norm_mean")
def norm_mean(*, norm: Literal["rmsnorm", "layernorm"] = "rmsnorm") -> float:
    """Return the largest mean over features of what a norm gives for off-centre vectors."""
    return float(_norm(norm, 64)(drawn(100, 64) + 1).detach().mean(-1).abs().max())


@CHECKS.register("norm_mixes_tokens")
def norm_mixes_tokens(*, norm: Literal["rmsnorm", "layernorm"] = "layernorm") -> float:
    """Return how far the other tokens' outputs move where one token is changed."""
    x, module = drawn(1, 8, 64), _norm(norm, 64)
    changed = x.clone()
    changed[:, 3] += 5
    others = [i for i in range(8) if i != 3]
    return float((module(changed) - module(x))[:, others].detach().abs().max())


@CHECKS.register("primers_layernorm")
def primers_layernorm(*, dim: int = 64) -> float:
    """Return how far the primer's LayerNorm (sample deviation, eps outside) is off, relatively."""
    x = drawn(1000, dim)
    naive = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
    right = F.layer_norm(x, (dim,))
    return float((naive - right).norm() / right.norm())
