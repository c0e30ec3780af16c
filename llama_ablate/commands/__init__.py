"""The commands, one per file, each with a dataclass of options.

A command's module has `HELP`, `EXAMPLE` and `run(options) -> Answer`, annotated with the dataclass
of its options. It imports what is slow to import inside its functions, so that `--help` is quick.
"""
