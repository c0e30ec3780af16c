"""The coordinate check: whether activations keep their size over widths (arXiv:2203.03466)."""
