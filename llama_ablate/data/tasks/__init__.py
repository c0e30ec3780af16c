"""Tasks: items with a right answer, from files, from templates, and in the form of lm-eval."""
