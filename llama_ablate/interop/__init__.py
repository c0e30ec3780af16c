"""Models of other projects: import and export of checkpoints and tokenizers, generation, chat.

A checkpoint's model is built from this package's components. No code in it is ever run: weights
come from safetensors, from `torch.load` with `weights_only`, or from plain float32 numbers.
"""
