"""The command line: arguments in, exit code out. `commands` does the work."""

import errno
import sys
from collections.abc import Sequence

from llama_ablate.arguments import parser
from llama_ablate.errors import ConfigError

#: Disk full, quota, no permission, read-only: the user's to mend, and no traceback helps.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; a ConfigError becomes one line on standard error."""
    options = parser().parse_args(arguments)
    from llama_ablate import commands

    try:
        answer = getattr(commands, options.command.replace("-", "_"))(options)
    except ConfigError as error:
        sys.stderr.write(f"llama-ablate: {error}\n")
        return 2
    except OSError as error:
        if error.errno not in _DISK:
            raise
        sys.stderr.write(f"llama-ablate: {error}; what is finished is kept\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("llama-ablate: interrupted; the same command goes on from here\n")
        return 130
    try:
        print(answer.json if options.json else answer.text, flush=True)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing is left to say
    return int(answer.code)
