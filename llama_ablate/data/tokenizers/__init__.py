"""Tokenizers: bytes, characters, byte-level BPE and SentencePiece, trained or read from files."""
