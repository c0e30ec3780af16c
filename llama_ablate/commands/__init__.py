"""Commands of the command line, one module each, with a dataclass of options.

A command's module has `HELP`, `EXAMPLE` and `run(options) -> Answer`, annotated with the dataclass
of its options. Slow imports are inside its functions, so that `--help` is quick.
"""
