"""Models go to a repository with a card that says what was measured: a server on this machine."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest
import yaml

from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.interop.hub import Repository
from llama_ablate.interop.model_card import model_card
from llama_ablate.results import Record, Results, Store
from tests.metrics import measured
from tests.plans import RECORD, document, run, table, variant


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does to who we are, a new repository, and a commit."""

    def do_GET(self):
        self._answer({"name": "me", "type": "user"})

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        lines = [json.loads(line) for line in self.rfile.read(length).splitlines() if line.strip()]
        self.server.asked.append((self.path, self.headers["Authorization"], lines))
        place = f"{self.server.url}/me/model"
        if self.path.endswith("/create"):
            return self._answer({"url": place, "name": "me/model"})
        if "/preupload/" in self.path:
            names = [file["path"] for file in lines[0]["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return self._answer({"files": [{"path": name, **modes} for name in names]})
        if "/commit/" in self.path:
            commit = {"commitUrl": f"{place}/commit/abc", "commitOid": "abc"}
            return self._answer({"success": True, **commit})
        return self._answer({})

    def _answer(self, values):
        content = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked, server.url = [], f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_ours")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_folder_is_uploaded_as_one_commit_with_the_users_token(hub, tmp_path):
    (tmp_path / "README.md").write_text("# card", "utf-8")
    (tmp_path / "config.json").write_text("{}", "utf-8")
    repository = Repository("me/model", private=True)
    repository.check()
    assert repository.push(tmp_path, "a model").endswith("/me/model/commit/abc")
    (create,) = [lines[0] for path, _, lines in hub.asked if path.endswith("/create")]
    assert (create["name"], create["organization"]) == ("model", "me")
    assert create["visibility"] == "private"
    (commit,) = [lines for path, _, lines in hub.asked if "/commit/" in path]
    sent = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in commit
        if line["key"] == "file"
    }
    assert sent == {"README.md": b"# card", "config.json": b"{}"}
    assert commit[0]["value"]["summary"] == "a model"
    assert {token for _, token, _ in hub.asked} == {"Bearer hf_ours"}


@pytest.mark.parametrize(
    ("name", "said"), [("model", "is OWNER/NAME"), ("me/a b", "a b"), ("a/b/c", "a/b/c")]
)
def test_what_cannot_be_a_repository_is_refused(name, said):
    with pytest.raises(ConfigError, match=f"--push {name}: .*{said}"):
        Repository(name)


def refusal(capsys, *words):
    assert main(["export", "no-such-run", "out", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_without_a_token_or_a_network_export_says_so_before_it_opens_the_model(monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert "there is no token" in refusal(capsys, "--push", "me/model")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_ours")
    assert "--push me/model: " in refusal(capsys, "--push", "me/model")  # tests are offline
    assert "--dry-run goes with --push" in refusal(capsys, "--dry-run")


@pytest.fixture
def results(tmp_path):
    variants = [variant("v1", "rope"), variant("v2", "a<b")]
    runs = [run(f"r{v}{s}", f"v{v}", seed=s) for v in (1, 2) for s in (0, 1, 2)]
    store = Store(tmp_path / "x")
    store.prepare()
    store.create(document(table(variants, runs), name="x", question="Which one?"), "")
    for one in runs:
        loss = 2.0 - 0.25 * (one.variant == "v2") + 0.01 * one.seed + 0.001 * (one.id == "r21")
        numbers = measured(test_loss_nats=loss, validation_loss_nats=loss + 0.1)
        values = {**RECORD.to_dict(), "id": one.id, "variant": one.variant, "seed": one.seed}
        values |= {"label": "rope" if one.variant == "v1" else "a<b"}
        values["metrics"] = {"perplexity": numbers.to_dict()}
        store.commit(Record.from_dict(values), [], None)
    return Results(store)


def test_a_card_has_the_numbers_of_the_record_and_their_limits(results):
    card = model_card("'x'", (results, "r20"), "mit")
    _, metadata, text = card.split("---\n", 2)
    assert yaml.safe_load(metadata)["license"] == "mit"
    row = results.record("r20").numbers
    assert f"| test loss nats | {row['test_loss_nats']:.4f} |" in text
    assert "Its variant against `rope`, over 3 seeds: -0.2497 nats per token" in text
    assert "**better**" in text
    assert "It asks: Which one?" in text
    assert "1,000 parameters (900 without" in text
    assert "64 tokens of training" in text
    assert "**Text**: `python-stdlib" in text
    assert "**Seeds**: 3 of this variant" in text
    assert "**Not tested**: other sizes" in text
    assert '"dim": 8' in text
    assert "a&lt;b" in text
    assert "a<b" not in text


def test_a_card_of_a_baseline_names_it_and_no_licence_is_made_up(results):
    card = model_card("'x'", (results, "r10"))
    assert "a run of the baseline" in card
    assert "license" not in card.split("---\n", 2)[1]
    assert "No licence was stated" in card


def test_a_card_of_a_model_that_is_no_run_claims_no_numbers():
    card = model_card("'some checkpoint'", None)
    assert "Nothing was measured of this model" in card
    assert "nats" not in card
