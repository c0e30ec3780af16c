"""Names and paths of the files and folders of an experiment's results.

<results>/<experiment>/
experiment.yaml  plan.json  compute.json  pace.json  protocol.json
plan-<sha256>.json                 an earlier plan, of finished runs that plan.json leaves out
runs/<label>--s<seed>--<id>/       record.json curve.csv weights.safetensors manifest.json metrics/
failed/<label>--s<seed>--<id>--<n>/  the same, of the n-th attempt of a run that is to be retried
variants/<label>--<id>/            metrics/<metric>.json
working/<id>/                      leases, checkpoints, log and live.json of an unfinished run
damaged/                           files and folders whose content was changed or damaged
redone/                            folders of runs that were trained again on request
report/
track/                             files and output of trackers; never read by this program

A pack has, instead of these files, results.tar.xz: an archive of the files that readers need.
"""

import re
from itertools import count
from pathlib import Path

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.results.archive import PACK, Archive, Files

#: The current plan.
PLAN = "plan.json"
#: Names of earlier plans, which contain the beginning of their SHA-256.
EARLIER = re.compile(r"plan-[0-9a-f]{8}\.json")
METRICS = "metrics"
#: The folder of the runs with a final outcome.
RUNS = "runs"


def experiments_in(folder: Path) -> list[Path]:
    """Return the subfolders with an experiment's results, packed or not, by name."""
    folders = {file.parent for name in (PLAN, PACK) for file in folder.glob(f"*/{name}")}
    return sorted(folders)


def is_pack(root: Path) -> bool:
    """Return whether a folder holds packed results."""
    return (root / PACK).exists()


class Layout:
    """Paths of one experiment's results under one of its plan files.

    `files` reads the files at these paths: from the disk, or from a pack's archive.
    """

    def __init__(self, root: Path, plan_name: str = PLAN) -> None:
        self.root, self.plan_name = root, plan_name
        self.is_packed = is_pack(root)
        #: Folder of the files: the results folder itself, or the archive in it.
        self.base = root / PACK if self.is_packed else root
        self.files: Files = Archive(self.base) if self.is_packed else disk
        self.plan_file = self.base / plan_name
        #: The experiment file as the user wrote it.
        self.experiment_file = self.base / "experiment.yaml"
        #: Folder of the runs with a final outcome, each run once.
        self.final = self.base / RUNS
        #: Folder of failed attempts at runs that will be retried.
        self.failed = self.base / "failed"
        #: Folder of the metrics of variants.
        self.variants = self.base / "variants"
        #: Folder of work in progress: leases, checkpoints, logs, live notes.
        self.in_progress = root / "working"
        #: The folder of the plan's report.
        self.report = root / "report" / ("" if plan_name == PLAN else self.plan_file.stem)
        #: Folder of the trackers' files.
        self.track = root / "track"
        #: Folder of submitit's files for Slurm jobs, which include links.
        self.jobs = self.in_progress / "slurm" / "jobs"

    def refuse_links(self, *more: Path) -> None:
        """Raise ConfigError for a symbolic link in the results, since writes would follow the link.

        Two kinds of links are allowed: links for Slurm jobs, and links from a tracker to its logs,
        which lie inside a folder that is new for each run.
        """
        links = [path for path in more if path.is_symlink()]
        links += [
            path
            for path in disk.links_below(self.root)
            if self.jobs not in path.parents and self.track not in path.parents[2:]
        ]
        if links:
            raise ConfigError(f"'{links[0]}' is a link: results are kept in real folders and files")

    def working(self, key: str) -> Path:
        """Return the working folder of a run or task: leases, checkpoints and log."""
        return disk.below(self.in_progress, key)

    def document(self, name: str) -> Path:
        """Return the path of a sealed document in the results folder."""
        return self.base / f"{name}.json"

    def variant_metric(self, label: str, variant: str, metric: str) -> Path:
        """Return the path of a metric's values for a variant."""
        names = (f"{slug(label)}--{variant}", METRICS, f"{metric}.json")
        return disk.below(self.variants, *names)

    def place(self, file: Path) -> str:
        """Return a file's path relative to the results folder, for use in the file's seal."""
        return file.relative_to(self.base).as_posix()

    def quarantine(self, path: Path) -> Path:
        """Move a damaged file or folder to `damaged/` under a new name; return its new path."""
        return self._moved(path, self.root / "damaged")

    def set_aside(self, path: Path) -> Path:
        """Move a run's folder to `redone/` under a new name; return its new path."""
        return self._moved(path, self.root / "redone")

    def _moved(self, path: Path, folder: Path) -> Path:
        parts = path.relative_to(self.root).parts
        name = "--".join(parts[1:] or parts)  # the parent folder is not needed
        disk.make(folder)
        places = (disk.below(folder, f"{name}--{n}") for n in count(1))
        place = next(place for place in places if not place.exists())
        disk.move(path, place)
        return place
