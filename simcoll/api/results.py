"""Rows of results for Python users: select, draw, show and export them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, SupportsIndex, overload

from simcoll.errors import InputError, SimcollError
from simcoll.prediction.result_rows import COLUMNS, ResultRow, dotted, to_csv, write_atomically
from simcoll.schedule.schedule import Schedule
from simcoll.units import unboxed

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simcoll.explanation.synthesis import Synthesized


class Results(list[dict[str, Any]]):
    """A list of rows, each a dict with the columns of results.csv. `print` shows the result in a sentence, and the
    table.

    >>> import simcoll as sc
    >>> keys = {"topology": "hgx-h100", "collective": "all_reduce", "size": ["1 KiB", "1 MiB"]}
    >>> results = sc.run(keys, algorithm=["ring", "tree"])
    >>> results["algorithm"], len(results.where(algorithm="ring", size_bytes=2**20))
    (['ring', 'tree', 'ring', 'tree'], 1)
    >>> results.plot(x="size", y="busbw").get_xlabel()
    'size'
    """

    def __init__(self, rows: Iterable[dict[str, Any]] = (), notes: Sequence[str] = ()):
        super().__init__(rows)
        self._said = list(notes)

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order of results.csv, and the swept keys."""
        return [*COLUMNS, *dotted(self)]

    @property
    def notes(self) -> list[str]:
        """Remarks on the rows: e.g. that a release is newer than all known ones, or why some rows have no time."""
        from simcoll.prediction.summary_sentence import unanswered

        return [*self._said, *unanswered(self.rows())]

    @overload
    def __getitem__(self, which: SupportsIndex) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, which: slice) -> Results: ...
    @overload
    def __getitem__(self, which: str) -> list[Any]: ...
    def __getitem__(self, which: Any) -> Any:
        """Return a row by its number, rows by a slice, or a column by its name. Raises KeyError for an unknown column,
        InputError for any other key."""
        if isinstance(which, str):
            name = self._column(which)
            return [row.get(name) for row in self]
        if not isinstance(which, slice | SupportsIndex):
            cure = (
                "give a number, a slice or the name of one column; to_pandas()[['size_bytes', 'time_us']] has several"
            )
            raise InputError(f"{which!r} names no row and no column", cure)
        found: Any = super().__getitem__(which)
        return Results(found, self._said) if isinstance(which, slice) else found

    def where(self, filter: Mapping[str, Any] | None = None, /, **conditions: Any) -> Results:
        """Return the rows whose columns have the given values.

        A list of values means any of them. Names are columns, swept keys, or words for columns such as `size`. In
        keywords two underscores stand for a dot; in a mapping, write the dot. Sizes may be texts (`size="1 MiB"`).
        `algorithm` may be the name in the scenario (`auto`) or the algorithm that ran. Raises InputError for an unknown
        column, and if no row is left.
        """
        from simcoll.api.sweeps import python_words
        from simcoll.report.columns import filtered

        named = {**(filter or {}), **{name.replace("__", "."): value for name, value in conditions.items()}}
        several = (list, tuple, set, frozenset, range)
        plain = {key: unboxed(value) for key, value in named.items()}
        wanted = {key: value if isinstance(value, several) else [value] for key, value in plain.items()}
        with python_words():
            return Results(filtered(self, wanted), self._said)

    def _column(self, name: str) -> str:
        from simcoll.report.columns import column_of

        try:
            return column_of(self, name)
        except InputError as error:
            raise KeyError(str(error)) from None

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        from simcoll.prediction.summary_sentence import of_rows

        return of_rows(self.rows())

    def __str__(self) -> str:
        from simcoll.config import text_table
        from simcoll.nccl.tuner_constants import unknown_first
        from simcoll.report.result_tables import run_table, step_table

        rows = self.rows()
        table = step_table(rows) if rows and rows[0].workload else run_table(rows)
        unknown, others = unknown_first(self._said)
        return "\n".join([*unknown, table, *(text_table.wrapped(f"# {note}") for note in others)])

    def __repr__(self) -> str:
        if not self:
            return "<Results: no rows>"
        rows = "1 row" if len(self) == 1 else f"{len(self)} rows"
        return f"<Results, {rows}: {self.verdict} print() shows them>"

    def _repr_html_(self) -> str:
        """Return the answer and the table as HTML, for notebooks."""
        from html import escape

        from simcoll.report.html import fragment

        return fragment(self.rows()) + "".join(f"<p>{escape(note)}</p>" for note in self.notes)

    def plot(
        self,
        x: str = "size",
        y: str = "time",
        group: str | Sequence[str] | None = None,
        facet: str | Sequence[str] = (),
        *,
        filter: Mapping[str, Any] | None = None,
        **where: Any,
    ) -> Axes | list[Axes]:
        """Draw `y` over `x`: a line for each value of `group` (default: algorithms), a panel for each of `facet`.

        Names are columns, swept keys, or the last part of one; `filter` and `where` select rows as `Results.where`
        does. Returns the axes, or a list of several; `axes.figure.savefig("plot.svg")` writes the picture. Raises
        InputError if rows at one place of the picture differ in a column that is not chosen.
        """
        from simcoll.api.sweeps import python_words
        from simcoll.report.plot.any_key import key_figure

        groups = None if group is None else _several(group)
        if "ax" in where or "axes" in where:
            cure = 'leave it out; on axes of your own: ax.plot(results["size_bytes"], results["time_us"])'
            raise InputError("plot makes its own figure, with its legend and panels, and takes no axes", cure)
        with python_words():
            drawn = key_figure(self.where(filter, **where).rows(), x, y, groups, _several(facet)).axes
        return drawn[0] if len(drawn) == 1 else list(drawn)

    def rows(self) -> list[ResultRow]:
        """Return the rows as `ResultRow` records, for pictures and files."""
        known = {*COLUMNS, *dotted(self), "time_ps"}  # keys that a user has added are in no file
        return [
            ResultRow.of({k: value for k, value in row.items() if k in known and value is not None}) for row in self
        ]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with a row for each point. Raises SimcollError without pandas."""
        try:
            import pandas
        except ImportError:
            raise SimcollError("pandas is not installed; install it with: pip install pandas") from None
        return pandas.DataFrame(list(self), columns=self.columns)

    def to_parquet(self, path: str | Path | IO[bytes]) -> None:
        """Write a Parquet file, to a path or a binary stream. Raises SimcollError if the extra `parquet` is not
        installed."""
        from simcoll.report.exports import parquet

        _write(path, parquet.dump(self.rows()))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface: polars, pandas, DuckDB and others take the rows as they are. Needs the extra
        `parquet`."""
        from simcoll.report.exports import parquet

        return parquet.arrow_table(self.rows()).__arrow_c_stream__(requested_schema)

    @overload
    def to_csv(self) -> str: ...
    @overload
    def to_csv(self, path: str | Path | IO[str]) -> None: ...
    def to_csv(self, path: str | Path | IO[str] | None = None) -> str | None:
        """Write the rows as results.csv to a file or a text stream; without a path return the text."""
        if path is None:
            return to_csv(self.rows())
        _write(path, to_csv(self.rows()))
        return None


