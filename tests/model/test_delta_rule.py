import pytest
import torch
import torch.nn.functional as F

from llama_ablate.model.mixers.delta_rule import gated_delta_rule, gated_delta_step, products

from .stepwise import assert_same_with_gradients, by_documents


def inputs(tokens, *, batch=2, heads=3, key=5, value=4, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(batch, tokens, heads, *shape, generator=generator, dtype=dtype)

    q, k = (F.normalize(draw(key), dim=-1) for _ in range(2))
    return q, k, draw(value), -draw().square(), torch.sigmoid(draw())


def state(*, batch=2, heads=3, key=5, value=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(batch, heads, key, value, generator=generator, dtype=dtype)


def by_steps(q, k, v, decay, beta, start):
    """S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T, o_t = S_t q_t, as the paper has it."""
    outputs, S = [], start.mT
    for t in range(q.shape[1]):
        column = k[:, t, :, :, None]
        a, b = decay[:, t].exp()[..., None, None], beta[:, t][..., None, None]
        erase = torch.eye(q.shape[-1], dtype=q.dtype) - b * column @ column.mT
        S = a * S @ erase + b * v[:, t, :, :, None] @ column.mT
        outputs.append((S @ q[:, t, :, :, None]).squeeze(-1))
    return torch.stack(outputs, 1), S.mT


@pytest.mark.parametrize("tokens", [1, 7, 16, 17, 50])
def test_chunks_compute_the_recurrence_and_its_gradients(tokens):
    given = [x.requires_grad_() for x in (*inputs(tokens), state())]
    chunked, stepped = gated_delta_rule(*given, chunk=16), by_steps(*given)
    assert_same_with_gradients(given, chunked, stepped)


@pytest.mark.parametrize("cuts", [[5, 6, 20], [15, 16, 17, 48]], ids=str)
def test_a_document_starts_from_nothing_wherever_in_a_chunk_it_begins(cuts):
    """The first goes on from a state; with gradients, which reach no document from another."""
    given = [x.requires_grad_() for x in (*inputs(50), state())]
    begins = torch.zeros(2, 50, dtype=torch.bool)
    begins[:, cuts] = True
    chunked = gated_delta_rule(*given, begins_BT=begins, chunk=16)
    stepped = by_documents(by_steps, given, cuts)
    assert_same_with_gradients(given, chunked, stepped)


def test_float32_stays_near_float64_where_all_keys_are_alike():
    """The inverse's entries are small there, though powers of the matrix are not."""
    q, k, v, decay, _ = inputs(64, key=16)
    k = F.normalize(k[:, :1] + 0.01 * k, dim=-1)
    exact = (q, k, v, 1e-3 * decay, torch.ones_like(decay))
    rough = gated_delta_rule(*(x.float() for x in exact), chunk=64)
    for near, value in zip(rough, gated_delta_rule(*exact, chunk=64), strict=True):
        torch.testing.assert_close(near.double(), value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("decay", [0.0, -1e-8, -2000.0])
def test_any_decay_gives_finite_outputs_and_gradients(decay):
    q, k, v, log, beta = inputs(40, dtype=torch.float32)
    given = [q, k, v, torch.full_like(log, decay), beta]
    for x in given:
        x.requires_grad_()
    out, last = gated_delta_rule(*given)
    for grad in (out, last, *torch.autograd.grad(out.sum() + last.sum(), given)):
        assert grad.isfinite().all()


def test_under_autocast_the_rule_and_its_state_are_float32():
    given = inputs(20, dtype=torch.float32)
    expected = gated_delta_rule(*given)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, gated_delta_rule(*given), expected))
        _, S = gated_delta_step(*(x[:, 0].bfloat16() for x in given), state(dtype=torch.float32))
    assert S.dtype == torch.float32
    out, S = gated_delta_rule(*(x.bfloat16() for x in given))
    assert (out.dtype, S.dtype) == (torch.float32, torch.float32)


def test_it_computes_what_transformers_does_for_qwen3_next():
    theirs = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    q, k, v, decay, beta = (x.float() for x in inputs(70, key=8))
    start = state(key=8).float()
    # theirs scales queries by 1/sqrt(E)
    for function in (theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule):
        expected = function(
            q * 8**0.5, k, v, decay, beta, initial_state=start, output_final_state=True
        )
        torch.testing.assert_close(
            gated_delta_rule(q, k, v, decay, beta, start), expected, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("tokens", [24, 100])
def test_the_products_are_those_that_torch_counts(tokens):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        gated_delta_rule(*inputs(tokens))
    assert counter.get_total_flops() == 2 * 2 * products(tokens, heads=3, key=5, value=4)
