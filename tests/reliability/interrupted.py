"""`llama-ablate`, interrupted as by Ctrl-C before the n-th line of what launches: n FILE WORDS."""

import sys
from pathlib import Path

from llama_ablate.commands.cli import script

_LAUNCHING = ("commands/run.py", "launch/queue.py", "launch/local.py", "launch/processes.py")


def interrupt_before(number, noted):
    """Raise KeyboardInterrupt there, and write down where it was."""
    passed = 0

    def line(frame, event, _):
        nonlocal passed
        passed += event == "line"
        if event == "line" and passed == number:
            name = Path(frame.f_code.co_filename).name
            noted.write_text(f"{name}:{frame.f_lineno}")
            raise KeyboardInterrupt
        return line

    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename.endswith(_LAUNCHING) else None)


if __name__ == "__main__":
    number, noted, *sys.argv[1:] = sys.argv[1:]
    interrupt_before(int(number), Path(noted))
    script()
