"""Expert parallelism: the key `moe`, and how many copies of tokens ranks send to the ranks that own the experts.

The E experts are divided evenly among R ranks, expert e on rank e // (E/R). Each token goes to k different experts. It
is drawn with a probability in proportion to the product of its experts' weights. With equal weights all sets of k
experts are equally likely; else popular experts are chosen more often. Counts of copies are means over all such draws,
and exact.

Sources: deepseek-ai/DeepEP, README (copies per token, rank and node; scales of FP8); Chen, Dempster and Liu, "Weighted
finite population sampling to maximize entropy", Biometrika 81 (1994), for the draw of k different experts.
"""

import csv
import io
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, StrictInt, field_validator

from simcoll.config import input_files
from simcoll.config.field_types import Count
from simcoll.config.yaml_tree import Model
from simcoll.errors import Diagnostic, InputError, Place, RefusedError

Copies = NDArray[np.float64]
DISPATCH: Final = "moe_dispatch"
COMBINE: Final = "moe_combine"
TOKENS: Final = (DISPATCH, COMBINE)  # the collectives that have `moe` in place of a size
BY_EXPERTS: Final = ("pairwise", "deepep", "low-latency")  # their executors
SCALED: Final = {"fp8": (128, 4), "nvfp4": (16, 1)}  # elements that share a scale, and the bytes of the scale
BITS: Final = {"bfloat16": 16, "fp8": 8, "nvfp4": 4}  # of an element
MOST_CHOSEN, MOST_EXPERTS = 32, 4096  # beyond what models have, weights of sets of experts leave the range of floats
ROUNDS: Final = 500  # most rounds in which weights are fitted to counts
NEAR: Final = 1e-9  # share of tokens by which fitted weights may miss counts
CERTAIN: Final = 1 - 1e-6  # larger shares of tokens count as this, as their weights would be infinite


class Routing(Model):
    """How tokens choose experts: evenly, or with one of these keys."""

    zipf: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0
    """The p-th most popular expert has the weight p^(−zipf). Popular experts are dealt to the ranks in turn."""
    counts: str | None = None
    """Path of a CSV file with a row for each rank and a column for each expert: the number of tokens of the rank that
    go to the expert."""

    @field_validator("counts")
    @classmethod
    def _is_there(cls, value: str | None) -> str | None:
        if value is not None and not input_files.is_file(Path(value)):
            raise ValueError(f"{value!r} is no file; give the path of a CSV")
        return value


def _routing(value: object) -> object:
    if value == "uniform":
        return Routing()
    if isinstance(value, Routing) or (isinstance(value, dict) and len(value) == 1):
        return value
    raise ValueError(f"{value!r} is no routing; write uniform, {{zipf: 1.0}} or {{counts: FILE.csv}}")


