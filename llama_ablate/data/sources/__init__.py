"""Sources of known entropy, and the corpora that they write."""
