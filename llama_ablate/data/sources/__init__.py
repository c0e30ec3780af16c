"""Synthetic corpora of known entropy, and the random sources that generate them."""
