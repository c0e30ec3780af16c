"""Text in, token batches out: corpora, tokenizers, and one memory-mapped store of tokens."""
