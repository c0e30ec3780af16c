"""Checkpoints of other projects: into our decoder through its own registries, and out again.

No code in a checkpoint is ever run: weights come from safetensors, from `torch.load` with
`weights_only`, or from plain float32 numbers.
"""
