"""Runs on machines that share no disk with the command: what travels there, and what comes home."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from llama_ablate.config import plugins
from llama_ablate.data import tokens
from llama_ablate.files import disk
from llama_ablate.files.strict_json import sealed
from llama_ablate.launch import remote
from llama_ablate.launch.storage import Storage
from llama_ablate.results import Store
from llama_ablate.results.layout import PLAN
from llama_ablate.results.live import EVERY_S
from llama_ablate.training import checkpoint

#: The files of a text by name, or what `fetch` turns into them.
Content = Any


@dataclass(frozen=True)
class Parcel:
    """What a run needs on a machine where nothing of ours lies."""

    #: Of the folder of results.
    name: str
    plan: bytes
    #: The sources of plug-ins by their paths.
    plugins: Mapping[str, bytes]
    #: The files of tokens by their fingerprint, and which is meant by a corpus and a tokenizer.
    tokens: Mapping[str, Content]
    texts: Mapping[str, str]
    #: Where checkpoints are kept: a URL.
    storage: str


@dataclass(frozen=True)
class Arrival:
    """What comes home of a run: its folder as it was committed there, if it was, and its log."""

    files: Mapping[str, bytes]
    log: bytes


def packed(store: Store, storage: str, put: Callable[[Mapping[str, Any]], Content]) -> Parcel:
    """Pack what the runs of a plan need; `put` keeps the files of a text where all can fetch them.

    Raises ConfigError where a plug-in has changed since it was loaded.
    """
    plan = disk.read(store.plan_file)
    files = [name for name in plugins.loaded() if not name.startswith(plugins.INSTALLED)]
    texts = {asked: at.name for asked, at in tokens.seen.items() if at.name.encode() in plan}
    cache = tokens.cache_folder() / "tokens"
    return Parcel(
        name=store.root.name,
        plan=plan,
        plugins={name: plugins.source(name) for name in files},
        tokens={key: put(tokens.files(cache / key)) for key in {*texts.values()}},
        texts=texts,
        storage=storage,
    )


def work(
    parcel: Parcel, run: str, failed: Mapping[str, bytes], fetch: Callable[[Content], Any]
) -> tuple[int, str, bool, Arrival]:
    """Run the worker in a folder of this machine's own, from the latest checkpoint of the storage.

    `failed` are the files of the run's last failed attempt, if there was one. Returns the worker's
    exit code, how it ended in words, whether memory ran out, and the run's files and log. A failed
    upload of a checkpoint is logged and tried again.
    """
    for key, content in parcel.tokens.items():
        tokens.put(key, partial(fetch, content))
    parent = tokens.cache_folder() / "apart"
    disk.make(parent)
    disk.sweep(parent)
    with disk.partial_folder(parent) as home:
        store = _unpacked(parcel, home, failed)
        folder, storage = store.working(run), Storage(parcel.storage, parcel.name)
        disk.make(folder)
        storage.fetch(run, folder)
        last = 0.0

        def tend() -> bool:
            nonlocal last
            if time.monotonic() - last > EVERY_S:
                _kept(store, run, storage)
                last = time.monotonic()
            return False

        texts = {asked: f"{tokens.cache_folder()}/tokens/{k}" for asked, k in parcel.texts.items()}
        try:
            ended = remote.work(str(store.root), run, tend, {tokens.TRUSTED: json.dumps(texts)})
        finally:
            _kept(store, run, storage)
        if not store.is_final(run) and not checkpoint.latest(folder):
            storage.forget(run)  # the worker trusts none of those that it was given
        file = store.log(run)  # of a run that is done it is gone
        return *ended, Arrival(store.runs.files(run), disk.read(file) if file.exists() else b"")


def _unpacked(parcel: Parcel, home: Path, failed: Mapping[str, bytes]) -> Store:
    """Lay out results in which a worker finds its plan, its plug-ins and its last attempt."""
    store = Store(home / parcel.name)
    disk.make(store.root)
    disk.write(store.plan_file, parcel.plan)
    disk.write_all(store.root, failed)
    if parcel.plugins:
        plan, places = store.plan, {}
        for number, (name, source) in enumerate(parcel.plugins.items()):
            folder = home / "plugins" / str(number)
            disk.make(folder)
            disk.write(place := folder / Path(name).name, source)
            places[name] = str(place)
        loaded = {places.get(name, name): own for name, own in plan.settings.plugins.items()}
        plan = plan.model_copy(update={"settings": replace(plan.settings, plugins=loaded)})
        disk.replace(store.plan_file, sealed(plan.model_dump(mode="json"), PLAN))
    return store


def _kept(store: Store, run: str, storage: Storage) -> None:
    """Copy a run's checkpoints, and how far it is, to the storage."""
    try:
        storage.mirror(run, store.working(run))
        storage.note(run, store.working(run))
    except OSError as error:
        with os.fdopen(disk.append(store.log(run)), "a") as log:
            log.write(f"its checkpoint was not copied to the storage: {error}\n")
