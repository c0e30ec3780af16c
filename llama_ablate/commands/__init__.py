"""The commands, one a file: its options, and what it does with them.

A command's module has `HELP`, `EXAMPLE` and `run(options) -> Answer`, annotated with the dataclass
of its options. It imports what is slow to import inside its functions, so that `--help` is quick.
"""
