"""The decoder and its interchangeable parts.

Letters for shapes, as suffixes on local names in this package: B batch, T new tokens, S visible
keys (cached and new), D model width, H query heads, K key/value heads, E head width, F feed-forward
width, V vocabulary. `x_BTD` is a tensor of shape (B, T, D).
"""
