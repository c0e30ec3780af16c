"""Adapter for token mixers that define only `forward(x)`: they can train, but not decode.

A user's mixer of twenty lines keeps no state for decoding and counts no FLOPs. When such a mixer is
registered, its class is replaced by a subclass with the interface of a mixer; the methods that the
mixer lacks raise NotProvidedError with the mixer's name.
"""

import inspect
from typing import Any

from torch import Tensor, nn

from llama_ablate.errors import NotProvidedError
from llama_ablate.model.context import Context

_UNTOLD = "Mix tokens as a class without a description does."


class TrainingOnly(nn.Module):
    """Base class of mixers whose methods for state and FLOPs raise NotProvidedError."""

    #: Name under which the class is registered.
    registered: str
    rotated = 0  # no position scheme applies to it

    def flops(self, _context: int) -> int:
        """Raise NotProvidedError."""
        raise NotProvidedError("FLOPs", self.registered)

    def new_state(self, *_sizes: object, **_kind: object) -> Any:
        """Raise NotProvidedError."""
        raise NotProvidedError("a state to decode with", self.registered)


def adapt(component: Any, name: str) -> Any:
    """Adapt a class whose `forward` takes `x` alone to the interface of a mixer.

    Any other component is returned unchanged. Names of parameters, sizes and options do not change.
    """
    class_forward = getattr(component, "forward", nn.Module.forward)
    needed = sum(p.default is p.empty for p in inspect.signature(class_forward).parameters.values())
    others = class_forward is nn.Module.forward or needed != len(("self", "x"))
    if others or hasattr(component, "new_state"):
        return component

    def forward(self: nn.Module, x_BTD: Tensor, ctx: Context, state: object = None) -> Any:
        if ctx.valid_BT is not None or state is not None:
            raise NotProvidedError("a sequence with padding or a state", name)
        return class_forward(self, x_BTD)

    about = {"__module__": component.__module__, "__doc__": component.__doc__ or _UNTOLD}
    bases = (component, TrainingOnly)
    return type(component.__name__, bases, {**about, "registered": name, "forward": forward})
