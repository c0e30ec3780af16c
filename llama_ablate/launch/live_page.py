"""Updates of the HTML page of results while runs train."""

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

#: Share of the machine's CPU time that pages may take, and CPU seconds of the first page.
LIVE_SHARE, FIRST_CPU_S = 0.01, 6.0


@contextmanager
def renew_page(root: Path) -> Iterator[None]:
    """Update the page of results repeatedly, in another process, while the `with` body trains.

    The first page is written once its CPU time is only 1% of the CPU time of all cores so far:
    after five minutes on two cores. Shorter experiments get a page at their end only.
    """
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        words = ["report", str(root), "--watch", *plugins.list_flags()]
        # Its messages are discarded: the report at the end repeats them.
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
