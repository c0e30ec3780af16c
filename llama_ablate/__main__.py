"""`python -m llama_ablate`."""

import sys

from llama_ablate.cli import main

if __name__ == "__main__":
    sys.exit(main())
