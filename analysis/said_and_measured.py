"""Put what was said of variants beside what was measured of them, as a Markdown table.

python analysis/said_and_measured.py docs/said.yaml results/reference/systems/norms
"""

import argparse
import sys
from pathlib import Path

import pandas as pd
import yaml

from llama_ablate.errors import ConfigError
from llama_ablate.report import frames, tables
from llama_ablate.results import Store


def table(said: dict[str, str], store: Store) -> pd.DataFrame:
    """Return a row for each variant: what was said, and every measured column, as text."""
    found = frames.comparison(store)
    cells = tables.comparison_cells(found)
    base = found[found["baseline"]].iloc[0]
    change = found["perplexity"] / base["perplexity"] - 1
    return pd.DataFrame(
        {
            "variant": cells["variant"],
            "source said": [said.get(label, "") for label in found["label"]],
            "loss, difference [95%]": cells["difference [95% interval]"],
            "perplexity": [tables.number(100 * c, "+.1f", "%") for c in change],
            "verdict": cells["verdict"],
            "train speed": cells["train speed"],
            "decode speed": cells["decode speed"],
            "parameters": cells["parameters"],
            "KV bytes/token": cells["KV bytes/token"],
        }
    )


def main() -> None:
    """Read what was said and the records, print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("said", type=Path, help="YAML: experiment -> label -> what was said")
    parser.add_argument("results", type=Path, help="the folder of one experiment")
    options = parser.parse_args()
    try:
        store = Store.open(options.results)
        said = yaml.safe_load(options.said.read_text("utf-8"))
        print(tables.markdown(table(said.get(store.root.name) or {}, store)))
    except (ConfigError, OSError, yaml.YAMLError, AttributeError) as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
