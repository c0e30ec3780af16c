"""Entry point of the commands `llama-ablate` and `python -m llama_ablate`."""

import gc
import sys
from typing import NoReturn

from llama_ablate.errors import ConfigError


def script() -> NoReturn:
    """Import the command line and run it.

    A ConfigError or an interrupt during the imports is reported in one line, too.
    """
    # Imports, plans and reports create a million long-lived objects: with Python's default of a
    # garbage collection every 700 allocations, a tenth of their time would go to collections.
    gc.set_threshold(50_000)
    try:
        from llama_ablate.commands import cli
    except ConfigError as error:
        sys.stderr.write(f"llama-ablate: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("llama-ablate: interrupted\n")
        sys.exit(130)
    cli.script()


if __name__ == "__main__":
    script()
