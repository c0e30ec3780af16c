"""Tasks: items with a right answer, from files and from templates."""
