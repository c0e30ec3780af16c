"""What several commands share: options, the answer, notes, and views of a plan and of progress."""
