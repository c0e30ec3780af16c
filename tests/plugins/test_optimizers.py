"""NorMuon and SOAP, each beside its formula."""

import math

import numpy as np
import pytest

from tests.training.test_optimizers import GRADIENTS, START, alone, stepped


@pytest.fixture(autouse=True)
def _optimizers(plugin):
    for name in ("normuon", "soap"):
        plugin(name)


LR, DECAY = 0.01, 0.5


@pytest.mark.parametrize("turned", [False, True], ids=["wide", "tall"])
def test_normuon_steps_by_its_formula_with_the_singular_values_of_the_momentum(turned):
    """Newton and Schulz's polynomial acts on singular values alone, so numpy's SVD is enough."""
    start, gradients = (np.array(values) for values in (START, GRADIENTS))
    if turned:
        start, gradients = start.T, gradients.transpose(0, 2, 1)
    mean, squares, expected = np.zeros(start.shape), np.zeros((len(start), 1)), start
    for gradient in gradients:
        mean = 0.8 * mean + 0.2 * gradient
        u, values, v = np.linalg.svd(mean, full_matrices=False)
        values /= np.sqrt((values**2).sum())
        for _ in range(3):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        step = u * values @ v
        squares = 0.9 * squares + 0.1 * (step**2).mean(1, keepdims=True)
        step = step / np.sqrt(squares)
        scale = 0.2 * LR * math.sqrt(step.size) / np.linalg.norm(step)
        expected = expected * (1 - LR * DECAY) - scale * step
    entry = {"name": "normuon", "momentum": 0.8, "beta2": 0.9, "ns_steps": 3}
    found = stepped(entry, alone(start.tolist()), gradients.tolist(), lr=LR, weight_decay=DECAY)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_soap_steps_by_its_formula_with_bases_turned_every_other_step():
    gradients = np.array([*GRADIENTS, *GRADIENTS[::-1]])
    gradients[3:] *= 0.7
    expected, mean, square = np.array(START), 0.0, 0.0
    left, right = gradients[0] @ gradients[0].T, gradients[0].T @ gradients[0]
    q_left, q_right = (np.linalg.eigh(side)[1][:, ::-1] for side in (left, right))
    left, right = 0 * left, 0 * right
    for t, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.95 * square + 0.05 * (q_left.T @ gradient @ q_right) ** 2
        inner = (q_left.T @ mean @ q_right) / (1 - 0.9**t)
        inner = inner / (np.sqrt(square / (1 - 0.95**t)) + 1e-8)
        expected = expected * (1 - LR * DECAY) - LR * q_left @ inner @ q_right.T
        left = 0.95 * left + 0.05 * gradient @ gradient.T
        right = 0.95 * right + 0.05 * gradient.T @ gradient
        if t % 2 == 0:  # the eigenvectors in falling order, and the moment with them
            rows, columns = (
                np.argsort(-np.diag(q.T @ side @ q), kind="stable")
                for q, side in ((q_left, left), (q_right, right))
            )
            square = square[rows][:, columns]
            q_left = np.linalg.qr(left @ q_left[:, rows])[0]
            q_right = np.linalg.qr(right @ q_right[:, columns])[0]
    entry = {"name": "soap", "frequency": 2}
    found = stepped(entry, alone(START), gradients.tolist(), lr=LR, weight_decay=DECAY)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