class Reply(dict[str, Any]):
    """The JSON document of a command, as a dict. `print` shows the text of the command.

    >>> import simcoll as sc
    >>> answer = sc.explain(topology="hgx-h100", collective="all_reduce", algorithm="ring", size="1 MiB", what_if=False)
    >>> answer["points"][0]["causes"][0]["cause"]
    'hop'
    """

    def __init__(self, document: Mapping[str, Any], verdict: str, text: str, svg: bytes | None = None):
        super().__init__(document)
        self.verdict = verdict
        """The answer in a sentence."""
        self.text = text
        """What the command prints."""
        self.svg = svg
        """A picture as SVG, which a notebook shows in place of the text; None if there is none."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Reply: {self.verdict} print() shows all, keys are {', '.join(self)}>"

    def _repr_html_(self) -> str:
        from base64 import b64encode
        from html import escape

        if self.svg:
            return f'<img alt="" src="data:image/svg+xml;base64,{b64encode(self.svg).decode("ascii")}">'
        return f"<p><strong>{escape(self.verdict)}</strong></p><pre>{escape(self.text)}</pre>"


class MadeSchedule(Reply):
    """The reply of `synthesize`: the document, and the `schedule` that was made.

    >>> import simcoll as sc
    >>> ring = {"fabric": "ring", "hosts": 4, "link": {"bandwidth": "25 GB/s", "latency": "1 us"}}
    >>> sc.synthesize("all_gather", topology=ring).plot()
    <Figure size 660x611 with 1 Axes>
    """

    made: Synthesized
    schedule: Schedule

    def plot(self) -> Figure:
        """Draw the network, the trees of one root, and the cut that gives the bound."""
        from simcoll.report.plot.trees import trees_figure

        return trees_figure(self.made)


def _write(where: str | Path | IO[str] | IO[bytes], body: str | bytes) -> None:
    """Write `body` to a file or an open stream; raises InputError for a text stream that gets bytes, or the reverse."""
    if isinstance(where, str | Path):
        write_atomically(Path(where), body)
        return
    stream: Any = where
    try:
        stream.write(body)
    except (TypeError, AttributeError):
        kind, mode = ("text", "w") if isinstance(body, str) else ("binary", "wb")
        problem = f"{type(where).__name__} is neither a path nor a {kind} stream"
        raise InputError(problem, f"give a path, or what open(path, {mode!r}) returns") from None


def _several(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
