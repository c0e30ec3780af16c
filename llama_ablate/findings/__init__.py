"""Conclusions from an experiment's results: computation of table rows from run records."""
