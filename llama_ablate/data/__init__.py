"""Corpora, tokenizers, and a memory-mapped token store that batches are drawn from."""
