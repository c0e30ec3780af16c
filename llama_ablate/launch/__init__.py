"""Execution of runs: worker processes, the queue of runs, launchers, and progress bars."""
