"""From an experiment to its plan: designs, variants, matched budgets, tables and runs."""
