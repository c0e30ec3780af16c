"""`python -m llama_ablate`."""

from llama_ablate.commands.cli import script

if __name__ == "__main__":
    script()
