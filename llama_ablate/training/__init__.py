"""Training: the loop, the optimizer and its schedule, checkpoints, and how a machine computes."""
