"""Training: loop, optimizers, learning rate schedules, losses, checkpoints and compute settings."""
