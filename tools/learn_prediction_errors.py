"""Learn from measured tables how far predictions are off, and write `simcoll/prediction/prediction_errors.yaml`.

    python tools/learn_prediction_errors.py TABLES    TABLES: folder of measured tables (nccl-tests, CSV) of clusters

Run it after every change of the model or of a shipped profile: the intervals of predictions follow from these numbers.
It predicts all tables, and fits clusters with many nodes to their rows on one and two nodes. This takes a minute or two
of CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from clusters import left_out, lessons
from clusters.rows import fitted, rows_of

from simcoll.config import yaml_tree
from simcoll.prediction import confidence
from simcoll.prediction.result_rows import write_atomically

ABOUT = """\
# Errors of the model on clusters that others measured: standard deviations of log(measured / predicted). Written by
# tools/learn_prediction_errors.py from {rows} rows of {clusters} clusters; do not edit. `cells`: by nodes, on one node
# by links between GPUs and whose GPUs the costs are of, by kind of collective and how busy links are: nine rows in
# ten have no larger error, where each cluster counts once. On several nodes a cluster is left out of the fit of its
# transport, and NICs have no cells: sites with NICs of one kind differ as much as sites with others.
# `left_out`: of fits, where rows have something that the fit has not seen; `nodes`: the most of a cluster.
"""


def main() -> int:
    """Write the file, and print how many rows and clusters it is made from."""
    parser = argparse.ArgumentParser(description="Learn from measured tables how wrong the model is.")
    parser.add_argument("tables", type=Path, help="folder of measured tables")
    parser.add_argument("--folder", type=Path, default=Path("validation/accuracy"), help="where clusters.yaml is")
    asked = parser.parse_args()
    began = time.process_time()

    def tell(line: str) -> None:
        print(line, file=sys.stderr)

    rows, networks = left_out.with_left_out(rows_of(asked.tables, asked.folder, tell), tell)
    _, new = fitted(rows, tell, networks)
    learnt = lessons.learnt(rows, {**confidence.shipped().left_out, **new})
    about = ABOUT.format(rows=len(rows), clusters=len({row.cluster for row in rows}))
    write_atomically(confidence.FILE, about + yaml_tree.dump(learnt.model_dump(), inline=True))
    print(f"{confidence.FILE}: {len(rows)} rows, {len(learnt.cells)} cells, {time.process_time() - began:.0f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
