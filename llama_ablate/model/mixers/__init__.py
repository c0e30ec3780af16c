"""What mixes tokens along a sequence: attention, and recurrences with their kernels."""
