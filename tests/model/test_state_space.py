import pytest
import torch

from llama_ablate.model.mixers.state_space import products, state_space_dual, state_space_step

from .stepwise import assert_same_with_gradients, by_documents


def inputs(tokens, *, batch=2, heads=4, groups=2, key=5, value=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(batch, tokens, *shape, generator=generator, dtype=dtype)

    return draw(groups, key), draw(groups, key), draw(heads, value), -draw(heads).square()


def state(*, batch=2, heads=4, key=5, value=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(batch, heads, key, value, generator=generator, dtype=dtype)


def by_steps(c, b, x, decay, start):
    """h_t = a_t h_{t-1} + x_t b_t^T, y_t = h_t c_t, one head at a time."""
    groups, heads = b.shape[2], x.shape[2]
    outputs, last = [], []
    for head in range(heads):
        group, h = head // (heads // groups), start[:, head].mT
        reads = []
        for t in range(x.shape[1]):
            a = decay[:, t, head].exp()[:, None, None]
            h = a * h + x[:, t, head, :, None] * b[:, t, group, None]
            reads.append((h @ c[:, t, group, :, None]).squeeze(-1))
        outputs.append(torch.stack(reads, 1))
        last.append(h.mT)
    return torch.stack(outputs, 2), torch.stack(last, 1)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 7, 16, 17, 33, 50])
def test_chunks_compute_the_recurrence_and_its_gradients(tokens, groups):
    given = [x.requires_grad_() for x in (*inputs(tokens, groups=groups), state())]
    chunked, stepped = state_space_dual(*given, chunk=16), by_steps(*given)
    assert_same_with_gradients(given, chunked, stepped)


def test_it_is_masked_attention_over_the_whole_sequence():
    """The dual form: y = (L * C B^T) x, with L the products of decays (section 3 of the paper)."""
    c, b, x, decay = inputs(29, heads=2, groups=2)
    total = decay.cumsum(1).transpose(1, 2)
    L = (total[..., :, None] - total[..., None, :]).exp().tril()
    y = torch.einsum("bhts,bthe,bshe,bshp->bthp", L, c, b, x)
    torch.testing.assert_close(state_space_dual(c, b, x, decay, chunk=8)[0], y)


@pytest.mark.parametrize("cuts", [[1], [16], [5, 6, 20], [15, 16, 17, 48]], ids=str)
def test_a_document_starts_from_nothing_wherever_in_a_chunk_it_begins(cuts):
    """The first goes on from a state; with gradients, which reach no document from another."""
    given = [x.requires_grad_() for x in (*inputs(50), state())]
    begins = torch.zeros(2, 50, dtype=torch.bool)
    begins[:, cuts] = True
    chunked = state_space_dual(*given, begins_BT=begins, chunk=16)
    stepped = by_documents(by_steps, given, cuts)
    assert_same_with_gradients(given, chunked, stepped)


def test_pieces_that_hand_on_the_state_compute_the_whole():
    given = inputs(41)
    whole, last = state_space_dual(*given, chunk=8)
    pieces, h = [], None
    for piece in zip(*(x.split([20, 1, 13, 7], 1) for x in given), strict=True):
        out, h = state_space_dual(*piece, h, chunk=8)
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    torch.testing.assert_close(h, last)


def test_a_step_is_the_recurrence():
    given, h = inputs(9), state()
    expected, last = by_steps(*given, h)
    for t in range(9):
        out, h = state_space_step(*(x[:, t] for x in given), h)
        torch.testing.assert_close(out, expected[:, t])
    torch.testing.assert_close(h, last)


def test_a_token_of_decay_zero_and_input_zero_leaves_the_state():
    c, b, x, decay = inputs(12)
    decay[:, 4:7], x[:, 4:7] = 0, 0
    left = [torch.cat([part[:, :4], part[:, 7:]], 1) for part in (c, b, x, decay)]
    out, last = state_space_dual(c, b, x, decay)
    expected, expected_last = state_space_dual(*left)
    torch.testing.assert_close(out[:, 7:], expected[:, 4:])
    torch.testing.assert_close(last, expected_last)


@pytest.mark.parametrize("decay", [0.0, -1e-8, -30.0, -2000.0])
def test_any_decay_gives_finite_outputs_and_gradients(decay):
    c, b, x, log = inputs(70, dtype=torch.float32)
    given = [c, b, x, torch.full_like(log, decay)]
    for part in given:
        part.requires_grad_()
    out, last = state_space_dual(*given)
    for grad in (out, last, *torch.autograd.grad(out.sum() + last.sum(), given)):
        assert grad.isfinite().all()


def test_under_autocast_the_dual_and_its_state_are_float32():
    given = inputs(20, dtype=torch.float32)
    expected = state_space_dual(*given)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, state_space_dual(*given), expected))
        _, h = state_space_step(*(x[:, 0].bfloat16() for x in given), state(dtype=torch.float32))
    assert h.dtype == torch.float32
    out, h = state_space_dual(*(x.bfloat16() for x in given))
    assert (out.dtype, h.dtype) == (torch.float32, torch.float32)


def test_it_computes_what_transformers_does_for_mamba2():
    theirs = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    c, b, x, _ = (part.float() for part in inputs(70))
    generator = torch.Generator().manual_seed(1)
    dt = torch.rand(2, 70, 4, generator=generator)
    A = -torch.rand(4, generator=generator)
    start = state().float()
    expected, last = theirs.mamba2_chunk_scan(
        x, dt, A, b, c, chunk_size=16, initial_states=start.mT, return_final_states=True
    )
    out, h = state_space_dual(c, b, x * dt[..., None], dt * A, start)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(h, last.mT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [24, 64, 100])
def test_the_products_are_those_that_torch_counts(tokens):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        state_space_dual(*inputs(tokens))
    expected = products(tokens, heads=4, groups=2, key=5, value=3)
    assert counter.get_total_flops() == 2 * 2 * expected
