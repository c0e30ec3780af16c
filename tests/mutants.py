"""Faults to seed in a copy of the package, each with the tests that are to catch it.

A fault names a function and an expression or statement in it. Both are compared as syntax trees, so
layout and comments do not matter; a fault whose place has changed is told by name.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """A fault: what is wrong, in which function, and what stands where something else stood."""

    what: str
    file: str
    function: str
    stands: str
    instead: str
    #: The tests that are to catch it, those that catch it soonest first.
    caught_by: tuple[str, ...]

    def spoil(self, copy: Path) -> str:
        """Write the fault into a copy of the sources; return what stood there before."""
        path = copy / "llama_ablate" / self.file
        before = path.read_text("utf-8")
        tree, swap = ast.parse(before), _Swap(_tree(self.stands), _tree(self.instead))
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == self.function
        ]
        for function in functions:
            function.body = [swap.visit(statement) for statement in function.body]
        assert swap.swapped == 1, (
            f"tests/mutants.py: '{self.what}' cannot be seeded: `{self.stands}` stands "
            f"{swap.swapped} times in {self.function} of {self.file}"
        )
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)), "utf-8")
        return before


class _Swap(ast.NodeTransformer):
    """Put one tree in the place of every tree that is equal to another."""

    def __init__(self, stands: ast.AST, instead: ast.AST) -> None:
        self._stands, self._instead, self.swapped = ast.dump(stands), instead, 0

    def visit(self, node: ast.AST) -> ast.AST:
        if ast.dump(node) == self._stands:
            self.swapped += 1
            return self._instead
        return self.generic_visit(node)


def _tree(source: str) -> ast.AST:
    """Return a statement, or an expression without the statement around it."""
    (statement,) = ast.parse(source).body
    return statement.value if isinstance(statement, ast.Expr) else statement


DISK, LEASES = "files/disk.py", "results/leases.py"
RESULTS = "tests/test_results.py"
POWER = "tests/reliability/test_power_loss.py"
DAMAGE = "tests/reliability/test_damage.py"
RACES = "tests/reliability/test_races.py"
CRASHES = "tests/reliability/test_crashes.py"
WORKING, TOKENS = "data/working.py", "tests/data/test_believed_tokens.py"

#: R23: faults of the store and of what it keeps.
STORE = (
    Mutant("files are not flushed", DISK, "close", "os.fsync(self._handle)", "None", (POWER,)),
    Mutant("folders are not flushed", DISK, "sync", "os.fsync(handle)", "None", (POWER,)),
    Mutant(
        "documents are written in place",
        DISK,
        "replace",
        "(aside or path.parent) / f'{PARTIAL}{secrets.token_hex(8)}'",
        "(remove(path), path)[1]",
        (RESULTS, POWER),
    ),
    Mutant("an error of the disk is swallowed", DISK, "write", "raise", "pass", (RESULTS, CRASHES)),
    Mutant(
        "a lease can be had twice",
        LEASES,
        "__init__",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL",
        "os.O_WRONLY | os.O_CREAT",
        (RACES,),
    ),
    Mutant(
        "a lease that was broken counts as held",
        LEASES,
        "held",
        "(there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)",
        "bool(there)",
        (RACES,),
    ),
    Mutant(
        "a lease is never renewed",
        LEASES,
        "_renew",
        "os.utime(self._handle, ns=(0, beat * 10**9))",
        "None",
        (RACES,),
    ),
    Mutant(
        "a beat is the time of the clock",
        LEASES,
        "_renew",
        "(0, beat * 10**9)",
        "(0, int(time.time()) * 10**9)",
        (RACES,),
    ),
    Mutant(
        "a lease is counted by the clock",
        LEASES,
        "waits",
        "time.monotonic()",
        "time.time()",
        (RACES,),
    ),
    Mutant(
        "the process of a lease is known by its number alone",
        "results/leases.py",
        "alive",
        "_began(int(pid)) == began",
        "_began(int(pid)) != ''",
        (DAMAGE,),
    ),
    Mutant(
        "a process of another boot is taken for dead",
        "results/leases.py",
        "alive",
        "(boot, namespace) != (_boot(), _namespace())",
        "namespace != _namespace()",
        (DAMAGE,),
    ),
    Mutant(
        "hashes are not looked at",
        "results/run.py",
        "_compare",
        "self.manifest.get(name, {}).get('sha256') != digest",
        "self.manifest.get(name, {}).get('sha256') == 'never'",
        (RESULTS, DAMAGE),
    ),
    Mutant(
        "a failed run among the finished ones is believed",
        "results/run.py",
        "intact",
        "final == (folder.parent == self.final)",
        "True",
        (RESULTS, DAMAGE),
    ),
    Mutant(
        "a damaged checkpoint is believed",
        "training/checkpoint.py",
        "load",
        "not path.name.endswith(f'-{digest[:32]}.pt')",
        "not digest",
        (DAMAGE, "tests/training/test_loop.py"),
    ),
    Mutant(
        "the optimizer's state is not restored",
        "training/loop.py",
        "_resume",
        "optimizer.load_state_dict(values['optimizer'])",
        "values['optimizer']",
        ("tests/reliability/test_resume.py",),
    ),
    Mutant(
        "a note of a tokenisation is believed without its seal",
        WORKING,
        "recall",
        "read_json(file, _place(file))",
        "read_json(file)",
        (TOKENS,),
    ),
    Mutant(
        "a note of one text is believed of another",
        WORKING,
        "_place",
        "'/'.join(file.parts[-2:])",
        "''",
        (TOKENS,),
    ),
    Mutant(
        "a manifest may count other tokens than there are",
        "data/tokens.py",
        "_check",
        "before[0] != size",
        "False",
        (TOKENS,),
    ),
    Mutant(
        "a run that has ended meanwhile is leased",
        "results/store.py",
        "lease",
        "lease and self.is_final(run)",
        "False",
        (RESULTS,),
    ),
    Mutant(
        "a failed attempt ends its lease, checkpoints and all",
        "results/store.py",
        "commit",
        "record.outcome in FINAL and folder",
        "folder",
        (RESULTS,),
    ),
    Mutant(
        "the last window is never drawn",
        "data/tokens.py",
        "batch",
        "len(ids) - context",
        "len(ids) - context - 1",
        ("tests/data/test_tokens.py",),
    ),
    Mutant(
        "tokens of another text are believed",
        "data/tokens.py",
        "load",
        "tokens.fingerprint != folder.name",
        "False",
        (TOKENS,),
    ),
)

GRID, REPORT = "tests/test_variants.py", "tests/report/test_report.py"

#: Faults of what decides which runs there are, and of what is said about them.
EVIDENCE = (
    Mutant(
        "a candidate has more level than a test alone",
        "judge/ledger.py",
        "level",
        "min(level, _MOST_LEVEL)",
        "level",
        ("tests/judge/test_judge.py",),
    ),
    Mutant(
        "a gate spends more level than was granted",
        "judge/ledger.py",
        "gate",
        "2 * begun.level / _OF_TABLE",
        "2.2 * begun.level / _OF_TABLE",
        ("tests/judge/test_judge.py",),
    ),
    Mutant(
        "the surer of two intervals says how sure both are",
        "evidence/intervals.py",
        "hull",
        "max(self.p, other.p)",
        "min(self.p, other.p)",
        ("tests/evidence/test_intervals.py",),
    ),
    Mutant(
        "a variant that changes only its training is taken for the base",
        "design/variants.py",
        "is_base",
        "self.spec == spec and not (self.train or self.data or self.text or self.reseed)",
        "self.spec == spec and not (self.data or self.text)",
        (GRID, "tests/test_experiment.py", "tests/test_plan.py"),
    ),
    Mutant(
        "a run that is evaluated otherwise than it is trained has the id of another",
        "design/table.py",
        "_read",
        "[self.span(data), evaluated, parts and {'mixture': parts}]",
        "[self.span(data), parts and {'mixture': parts}]",
        ("tests/test_data_axes.py",),
    ),
    Mutant(
        "held-out text is read as a model was trained, whatever its table says",
        "training/evaluation.py",
        "reading",
        "model.spec = replace(own, separator=separator)",
        "model.spec = own",
        ("tests/test_data_axes.py",),
    ),
    Mutant(
        "a table has the losses of the first way of reading, whatever its own",
        "findings/frames.py",
        "_table",
        "[(run.variant, run.id + behind) for run in finished]",
        "[(run.variant, run.id) for run in finished]",
        ("tests/test_data_axes.py",),
    ),
    Mutant(
        "the rows of a mixture are all of its first source",
        "data/mixtures.py",
        "batch",
        "np.stack(own)[drawn, np.arange(size)]",
        "own[0]",
        ("tests/test_data_axes.py",),
    ),
    Mutant(
        "a variant of another batch trains for as many steps, on other amounts of text",
        "design/table.py",
        "steps_of",
        "self.budget != 'seconds'",
        "self.budget == 'seconds'",
        ("tests/test_data_axes.py",),
    ),
    Mutant(
        "a variant's training is no part of its identity",
        "design/variants.py",
        "id",
        "dict(self.train)",
        "{}",
        (GRID, "tests/test_plan.py"),
    ),
    Mutant(
        "the half fraction leaves its last factor where it is",
        "design/variants.py",
        "half_fraction",
        "sum(run) % 2",
        "0",
        (GRID, "tests/evidence/test_factorial.py"),
    ),
    Mutant(
        "a range is at least its mean",
        "findings/contrasts.py",
        "axes",
        "max(0.0, *surely.values())",
        "max(above.values())",
        ("tests/report/test_grid.py",),
    ),
    Mutant(
        "a missing run counts as the mean of its cell",
        "evidence/factorial.py",
        "completed",
        "cells[:, None] + seeds",
        "cells[:, None] + seeds.mean()",
        ("tests/report/test_grid.py", "tests/evidence/test_factorial.py"),
    ),
    Mutant(
        "the cells of a grid stop one by one",
        "findings/stages.py",
        "stand",
        "{v.id for v in arms if v.levels}",
        "set()",
        ("tests/report/test_grid.py",),
    ),
    Mutant(
        "an A/A arm has the seeds of the baseline",
        "design/table.py",
        "order_seed",
        "self.variant.reseed in ('order', 'both')",
        "False",
        ("tests/test_plan.py", "tests/test_experiment.py", GRID),
    ),
    Mutant(
        "a matched width is not rounded",
        "design/matching.py",
        "_solved",
        "max(multiple, round(exact / multiple) * multiple)",
        "max(multiple, round(exact))",
        (GRID,),
    ),
    Mutant(
        "a budget may be off by a tenth",
        "design/matching.py",
        "_solved",
        "abs(residual) <= TOLERANCE",
        "abs(residual) <= 20 * TOLERANCE",
        (GRID,),
    ),
    Mutant(
        "an interval is not corrected for the rows of its table",
        "evidence/intervals.py",
        "simultaneous",
        "m / shares.get(name, 1.0)",
        "1 / shares.get(name, 1.0)",
        ("tests/evidence/test_intervals.py",),
    ),
    Mutant(
        "a row borrows the variance of rows that are far quieter",
        "evidence/intervals.py",
        "_moderated",
        "min(1.0, _UNLIKE * prior / variance)",
        "1.0",
        ("tests/evidence/test_intervals.py",),
    ),
    Mutant(
        "an interval has a degree of freedom too many",
        "evidence/pairing.py",
        "paired_effect",
        "quantile((1 + confidence) / 2, n - 1)",
        "quantile((1 + confidence) / 2, n)",
        ("tests/evidence/test_pairing.py", REPORT),
    ),
    Mutant(
        "worse is taken for better",
        "evidence/verdicts.py",
        "verdict",
        "interval.high < 0",
        "interval.low > 0",
        ("tests/evidence/test_verdicts.py", REPORT),
    ),
    Mutant(
        "a run that diverged counts in its variant's loss",
        "findings/comparison.py",
        "losses_by_seed",
        "run.outcome == 'ok' and math.isfinite((loss := run.number(name)))",
        "math.isfinite((loss := run.number(name)))",
        (REPORT, "tests/report/test_tuning.py"),
    ),
    Mutant(
        "a run that is too short of the baseline decides",
        "evidence/verdicts.py",
        "judged",
        "own.too_short or base.too_short",
        "own.too_short",
        ("tests/evidence/test_verdicts.py", "tests/report/test_outcomes.py"),
    ),
    Mutant(
        "the seeds that an arm kept make it better",
        "evidence/verdicts.py",
        "judged",
        "own.lost and word != 'worse'",
        "False",
        ("tests/evidence/test_verdicts.py", REPORT),
    ),
    Mutant(
        "a run near chance has collapsed, though it still falls",
        "training/loop.py",
        "_has_stopped",
        "before - last <= max(_STOPPED * (chance - last), _STILL)",
        "True",
        ("tests/training/test_evaluation.py",),
    ),
    Mutant(
        "a run that is lower all along counts as collapsed beside one that falls",
        "findings/outcomes.py",
        "_milder_of",
        "all(map(operator.ge, losses, own))",
        "False",
        ("tests/report/test_outcomes.py",),
    ),
    Mutant(
        "a point at which a run diverged may be chosen",
        "findings/tuning.py",
        "_mean",
        "len(runs) - len(ok)",
        "0",
        ("tests/report/test_tuning.py",),
    ),
    Mutant(
        "a record that is not final keeps a run from being tried again",
        "results/store.py",
        "is_final",
        "record.outcome in FINAL",
        "bool(record.outcome)",
        (RESULTS,),
    ),
    Mutant(
        "a text is scored one token early",
        "measure/likelihood.py",
        "likelihoods",
        "hidden_TD[len(line) - 1 - count : len(line) - 1]",
        "hidden_TD[len(line) - 2 - count : len(line) - 2]",
        ("tests/test_cloze.py",),
    ),
    Mutant(
        "who cannot tell choices apart is right",
        "measure/cloze.py",
        "_right",
        "b[item.answer] / b.sum()",
        "b[item.answer] / 1",
        ("tests/test_cloze.py",),
    ),
    Mutant(
        "seeds that agree by chance have no error of the items",
        "evidence/item_error.py",
        "item_error",
        "max(missing, least**2)",
        "least**2",
        ("tests/evidence/test_items.py",),
    ),
    Mutant(
        "a guard is broken where the mean lies beyond it",
        "findings/guards.py",
        "_result",
        "harm.low > bound",
        "harm.mean > bound",
        ("tests/report/test_guards.py",),
    ),
    Mutant(
        "answers to other items are compared",
        "findings/tasks.py",
        "shared_seeds",
        "s in other and own[s].fingerprint == other[s].fingerprint",
        "s in other",
        ("tests/report/test_guards.py",),
    ),
)

STRANGERS, PACKS = "tests/reliability/test_strangers.py", "tests/test_pack.py"
TRACK, LIVE = "tests/test_track.py", "tests/test_live.py"
LOOKS, VERSIONS = "tests/test_looks.py", "tests/reliability/test_damage.py"

#: Faults of what reads others' files, packs, tells versions apart, and works beside a grid.
WINGS = (
    Mutant(
        "what a family adds to a stored norm is left out",
        "interop/families.py",
        "_change",
        "{'scale': float(config.get(key, usual)) ** power, 'offset': plus}",
        "{'scale': float(config.get(key, usual)) ** power, 'offset': 0.0}",
        ("tests/interop/test_families.py",),
    ),
    Mutant(
        "a name may lead out of its folder",
        DISK,
        "below",
        "name in ('', '.', '..') or {'/', '\\0', os.sep} & {*name}",
        "False",
        (RESULTS,),
    ),
    Mutant("links are written through", DISK, "below", "os.path.islink(path)", "False", (RESULTS,)),
    Mutant(
        "a pipe is read like a file",
        DISK,
        "_regular",
        "stat.S_ISREG(found.st_mode)",
        "True",
        (STRANGERS,),
    ),
    Mutant(
        "a number may have any number of digits",
        "files/strict_json.py",
        "_integer",
        "len(digits) > _DIGITS",
        "False",
        (RESULTS,),
    ),
    Mutant(
        "a document may have any number of levels",
        "files/strict_json.py",
        "_finish",
        "not levels",
        "False",
        (RESULTS,),
    ),
    Mutant(
        "a lost run is shown without those beside which it counts",
        "commands/show.py",
        "_alone",
        "run.seed in lost",
        "False",
        ("tests/test_store_at_scale.py::test_beside_a_lost_run_those_of_its_seed_are_read",),
    ),
    Mutant(
        "a pack may unpack to any size",
        "files/archive.py",
        "__init__",
        "MAX_BYTES",
        "1 << 62",
        (PACKS,),
    ),
    Mutant(
        "a path in a pack may lead out of it",
        "files/archive.py",
        "_members",
        "_is_safe(member.name)",
        "True",
        (PACKS,),
    ),
    Mutant(
        "a file may be in a pack twice",
        "files/archive.py",
        "_members",
        "member.name in contents",
        "False",
        (PACKS,),
    ),
    Mutant(
        "a pack is not read to its check sums",
        "files/archive.py",
        "_contents",
        "stream.read(1 << 20)",
        "False",
        (PACKS,),
    ),
    Mutant(
        "a pack takes the place of another experiment's",
        "commands/pack.py",
        "_refuse_target",
        "there != name",
        "False",
        (PACKS,),
    ),
    Mutant(
        "two commands pack into one place",
        "results/pack.py",
        "write_pack",
        "disk.locked(target)",
        "disk._handle_of(target)",
        (PACKS,),
    ),
    Mutant(
        "a stored hypothesis of a form that is gone is judged without its key",
        "config/stored.py",
        "_place",
        "where[0] in _WHOLE_ENTRIES",
        "False",
        (PACKS,),
    ),
    Mutant(
        "a later format is read as ours",
        "results/plan_document.py",
        "validated",
        "number != FORMAT",
        "False",
        (VERSIONS, PACKS),
    ),
    Mutant(
        "another version's plan counts as damaged",
        "results/plan_document.py",
        "sound_plan",
        "raise",
        "return None",
        (VERSIONS, RESULTS),
    ),
    Mutant(
        "a note of how far a run is may be anything",
        "results/live.py",
        "read",
        "(OSError, ConfigError, ValidationError)",
        "OSError",
        (LIVE, STRANGERS),
    ),
    Mutant(
        "the pace of a run that has not begun is known",
        "results/live.py",
        "seconds_left",
        "not self.tokens_per_s or not self.step",
        "False",
        (LIVE, STRANGERS),
    ),
    Mutant(
        "a point of a curve is sent twice",
        "track/follower.py",
        "_points",
        "step > ours.step",
        "True",
        (TRACK,),
    ),
    Mutant(
        "what a tracker failed to take is not sent again",
        "track/follower.py",
        "_opened",
        "self._open.pop(run, None)",
        "None",
        (TRACK,),
    ),
    Mutant(
        "two commands send to one tracker",
        "track/follower.py",
        "alone",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        (TRACK,),
    ),
    Mutant(
        "a variant is judged before its race is decided",
        "findings/stages.py",
        "state",
        "'pending' in either",
        "'pending' in of_look(arm, look)",
        (LOOKS, "tests/report/test_stages.py"),
    ),
    Mutant(
        "a row that is decided goes on to the next look",
        "findings/stages.py",
        "decided",
        "word != 'inconclusive' or (not is_last and settled(row, look))",
        "False",
        ("tests/report/test_stages.py", LOOKS),
    ),
    Mutant(
        "an arm that will hardly be decided goes on to the last look",
        "evidence/sequential.py",
        "is_futile",
        "chance_to_decide(row, looks[-1], level, is_decided) < FUTILE",
        "False",
        ("tests/evidence/test_sequential.py",),
    ),
    Mutant(
        "two seeds that happen to agree leave the text's part alone",
        "evidence/intervals.py",
        "joined_df",
        "5 / (2 * seeds.df + 3)",
        "0.0",
        ("tests/evidence/test_few_seeds.py",),
    ),
    Mutant(
        "a row is judged against the baseline alone where that is of two kinds",
        "findings/comparison.py",
        "further_baselines",
        "p is None",
        "True",
        ("tests/report/test_shape.py",),
    ),
    Mutant(
        "a bias widens the wrong end of an interval",
        "evidence/intervals.py",
        "widened",
        "self.low - less",
        "self.low + less",
        ("tests/report/test_controls.py",),
    ),
    Mutant(
        "what a failing control leaves open stands as a verdict",
        "findings/controls.py",
        "held",
        "seen or word == 'equivalent'",
        "False",
        ("tests/report/test_headline.py",),
    ),
    Mutant(
        "a baseline answers to no component",
        "results/plan_document.py",
        "variant",
        "name in labels.baseline_aliases(*own)",
        "False",
        ("tests/report/test_one_truth.py",),
    ),
    Mutant(
        "the answer says the contrary of the table",
        "report/headline.py",
        "_by_word",
        "word == 'better' and base",
        "word == 'worse' and base",
        ("tests/report/test_headline.py", "tests/report/test_one_truth.py"),
    ),
    Mutant(
        "a positive control guards a difference that was seen",
        "findings/controls.py",
        "failing",
        "kind == 'aa' or not seen_to_differ",
        "True",
        ("tests/report/test_controls.py",),
    ),
    Mutant(
        "what was expected of the noise changes once runs have finished",
        "results/store.py",
        "create",
        "plan.with_noise_of(current)",
        "plan",
        ("tests/report/test_noise.py",),
    ),
    Mutant(
        "earlier experiments count as if they had been this one",
        "evidence/noise.py",
        "expected",
        "StandardError(math.exp(log / 2), self.df)",
        "StandardError(math.exp(log / 2), 500.0)",
        ("tests/report/test_noise.py",),
    ),
    Mutant(
        "a table that is far noisier than expected keeps what was expected",
        "evidence/intervals.py",
        "believed",
        "above_f(ratio, sum(dfs), worth) < _UNEXPECTED",
        "False",
        ("tests/evidence/test_noise.py",),
    ),
    Mutant(
        "more documents do not narrow what is promised",
        "evidence/power.py",
        "with_documents",
        "self.may_be.se / math.sqrt(factor)",
        "self.may_be.se",
        ("tests/evidence/test_power.py",),
    ),
    Mutant(
        "the text that chose the tuned points is reported too",
        "findings/frames.py",
        "_texts",
        "plan.experiment.tune",
        "False",
        ("tests/report/test_heldout.py",),
    ),
    Mutant(
        "a long held-out document is read whole",
        "data/texts.py",
        "_placed",
        "corpus.longest if name != 'train' else None",
        "None",
        ("tests/data/test_texts.py",),
    ),
    Mutant(
        "held-out episodes are trained on",
        "data/sources/episodes.py",
        "sample",
        "(np.minimum(sums, 2) + 1) % 3 == self.split",
        "np.minimum(sums, 2) >= 0",
        ("tests/data/test_episodes.py",),
    ),
    Mutant(
        "an answer is scored whose question no window shows",
        "data/sources/episodes.py",
        "answers",
        "begun & (self._ways(windows) == 0)",
        "self._ways(windows) == 0",
        ("tests/data/test_episodes.py",),
    ),
)
