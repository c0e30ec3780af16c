import concurrent.futures
import errno
import json
import os
import re
import signal

import numpy as np
import pytest
import tokenizers

from llama_ablate.data import texts
from llama_ablate.data import tokens as store
from llama_ablate.data.readers import SEPARATOR
from llama_ablate.data.tokenizer import TOKENIZERS, Pieces
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from tests.test_store_at_scale import taken
from tests.texts import corpus_of, prepared

TEXT = "Héllo wörld! 你好 the cat sat\n\ton the mat " * 20
TEXTS = (TEXT + SEPARATOR + "another document", "the mat ✓ held out")


def made(entry, folder, *split_texts):
    text = texts.write(corpus_of(*split_texts), folder)
    return TOKENIZERS.build(TOKENIZERS.resolve(entry)).make(text)


def test_bpe_learns_from_the_training_split_alone(tmp_path):
    entry = {"name": "bpe", "vocab": 270}
    tokenizer = made(entry, tmp_path, "aaaa " * 100, "zqzqzqzq " * 1000)
    assert isinstance(tokenizer, Pieces)
    assert len(tokenizer.encode("aaaa")) < 4
    assert len(tokenizer.encode("zqzqzqzq")) == 8


def test_a_tokenizer_that_loses_text_is_found_with_an_example(book, words_tokenizer, tmp_path):
    words = {"name": "file", "path": str(words_tokenizer)}
    found = prepared(book, words, tmp_path)
    assert re.fullmatch(r"'[a-z ]+' becomes '.*<unk>.*'", found.lost)
    assert store.load(found.folder).lost == found.lost


def test_processes_that_ask_at_once_do_not_collide(book, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: prepared(book, cache=tmp_path), range(16)))
    assert len({tokens.folder for tokens in found}) == 1
    assert [p.name for p in (tmp_path / "tokens").iterdir()] == [found[0].fingerprint]
    manifest = json.loads((found[0].folder / "manifest.json").read_text())
    assert (found[0].folder / "train.bin").stat().st_size == 2 * manifest["counts"]["train"]


@pytest.mark.parametrize("name", ["texts.write", "tokens.disk.Writer.close"])
def test_a_full_cache_is_a_sentence_and_nothing_is_left_behind(name, book, tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"llama_ablate.data.{name}", full)
    words = rf"'{tmp_path}' cannot be written \(No space .*; set LLAMA_ABLATE_CACHE to a folder"
    with pytest.raises(ConfigError, match=words):
        prepared(book, cache=tmp_path)
    assert list((tmp_path / "tokens").iterdir()) == []
    assert list((tmp_path / "working").iterdir()) == []


def test_what_a_killed_process_left_half_written_is_swept_and_nothing_that_is_being_written(
    book, tmp_path
):
    cache = tmp_path / "tokens"
    cache.mkdir()

    def write():
        with disk.partial_folder(cache):
            os.write(ready, b"x")
            signal.pause()

    read, ready = os.pipe()
    writer = os.fork()
    if writer == 0:
        write()
    os.read(read, 1)
    (left,) = cache.iterdir()
    prepared(book, cache=tmp_path)
    assert left.is_dir()
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    assert left.is_dir()
    prepared(book, cache=tmp_path)
    assert not left.exists()


def test_a_batch_depends_on_seed_and_number_alone(book):
    tokens = prepared(book)
    again = store.load(tokens.folder)
    later = again.batch(3, 7, 4, 16)  # no batch was asked for before this one
    for k in range(7):
        tokens.batch(3, k, 4, 16)
    assert np.array_equal(tokens.batch(3, 7, 4, 16), later)
    assert later.shape == (4, 17)
    assert not np.array_equal(tokens.batch(4, 7, 4, 16), later)
    assert not np.array_equal(tokens.batch(3, 8, 4, 16), later)
    for bits in (16, 32):  # the other half of an A/A arm's seed is 1 << 32
        assert not np.array_equal(tokens.batch(3, 7 + (1 << bits), 4, 16), later)
        assert not np.array_equal(tokens.batch(3 + (1 << bits), 7, 4, 16), later)


def test_no_batch_comes_from_tokens_that_were_damaged_since_they_were_opened(book, tmp_path):
    tokens = prepared(book, cache=tmp_path)
    file = tokens.folder / "train.bin"
    first = tokens.batch(0, 0, 4, 16)
    os.utime(file)  # other times, the same content
    assert np.array_equal(tokens.batch(0, 0, 4, 16), first)
    with file.open("r+b") as opened:
        opened.write(bytes(1000))
    for look in (tokens.check, lambda: tokens.batch(0, 0, 4, 16)):
        with pytest.raises(store.DamagedError, match="has changed since it was written"):
            look()
    prepared(book, cache=tmp_path)  # makes them again, in another file
    with pytest.raises(store.DamagedError):
        tokens.check()


