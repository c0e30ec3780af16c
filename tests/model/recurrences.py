"""What every recurrent mixer does, over sequences longer than its chunks."""

import pytest
import torch

LONG = {"context": 160}
T = 150
TOKENS = torch.randint(0, 61, (2, T), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def goes_on_from_a_state(model, pad=None):
    """Prefill, chunks that cross chunks of the algorithm, and tokens give the whole's logits."""
    state = model.new_state(batch=2, capacity=T)
    pieces = [model(piece, state, pad_B=pad) for piece in TOKENS.split([70, 61, *[1] * 19], 1)]
    whole = model(TOKENS, pad_B=pad)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-4, atol=1e-5)
