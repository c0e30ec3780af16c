"""Launch runs: the worker of one run, the queue of all, launchers, progress bars."""
