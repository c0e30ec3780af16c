"""Every conclusion over an experiment's results: from records to frames, and to what they say."""
