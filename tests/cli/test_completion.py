"""Completion in shells."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import PATIENCE_S, ROOT, simcoll


def _shell(name: str, folder: Path) -> dict[str, str]:
    """An environment in which a shell finds `simcoll`, and nothing of its own set up."""
    if not shutil.which(name):
        pytest.skip(f"no {name}")
    (folder / "simcoll").write_text(f'#!/bin/sh\nexec {sys.executable} -m simcoll "$@"\n', encoding="utf-8")
    (folder / "simcoll").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return {**os.environ, "TERM": "dumb", "HOME": str(folder), "PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("shell", ["bash --norc --noprofile -i", "zsh -f -i"])
def test_a_tab_completes(shell: str, tmp_path: Path):
    """Typed at a terminal."""
    env, (ours, theirs) = _shell(shell.split()[0], tmp_path), os.openpty()
    ends: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    with subprocess.Popen(shell.split(), env=env, **ends) as ran:

        def typed(keys: str, until: str) -> str:
            os.write(ours, keys.encode())
            seen = ""
            while until not in seen and select.select([ours], [], [], PATIENCE_S)[0]:
                seen += os.read(ours, 4096).decode(errors="replace")
            return seen

        try:
            typed(f"eval \"$(simcoll completion {shell.split()[0]})\"; echo re''ady\n", "ready")
            assert "simcoll run quickstart" in typed("simcoll run quicks\t", "quickstart")
        finally:
            ran.kill()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete(shell: str, monkeypatch: pytest.MonkeyPatch):
    """The script of each shell asks by a variable, and gets commands, options and shipped names."""
    script = simcoll("completion", shell).out
    assert "_SIMCOLL_COMPLETE" in script and f"{shell}_complete" in script
    for words, found in (
        ("simcoll ru", "run"),
        ("simcoll run quick", "quickstart"),
        ("simcoll run --prof", "--profile"),
        ("simcoll predict all_gather --on hgx-h1", "hgx-h100"),
        ("simcoll predict all_gather --algorithm bru", "bruck"),
        ("simcoll show all_reduce/ri", "all_reduce/ring"),
        ("simcoll compare h100", "h100_sxm_nccl-2.27.3.csv"),
        ("simcoll topology show dgx", "dgx-a100"),
        ("simcoll export all_reduce/ring --to ms", "msccl"),
    ):
        monkeypatch.setenv("_SIMCOLL_COMPLETE", f"{shell}_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", words.split()[-1] if shell == "fish" else str(len(words.split()) - 1))
        assert found in simcoll().out
        monkeypatch.delenv("_SIMCOLL_COMPLETE")
