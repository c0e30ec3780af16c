import pytest
import torch
import torch.nn.functional as F

from llama_ablate.model.context import Context
from llama_ablate.model.mixers.convolution import ShortConvolution, causal_convolution
from llama_ablate.model.positions import Position
from tests.model.parameters import decayed


def inputs(width, tokens=9, channels=5):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, tokens, channels), (channels, width), (channels,)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


@pytest.mark.parametrize("width", [1, 4, 12])
def test_it_is_torchs_depthwise_convolution_padded_on_the_left(width):
    given = [x.requires_grad_() for x in inputs(width)]
    x, weight, bias = given
    ours, _ = causal_convolution(x, weight, bias)
    padded = F.pad(x.transpose(1, 2), (width - 1, 0))
    theirs = F.conv1d(padded, weight[:, None], bias, groups=5).transpose(1, 2)
    torch.testing.assert_close(ours, theirs)
    grads = [torch.autograd.grad(y.square().sum(), given) for y in (ours, theirs)]
    torch.testing.assert_close(*grads)


#: Positions in their documents of the tokens of two sequences.
DOCUMENTS = torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3, 4], [0, 0, 1, 2, 3, 4, 5, 6, 7]])


@pytest.mark.parametrize("pos", [None, DOCUMENTS])
@pytest.mark.parametrize("width", [1, 4, 12])
def test_pieces_that_hand_on_the_tail_give_the_whole(width, pos):
    x, weight, bias = inputs(width)
    whole, last = causal_convolution(x, weight, bias, pos_BT=pos)
    pieces, tail, lengths = [], None, [1, 2, 1, 5]
    places = [None] * 4 if pos is None else pos.split(lengths, 1)
    for piece, at in zip(x.split(lengths, 1), places, strict=True):
        y, tail = causal_convolution(piece, weight, bias, tail, at)
        assert tail.shape == (2, width - 1, 5)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    torch.testing.assert_close(tail, last)


@pytest.mark.parametrize("width", [1, 4, 12])
def test_it_reaches_into_no_document_before(width):
    given = [x.requires_grad_() for x in inputs(width)]
    x, weight, bias = given
    ours, _ = causal_convolution(x, weight, bias, pos_BT=DOCUMENTS)
    alone = [
        torch.cat([causal_convolution(part[None], weight, bias)[0][0] for part in row])
        for row in (x[0].tensor_split([3, 4]), x[1].tensor_split([1]))
    ]
    torch.testing.assert_close(ours, torch.stack(alone))
    grads = [torch.autograd.grad(y.square().sum(), given) for y in (ours, torch.stack(alone))]
    torch.testing.assert_close(*grads)


def test_a_layer_starts_as_torchs_does_and_takes_no_decay():
    torch.manual_seed(0)
    layer = ShortConvolution(4000, 4, bias=True)
    torch.manual_seed(0)
    theirs = torch.nn.Conv1d(4000, 4000, 4, groups=4000)
    torch.testing.assert_close(layer.weight, theirs.weight[:, 0])
    torch.testing.assert_close(layer.bias, theirs.bias)
    assert not any(decayed(layer).values())


def test_a_layer_is_a_convolution_and_a_silu():
    x, *_ = inputs(4)
    layer = ShortConvolution(5, 4, bias=False).double()
    ctx = Context(0, x.shape[1], Position())
    torch.testing.assert_close(layer(x, ctx)[0], F.silu(causal_convolution(x, layer.weight)[0]))
