"""Token mixers: attention, and recurrences with their kernels."""
