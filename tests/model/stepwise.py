"""What the tests of recurrences share: values and gradients against a recurrence step by step."""

import torch


def assert_same_with_gradients(given, chunked, stepped):
    """Hold that two tuples of results agree, and so do the gradients of a random sum of each."""
    weights = [torch.randn_like(x) for x in stepped]
    grads = [
        torch.autograd.grad(
            sum((w * x).sum() for w, x in zip(weights, results, strict=True)), given
        )
        for results in (chunked, stepped)
    ]
    torch.testing.assert_close(chunked, stepped, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


def by_documents(step, given, cuts):
    """Return what each document reads and the last state; the first goes on from a state.

    `given` are inputs along time, and the state; documents begin at `cuts`.
    """
    *inputs, start = given
    reads = []
    for part in zip(*(x.tensor_split(cuts, 1) for x in inputs), strict=True):
        read, last = step(*part, start)
        reads, start = [*reads, read], torch.zeros_like(start)
    return torch.cat(reads, 1), last
