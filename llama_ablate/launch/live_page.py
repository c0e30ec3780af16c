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

#: Seconds before the first page: a grid that has ended by then needs none.
FIRST_S = 30.0


@contextmanager
def renew_page(root: Path) -> Iterator[None]:
    """Write the page of results again and again, in another process, while the body trains."""
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        words = ["report", str(root), "--watch", *plugins.list_flags()]
        # What it has to say, the report at the end says again.
        children.append(processes.start_command(words, stderr=subprocess.DEVNULL))
        page = root / "report" / "report.html"
        tqdm.write(f"page, renewed after each tenth of the runs: {page}", file=sys.stderr)

    timer = Timer(FIRST_S, start)
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
