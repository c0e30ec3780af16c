import json
import math
from dataclasses import replace

import pytest

from llama_ablate.commands import report
from llama_ablate.commands.shared import notes
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, to_json, write_json
from llama_ablate.results import CURVE, Results, Store
from llama_ablate.results.record import Measurement, Value
from tests import plans
from tests.metrics import measured

RECORD = replace(
    plans.RECORD,
    label="RoPE θ=5e5 / <b>",
    metrics={"perplexity": measured(test_loss_nats=1.5, odd=math.inf)},
)
ROW = dict.fromkeys(CURVE, 1.0)


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "x")
    found.create(plans.of_runs(RECORD.id), "name: x\n")
    return found


def weights(file):
    file.write(b"weights")


def test_a_committed_record_reads_back_as_it_was(store):
    store.commit(RECORD, [ROW, ROW | {"validation_loss_nats": math.nan}], weights)
    assert store.record(RECORD.id) == RECORD
    assert store.records() == [RECORD]
    assert store.weights(RECORD.id).read_bytes() == b"weights"
    curve = Results(store.root).curve(RECORD.id)
    assert curve[0] == ROW
    assert math.isnan(curve[1]["validation_loss_nats"])


@pytest.mark.parametrize("outcome", ["error", "cancelled"])
def test_a_record_that_is_not_final_gives_way(store, outcome):
    for _ in range(2):
        store.commit(replace(RECORD, outcome=outcome, reason="why"), [], None)
        assert store.record(RECORD.id).outcome == outcome
    assert len(list((store.root / "failed").iterdir())) == 2
    store.commit(RECORD, [], None)
    assert store.record(RECORD.id).ok
    assert len(list((store.root / "runs").iterdir())) == 1
    assert not list((store.root / "failed").iterdir())


def test_a_write_that_fails_leaves_nothing_behind(store):
    def fail(_file):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store.commit(RECORD, [ROW], fail)
    assert list((store.root / "runs").iterdir()) == []
    assert store.record(RECORD.id) is None


def test_a_failed_attempt_keeps_its_checkpoints_for_the_next_and_a_final_one_does_not(store):
    for outcome in ("error", "oom", "timeout", "cancelled", "ok"):
        lease = store.lease(RECORD.id)
        checkpoint = lease.folder / "checkpoint-7-x.pt"
        checkpoint.write_bytes(b"state")
        store.commit(replace(RECORD, outcome=outcome, reason="why"), [], None, lease)
        assert checkpoint.exists() == (outcome != "ok")
    assert not store.working(RECORD.id).exists()


def test_a_run_whose_lease_was_lost_is_not_committed(store):
    lease = store.lease(RECORD.id)
    (lease.folder / f"lease-{lease.number}").unlink()
    assert store.commit(RECORD, [], None, lease) is None
    assert not [*(store.root / "runs").iterdir()]
    assert store.record(RECORD.id) is None


def test_json_is_strict_and_keeps_numbers_that_it_lacks(tmp_path):
    values = {"a": math.inf, "b": [-math.inf, 1.5], "c": {"d": math.nan}}
    json.loads(to_json(values), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    write_json(tmp_path / "x.json", values)
    assert repr(read_json(tmp_path / "x.json")) == repr(values)  # NaN is not equal to itself


@pytest.mark.parametrize("name", ["", "..", "a/b", "/a", "link"])
def test_only_the_name_of_a_file_or_a_folder_that_is_no_link_becomes_a_path(tmp_path, name):
    (tmp_path / "link").symlink_to(tmp_path)
    assert disk.below(tmp_path, "a", "b.json") == tmp_path / "a" / "b.json"
    for names in ([name], ["a", name] if name != "link" else [name, "a"]):
        with pytest.raises(ConfigError, match=r"not the name of|is a link"):
            disk.below(tmp_path, *names)


def test_writing_replaces_a_file_in_one_step_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "x.json"
    write_json(file, {"old": 1})

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_json(file, {"new": 1})
    assert read_json(file) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_metrics_can_be_added_to_a_finished_run_and_to_a_variant(store):
    at = {"batch": 8, "share": 0.5, "cache": "cached"}
    speed = Measurement(
        (Value("y", 3.0, "speed", "tokens/s", at, samples=(2.0, 3.0, 4.0)),),
        circumstances="0a",
        compute={"device": "cpu", "tried_s": []},
    )
    failed = Measurement(error="ValueError: too few")
    store.commit(RECORD, [], None)
    with store.alone("measure") as lease:
        store.add_metric(lease, store.folder(RECORD.id), "more", measured(x=2.0))
        store.add_metric(lease, store.variant_folder("a label", "v1"), "speed", speed)
        store.add_metric(lease, store.variant_folder("a label", "v1"), "failed", failed)
    assert store.record(RECORD.id).numbers["x"] == 2.0
    assert store.metrics_of(["v1"])["v1"] == {"speed": speed, "failed": failed}


@pytest.mark.parametrize("name", [".DS_Store", "record 2.json"])
def test_a_file_that_others_left_in_a_run_is_named_and_the_run_stands(store, name, capsys):
    folder = store.commit(RECORD, [ROW], weights)
    disk.make((folder / name).parent)
    (folder / name).write_text("{}")
    assert store.verify([RECORD.id], lambda _done: None) == []
    assert store.record(RECORD.id) == RECORD
    assert (folder / name).read_text() == "{}"
    notes.odd_files(Results(store.root))
    told = f"note: not part of any run, and left alone: 'runs/{folder.name}/{name}'\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("place", ["runs", "working/zzz", "report/figures"])
def test_a_link_anywhere_in_results_is_refused(store, tmp_path, place):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("mine")
    disk.remove_tree(store.root / place)
    disk.make((store.root / place).parent)
    (store.root / place).symlink_to(tmp_path / "elsewhere")
    for enter in (store.prepare, store.refuse_links, lambda: report.write(Results(store.root))):
        with pytest.raises(ConfigError, match=f"{place}' is a link"):
            enter()
    disk.remove_tree(store.root)  # of a link, the link itself
    assert [p.read_text() for p in (tmp_path / "elsewhere").iterdir()] == ["mine"]


def test_two_experiments_whose_names_are_cut_to_one_folder_do_not_share_it(tmp_path):
    store = Store(tmp_path / "one")
    store.create(plans.of_runs("0a", name="one"), "name: one\n")
    store.create(plans.of_runs("0b", name="one"), "name: one\n")
    with pytest.raises(ConfigError, match="holds the results of 'one', not of 'two'"):
        store.create(plans.of_runs("0a", name="two"), "name: two\n")
    for damaged in ("{", "[]", '{"runs": 3, "experiment": 3}'):  # it is written anew
        store.plan_file.write_text(damaged)
        store.create(plans.of_runs("0a", name="two"), "name: two\n")