class ExpertTokens(Model):
    """The tokens of a mixture of experts that `moe_dispatch` and `moe_combine` move."""

    tokens: Count
    """Number of tokens of each rank."""
    hidden: Count
    """Number of elements of a token."""
    topk: Annotated[StrictInt, Field(ge=1, le=MOST_CHOSEN)]
    """Number of experts to which each token goes."""
    experts: Annotated[StrictInt, Field(ge=1, le=MOST_EXPERTS)]
    """Number of experts of all ranks together."""
    dtype: Literal["bfloat16", "fp8", "nvfp4"] = "bfloat16"
    """Data type in which tokens are dispatched. `fp8` has a scale of 4 bytes for each 128 elements, `nvfp4` a scale of
    1 byte for each 16. Results always come back in bfloat16."""
    routing: Annotated[Routing, BeforeValidator(_routing, json_schema_input_type=Routing | Literal["uniform"])] = Field(
        default="uniform", validate_default=True
    )
    """How tokens choose experts: `uniform`, `{zipf: 1.0}` or `{counts: FILE.csv}`."""

    @field_validator("experts")
    @classmethod
    def _enough(cls, value: int, info: Any) -> int:
        if value < info.data.get("topk", 1):
            raise ValueError(f"{value} experts are fewer than topk; write at least {info.data['topk']}")
        return value

    @field_validator("dtype")
    @classmethod
    def _whole_scales(cls, value: str, info: Any) -> str:
        each, hidden = SCALED.get(value, (1, 0))[0], info.data.get("hidden", 0)
        if hidden % each:
            raise ValueError(f"{value} has a scale for {each} elements, and hidden {hidden} is no multiple of {each}")
        return value

    @property
    def even(self) -> bool:
        """Whether all experts are equally likely."""
        return not self.routing.zipf and self.routing.counts is None

    def token_bytes(self, collective: str) -> int:
        """Return the bytes of one copy of a token: of its elements and scales, or on the way back of its results."""
        if collective == COMBINE:
            return self.hidden * BITS["bfloat16"] // 8
        each, scale = SCALED.get(self.dtype, (1, 0))
        return self.hidden * BITS[self.dtype] // 8 + self.hidden // each * scale

    def nbytes(self, collective: str) -> int:
        """Return the bytes of a rank's tokens, with one copy for each of their experts."""
        return self.tokens * self.topk * self.token_bytes(collective)

    def check(self, ranks: int) -> None:
        """Raise RefusedError unless each of the ranks can own equally many experts."""
        if self.experts % ranks:
            why = f"{self.experts} experts do not divide among {ranks} ranks"
            raise RefusedError(f"{why}; write a multiple of {ranks}", "moe.experts")

    def to_experts(self, ranks: int) -> Copies:
        """Return the mean number of copies from each rank to each rank if a token is sent once for each of its experts,
        (ranks, ranks)."""
        if self.routing.counts is not None:
            counted: Copies = self._counted(ranks).reshape(ranks, ranks, -1).sum(axis=2)
            return counted
        chosen = 1 - missed(self._popularity(ranks)[:, None], self.topk)
        return np.tile(self.tokens * chosen.reshape(ranks, -1).sum(axis=1), (ranks, 1))

    def to_groups(self, ranks: int, groups: int) -> Copies:
        """Return the mean number of copies from each rank to each of `groups` equal groups of consecutive ranks if a
        token is sent once to each group that owns some of its experts, (ranks, groups). Groups of one rank are its
        receivers without duplicates, groups of a node's ranks its receiving nodes."""

        found = np.empty((ranks, groups))
        for weights, of in self._alike(ranks):
            found[of] = self.tokens * (1 - missed(weights.reshape(groups, -1), self.topk))
        return found

    def least_bytes(self, collective: str, inside: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the bytes that leave and that enter sets of ranks at least, int64 (sets,): each token crosses once if
        it has experts on the other side, and the sum of their results comes back. `inside` (sets, ranks) says which
        ranks are in a set. A byte for each pair of ranks may be missing, as counts are means."""
        ranks = inside.shape[1]
        owned = np.repeat(inside, self.experts // ranks, axis=1)
        leave, enter = np.zeros((2, len(inside)))
        for weights, of in self._alike(ranks):
            within, even = inside[:, of].sum(axis=1), weights / weights.mean()
            every, here, there = (_of_sets(even * some, self.topk)[:, -1] for some in (owned >= 0, owned, ~owned))
            leave += within * (1 - here / every)
            enter += (len(of) - within) * (1 - there / every)
        nbytes = np.array([leave, enter]) * self.tokens * self.token_bytes(collective)
        lost = inside.sum(axis=1) * (~inside).sum(axis=1)
        out, into = np.maximum(0, np.floor(nbytes) - lost).astype(np.int64)
        return (into, out) if collective == COMBINE else (out, into)

    def _alike(self, ranks: int) -> list[tuple[Copies, NDArray[np.int64]]]:
        """Return the weights of experts, (experts,), by which tokens choose, with the ranks that have such tokens."""
        if self.routing.counts is None:
            return [(self._popularity(ranks), np.arange(ranks))]
        counted, same = np.unique(self._counted(ranks), axis=0, return_inverse=True)
        return [
            (fitted(row / self.tokens, self.topk), np.flatnonzero(same.reshape(-1) == number))
            for number, row in enumerate(counted)
        ]

    def _popularity(self, ranks: int) -> Copies:
        """Return the weight of each expert, (experts,), rank by rank."""
        dealt = np.arange(self.experts).reshape(-1, ranks).T.reshape(-1)
        return np.array((dealt + 1.0) ** -self.routing.zipf, np.float64)

    def _counted(self, ranks: int) -> Copies:
        """Return the numbers of tokens in the file of counts, (ranks, experts). Raises InputError."""
        source = str(self.routing.counts)
        cure = "give a CSV with a row for each rank, a column for each expert, and no header"

        def wrong(problem: str, line: int, column: int = 1, instead: str = cure) -> InputError:
            return InputError([Diagnostic(problem, instead, "moe.routing.counts", Place(source, line, column))])

        try:
            text = input_files.decoded(input_files.bytes_of(Path(source), cure), source)
        except InputError as error:
            raise wrong(str(error).removeprefix(f"{source}: ").removesuffix(f"; {cure}"), 1) from None
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
        if len(rows) != ranks:
            raise wrong(f"{len(rows)} rows of counts for {ranks} ranks", 1)
        counts = np.zeros((ranks, self.experts))
        for line, row in enumerate(rows, 1):
            if len(row) != self.experts:
                raise wrong(f"{len(row)} counts for {self.experts} experts", line)
            for number, cell in enumerate(row):
                if not cell.strip().isascii() or not cell.strip().isdigit() or int(cell) > self.tokens:
                    column = sum(len(before) + 1 for before in row[:number]) + 1
                    raise wrong(f"{cell!r} is no number of tokens", line, column, f"write 0 … {self.tokens}")
                counts[line - 1, number] = int(cell)
            if counts[line - 1].sum() != self.tokens * self.topk:
                added = f"the counts add up to {counts[line - 1].sum():.0f}"
                raise wrong(added, line, 1, f"tokens × topk is {self.tokens * self.topk}: mend the file or the keys")
        return counts


class ExpertKernel(Model):
    """Tokens of an operation of a workload, and how they are moved."""

    moe: ExpertTokens | None = None
    """Tokens that go to experts, for `moe_dispatch` and `moe_combine`."""
    executor: Literal["pairwise", "deepep", "low-latency"] | None = None
    """How tokens are moved: as in the scenario's key of this name."""
    sms: Annotated[StrictInt, Field(ge=2, multiple_of=2)] | None = None
    """Number of SMs of `executor: deepep`."""


def missed(weights: Copies, topk: int) -> Copies:
    """Return for each group of experts the probability that a token has none of its `topk` experts there, (groups,).
    `weights` (groups, members) are the experts' weights; a group's members count together.

    The weight of all sets of j experts is the coefficient of x^j in the product of (1 + weight · x) over the experts.
    A group is missed by the sets out of the other groups' experts: their product is that of the groups before it with
    that of the groups after it.

    >>> missed(np.ones((4, 2)), 1).tolist()
    [0.75, 0.75, 0.75, 0.75]
    """
    groups = _of_sets(weights / weights.mean(), topk)

    def products(some: Copies) -> list[Copies]:
        found = [np.eye(topk + 1)[0]]
        for each in some:
            found.append(np.convolve(found[-1], each)[: topk + 1])
        return found

    before, after = products(groups), products(groups[::-1])[::-1]
    without = [left[: topk + 1] @ right[topk::-1] for left, right in zip(before[:-1], after[1:], strict=True)]
    found: Copies = np.array(without) / before[-1][topk]
    return found


def _of_sets(weights: Copies, topk: int) -> Copies:
    """Return the weights of all sets of 0 … topk experts of each group, (groups, topk + 1), by those of its experts."""
    found = np.zeros((len(weights), topk + 1))
    found[:, 0] = 1
    for member in weights.T:
        found[:, 1:] = found[:, 1:] + member[:, None] * found[:, :-1]
    return found


def fitted(shares: Copies, topk: int) -> Copies:
    """Return weights of experts, (experts,), with which each expert gets its share of tokens (0 … 1, in all `topk`)."""
    wanted = np.clip(shares, 0, CERTAIN)
    odds = wanted / (1 - wanted)
    weights = odds.copy()
    for _ in range(ROUNDS):
        chosen = np.clip(1 - missed(weights[:, None], topk), 0, CERTAIN)
        if np.abs(chosen - wanted).max() < NEAR:
            break
        ratio = np.divide(odds * (1 - chosen), chosen, out=np.zeros_like(odds), where=chosen > 0)
        weights = weights * ratio / (weights * ratio).mean()
    return weights
