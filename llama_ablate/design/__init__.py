"""Planning of an experiment: designs, variants, matched budgets, tables and runs."""
