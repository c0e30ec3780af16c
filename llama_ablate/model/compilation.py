"""Compiled decoding: the decoder's forward pass over new tokens, through `torch.compile`.

One compiled graph serves every length of the state (such as a KV cache), since lengths are symbolic
in the graph. The graph contains no state, so compiled steps and plain forward passes can alternate
on the same state in any order.
"""

import os
import sys
from typing import Any

import torch
from torch import Tensor

from llama_ablate.model.decoder import Decoder
from llama_ablate.model.state import DecoderState

#: Options of torch's compiler by device: on a CPU, calls between kernels are compiled to C++, too.
_OPTIONS = {"cpu": {"cpp_wrapper": True}}


class CompiledStep:
    """Compiled forward pass over one new token of each sequence.

    The step is compiled at the first call, and at most three times more when a sliding window fills
    and begins to drop tokens. Logits are equal to the model's up to rounding; in bfloat16 the
    compiled step rounds less. If torch cannot compile the model (a mixture of experts, for example)
    or finds no C++ compiler, one line on stderr says so, and the model itself is called.
    """

    def __init__(self, model: Decoder, *, backend: Any = "inductor") -> None:
        self.model = model
        options: Any = None
        if backend == "inductor":
            # By default one compile process per core would take the cores from other programs.
            os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
            options = _OPTIONS.get(model.embedding.weight.device.type)
        self._compiled = torch.compile(
            model.forward, dynamic=True, fullgraph=True, backend=backend, options=options
        )
        #: Whether the compiled step works: None before its first call, False after a failure.
        self.works: bool | None = None

    def __call__(
        self, tokens_B1: Tensor, state: DecoderState, *, pad_B: Tensor | None = None
    ) -> Tensor:
        """Return logits, (B, 1, V), and advance the state. Raises ValueError like the model."""
        # torch's compiler treats lengths of 0 and 1 as constants.
        if self.works is not False and state.length > 1:
            for scheme in self.model.positions.values():
                scheme.prepare(state.capacity)  # so that no table grows in the graph
            try:
                logits_B1V: Tensor = self._compiled(tokens_B1, state, pad_B=pad_B)
                self.works = True
            except Exception as error:  # noqa: BLE001  a compiler can raise anything
                self.works = False
                cause = getattr(error, "inner_exception", error)  # what torch's compiler wraps
                reason = " ".join(str(cause).split())
                sys.stderr.write(f"not compiled: {type(cause).__name__}: {reason:.200}\n")
            else:
                return logits_B1V
        return self.model(tokens_B1, state, pad_B=pad_B)  # type: ignore[no-any-return]
