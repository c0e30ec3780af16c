import bz2
import gzip
import hashlib
import json
import lzma
from pathlib import Path

import pytest

from llama_ablate.data import corpus, readers
from llama_ablate.data.corpus import files, hub
from llama_ablate.data.readers import SEPARATOR
from llama_ablate.errors import ConfigError
from tests.texts import corpus_of, read, write_csv, write_jsonl, write_parquet

TEXTS = [f"document {i} " + "words and words " * (i % 7 + 1) for i in range(200)]


def test_a_fingerprint_stands_for_the_text_and_its_split():
    one = read(corpus_of("a", "b", "c"))
    assert one.fingerprint == read(corpus_of("a", "b", "c")).fingerprint
    whole = b"train 1\na" + b"validation 1\nb" + b"test 1\nc"
    assert one.fingerprint == hashlib.sha256(whole).hexdigest()[:16]
    others = [
        read(corpus_of("a", "b", "d")),
        read(corpus_of("ab", "", "c")),
        read(corpus_of("a", "bc", "")),
        read(corpus_of("", "ab", "c")),
    ]
    assert len({c.fingerprint for c in [one, *others]}) == 5


def test_one_text_is_split_by_position(tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("0123456789" * 100, "utf-8")
    corpus = read(files(path=str(file), splits=[0.9, 0.1, 0.0]))
    assert (len(corpus.train), len(corpus.validation), corpus.test) == (900, 100, "")
    assert corpus.train + corpus.validation == "0123456789" * 100


def write_folder(folder, texts):
    (folder / "sub").mkdir(parents=True)
    for i, text in enumerate(texts):
        (folder / "sub" / f"{i}.txt").write_text(text, "utf-8")


WRITERS = {
    "x.jsonl": write_jsonl,
    "x.parquet": write_parquet,
    "x.csv": write_csv,
    "folder": write_folder,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_the_same_documents_in_the_same_splits(tmp_path, name):
    WRITERS[name](tmp_path / name, TEXTS)
    corpus = read(files(path=str(tmp_path / name)))
    parts = {split: text.split(SEPARATOR) for split, text in corpus.splits.items()}
    assert sorted(text for part in parts.values() for text in part) == sorted(TEXTS)
    assert 0.4 < len(parts["train"]) / 200 < 0.6  # some 50 of each are held out
    write_jsonl(tmp_path / "again.jsonl", TEXTS)
    again = read(files(path=str(tmp_path / "again.jsonl")))
    assert {s: set(t.split(SEPARATOR)) for s, t in again.splits.items()} == {
        s: set(p) for s, p in parts.items()
    }


@pytest.mark.parametrize("text", ["[{0}, {1}]", "{0}\n\n{1}", "\ufeff{0}\r\n{1}\r\n"])
def test_json_may_be_lines_or_a_list(tmp_path, text):
    rows = [json.dumps({"n": i, "text": f"of \u2028 {i}"}) for i in range(2)]
    (tmp_path / "x.json").write_text(text.format(*rows), "utf-8")
    found = readers.read([tmp_path / "x.json"], "text", readers.Skipped())
    assert ["".join(map(bytes.decode, one.pieces)) for one in found] == [
        "of \u2028 0",
        "of \u2028 1",
    ]


PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.txt"])
def test_a_compressed_file_is_read_by_its_ending_and_refused_without_it(tmp_path, name, ending):
    texts = {"x.jsonl": write_jsonl, "x.json": write_jsonl, "x.csv": write_csv}
    texts.get(name, lambda file, own: file.write_text("\n\n".join(own)))(tmp_path / name, TEXTS)
    plain = read(files(path=str(tmp_path / name)))
    packed = PACKERS[ending]((tmp_path / name).read_bytes())
    (tmp_path / f"{name}{ending}").write_bytes(packed)
    assert read(files(path=str(tmp_path / f"{name}{ending}"))) == plain
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(
        ConfigError, match=rf"compressed or a table by its content: its name should end in {ending}"
    ):
        files(path=str(tmp_path / name))
    (tmp_path / f"{name}{ending}").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigError, match="cannot be read as ") as caught:
        read(files(path=str(tmp_path / f"{name}{ending}")))
    assert "\n" not in caught.value.message


def test_a_data_set_that_cannot_be_reached_is_one_line():
    with pytest.raises(ConfigError, match="the data set 'no/such' could not be loaded") as caught:
        read(hub(dataset="no/such"))
    assert "\n" not in caught.value.message
    with pytest.raises(ConfigError, match="needs 'dataset'"):
        hub()


def broken(tmp_path: Path, content: bytes, name="x.txt") -> dict:
    file = tmp_path / name
    file.write_bytes(content)
    return {"path": str(file)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda t: {"path": str(t / "nothing.txt")}, "there is no file"),
        (lambda t: broken(t, b"\x7fELF\0\0\1"), "is binary, not text (a NUL at byte 4)"),
        (lambda t: broken(t, "mark".encode("utf-16")), "is UTF-16 text: save it as UTF-8 (iconv"),
        (lambda t: broken(t, b"not parquet", "x.parquet"), "cannot be read as Parquet ("),
        (lambda t: broken(t, b'{"body": "x", "title": "y"}', "x.jsonl"), "allowed: body, title"),
        (lambda t: broken(t, b'{"text": "a"}\n{"text": ', "x.jsonl"), "line 2: Expecting value"),
        (
            lambda t: broken(t, b'{"text": "\\ud800"}', "x.jsonl"),
            "cannot be read as JSON lines ('utf-8' codec can't encode",
        ),
    ],
)
def test_files_that_cannot_serve_are_refused_in_one_line(tmp_path, options, message):
    with pytest.raises(ConfigError) as caught:
        read(files(**options(tmp_path)))
    assert message in caught.value.message
    assert "\n" not in caught.value.message


