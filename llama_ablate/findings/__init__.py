"""Conclusions from an experiment's results: from records to rows of tables."""
