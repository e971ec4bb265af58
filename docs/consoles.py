"""Consoles in colour: commands behind a `$` as a shell's, and what they print, whose remarks begin with `#`.

The common lexer takes a `#` for the prompt of root, and what we print for commands.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pygments.lexer import RegexLexer, bygroups, using
from pygments.lexers.shell import BashLexer
from pygments.token import Comment, Generic, Text
from sphinx.application import Sphinx


class Console(RegexLexer):
    """Commands, and what they print."""

    name = "console"
    tokens: ClassVar = {
        "root": [
            (r"^(\$ )(.*?)( +#.*)?(\n)", bygroups(Generic.Prompt, using(BashLexer), Comment, Text)),
            (r"^# .*\n", Comment),
            (r"^ .*\n", Generic.Output),  # rows of tables are indented
            (r".*\n", Text),
        ]
    }


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the lexer."""
    app.add_lexer("console", Console)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