@pytest.mark.parametrize("entry", ["bytes", "chars", {"name": "bpe", "vocab": 300}])
def test_the_documents_of_a_split_begin_behind_their_separators(tmp_path, entry):
    written = [f"document {i} " * (i + 1) for i in range(9)]
    for split in ("train", "validation"):
        lines = (json.dumps({"text": text}) for text in written)
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    named = {"train": "train.jsonl", "validation": "validation.jsonl"}
    tokens = prepared(tmp_path, entry, **named)
    parts = np.split(tokens.split("validation"), tokens.documents("validation")[1:])
    decoded = [tokens.tokenizer.decode(part) for part in parts]
    assert decoded == [text + SEPARATOR for text in written[:-1]] + written[-1:]


def test_documents_end_at_the_end_token_of_a_tokenizer_that_has_one(tmp_path):
    vocab = {word: i for i, word in enumerate(["<unk>", "</s>", "the", "cat", "sat"])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, "<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["</s>"])
    words.save(str(tmp_path / "words.json"))
    lines = (json.dumps({"text": text}) for text in ("the cat", "sat", "the cat sat"))
    for name, text in {"text": '{"text": "sat"}', "held": "\n".join(lines)}.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    entry = {"name": "file", "path": str(tmp_path / "words.json")}
    tokens = prepared(tmp_path, entry, train="text.jsonl", validation="held.jsonl")
    assert tokens.split("validation").tolist() == [2, 3, 1, 4, 1, 2, 3, 4]
    assert tokens.documents("validation").tolist() == [0, 3, 5]


def test_each_window_of_the_training_text_can_be_drawn_the_last_one_too(book):
    tokens = prepared(book)
    begins = np.unique(tokens.batch(0, 0, 200, context=6, first=10)[:, 0], return_counts=True)
    assert list(begins[1] > 20) == [True] * 4  # windows of 7 tokens begin at 0, 1, 2 and 3
    whole = {tuple(tokens.training[start : start + 7]) for start in range(4)}
    assert {tuple(row) for row in tokens.batch(0, 0, 200, context=6, first=10)} == whole


def test_unchanged_tokens_are_never_hashed_again_and_a_whole_check_finds_what_stamps_hide(
    book, tmp_path, monkeypatch
):
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path))
    digest = store.hashlib.file_digest
    monkeypatch.setattr(store.hashlib, "file_digest", lambda *_: pytest.fail("it was hashed"))
    tokens = prepared(book, cache=tmp_path)
    store.load(tokens.folder).check()
    monkeypatch.setattr(store.hashlib, "file_digest", digest)
    assert store.verify(tokens.fingerprint) == "verified"
    states = json.loads((tokens.folder / "states.json").read_text())
    with (tokens.folder / "train.bin").open("r+b") as opened:
        opened.write(bytes(1000))
        opened.flush()
        states["train.bin"] = store._state(opened)
    (tokens.folder / "states.json").write_text(json.dumps(states))
    store.load(tokens.folder)
    assert "train.bin' has changed" in store.verify(tokens.fingerprint)
    assert store.verify("0123456789abcdef") == "not in the cache"


#: Prepares a text of lines that begin with their number, and reads windows from all of it.
READ = """
import numpy as np
from tests.texts import prepared
tokens = prepared(sys.argv[1] + "/x.txt", cache=Path(sys.argv[1]), splits=[0.98, 0.01, 0.01])
rows = [row.tobytes() for k in range(20) for row in tokens.batch(0, k, 64, 511).astype(np.uint8)]
numbers = [[int(line[:15]) for line in row.split(b"\\n")[1:3]] for row in rows]
print(max(first for first, _ in numbers), all(later == first + 1 for first, later in numbers))
print(sum(path.stat().st_size for path in tokens.folder.glob("*.bin")), *tokens.counts.values())
"""


@pytest.mark.full
def test_a_store_of_two_gigabytes_is_made_and_read_to_its_end_in_little_memory(tmp_path):
    lines, ends = 8_400_000, [b"", *(b"%03d%s\n" % (n, b"x" * 112) for n in range(1000))]
    with (tmp_path / "x.txt").open("wb") as file:
        for thousand in range(lines // 1000):
            file.write((b"%012d" % thousand).join(ends))
    (of_rows, of_files), _, mib = taken(READ, tmp_path)
    last, consecutive = of_rows.split()
    size, *counts = map(int, of_files.split())
    assert size == 2 * sum(counts) == 2 * 128 * lines > 1 << 31
    assert 0.97 * lines < int(last) < 0.98 * lines  # of 1,280 windows
    assert consecutive == "True"
    assert mib < 1000
