"""Shared code of commands: options, answers, notes, views of plans and progress."""
