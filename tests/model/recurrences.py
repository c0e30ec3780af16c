"""What a recurrent mixer does over sequences longer than its chunks."""

from dataclasses import replace

import torch

from tests.conftest import LLAMA
from tests.laws import model_of

T = 150
TOKENS = torch.randint(0, 61, (2, T), generator=torch.Generator().manual_seed(3))


def model_with(name, seed=0, **options):
    """Return a small model of this mixer alone, large enough in its weights to remember."""
    model = model_of(LLAMA | {"attention": {"name": name, **options}}, seed, context=T)
    with torch.no_grad():
        for block in model.blocks:
            for part in (*block.attn.projections, block.attn.out):
                part.weight.mul_(10)
    return model


@torch.no_grad()
def goes_on_from_a_state(model):
    """Prefill, a piece that crosses the ends of chunks, then tokens: the logits of one pass."""
    state = model.new_state(batch=2, capacity=T)
    pieces = [model(piece, state) for piece in TOKENS.split([70, 61, *[1] * 19], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), model(TOKENS), rtol=1e-4, atol=1e-4)
    assert state.length == T


@torch.no_grad()
def padding_enters_neither_matrix_nor_convolution(model):
    """What is padded by more than a chunk has the state, and the logits, of the prompt alone."""
    prompt = TOKENS[:1, 81:130]
    padded = torch.cat([TOKENS[1:, :81], prompt], 1)  # other tokens, which nobody may see
    alone, beside = (model.new_state(batch=1, capacity=T) for _ in range(2))
    expected = model(prompt, alone)
    pad = torch.tensor([81])
    logits = torch.cat([model(part, beside, pad_B=pad) for part in padded.split([60, 70], 1)], 1)
    torch.testing.assert_close(logits[:, 81:], expected, rtol=1e-4, atol=1e-4)
    for one, other in zip(beside.layers, alone.layers, strict=True):
        torch.testing.assert_close(one.tensors, other.tensors, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def keeps_documents_apart_within_chunks_and_across(model):
    """Each has the logits that it has alone, in one pass and in pieces that cross both."""
    model.spec = replace(model.spec, separator=0)
    texts = TOKENS.clamp(min=1)
    begins = [20, 31, 32, 100, 140], [64, 65, 128]
    for text, cuts in zip(texts, begins, strict=True):
        text[cuts] = 0
    alone = [
        torch.cat([model(document[None])[0] for document in text.tensor_split(cuts)])
        for text, cuts in zip(texts, begins, strict=True)
    ]
    state = model.new_state(batch=2, capacity=T)
    pieces = [model(piece, state) for piece in texts.split([70, 61, *[1] * 19], 1)]
    for logits in (model(texts), torch.cat(pieces, 1)):
        torch.testing.assert_close(logits, torch.stack(alone), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def half_precision_stays_near(model):
    """In bfloat16, by autocast or by its weights, with a state in float32 or none."""
    expected = model(TOKENS)
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(TOKENS)
    model.to(torch.bfloat16)
    state = model.new_state(2, T)
    assert {t.dtype for layer in state.layers for t in layer.tensors} == {
        torch.float32,
        torch.bfloat16,
    }
    low = torch.cat([model(part, state) for part in TOKENS.split([T - 1, 1], 1)], 1).float()
    scale = expected.std()
    for logits in (cast, low):
        assert (logits.float() - expected).abs().mean() < 0.05 * scale


#: Each is a function of a model, which it may change.
LAWS = (
    goes_on_from_a_state,
    padding_enters_neither_matrix_nor_convolution,
    keeps_documents_apart_within_chunks_and_across,
    half_precision_stays_near,
)
