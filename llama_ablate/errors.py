"""ConfigError for mistakes in user input, and hints: the nearest match, and what to install."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.util import find_spec

Where = tuple[str | int, ...]

_LISTED = 40  # names that a sentence may list
_COMPARED = 200  # letters of what was given: comparing takes their square

#: What other projects and papers call a thing of ours, without marks and capitals. A word may stand
#: for several: only those that are allowed at a place are offered there.
_OTHER_WORDS = {
    # sections and keys of a file
    "axes": "factors",
    "data": "dataset text",
    "guard": "guards guardrail guardrails constraint constraints",
    "hypotheses": "hypothesis claims predictions",
    "margin": "tolerance equivalence",
    "measure": "metrics metric measures evaluate",
    "name": "title experiment",
    "question": "description",
    "seeds": "repeats replicates numseeds trials",
    "sizes": "ladder scaling scales",
    "tune": "sweep search tuning hyperparameters",
    "variants": "ablations arms treatments",
    "baseline": "control reference",
    "exclude": "skip without except",
    # designs
    "fraction": "factorial fractional halffraction fractionalfactorial",
    "list": "manual custom explicit",
    "one-at-a-time": "oat ofat single ablation onefactoratatime",
    "path": "cumulative sequential incremental stepwise",
    "product": "grid factorial full fullfactorial cartesian crossed combinations",
    # sizes and slots
    "attention": "mixer selfattention tokenmixer",
    "block": "residual normplacement",
    "context": "blocksize seqlen maxseqlen sequencelength contextlength maxpositionembeddings",
    "dim": "hiddensize dmodel nembd embeddim modeldim width",
    "feedforward": "ffn mlp activation",
    "head_dim": "headsize dhead",
    "heads": "nhead nheads numheads numattentionheads",
    "init_std": "initializerrange",
    "kv_heads": "numkvheads nkvheads numkeyvalueheads kvgroups",
    "layers": "depth nlayer nlayers numlayers numhiddenlayers",
    "norm": "normalization normalisation",
    "position": "positional positionembedding positionalencoding posemb pe",
    "theta": "ropetheta ropebase",
    "tie": "tied tieembeddings tiedembeddings tiewordembeddings weighttying",
    "vocab": "vocabsize vocabulary",
    # components
    "adamw": "adam",
    "attention-residuals": "attnres attnresidual",
    "differential": "diff diffattention diffattn difftransformer",
    "gated_delta": "deltanet gateddeltanet",
    "derf": "erf",
    "hyper-connections": "hyper hc mhc dhc shc hyperconnection",
    "gqa": "groupedquery groupedqueryattention",
    "layernorm": "ln",
    "learned": "absolute",
    "mamba2": "mamba ssm",
    "mha": "flash sdpa full local slidingwindow softmax multihead multiheadattention vanilla",
    "mla": "latent multiheadlatentattention",
    "mqa": "multiquery multiqueryattention",
    "none": "nope off no false identity",
    "post": "postnorm postln",
    "pre": "prenorm preln",
    "relu": "mlp",
    "relu2": "squaredrelu relusquared",
    "rmsnorm": "rms",
    "rope": "rotary yarn",
    "sandwich": "peri periln perinorm sandwichnorm",
    "sgd": "momentum",
    "sinusoidal": "sine fixed",
    # training
    "accumulate": "gradientaccumulation gradientaccumulationsteps gradaccum",
    "average": "ema swa",
    "batch": "batchsize",
    "column": "field textfield textcolumn key",
    "limit": "maxbytes maxsize",
    "subset": "config configname",
    "clip": "gradclip maxgradnorm gradientclipping",
    "lr": "learningrate",
    "optimizer": "optim optimiser",
    "precision": "dtype",
    "schedule": "scheduler lrschedule lrscheduler",
    "steps": "iterations maxsteps maxiters numsteps epochs",
    "tokens": "epochs",
    "cuda": "gpu",
    "warmup": "warmupratio warmupsteps",
    "weight_decay": "wd",
    # what is matched, measured and read
    "active_parameters": "active",
    "cloze": "task tasks downstream accuracy blimp lambada multiplechoice",
    "decode_speed": "speed inference generation latency throughput",
    "files": "file local folder txt",
    "flops": "compute",
    "hub": "huggingface hf",
    "kv_bytes": "kv cache kvcache",
    "kv_cache": "cache memory kv",
    "length": "extrapolation lengthgeneralization",
    "parameters": "params size",
    "perplexity": "ppl loss valloss validationloss",
    "python-stdlib": "stdlib python default",
    "state_bytes": "state memory",
    "train_speed": "speed throughput tokenspersecond",
    # commands
    "compare": "diff versus vs",
    "components": "list ls",
    "export": "convert save",
    "generate": "sample complete chat",
    "init": "new create start template templates examples quickstart",
    "plan": "check validate dryrun preview",
    "report": "html page plot table figures",
    "run": "train launch execute start resume fit",
    "show": "info describe inspect view",
    "status": "progress ps watch top",
    "summary": "count params size",
}


class ConfigError(ValueError):
    """The user's input is wrong. The command prints one line and exits with code 2.

    `where` is the path of keys to the offending value, for whoever knows the file to turn into
    line and column; empty where the mistake is not in an experiment file.
    """

    def __init__(self, message: str, where: Where = ()) -> None:
        super().__init__(message)
        self.message = message
        self.where = where

    def under(self, *prefix: str | int) -> "ConfigError":
        """Return the same error with `prefix` in front of its path."""
        return ConfigError(self.message, (*prefix, *self.where))


class NotProvidedError(ConfigError):
    """A component of a user's does not provide what is asked of it: that is unknown, never 0."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"not provided by '{name}': {what}")


