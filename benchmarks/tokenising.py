"""Time the tokenization of a large text, and measure its peak memory.

    python benchmarks/tokenising.py --size 2GB --source ../shared/data/wikitext-2/wiki.train.tokens

The text consists of random paragraphs of the source, in which one of twenty words (`--new 20`) is
replaced by a random new word, since large natural texts have new words up to their end. It is
written to a folder of Parquet files, which the corpus `hub` reads with each of the tokenizers, and
deleted afterwards.
"""

import argparse
import json
import os
import random
import shutil
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow as pa
import tokenizers
from pyarrow import parquet

from llama_ablate.data.readers import parse_size

WORKER = """
import json, resource, sys
from llama_ablate.data import tokens
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
corpus, tokenizer = map(json.loads, sys.argv[1:])
found = tokens.prepare(CORPORA.resolve(corpus), TOKENIZERS.resolve(tokenizer))
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"bytes": sum(found.bytes.values()), "tokens": sum(found.counts.values()),
                  "cpu": sum(one.ru_utime + one.ru_stime for one in used)}))
"""
FILES = 4


def make(source: Path, folder: Path, size: int, new: int) -> None:
    """Write about `size` bytes of random paragraphs of a source to Parquet files.

    One of `new` words is replaced by a random word.
    """
    drawn = random.Random(0)
    lines = source.read_text("utf-8").split("\n")
    paragraphs = [line.split(" ") for line in lines if len(line) > 200]
    schema = pa.schema({"text": pa.string()})
    for number in range(FILES):
        left = size // FILES
        with parquet.ParquetWriter(folder / f"train-{number:05d}.parquet", schema) as out:
            while left > 0:
                texts = []
                for _ in range(2000):
                    words = list(drawn.choice(paragraphs))
                    for at in range(drawn.randrange(new), len(words), new):
                        words[at] = "".join(drawn.choices(string.ascii_lowercase, k=7))
                    texts.append(" ".join(words))
                    left -= len(texts[-1].encode())
                out.write_table(pa.table({"text": texts}, schema))


def watched(words: list[str], environment: dict[str, str]) -> tuple[dict[str, float], float]:
    """Run a command; return its printed JSON, and the peak memory of its processes.

    The peak is the largest sum of resident bytes over all processes, sampled every 0.1 s.
    """
    process = subprocess.Popen(  # noqa: S603  this Python
        words, stdout=subprocess.PIPE, env=environment
    )
    root, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        resident = 0
        for one in [root, *root.children(recursive=True)]:
            try:
                resident += one.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peak = max(peak, resident)
        time.sleep(0.1)
    assert process.stdout is not None
    if process.returncode:
        sys.exit(process.returncode)
    values: dict[str, float] = json.loads(process.stdout.read())
    return values, peak


def main() -> None:
    """Make and tokenize the text; print a Markdown table with a row per tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--size", default="2GB", help="how much text (default: 2GB)")
    parser.add_argument("--source", type=Path, required=True, help="the text to draw from")
    parser.add_argument("--new", type=int, default=20, help="one word in so many is new (20)")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--only", help="one of bytes, bpe, file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        (folder / "text").mkdir()
        make(options.source, folder / "text", parse_size(options.size) or 0, options.new)
        model = tokenizers.Tokenizer(tokenizers.models.BPE())
        model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=32_000, initial_alphabet=alphabet, show_progress=False
        )
        model.train([str(options.source)], trainer)
        model.save(str(folder / "tokenizer.json"))
        entries = {
            "bytes": "bytes",
            "bpe": {"name": "bpe", "vocab": 8192},
            "file": {"name": "file", "path": str(folder / "tokenizer.json")},
        }
        corpus = {"name": "hub", "dataset": str(folder / "text"), "splits": [0.98, 0.01, 0.01]}
        cores = len(os.sched_getaffinity(0))
        print("| tokenizer | text, MB | tokens, millions | seconds | MB/s a core | ", end="")
        print("MB a CPU second | most resident, MB |\n|---|---|---|---|---|---|---|")
        for kind, entry in entries.items():
            if options.only not in (None, kind):
                continue
            cache = folder / "cache"
            began = time.monotonic()
            words = [sys.executable, "-c", WORKER, json.dumps(corpus), json.dumps(entry)]
            found, peak = watched(words, {**os.environ, "LLAMA_ABLATE_CACHE": str(cache)})
            passed, size = time.monotonic() - began, found["bytes"] / 1e6
            print(
                f"| {kind} | {size:,.0f} | {found['tokens'] / 1e6:,.0f} | {passed:.0f} "
                f"| {size / passed / cores:.1f} | {size / found['cpu']:.1f} | {peak / 1e6:,.0f} |",
                flush=True,
            )
            shutil.rmtree(cache)


if __name__ == "__main__":
    main()
