"""`llama-ablate` and `python -m llama_ablate`, from the first import on."""

import gc
import sys
from typing import NoReturn

from llama_ablate.errors import ConfigError


def script() -> NoReturn:
    """Import the command line and run it; an import error is one line, too."""
    # Imports, plans and reports make a million objects and keep them: to look for cycles after
    # every 700, as Python does, takes a tenth of their time.
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
