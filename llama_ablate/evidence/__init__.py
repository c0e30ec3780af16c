"""Evidence: pure functions that turn measured numbers into intervals and verdicts."""
