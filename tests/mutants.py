"""Faults to seed in a copy of the package, each with the tests that are to catch it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A fault: what is wrong, in which file, and what stands where something else stood once."""

    what: str
    file: str
    stands: str
    instead: str
    #: The tests that are to catch it, those that catch it soonest first.
    caught_by: list[str]

    def spoiled(self) -> str:
        """Return the source of the file with the fault."""
        source = (ROOT / "llama_ablate" / self.file).read_text("utf-8")
        times = source.count(self.stands)
        assert times == 1, f"'{self.what}': `{self.stands}` stands {times} times in {self.file}"
        return source.replace(self.stands, self.instead)


#: What is wrong, where, the tests that are to catch it; what stands there, and what instead.
_TABLE = r"""
files are not flushed | files/disk.py | reliability/test_power_loss.py
    os.fsync(self._handle) -> pass
folders are not flushed | files/disk.py | reliability/test_power_loss.py
    os.fsync(handle) -> pass
documents are written in place | files/disk.py | test_results.py
    (aside or path.parent) / f"{PARTIAL}{secrets.token_hex(8)}" -> (remove(path), path)[1]
an error of the disk is swallowed | files/disk.py | test_results.py
    with contextlib.closing(file): -> with contextlib.closing(file), contextlib.suppress(OSError):
a lease can be had twice | results/leases.py | reliability/test_races.py
    os.O_CREAT | os.O_EXCL -> os.O_CREAT
a lease that was broken counts as held | results/leases.py | reliability/test_races.py
    (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev) -> bool(there)
a process of another boot is taken for dead | results/leases.py | reliability/test_damage.py
    (boot, namespace) != (_boot(), _namespace()) -> namespace != _namespace()
hashes are not looked at | results/run.py | test_results.py reliability/test_damage.py
    self._digests.get(name) != digest -> not digest
a damaged checkpoint is believed | training/checkpoint.py | reliability/test_damage.py
    not path.name.endswith(f"-{digest[:32]}.pt") -> not digest
a path in a pack may lead out of it | results/archive.py | test_pack.py
    {"", ".", ".."} & {*parts} or -> not parts or
a window is one token too wide | model/context.py | model/test_patterns.py
    (back_TS >= window) -> (back_TS > window)
a document sees the end of the one before it | model/context.py | model/test_laws.py
    unseen_BTS = at_S < first_BT[..., None] -> unseen_BTS = at_S < first_BT[..., None] - 1
positions begin anew behind a cache | model/context.py | model/test_patterns.py
    torch.arange(self.start, self.start + self.new -> torch.arange(0, self.new
RoPE pairs neighbours in the layout of halves | model/rope.py | model/test_rope.py
    x.roll(R // 2, -1) -> x.roll(1, -1)
shared heads are dealt out in turns | model/kernels.py | interop/test_trace.py
    x.repeat_interleave(group, dim=1) -> x.repeat(1, group, 1, 1)
the soft cap of scores is not scaled back | model/kernels.py | model/test_attention.py
    softcap * torch.tanh(scores_BHTS / softcap) -> torch.tanh(scores_BHTS / softcap)
the gradient of queries lacks the scale | model/kernels.py | model/test_attention.py
    (grad_scores @ k_KBSE).mul_(ctx.scale) -> grad_scores @ k_KBSE
eps stands outside the root of RMSNorm | model/norms.py | model/test_norms.py
    .add_(eps).rsqrt_() -> .rsqrt_().add_(eps)
the balance loss lacks the number of experts | model/mixture.py | model/test_mixture.py
    len(share_N) * (share_N * mean_N).sum() -> (share_N * mean_N).sum()
bytes of a state forget the window | model/mixers/attention.py | model/test_patterns.py
    room = min(capacity, self.window or capacity) -> room = capacity
a full cache keeps the oldest tokens | model/state.py | model/test_patterns.py
    [:, :, -self.room :] -> [:, :, : self.room]
FLOPs count the scores of shared heads alone | model/mixers/attention.py | model/test_patterns.py
    2 * keys * self.heads * self.head_dim -> 2 * keys * self.kv_heads * self.head_dim
initial weights are of half of the depth | model/initialisation.py | model/test_initialisation.py
    init_std / math.sqrt(2 * layers) -> init_std / math.sqrt(layers)
gradients are not clipped | training/compute.py | training/test_losses.py
    most or math.inf, norm) -> math.inf, norm)
gradients of parts are summed | training/compute.py | plugins/test_seams.py
    (total / len(parts)).backward() -> total.backward()
warm-up begins at a rate of 0 | training/schedules.py | training/test_schedule.py
    train.lr * (step + 1) / (warm + 1) -> train.lr * step / warm
gains of norms decay | model/linear.py | training/test_optimizers.py
    parameter.dim() >= 2 and part -> parameter.dim() >= 1 and part
moments are lost where a run resumes | training/loop.py | training/test_loop.py
    (values["optimizer"]) -> (optimizer.state_dict())
Muon takes a single step of Newton and Schulz | training/optimizers.py | training/test_optimizers.py
    ns_steps=ns_steps, -> ns_steps=1,
a smaller last part counts as a whole | training/token_losses.py | training/test_token_losses.py
    share = len(some_ND) / len(hidden_ND) -> share = rows / len(hidden_ND)
the end of a split is not evaluated | training/evaluation.py | training/test_evaluation.py
    rest := predictions - full -> rest := not cut and predictions - full
validation text is trained on | data/texts.py | data/test_texts.py
    StreamedText(_between, pieces, start, stop) -> StreamedText(_between, pieces, 0, stop)
all seeds read the same batches | data/tokens.py | data/test_tokens.py
    np.random.Philox(key=[seed, k]) -> np.random.Philox(key=[0, k])
batches come again after 65,536 steps | data/tokens.py | data/test_tokens.py
    key=[seed, k] -> key=[seed, k & 0xFFFF]
blank documents are equal to each other | data/overlap.py | data/test_overlap.py
    np.where(hashes == 0, -> np.where(hashes < 0,
a blank document counts as trained on | data/overlap.py | data/test_overlap.py
    np.asarray(is_there & (hashes != 0)) -> np.asarray(is_there)
a schedule falls during its warm-up | training/schedules.py | training/test_schedule.py
    min(max(1, round(decay * steps)), steps - warm) -> max(1, round(decay * steps))
a run is committed without its lease | results/store.py | test_results.py
    if lease.held and (disk.place -> if (disk.place
a model learns to repeat its input | training/losses.py | training/test_losses.py
    tokens_BT1[:, :-1], tokens_BT1[:, 1:] -> tokens_BT1[:, :-1], tokens_BT1[:, :-1]
a separator begins a document | data/tokens.py | data/test_tokens.py
    starts.append(ends + counts[split] + 1) -> starts.append(ends + counts[split])
an end stands behind the last document too | data/tokenizer.py | data/test_tokenizer_files.py
    np.concatenate(parts[:-1]) -> np.concatenate(parts)
white space hides that a held-out document is trained on | data/texts.py | data/test_overlap.py
    letters = "".join(piece.decode().split()) -> letters = piece.decode()
the first source is read alone | data/batches.py | test_data_axes.py
    np.searchsorted(ends[:-1] -> np.searchsorted(ends[1:]
a token of three bytes is stored in two | data/encoding.py | data/test_encoding.py
    np.uint16 if vocab <= 2**16 else np.uint32 -> np.uint16 if vocab <= 2**17 else np.uint32
the last of two equal keys wins | config/marked_yaml.py | test_marked_yaml.py
    if key in mapping: -> if key in marks:
1e-4 is text | config/marked_yaml.py | test_marked_yaml.py
    (?:\.(?:{_DIGITS})?)? -> \.(?:{_DIGITS})?
a bare No is text | config/marked_yaml.py | test_marked_yaml.py
    node.value.lower() in _OLD_BOOLEANS -> node.value in _OLD_BOOLEANS
an unknown key is left out in silence | config/validation.py | test_mistakes.py
    extra="forbid" -> extra="ignore"
the nearest name is the one least alike | errors.py | test_mistakes.py
    (groups, 0.65), -> (groups, 0.95),
ids depend on defaults that are written out | config/registry.py | test_run_ids.py
    if k not in defaults or v != defaults[k]} -> }
runs of other lengths have one id | design/runs.py | test_run_ids.py
    run["steps"], *_read(experiment -> *_read(experiment
a match may be off by a twentieth | design/matching.py | test_plan.py
    TOLERANCE = 0.005 -> TOLERANCE = 0.05
an A/A arm of other draws keeps the initial weights | design/runs.py | test_plan.py
    (variant.reseed in ("init", "both")) -> (variant.reseed == "init")
a fraction confounds two factors | design/variants.py | evidence/test_factorial.py
    (*run, sum(run) % 2) -> (*run, run[0])
a rate at which runs diverged may be chosen | findings/tuning.py | findings/test_tuning.py
    sort_values(["open", "lost", "loss"] -> sort_values(["open", "loss"]
two variants may have one label | design/variants.py | test_mistakes.py
    labels.setdefault(variant.label, variant) is -> labels.setdefault(variant.id, variant) is
equal FLOPs give the dearer variant more steps | design/runs.py | test_plan.py
    costs[table.baseline.id] / costs[variant.id] -> costs[variant.id] / costs[table.baseline.id]
rows are not corrected for their number | evidence/intervals.py | evidence/test_intervals.py
    level = alpha / size * -> level = alpha *
n seeds give n degrees of freedom | evidence/intervals.py | evidence/test_intervals.py
    moderate_variances(own_variance, n - 1.0) -> moderate_variances(own_variance, n + 0.0)
intervals are those of a normal distribution | evidence/student.py | evidence/test_intervals.py
    special.stdtrit(df, share) -> special.stdtrit(np.maximum(df, 1e9), share)
seeds are compared with a mean | findings/compare.py | findings/test_compare.py
    value - self.second[key] for -> value - fmean(self.second.values()) for
the error of texts holds that of seeds | evidence/text_error.py | evidence/test_text.py
    text = documents - interaction -> text = documents
a row is equivalent where its mean is | evidence/verdicts.py | evidence/test_verdicts.py
    if margin and -margin < low and high < margin: -> if margin and abs(low + high) / 2 < margin:
a variant is better where its mean is below 0 | evidence/verdicts.py | evidence/test_verdicts.py
    if high < 0: -> if low + high < 0:
not worse is read as better by the margin | findings/hypotheses.py | findings/test_compare.py
    else "better", -entry.size -> else "better", entry.size
the means of seeds cost no degrees of freedom | evidence/factorial.py | evidence/test_factorial.py
    float(runs.sum() - cells - seeds + 1) -> float(runs.sum() - cells)
effects have the other sign | evidence/factorial.py | evidence/test_factorial.py
    every[i].index(high)]] = -1, 1 -> every[i].index(high)]] = 1, -1
Fisher's test leaves out what was seen | evidence/rates.py | evidence/test_rates.py
    if way <= combinations[hits]) -> if way < combinations[hits])
each look spends what all before it may | evidence/sequential.py | evidence/test_sequential.py
    (later - earlier) / looks[-1] -> later / looks[-1]
the expected half width forgets that means vary | findings/precision.py | findings/test_precision.py
    self.noise.seeds * self.spread / math.sqrt(seeds) -> self.noise.seeds * self.spread
a guard takes harm for gain | findings/others.py | findings/test_guards.py
    guard.worse == "higher" else negate(row) -> guard.worse == "lower" else negate(row)
names are not escaped in the page | report/rendering.py | report/test_page.py
    autoescape=html -> autoescape=False
the page may load from anywhere | report/page.py | report/test_page.py
    default-src 'none'; img-src data:; -> default-src *; img-src data:;
a broken guard is not told beside its verdict | findings/comparison.py | findings/test_guards.py
    rows["result"].eq("worse") -> rows["result"].eq("holds")
differences are rounded to one digit | evidence/written.py | findings/test_answer.py
    max(0, 1 - math.floor( -> max(0, 0 - math.floor(
missing runs are not told | findings/warnings.py | report/test_report.py
    (outcome.eq("pending"), -> (outcome.eq("running"),
the ends of an interval in the headline are swapped | findings/answer.py | findings/test_answer.py
    else (-high, -low) -> else (-low, -high)
a link in a results folder is followed | files/disk.py | test_results.py
    if os.path.islink(path): -> if os.path.islink(root):
a document of another place is believed | files/strict_json.py | reliability/test_damage.py
    place.encode() + b"\n" + text -> b"\n" + text
added seeds are no further look | results/protocol.py | test_protocol.py
    len(b.seed_list) > len(a.seed_list) -> len(b.seed_list) < len(a.seed_list)
an arm of another order reads the baseline's | launch/worker.py | findings/test_controls.py
    seed=planned.order_seed, -> seed=planned.seed,
all seeds begin from the same weights | launch/worker.py | test_launch.py
    new_model(spec_from(variant.model), planned.init_seed) -> new_model(spec_from(variant.model), 0)
perplexity is a power of 2 | measure/quality.py | test_measures.py
    perplexity = math.exp(min(mean, 700.0)) -> perplexity = 2 ** min(mean, 700.0)
a further token is measured from an empty cache | measure/live_bytes.py | test_measures.py
    length + 1).nbytes - cache.nbytes -> length + 1).nbytes // length
speeds are inverted | evidence/medians.py | evidence/test_medians.py
    zip(row_turns, base_turns, strict=True) -> zip(base_turns, row_turns, strict=True)
turns that warm up are counted | training/timing.py | training/test_timing.py
    if turn >= warm_up else [] -> if turn >= 0 else []
Meta's queries and keys are read as halves | interop/families.py | interop/test_meta_and_llama2c.py
    "layout": "interleaved", "theta": theta -> "layout": "half", "theta": theta
a head that is not tied is lost | interop/huggingface.py | interop/test_huggingface.py
    head.shape == table.shape and torch.equal(head, table) -> head.shape == table.shape
a rope scaling of older files is left out | interop/families.py | interop/test_huggingface.py
    nested.get("rope_type", nested.get("type", "default")) -> nested.get("rope_type", "default")
a wrong option ends with exit code 1 | commands/cli.py | test_mistakes.py
    self.exit(2, f"{self.prog} -> self.exit(1, f"{self.prog}
what JSON has no number for is text | commands/shared/answer.py | test_cli.py
    nulls=True -> nulls=False
each point is sent to a tracker twice | track/sinks.py | test_track.py
    curve[self._sent :], len(curve) -> curve[max(0, self._sent - 1) :], len(curve)
the gradient of the router is cut | model/mixture.py | test_contracts.py
    self.router.weight.to(wide)) -> self.router.weight.detach().to(wide))
layers drop by one mask | model/dropout.py | test_contracts.py
    {self.step}/{place}" -> {self.step}/{place.rpartition('.')[2]}"
padding enters a convolution | model/mixers/convolution.py | test_contracts.py
    x_BTD = x_BTD * ctx.valid_BT[..., None] -> pass
all layers have the mask of one window | model/context.py | model/test_patterns.py
    key = window, id(self.position) -> key = id(self.position)
a ratio of times leaves out the slow runs | findings/targets.py | findings/test_own_runs.py
    0 < ended[variant] == timed[variant] -> 0 < timed[variant]
own runs that ended early are compared | findings/own_runs.py | findings/test_own_runs.py
    ends["step"] < _EARLY * last -> ends["step"] < 0 * last
the error of given documents is left out | findings/own_runs.py | findings/test_own_runs.py
    error.se or math.nan -> math.nan
one optimizer of several is restored | training/optimizers.py | training/test_optimizer_laws.py
    zip(self._optimizers, states, strict=True) -> zip(self._optimizers[:1], states)
"""


def _faults() -> Iterator[Mutant]:
    lines = _TABLE.strip().splitlines()
    for told, change in zip(lines[::2], lines[1::2], strict=True):
        what, file, tests = told.split(" | ")
        stands, instead = change.strip().split(" -> ")
        yield Mutant(what, file, stands, instead, [f"tests/{test}" for test in tests.split()])


#: R23: faults of numbers and verdicts, and those that lose, believe, lease or let out wrongly.
FAULTS = tuple(_faults())
