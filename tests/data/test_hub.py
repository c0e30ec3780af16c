import pytest

from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA, hub
from llama_ablate.data.readers import SEPARATOR
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.errors import ConfigError
from tests.texts import read, write_jsonl, write_parquet

TEXTS = [f"document {i} " + "words and words " * (i % 7 + 1) for i in range(300)]


def write_arrow(file, texts):
    import pyarrow as pa

    table = pa.table({"text": texts})
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)


def write_plain(file, texts):
    file.write_text("\n".join(texts), "utf-8")


WRITERS = {
    "train.jsonl": write_jsonl,
    "train.parquet": write_parquet,
    "train.arrow": write_arrow,
    "train.txt": write_plain,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_in_the_hubs_layout_gives_the_same_text(tmp_path, name):
    (tmp_path / "one").mkdir()
    WRITERS[name](tmp_path / "one" / name, TEXTS)
    write_jsonl(tmp_path / "two" / "train.jsonl", TEXTS)
    found = [read(hub(dataset=str(tmp_path / folder))) for folder in ("one", "two")]
    assert found[0] == found[1]
    assert sum(len(text.split(SEPARATOR)) for text in found[0].splits.values()) == len(TEXTS)


def test_a_split_is_split_and_subsets_and_files_are_chosen(tmp_path):
    write_jsonl(tmp_path / "en" / "a.jsonl", [f"en {i}" for i in range(200)])
    write_jsonl(tmp_path / "de" / "b.jsonl", [f"de {i}" for i in range(200)])
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n"
        "- {config_name: en, data_files: [{split: train, path: en/a.jsonl},"
        " {split: extra, path: de/b.jsonl}]}\n"
        "- {config_name: de, data_files: de/b.jsonl}\n---\n"
    )
    dataset = str(tmp_path)
    english = read(hub(dataset=dataset, subset="en", split="train"))
    assert english.train.startswith("en ")
    assert set(english.splits) == {"train", "validation", "test"}
    assert read(hub(dataset=dataset, subset="en", split="extra")).train.startswith("de ")
    assert read(hub(dataset=dataset, subset="de")).train.startswith("de ")
    of_files = read(hub(dataset=dataset, data_files="en/*.jsonl"))
    assert of_files == english
    assert read(hub(dataset=dataset, data_files=("en/a.jsonl", "de/b.jsonl"))) != english


def test_a_limit_is_of_each_split_and_a_shuffle_draws_what_it_takes(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", TEXTS)
    write_jsonl(tmp_path / "validation.jsonl", TEXTS[:9])
    dataset, small = str(tmp_path), "2kB"
    first = read(hub(dataset=dataset, limit=small))
    assert len(first.train.replace(SEPARATOR, "")) == 2000
    assert first.validation == SEPARATOR.join(TEXTS[:9])
    assert SEPARATOR.join(TEXTS).startswith(first.train)
    drawn = [read(hub(dataset=dataset, limit=small, shuffle=seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    assert len({one.train for one in [first, *drawn]}) == 3
    assert set(drawn[0].train.split(SEPARATOR)[:-1]) < set(TEXTS)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A data set that was loaded from the hub before, as its library keeps it."""
    import datasets

    write_jsonl(tmp_path / "source" / "train.jsonl", TEXTS)
    write_jsonl(tmp_path / "source" / "validation.jsonl", TEXTS[:9])
    cache = tmp_path / "hf"
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", cache)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    builder = datasets.load_dataset_builder(str(tmp_path / "source"), cache_dir=str(cache))
    builder.download_and_prepare()
    for file in list((cache / "source").rglob("source-*")):
        file.rename(file.with_name(file.name.replace("source", "stories")))
    (cache / "source").rename(cache / "someone___stories")
    return "someone/stories"


def test_what_was_loaded_from_the_hub_before_is_read_without_a_network(cached, tmp_path):
    assert read(hub(dataset=cached)) == read(hub(dataset=str(tmp_path / "source")))
    limited = {"limit": "2kB", "shuffle": 3}
    one, again = (read(hub(dataset=cached, **limited)) for _ in range(2))
    assert one == again
    assert len(one.train.replace(SEPARATOR, "")) == 2000


def test_tokens_of_a_data_set_outlive_its_copy_and_the_network(cached, tmp_path):
    import shutil

    entry = CORPORA.resolve({"name": "hub", "dataset": cached})
    made = store.prepare(entry, TOKENIZERS.resolve("bytes"), tmp_path / "cache")
    shutil.rmtree(tmp_path / "hf")
    assert store.prepare(entry, TOKENIZERS.resolve("bytes"), tmp_path / "cache") == made
    other = CORPORA.resolve({"name": "hub", "dataset": cached, "limit": "2kB"})
    with pytest.raises(ConfigError, match="it was not loaded before, and HF_HUB_OFFLINE is set"):
        store.prepare(other, TOKENIZERS.resolve("bytes"), tmp_path / "cache")
