"""Models of other projects: checkpoints and tokenizer files in and out, generation, chat.

A checkpoint is built from our own registries. No code in it is ever run: weights come from
safetensors, from `torch.load` with `weights_only`, or from plain float32 numbers.
"""
