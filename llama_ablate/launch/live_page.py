"""The page of results that is written anew while runs train."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from tqdm import tqdm

from llama_ablate.config import plugins
from llama_ablate.launch import processes
from llama_ablate.launch.environment import cores

#: Share of the machine's time that the page may take, and the CPU seconds of the first one.
LIVE_SHARE, FIRST_CPU_S = 0.01, 6.0


@contextmanager
def renew_page(root: Path) -> Iterator[None]:
    """Write the page of results again and again, in another process, while the body trains.

    The first one comes once it is a hundredth of the time that all cores had: after five minutes on
    two cores. A shorter grid has a page at its end alone.
    """
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        words = ["report", str(root), "--watch", *plugins.list_flags()]
        # What it has to say, the report at the end says again.
        children.append(processes.start_command(words, stderr=subprocess.DEVNULL))
        page = root / "report" / "report.html"
        tqdm.write(f"page, renewed while runs train: {page}", file=sys.stderr)

    timer = Timer(FIRST_CPU_S / (LIVE_SHARE * cores()), start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for child in children:
            child.kill()  # the next report removes an unfinished file
            child.communicate()
