"""Rotary position embedding, its layouts, and its scalings to longer contexts.

Checkpoints of Meta and llama2.c pair neighbouring coordinates; checkpoints of Hugging Face pair the
coordinates of two halves. Both layouts are options, so a checkpoint is read without permuting
weights. Angles are float64 and tables float32; in bfloat16 the tables are rounded, too, as in
transformers. Rotation in float32 makes a training step 3 to 8% longer, and changed no loss
noticeably (benchmarks/README.md).
"""

import math
from typing import Literal

import torch
from torch import Tensor

from llama_ablate.errors import need
from llama_ablate.model.positions import POSITIONS, Position


@POSITIONS.register("rope")
class RoPE(Position):
    """Rotate pairs of coordinates by angles linear in position (Su et al. 2021, arXiv:2104.09864).

    Pair i of queries and keys is rotated by `pos * theta^(-2i/R)`, where R is `fraction` of the
    head's width; the other coordinates are unchanged. The pairs are (i, i + R/2) in the `half`
    layout, Hugging Face's, and (2i, 2i + 1) in the `interleaved` layout of the paper and of Meta's
    checkpoints. `nope_every: n` leaves every n-th layer without positions: a repeated pattern of
    `n - 1` layers with `rope` and one layer with `none` (Yang et al. 2025, arXiv:2501.18795).

    `values` rotates the values as well, unlike the paper: an output then depends on the token's own
    position, and not on distances alone.

    `scaling` adapts the frequencies to contexts that are longer by `factor`. `linear` divides all
    frequencies (Chen et al. 2023, arXiv:2306.15595). `ntk` raises theta so that the lowest
    frequency is divided and the highest unchanged (bloc97 2023). `llama3` divides the frequencies
    of pairs that turn less than `low_freq` times within `original_context`, keeps those of pairs
    that turn more than `high_freq` times, and interpolates the frequencies in between (Llama 3.1,
    2024, arXiv:2407.21783). `yarn` interpolates over pairs, from the pair that turns `beta_fast`
    times within `original_context` to the pair that turns `beta_slow` times, both indices rounded
    outwards unless `truncate` is false, and multiplies queries and keys by 1 + ln(factor) / 10
    (Peng et al. 2023, arXiv:2309.00071).
    """

    cos_SR: Tensor
    sin_SR: Tensor

    def __init__(
        self,
        head_dim: int,
        *,
        theta: float = 10000.0,
        layout: Literal["half", "interleaved"] = "half",
        fraction: float = 1.0,
        nope_every: int | None = None,
        values: bool = False,
        scaling: Literal["none", "linear", "ntk", "llama3", "yarn"] = "none",
        factor: float = 1.0,
        low_freq: float = 1.0,
        high_freq: float = 4.0,
        original_context: int = 8192,
        beta_slow: float = 1.0,
        beta_fast: float = 32.0,
        truncate: bool = True,
    ) -> None:
        super().__init__()
        self.rotated = int(head_dim * fraction)
        odd = f"head_dim {head_dim} is odd"
        if fraction != 1:
            odd = f"fraction {fraction:g} of head_dim {head_dim} is {self.rotated}"
        is_even = self.rotated % 2 == 0 < self.rotated <= head_dim
        need(is_even, f"rope turns pairs of coordinates: {odd}")
        for name, value, least, most in (
            ("theta", theta, 1.001 if scaling == "yarn" else 1, 1e15),
            ("factor", factor, 1e-6, 1e6),
            ("original_context", original_context, 1, 1 << 30),
        ):
            message = f"{name} {value:g} must be from {least:g} to {most:g}"
            need(least <= value <= most, message)
        for lower, low, upper, high in (
            ("low_freq", low_freq, "high_freq", high_freq),
            ("beta_slow", beta_slow, "beta_fast", beta_fast),
        ):
            message = f"{lower} {low:g} must be above 0 and below {upper} {high:g}"
            need(0 < low < high, message)
        message = f"factor {factor:g} has no effect without a scaling: linear, llama3, ntk, yarn"
        need(scaling != "none" or factor == 1, message)
        need(scaling == "none" or factor != 1, f"scaling '{scaling}' needs a factor other than 1")
        del nope_every  # config.spec has made a pattern over depth of it
        self.theta, self.layout = theta, layout
        self.rotates_values, self.relative = values, not values
        self.scaling, self.factor = scaling, factor
        self.turns, self.original_context = (low_freq, high_freq), original_context
        self.betas, self.truncate = (beta_slow, beta_fast), truncate
        #: Factor by which the rotated coordinates of queries and keys are multiplied.
        self.stretch = 1 + 0.1 * math.log(factor) if scaling == "yarn" and factor > 1 else 1.0
        self.register_buffer("cos_SR", torch.empty(0, self.rotated), persistent=False)
        self.register_buffer("sin_SR", torch.empty(0, self.rotated), persistent=False)

    def frequencies(self) -> Tensor:
        """Return the rotation angle of each pair per position in radians, (R/2,) in float64."""
        R, theta = self.rotated, self.theta
        if self.scaling == "ntk" and R > 2:
            theta *= self.factor ** (R / (R - 2))
        even_r = torch.arange(0, R, 2, dtype=torch.float64, device=self.cos_SR.device)
        rate_r = theta ** (-even_r / R)
        if self.scaling == "linear":
            return rate_r / self.factor
        if self.scaling == "llama3":
            low, high = self.turns
            turns_r = self.original_context * rate_r / (2 * math.pi)
            kept_r = ((turns_r - low) / (high - low)).clamp(0, 1)
            return rate_r * (kept_r + (1 - kept_r) / self.factor)
        if self.scaling == "yarn":
            # The pair that turns a number of times within the original context, as a real number.
            last, first = (
                R * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))
                for turns in self.betas
            )
            if self.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, R - 1)
            divided_r = ((even_r / 2 - first) / max(last - first, 1e-3)).clamp(0, 1)
            return rate_r * (1 - divided_r + divided_r / self.factor)
        return rate_r

    def prepare(self, end: int) -> None:
        """Extend the cosine and sine tables to `end` positions or more, a power of two."""
        if end <= self.cos_SR.shape[0]:
            return
        device = self.cos_SR.device
        pos_S = torch.arange(1 << (end - 1).bit_length(), dtype=torch.float64, device=device)
        # Angles in float64: at position 100,000 a float32 angle is off by up to 0.004 radians.
        angle_Sr = torch.outer(pos_S, self.frequencies())
        cos_Sr = (self.stretch * angle_Sr.cos()).float()
        sin_Sr = (self.stretch * angle_Sr.sin()).float()
        # The sine of a pair's first coordinate is stored negated, as in (x1, x2) -> (-x2, x1), so
        # that no vector has to be negated.
        if self.layout == "half":
            self.cos_SR = torch.cat([cos_Sr, cos_Sr], dim=-1)
            self.sin_SR = torch.cat([-sin_Sr, sin_Sr], dim=-1)
        else:
            self.cos_SR = torch.stack([cos_Sr, cos_Sr], dim=-1).flatten(-2)
            self.sin_SR = torch.stack([-sin_Sr, sin_Sr], dim=-1).flatten(-2)

    def rotate(self, q_BHTE: Tensor, k_BKTE: Tensor, pos_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return q and k rotated by position; q·k then depends on the distance alone.

        Rotation keeps lengths, up to the factor of YaRN. In bfloat16 the tables are rounded, too:
        benchmarks/README.md has measurements of the effect.
        """
        cos_1TR = self.cos_SR[pos_T].type_as(q_BHTE).unsqueeze(-3)
        sin_1TR = self.sin_SR[pos_T].type_as(q_BHTE).unsqueeze(-3)
        return self._turn(q_BHTE, cos_1TR, sin_1TR), self._turn(k_BKTE, cos_1TR, sin_1TR)

    def rotate_values(self, v_BKTE: Tensor, pos_T: Tensor) -> Tensor:
        """Return v rotated like keys if the option `values` is set, else unchanged."""
        return self.rotate(v_BKTE, v_BKTE[:, :0], pos_T)[0] if self.rotates_values else v_BKTE

    def _turn(self, x: Tensor, cos_1TR: Tensor, sin_1TR: Tensor) -> Tensor:
        R = self.rotated
        if x.shape[-1] > R:
            return torch.cat([self._turn(x[..., :R], cos_1TR, sin_1TR), x[..., R:]], dim=-1)
        if self.layout == "half":
            partner = x.roll(R // 2, -1)
        else:
            partner = x.reshape(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)
        return torch.addcmul(x * cos_1TR, partner, sin_1TR)
