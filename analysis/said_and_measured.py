"""Put what was said of variants beside what was measured of them, as a Markdown table.

python analysis/said_and_measured.py docs/said.yaml results/reference/systems/norms
"""

import argparse
from pathlib import Path

import pandas as pd
import yaml

from llama_ablate.errors import ConfigError
from llama_ablate.report import frames, tables
from llama_ablate.results import Store

#: Columns as the report has them; speeds only where they were measured.
_MEASURED = ("verdict", "train speed", "decode speed", "parameters", "KV bytes/token")


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
        }
        | {name: cells[name] for name in _MEASURED if name in cells}
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
        if not isinstance(said, dict):
            raise ConfigError(f"'{options.said}' is no mapping of experiments")
        print(tables.markdown(table(said.get(store.root.name) or {}, store)))
    except (ValueError, OSError, yaml.YAMLError) as error:
        parser.exit(2, f"{parser.prog}: {' '.join(str(error).split())}\n")


if __name__ == "__main__":
    main()
