"""The commands, one a file: its arguments, and what it does with them.

A command's module has `HELP`, `EXAMPLE`, `add_arguments(parser)` and `run(options) -> Answer`. It
imports what is slow to import inside its functions, so that `--help` is quick.
"""
