"""The remarks of an import: what it read, what it assumed where the file is silent, what was missing or odd."""

from __future__ import annotations

from dataclasses import dataclass, field

from simcoll.config.text_table import wrapped


@dataclass
class ImportLog:
    """Lines for people, in the order in which they came up; `assume` and `warn` say each thing once."""

    read: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def assume(self, line: str) -> None:
        """Note a value that the file does not give."""
        if line not in self.assumed:
            self.assumed.append(line)

    def warn(self, line: str) -> None:
        """Note something that the file lacks, or has and should not."""
        if line not in self.warnings:
            self.warnings.append(line)

    def __str__(self) -> str:
        remarks = (("read", self.read), ("assumed", self.assumed), ("warning", self.warnings))
        return "\n".join(wrapped(f"{kind}: {line}", "  ") for kind, lines in remarks for line in lines)
