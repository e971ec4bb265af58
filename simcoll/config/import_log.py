"""What an import has to tell: what it read, what it assumed where the file is silent, what was missing or odd."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ImportLog:
    """Lines for people, in the order in which they came up; `assume` and `warn` say each thing once."""

    read: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def assume(self, line: str) -> None:
        """Something that the file does not say."""
        if line not in self.assumed:
            self.assumed.append(line)

    def warn(self, line: str) -> None:
        """Something that the file lacks, or says and should not."""
        if line not in self.warnings:
            self.warnings.append(line)

    def __str__(self) -> str:
        told = (("read", self.read), ("assumed", self.assumed), ("warning", self.warnings))
        return "\n".join(f"{what}: {line}" for what, lines in told for line in lines)
