"""Count lines and modules of Python by room and in all; `python tools/lines.py BASE` adds the change since a commit."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def counted(base: str | None) -> tuple[Counter[str], Counter[str]]:
    """Return lines and modules by room, in the working tree or in the commit `base`."""
    lines, modules = Counter[str](), Counter[str]()
    for name, text in _sources(base):
        top, *below = Path(name).parts
        for room in {f"{top}/{below[0]}" if len(below) > 1 else top, f"{top} in all"}:
            lines[room] += text.count("\n")
            modules[room] += 1
    return lines, modules


def _sources(base: str | None) -> list[tuple[str, str]]:
    if base is None:
        paths = [path for top in ("simcoll", "tests") for path in sorted((ROOT / top).rglob("*.py"))]
        return [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in paths]
    names = _git("ls-tree", "-r", "--name-only", base, "simcoll", "tests").split()
    return [(name, _git("show", f"{base}:{name}")) for name in names if name.endswith(".py")]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main(base: str | None = None) -> None:
    """Print a table of lines and modules by room, with the change since the commit `base` if given."""
    lines, modules = counted(None)
    before = counted(base)[0] if base else Counter[str]()
    print(f"{'room':24}{'modules':>8}{'lines':>8}" + (f"{f'to {base[:8]}':>12}" if base else ""))
    for room in sorted({*lines, *before}, key=lambda room: ("in all" in room, room)):
        change = f"{lines[room] - before[room]:+12}" if base else ""
        print(f"{room:24}{modules[room]:8}{lines[room]:8}{change}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
