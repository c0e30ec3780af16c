"""CompleteP, a parametrization that transfers rates over width and depth."""

from llama_ablate.model.parametrization import (
    PARAMETRIZATIONS,
    Parametrization,
    check_base,
    score_factor,
)


@PARAMETRIZATIONS.register("completep")
def completep(
    dim: int,
    layers: int,
    head_dim: int,
    *,
    base_dim: int = 64,
    base_layers: int = 2,
    base_head_dim: int | None = None,
) -> Parametrization:
    """CompleteP: one best rate over widths and depths (Dey et al. 2025, arXiv:2505.01618).

    With m = dim / base_dim and n = layers / base_layers, as their Table 1 has it for alpha = 1:

    ============================ ================ ========== ==== ============ ===================
    weights                      initial variance multiplier rate weight decay epsilon of AdamW
    ============================ ================ ========== ==== ============ ===================
    embeddings                   as the base      1          1    1            1/m
    hidden matrices              1/m              1          1/m  m            1/(m n)
    biases and gains             as the base      1          1    none         1/(m n)
    output head                  as the base      1/m        1    1            1/m
    ============================ ================ ========== ==== ============ ===================

    Each sub-layer adds 1/n of its output to the residual stream. A rule of initial weights that
    scales with depth sees the base model's layers. Epsilon follows the size of the gradient. Of
    SGD, for which they have no table, the rate is divided by that size, which gives mup's rows.
    """
    return Parametrization(
        width=dim / check_base("base_dim", base_dim),
        depth=layers / check_base("base_layers", base_layers),
        scores=score_factor(head_dim, base_head_dim),
        complete=True,
    )
