"""The words of a report, each in plain English: for the page, and for docs/glossary.md."""

#: A word as a report writes it, and what it means. In the order in which a reader meets them.
GLOSSARY: dict[str, str] = {
    "variant": "A model of the experiment: the baseline with one or several changes.",
    "baseline": "The variant that all others are compared with.",
    "table": "One text, size, matching and budget of an experiment, with its variants and runs.",
    "run": "One training of a variant from one seed, at one set of tuned values.",
    "seed": "The number that fixes a run's initial weights and the order of its batches.",
    "n": "The number of pairs (seeds that variant and baseline share) behind a difference.",
    "loss": "Mean cross-entropy per token of held-out text, in nats; lower is better.",
    "nat": "The unit of a loss: 0.01 nats are about 1% of perplexity; 1 nat is 1.44 bits.",
    "held-out text": (
        "Text that no run trains on: validation and test text as one, or test text alone where "
        "something is chosen by the loss on validation text."
    ),
    "perplexity": "The exponential of the loss in nats.",
    "bits per byte": "The loss per byte of text in bits: comparable between tokenizers.",
    "floor": "The lowest loss that any model can reach, known for synthetic texts only.",
    "difference": (
        "The variant's loss minus the baseline's, averaged over seeds: below 0 the variant is "
        "better."
    ),
    "paired": (
        "Compared seed by seed: two runs of a seed see the same batches and share the initial "
        "values of all weights that they have in common, so their common noise cancels."
    ),
    "95% interval": (
        "A range that a method computes from the runs so that it contains the true difference "
        "in 95% of experiments."
    ),
    "simultaneous": (
        "Corrected for the number of rows (Bonferroni): in 95% of tables all intervals hold at "
        "once."
    ),
    "p-value": (
        "How often a difference this large would be seen if there were none; corrected for the "
        "number of rows (Bonferroni): below 0.05 just where the interval leaves out 0."
    ),
    "pooled": (
        "The row's variance over seeds is estimated together with the other rows', and with what "
        "earlier experiments led to expect of it, which narrows its interval; 'own': from its own "
        "seeds only."
    ),
    "correlation over seeds": (
        "How alike variant and baseline vary from seed to seed: near 1, pairing removes most of "
        "the noise."
    ),
    "margin": "A difference this small counts as none; stated in the file before the runs.",
    "verdict": "What the interval of a row allows to say about its variant, in one word.",
    "better": "The whole interval lies below 0: the variant's loss is lower.",
    "worse": "The whole interval lies above 0: the variant's loss is higher.",
    "equivalent": "The whole interval lies within the margin: no difference that matters.",
    "lower together": (
        "Of an interaction: what one change does to the loss lies lower where the other was made, "
        "too, than on average over both settings."
    ),
    "higher together": "Of an interaction: it lies higher there.",
    "add up": "Of an interaction: it lies within the margin of that average in either setting.",
    "not estimable": "No run, or none that finished, tells the effect from others.",
    "inconclusive": (
        "The interval allows more than one answer: not told apart from the baseline, which is not "
        "the same as being equal to it."
    ),
    "too short": (
        "A run ended above, or less than 0.05 nats below, the loss that token frequencies alone "
        "give, and still fell, or was evaluated too rarely to tell: what it would come to is not "
        "known. One such run makes its row so."
    ),
    "diverged": (
        "A run's loss or gradient was not finite, or its training loss ended above chance and "
        "above where it began. A variant: all of its runs were lost and none of the baseline's, or "
        "more of them than chance explains."
    ),
    "collapsed": (
        "A run's loss stopped above, or less than 0.05 nats below, that of token frequencies, or "
        "its gradient vanished: it is stuck. A variant: as with diverged."
    ),
    "failed": "No pair of finished runs is left: all of the variant's or the baseline's failed.",
    "pending": "Runs that the comparison needs have not finished yet.",
    "hypothesis": (
        "A statement in the file about what the runs will show. Its test result is supported, "
        "refuted, undecided, undecidable or no verdict."
    ),
    "guard": (
        "A number of the file in which no variant may be worse by more than it allows, whatever "
        "its loss. Its test result is worse, holds, undecided or too short."
    ),
    "task": "Items with a right answer each, which a model answers by the likelihood of texts.",
    "item": "A question of a task: all variants answer the same ones.",
    "chance": "The share of items that a guess answers right.",
    "control": (
        "An arm whose result is known. The baseline repeated with nothing changed must be equal "
        "bit for bit, else it bounds the bias; a positive control must be seen to harm; the "
        "baseline with other draws (A/A) shows how far equal models differ."
    ),
    "factor": "A part that a design switches between levels, in combination with others.",
    "interaction": "How much one factor's effect depends on the level of another.",
    "step": "A change of a path, measured against the step before it.",
    "tuned to": "The training values (such as the learning rate) chosen on validation loss.",
    "look": "A number of seeds, fixed before the first run, after which decided variants stop.",
    "matched": "A size of the variant was solved so that it has as much as the baseline.",
    "parameters": "Trained numbers of the whole model.",
    "active parameters": "Parameters that one token passes: of a mixture, only its chosen experts.",
    "FLOPs": "Floating-point operations of the matrix products, counted from the architecture.",
    "KV cache": "Keys and values of earlier tokens that attention keeps while it generates text.",
    "state bytes": (
        "Memory that all layers keep of one sequence of the training context, in 16-bit numbers: "
        "a KV cache, a window of it, or a recurrent state."
    ),
    "speed": (
        "Training or decoding tokens per second divided by the baseline's, measured in turns on "
        "one machine: above 1 the variant is faster."
    ),
    "effective speed-up": (
        "How many times the variant's tokens, FLOPs or seconds the baseline needs for the same "
        "loss."
    ),
    "Pareto frontier": "The variants that no other variant beats in both loss and cost.",
    "scaling law": "A curve through losses at several sizes: floor + scale / size^exponent.",
    "projection": "What a fitted curve says of a larger size; nothing that was measured.",
    "loss spike": "A training step whose loss lies far above the hundred steps before it.",
}
