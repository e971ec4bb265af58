"""Parse XML into elements with their line and column; every reader of XML files uses this module.

The parser is safe: it refuses document types (and so entities), fetches nothing, and limits bytes, elements and depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn
from xml.parsers import expat

from simcoll.errors import Diagnostic, InputError, Place, did_you_mean
from simcoll.units import float_of, int_of

MOST_BYTES: Final = 16 * 2**20  # to bound memory; NCCL's and MSCCL's files are far smaller
MOST_ELEMENTS: Final = 200_000  # to bound memory; a file within MOST_BYTES could hold millions


@dataclass
class Element:
    """An XML element: its attributes, its children, its text (`content`), and the place where it begins."""

    name: str
    attributes: Mapping[str, str]
    place: Place
    children: list[Element] = field(default_factory=list)
    content: str = ""

    def wrong(self, problem: str, cure: str) -> NoReturn:
        """Raise InputError with this problem and fix (`cure`), at the place of this element in the file."""
        raise InputError([Diagnostic(problem, cure, self.name, self.place)])

    def text(self, name: str, default: str | None = None) -> str:
        """Return the attribute `name`; raises InputError if it is missing and has no default."""
        value = self.attributes.get(name, default)
        if value is None:
            self.wrong(f"no attribute {name!r}", "add it, as the program that wrote the file does")
        return value

    def number(self, name: str, default: str | None = None) -> float:
        """Return the attribute `name` as a number from 0 to a million; raises InputError otherwise."""
        text = self.text(name, default)
        try:
            number = float_of(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e6:
            self.wrong(f"{name}={text!r} is no number from 0 to a million", f'write e.g. {name}="20"')
        return number

    def whole(self, name: str, default: str | None = None, *, least: int = 0, most: int = 2**31 - 1) -> int:
        """Return the attribute `name` as a whole number from `least` to `most`; raises InputError otherwise."""
        text = self.text(name, default)
        try:
            number = int_of(text) if len(text) < 20 else least - 1
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            self.wrong(f"{name}={text!r} is no whole number from {least} to {most}", f'write e.g. {name}="{least}"')
        return number

    def one_of(self, name: str, known: Mapping[str, str], default: str | None = None) -> str:
        """Return the value that `known` has for the text of attribute `name`; raises InputError if it has none."""
        text = self.text(name, default)
        if text not in known:
            self.wrong(f"{name}={text!r} is not known", did_you_mean(text, known))
        return known[text]

    def each(self, name: str) -> Iterator[Element]:
        """Return the child elements with the tag `name`, in order."""
        return (child for child in self.children if child.name == name)

    def below(self) -> Iterator[Element]:
        """Yield this element and all elements below it, in the order of the file."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.children)


def parse(
    data: bytes | str, source: str, *, root: str, kind: str, deepest: int, cure: str, most_elements: int = MOST_ELEMENTS
) -> Element:
    """Parse XML and return its root element. Messages name the file (`source`), its `kind` and the fix (`cure`). If
    `data` is a `str`, its declared encoding is ignored. Raises InputError with line and column, also if the root's tag
    is not `root`."""
    parser = expat.ParserCreate("utf-8" if isinstance(data, str) else None)
    roots: list[Element] = []
    open_: list[Element] = []
    count = 0

    def here() -> Place:
        return Place(source, parser.CurrentLineNumber, parser.CurrentColumnNumber + 1)

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        element = Element(name, attributes, here())
        if not open_ and name != root:
            element.wrong(f"is not the root of a {kind}", f"{cure}: <{root} …>")
        if count > most_elements or len(open_) >= deepest:
            element.wrong("too many or too deeply nested elements", cure)
        (open_[-1].children if open_ else roots).append(element)
        open_.append(element)

    def end(_: str) -> None:
        open_.pop()

    def characters(data: str) -> None:
        open_[-1].content += data

    def doctype(*_: object) -> None:
        raise InputError("a document type is not read", "remove <!DOCTYPE …>", here())

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler, parser.CharacterDataHandler = doctype, characters
    parser.buffer_text = True  # expat then passes each text in one piece
    try:
        parser.Parse(data.encode("utf-8", errors="replace") if isinstance(data, str) else data, True)
    except expat.ExpatError as error:
        place = Place(source, error.lineno, error.offset + 1)
        problem = f"not XML: {expat.ErrorString(error.code)}"
        raise InputError(problem, cure, place) from None
    except (LookupError, ValueError) as error:  # an encoding unknown to Python, or that expat cannot use
        raise InputError(f"not XML: {error}", "write it in UTF-8", Place(source, 1, 1)) from None
    return roots[0]
