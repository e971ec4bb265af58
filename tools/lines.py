"""Count lines and modules of Python, by room and in all.

python tools/lines.py            # of the working tree
python tools/lines.py COMMIT     # and how many more or fewer than there
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
COUNTED: Final = ("simcoll", "tests", "tools", "benchmarks")


def counted(files: dict[str, int]) -> tuple[Counter[str], Counter[str]]:
    """Lines and modules by room (`simcoll/engine`, `tests/engine`, `tools`), and in all of a folder."""
    lines, modules = Counter[str](), Counter[str]()
    for name, length in files.items():
        top, *rest = name.split("/")
        for place in {top, f"{top}/{rest[0]}" if len(rest) > 1 else top}:
            lines[place] += length
            modules[place] += 1
    return lines, modules


def of_tree() -> dict[str, int]:
    """The number of lines of each module of the working tree, by its path."""
    files = [path for top in COUNTED for path in (ROOT / top).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n") for path in files}


def of_commit(commit: str) -> dict[str, int]:
    """The number of lines of each module of a commit, by its path."""
    words = ["git", "grep", "-c", "", commit, "--", *(f"{top}/*.py" for top in COUNTED)]
    told = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return {name: int(count) for name, _, count in (line.split(":", 1)[1].rpartition(":") for line in told)}


def main() -> None:
    """Print a line for each room, and one for each of the folders."""
    lines, modules = counted(of_tree())
    before, _ = counted(of_commit(sys.argv[1])) if len(sys.argv) > 1 else (None, None)
    for place in sorted(lines):
        changed = "" if before is None else f"{lines[place] - before[place]:+8d}"
        print(f"{place:24} {lines[place]:7d} lines {modules[place]:5d} modules{changed}")


if __name__ == "__main__":
    main()
