"""The audit of the source documents: what they claim, put to the test, and held in a ledger.

`ledger.yaml` states every claim. Claims that need training are tested by `experiments/claims`, to
whose hypotheses `hypotheses.yaml` maps them; those that need none by the files in `audits`, which
`python -m analysis.claims` runs. `pages` writes what was found into claims.md and systems.md of
results/reference.
"""