def dotted(where: Where) -> str:
    """Format a path: `variants.axes.norm[1]`.

    >>> dotted(("variants", "axes", "norm", 1))
    'variants.axes.norm[1]'
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in where)
    return text.removeprefix(".")


def require(package: str, user: str) -> None:
    """Raise ConfigError, with the command that installs it, where a package is missing.

    `user` is what needs it. The package's own command is the one that works everywhere: no index
    has this distribution, so its extras can be installed in a checkout alone.
    """
    found = find_spec(package)
    if found is None or found.origin is None:  # without one, a mere folder
        raise ConfigError(f"{user} needs the package '{package}': pip install {package}")


def nearest(value: object, allowed: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """Return what is allowed, and what was probably meant, as the end of a sentence.

    That is the name which is the same but for capitals and marks, or what other projects call so,
    or the nearest in letters; it may be one of those that are allowed `elsewhere`, as `train.lr`.
    Of a long list the nearest are named, and the others counted.

    >>> nearest("rmsnrm", ["layernorm", "rmsnorm"])
    "; allowed: layernorm, rmsnorm; did you mean 'rmsnorm'?"
    >>> nearest("factorial", ["fraction", "path", "product"])
    "; allowed: fraction, path, product; did you mean 'fraction' or 'product'?"
    """
    names = sorted(allowed)
    text = str(value)[:_COMPARED]
    meant = " or ".join(f"'{name}'" for name in _meant(text, [*names, *elsewhere]))
    hint = f"; did you mean {meant}?" if meant else ""
    if len(names) <= _LISTED:
        return f"; allowed: {', '.join(names)}{hint}"
    listed = get_close_matches(text, names, n=_LISTED, cutoff=0.0)
    return f"; allowed: {', '.join(listed)} and {len(names) - _LISTED:,} more{hint}"


def _meant(text: str, names: Sequence[str]) -> list[str]:
    """Return the names that a text probably stands for: mostly one, or none."""
    own: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for name in names:
        last = name.rpartition(".")[2]  # of `train.lr`, too
        for word in (name, last):
            own.setdefault(_plain(word), [name])
        for word in _OTHER_WORDS.get(last, "").split():
            others.setdefault(word, []).append(name)
    swapped = {word: name for word, name in own.items() if sorted(word) == sorted(_plain(text))}
    for words, alike in ((own, 1.0), (others, 1.0), (swapped, 0.6), (own, 0.65), (others, 0.75)):
        for word in get_close_matches(_plain(text), words, 1, alike):
            return words[word]
    return []


def _plain(text: str) -> str:
    """Return a word without capitals, spaces, hyphens and underscores."""
    return "".join(letter for letter in text.lower() if letter not in " -_.")
