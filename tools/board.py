"""Score measured tables of clusters that are not shipped, and write the board `validation/accuracy/CLUSTERS.md`.

    python tools/board.py TABLES [-o FOLDER]      the folder of measured tables (nccl-tests, CSV) of several clusters

`validation/accuracy/clusters.yaml` names the shipped system whose predictions are compared with each cluster.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clusters import board


def main() -> int:
    """Write the board and print its path; return the exit status."""
    parser = argparse.ArgumentParser(description="Score measured tables of clusters.")
    parser.add_argument("tables", type=Path, help="folder of measured tables")
    parser.add_argument("--folder", type=Path, default=Path("validation/accuracy"), help="where clusters.yaml is")
    parser.add_argument("-o", "--output", type=Path, help="where CLUSTERS.md goes; default: the same folder")
    asked = parser.parse_args()
    print(
        board.write(asked.tables, asked.folder, asked.output or asked.folder, lambda line: print(line, file=sys.stderr))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