ROWS = "".join(json.dumps({"n": i, "text": f"text {i}"}) + "\n" for i in range(9))


def test_a_text_of_json_objects_is_refused_and_code_with_braces_is_read(tmp_path):
    for name, text in {"a.txt": ROWS + "a line\n", "b.txt": "x = {}\n{}\n" * 50}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"a\.txt' has a JSON object a line: .* \.jsonl"):
        read(files(path=str(tmp_path)))
    assert read(files(path=str(tmp_path / "b.txt"))).train


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_rows_without_text_are_passed_over_and_the_first_is_named(tmp_path, name):
    rows = [{"n": "1", "text": text} for text in ("a", None, "b", "")]
    if name.endswith("parquet"):
        write_parquet(tmp_path / name, [row["text"] for row in rows])
    elif name.endswith("csv"):
        (tmp_path / name).write_text("n,text\n1,a\n1\n1,b\n1,\n")
    else:
        lines = [*map(json.dumps, [*rows, {"n": "1"}]), '{"text": NaN}']
        ends = ("[", ",", "]") if name == "a.json" else ("", "\n", "")
        (tmp_path / name).write_text(ends[0] + ends[1].join(lines) + ends[2])
    corpus = files(path=str(tmp_path / name))
    assert [b"".join(one.pieces) for one in corpus.documents()] == [b"a", b"b"]
    place = {"a.csv": "line 3", "a.jsonl": "line 2"}.get(name, "row 2")
    skipped = 4 if "json" in name else 2
    assert corpus.notes()[1].startswith(
        f"rows without text passed over: {skipped}, the first {place}"
    )
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"text": 3}')
    with pytest.raises(ConfigError, match=r"line 3: 'text' holds int, not text"):
        read(files(path=str(tmp_path / "a.jsonl")))


def test_hidden_parts_of_a_path_are_passed_over_unless_they_are_stated(tmp_path):
    for name in ("a.txt", "b.md", "c.py", ".git/d.txt", "e/.cache/f.txt", "e/.g.txt", ".h/i.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    def named(*paths):
        found, hidden = corpus._expand([str(tmp_path / path) for path in paths])
        return [str(path.relative_to(tmp_path)) for path in found], len(hidden)

    assert named("") == (["a.txt", "b.md", "c.py"], 4)
    assert named("**/*.txt") == (["a.txt"], 4)
    assert named(".git", "*.{md,py}") == ([".git/d.txt", "b.md", "c.py"], 0)
    assert named(".h/*", "e/.*/*.txt") == ([".h/i.txt", "e/.cache/f.txt"], 0)
    with pytest.raises(ConfigError, match="no file matches"):
        named("*.txt", "*.{html,js}")
