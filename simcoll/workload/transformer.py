"""Describe a transformer: what one rank computes and sends in a pass over a block, the embedding or the head.

A pass is a list of operations: matrix multiplications, attention, elementwise kernels, and exchanges with other ranks.
The list depends on the model's shapes and on how tensor (tp), context (cp) and expert parallelism (ep) share the work.
Times come from `compute.py` (computations) and from simulated calls (exchanges).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, StrictBool, StrictInt, model_validator

from simcoll.config.field_types import Count
from simcoll.config.yaml_tree import Model
from simcoll.workload.expert_routing import COMBINE, DISPATCH, TOKENS

Matrix = tuple[int, int, Literal["column", "row", "whole"]]
Some = Annotated[StrictInt, Field(ge=0)]

LOSS_BYTES: Final = 20  # memory traffic per token and vocabulary entry: float32 logits, softmax, gradient


class Transformer(Model):
    """The shapes of a transformer."""

    layers: Count
    """Number of blocks."""
    hidden: Count
    """Width of the residual stream."""
    ffn: Count
    """Width of the MLP of a dense block."""
    heads: Count
    """Number of attention heads."""
    kv_heads: Count | None = None
    """Number of heads of keys and values (grouped-query attention). Default: `heads`."""
    head_dim: Count | None = None
    """Width of a head. Default: `hidden` / `heads`."""
    vocab: Count
    """Size of the vocabulary."""
    gated: StrictBool = True
    """Whether the MLP is gated (SwiGLU): it then has three matrices, else two."""
    experts: Some = 0
    """Number of routed experts of a block; 0 for a dense model."""
    active_experts: Some = 0
    """Number of experts that each token is sent to."""
    shared_experts: Some = 0
    """Number of experts that process all tokens."""
    expert_ffn: Count | None = None
    """Width of an expert. Default: `ffn`."""
    dense_layers: Some = 0
    """Number of dense blocks at the start of a model with experts."""
    tied: StrictBool = False
    """Whether the head uses the embedding's matrix."""
    positions: Some = 0
    """Number of learned position embeddings; 0 for rotary positions."""
    norm: Literal["rms", "layer"] = "rms"
    """Kind of norm; a layer norm has a bias."""
    biases: StrictBool = False
    """Whether linear layers have biases."""
    q_rank: Count | None = None
    """Rank of the queries of latent attention (DeepSeek)."""
    kv_rank: Count | None = None
    """Rank of the keys and values of latent attention. Its keys have `rope_dim` of `head_dim` in common."""
    rope_dim: Some = 0
    """Width of the rotary part of a head, with latent attention."""
    v_head_dim: Count | None = None
    """Width of a head's values. Default: `head_dim`."""

    @model_validator(mode="after")
    def _consistent(self) -> Transformer:
        if self.head_dim is None and self.hidden % self.heads:
            problem = f"a hidden size of {self.hidden} is no multiple of {self.heads} heads"
            raise ValueError(f"{problem}; write `head_dim`")
        if self.heads % self.keys:
            raise ValueError(f"{self.heads} heads are no multiple of {self.keys} kv_heads; change one")
        if bool(self.experts) != bool(self.active_experts):
            raise ValueError("a mixture of experts needs both `experts` and `active_experts`; write both or none")
        if self.active_experts > self.experts:
            raise ValueError(f"{self.active_experts} active experts are more than {self.experts} experts; write fewer")
        if self.dense_layers > self.layers:
            raise ValueError(f"{self.dense_layers} dense layers are more than {self.layers} layers; write fewer")
        return self

    @property
    def keys(self) -> int:
        """Return the number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Return the width of a head's queries and keys."""
        return self.head_dim or self.hidden // self.heads

    @property
    def values(self) -> int:
        """Return the width of a head's values."""
        return self.v_head_dim or self.width

    @property
    def expert_width(self) -> int:
        """Return the width of an expert."""
        return self.expert_ffn or self.ffn

    def has_experts(self, layer: int) -> bool:
        """Whether a block (from 0) is a mixture of experts."""
        return bool(self.experts) and layer >= self.dense_layers

    @property
    def mats(self) -> int:
        """Return the number of matrices of an MLP."""
        return 3 if self.gated else 2

    @property
    def norm_parameters(self) -> int:
        """Return the parameters of a norm."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    @property
    def attention_matrices(self) -> list[Matrix]:
        """Return the linear layers of attention as (in, out, how tensor parallelism splits the layer)."""
        out: Matrix = (self.heads * self.values, self.hidden, "row")
        if self.kv_rank is None:
            return [(self.hidden, (self.heads + self.keys) * self.width + self.keys * self.values, "column"), out]
        expanded = self.heads * (self.width - self.rope_dim + self.values)
        queries = self.heads * self.width
        ranked: list[Matrix] = [(self.hidden, queries, "column")]
        if self.q_rank:
            ranked = [(self.hidden, self.q_rank, "whole"), (self.q_rank, queries, "column")]
        return [
            *ranked,
            (self.hidden, self.kv_rank + self.rope_dim, "whole"),
            (self.kv_rank, expanded, "column"),
            out,
        ]

    @property
    def every_second(self) -> list[Matrix]:
        """Return every second matrix of a dense block, in the order of its products, as `attention_matrices` does."""
        *inner, out = self.attention_matrices
        if self.kv_rank is None:
            widths = (self.heads * self.width, self.keys * self.width, self.keys * self.values)
            inner = [(self.hidden, width, "column") for width in widths]
        mlp: list[Matrix] = [(self.hidden, self.ffn, "column")] * (self.mats - 1)
        return [*inner, out, *mlp, (self.ffn, self.hidden, "row")][1::2]

    @property
    def attention_parameters(self) -> int:
        """Return the parameters of a block's attention, with the two norms of the block."""
        norms = 2 * self.norm_parameters
        ranks = (self.q_rank or 0) + (self.kv_rank or 0)  # latent attention has norms in between
        return norms + ranks + sum(a * b + self.biases * b for a, b, _ in self.attention_matrices)

    def mlp_parameters(self, width: int) -> int:
        """Return the parameters of an MLP, or of an expert, of some width."""
        return self.mats * self.hidden * width + self.biases * ((self.mats - 1) * width + self.hidden)

    @property
    def always_parameters(self) -> int:
        """Return the parameters of a mixture's router and shared experts."""
        return self.hidden * self.experts + self.shared_experts * self.mlp_parameters(self.expert_width)

    @property
    def embedding_parameters(self) -> int:
        """Return the parameters of the embedding."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def parameters(self) -> int:
        """Return the number of parameters of the whole model."""
        mixtures = max(0, self.layers - self.dense_layers) if self.experts else 0
        dense = (self.layers - mixtures) * self.mlp_parameters(self.ffn)
        mixed = mixtures * (self.always_parameters + self.experts * self.mlp_parameters(self.expert_width))
        ends = self.embedding_parameters + (0 if self.tied else self.vocab * self.hidden)
        return self.layers * self.attention_parameters + dense + mixed + ends + self.norm_parameters

    def macs(self, layer: int) -> int:
        """Return the multiply-adds of the matrices of a block for a token."""
        active = (self.active_experts + self.shared_experts) * self.expert_width
        width = active if self.has_experts(layer) else self.ffn
        routed = self.hidden * self.experts if self.has_experts(layer) else 0
        return sum(a * b for a, b, _ in self.attention_matrices) + self.mats * self.hidden * width + routed

    def flop(self, sequence: int) -> int:
        """Return the model FLOPs of one sequence, forward and backward, as the literature counts them: six for each
        token and weight of the matrices that the token meets (the head's too), and causal attention. Recomputation does
        not count."""
        weights = sum(map(self.macs, range(self.layers)))
        return 6 * sequence * weights + self.head_flop(sequence) + self.attention_flop(sequence)

    def head_flop(self, sequence: int) -> int:
        """Return the model FLOPs of the head."""
        return 6 * sequence * self.hidden * self.vocab

    def attention_flop(self, sequence: int) -> int:
        """Return the model FLOPs of the core of causal attention."""
        return 3 * sequence**2 * self.layers * self.heads * (self.width + self.values)


class Split(NamedTuple):
    """How ranks share the work on a micro batch: degrees of tensor, context and expert parallelism. `etp`: tensor
    parallelism within an expert. `ring`: context parallelism passes keys and values round; else it gathers them."""

    tp: int = 1
    sequence_parallel: bool = True
    cp: int = 1
    ring: bool = True
    ep: int = 1
    etp: int = 1


class Types(NamedTuple):
    """The type in which linear layers compute, and the bytes of an activation."""

    compute: str = "bf16"
    itemsize: int = 2


BF16: Final = Types()


class Gemm(NamedTuple):
    """`times` matrix multiplications (m × k) · (k × n). `of_weights`: they give the gradient of weights."""

    m: int
    n: int
    k: int
    dtype: str
    times: int = 1
    of_weights: bool = False

    @property
    def flop(self) -> int:
        """Return the floating-point operations."""
        return 2 * self.m * self.n * self.k * self.times


class Attention(NamedTuple):
    """The core of attention over some sequences, with the heads of one rank. `causal`: queries see only the keys before
    them, so that half of the scores count."""

    batch: int
    heads: int
    kv_heads: int
    width: int
    queries: int
    keys: int
    causal: bool
    backward: bool = False

    @property
    def flop(self) -> float:
        """Return the floating-point operations; a backward pass has 2.5 times those of a forward pass."""
        scores = self.batch * self.heads * self.queries * self.keys * (0.5 if self.causal else 1)
        return 4 * scores * self.width * (2.5 if self.backward else 1)


class Elementwise(NamedTuple):
    """Kernels that read and write at least `nbytes`."""

    nbytes: int


class Exchange(NamedTuple):
    """A collective among the ranks of one dimension (`tp`, `cp`, `ep`), of `nbytes` as nccl-tests counts them. It moves
    so many `tokens` of each rank if it takes them to their experts or back."""

    dimension: str
    collective: str
    nbytes: int
    times: int = 1
    tokens: int = 0


class Beside(NamedTuple):
    """Computations with exchanges beside them. `passes[i]` computes while `exchange` moves data, if i < `sends`: in
    ring attention the keys and values of the next pass; in the backward pass of a column-parallel layer its input, and
    the gradient of its input."""

    passes: tuple[Attention | Gemm, ...]
    exchange: Exchange
    sends: int


Operation = Gemm | Attention | Elementwise | Exchange | Beside


class Block(NamedTuple):
    """A part of the model on one rank: its operations in a forward and a backward pass, the operations that the
    backward pass repeats before it (recomputation), and its parameters. `expert_parameters` come on top."""

    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]
    recomputed: tuple[Operation, ...]
    parameters: int
    expert_parameters: int = 0


def _share(nbytes: int, parts: int) -> int:
    return -(-nbytes // parts)


class _Layer:
    """Builds the operations of a model's parts for `micro` sequences of `sequence` tokens."""

    def __init__(self, model: Transformer, split: Split, micro: int, sequence: int, types: Types):
        self.model, self.split, self.types = model, split, types
        self.micro, self.sequence = micro, sequence
        self.tokens = micro * sequence // split.cp
        self.tp = split.tp
        self.along = split.tp if split.sequence_parallel else 1  # divides what acts on whole tokens

    def linear(self, inside: int, out: int, how: str) -> Gemm:
        parts = {"column": (out // self.tp, inside), "row": (out, inside // self.tp), "whole": (out, inside)}
        tokens = _share(self.tokens, self.along) if how == "whole" else self.tokens
        return Gemm(tokens, *parts[how], self.types.compute)

    def of_tokens(self, values: float) -> Elementwise:
        """Return kernels that move so many values for each token of the rank."""
        return Elementwise(round(values * self.types.itemsize * self.tokens / self.along))

    def of_heads(self, values: float) -> Elementwise:
        """Return kernels that move so many values for each token, divided among tensor-parallel ranks."""
        return Elementwise(round(values * self.types.itemsize * self.tokens / self.tp))

    def exchange(self, collective: str, width: int | None = None, dimension: str = "tp") -> list[Operation]:
        size = self.tokens * (width or self.model.hidden) * self.types.itemsize
        return [Exchange(dimension, collective, size)] if getattr(self.split, dimension) > 1 else []

    @property
    def enter(self) -> list[Operation]:
        """The exchange before a column-parallel layer in the forward pass."""
        return self.exchange("all_gather") if self.split.sequence_parallel else []

    @property
    def leave(self) -> list[Operation]:
        """The exchange after a row-parallel layer in the forward pass."""
        return self.exchange("reduce_scatter" if self.split.sequence_parallel else "all_reduce")

    def attended(self, backward: bool) -> list[Operation]:
        """Return the attention of one pass, with the exchanges of context parallelism."""
        model, cp = self.model, self.split.cp
        heads, keys = model.heads // self.tp, max(1, model.keys // self.tp)
        width = (model.width + model.values) // 2
        mine = self.sequence // cp
        whole = Attention(self.micro, heads, keys, width, mine, mine, True, backward)
        if cp == 1:
            return [whole]
        size = self.tokens * keys * (model.width + model.values) * self.types.itemsize
        if not self.split.ring:  # every rank sees, in the mean, half of all keys
            gathered = Exchange("cp", "all_gather", size * cp)
            half = whole._replace(keys=self.sequence // 2, causal=False)
            after: list[Operation] = [Exchange("cp", "reduce_scatter", size * cp)] if backward else []
            return [gathered, half, *after]
        half = whole._replace(keys=max(1, mine // 2), causal=False)  # work is balanced: half of each other block
        moved = Exchange("cp", "send_recv", size * (2 if backward else 1))  # backward: with the gradients so far
        return [Beside((whole, *[half] * (cp - 1)), moved, cp if backward else cp - 1)]

    def mlp(self, width: int, tokens: int, parts: int, copies: int = 1) -> list[Operation]:
        """Return the forward pass of MLPs of some width on `tokens` each, divided into `parts`."""
        mats, h, dtype = self.model.mats, self.model.hidden, self.types.compute
        moved = mats * self.types.itemsize  # the activation reads one value, or two if gated, and writes one
        return [
            Gemm(tokens, (mats - 1) * width // parts, h, dtype, copies),
            Elementwise(moved * width // parts * tokens * copies),
            Gemm(tokens, h, width // parts, dtype, copies),
        ]

    def attention(self) -> list[Operation]:
        """Return the forward pass of the attention half of a block."""
        model = self.model
        column = [self.linear(*each) for each in model.attention_matrices if each[2] != "row"]
        row = [self.linear(*each) for each in model.attention_matrices if each[2] == "row"]
        turned = [] if model.positions else [self.of_heads(2 * (model.heads + model.keys) * model.width)]
        half = [self.of_tokens(2 * model.hidden), *self.enter, *column, *turned, *self.attended(backward=False)]
        return [*half, *row, *self.leave, self.of_tokens(3 * model.hidden)]

    def dense(self) -> list[Operation]:
        """Return the forward pass of the MLP half of a dense block."""
        h, mlp = self.model.hidden, self.mlp(self.model.ffn, self.tokens, self.tp)
        return [self.of_tokens(2 * h), *self.enter, *mlp, *self.leave, self.of_tokens(3 * h)]

    def mixture(self) -> list[Operation]:
        """Return the forward pass of the MLP half of a block with experts, whose tokens are spread evenly."""
        model, split = self.model, self.split
        own = _share(self.tokens, self.tp)  # tokens of the rank before tensor-parallel ranks gather them
        routed = own * model.active_experts
        size = routed * model.hidden * self.types.itemsize
        out, back = ([Exchange("ep", way, size, tokens=own)] if split.ep > 1 else [] for way in TOKENS)
        gathered: list[Operation] = []
        scattered: list[Operation] = []
        if split.etp > 1:
            routed *= split.etp
            gathered = [Exchange("tp", "all_gather", size * split.etp)]
            scattered = [Exchange("tp", "reduce_scatter", size * split.etp)]
        local = max(1, model.experts // split.ep)
        router = Gemm(own, model.experts, model.hidden, "bf16")
        permuted = Elementwise(4 * size)  # read and written before and after the experts
        work = self.mlp(model.expert_width, _share(routed, local), split.etp, local)
        shared: list[Operation] = []
        if model.shared_experts:
            width = model.shared_experts * model.expert_width
            shared = [*self.enter, *self.mlp(width, self.tokens, self.tp), *self.leave]
        before = [self.of_tokens(2 * model.hidden), router, *shared, permuted, *out, *gathered]
        return [*before, *work, *scattered, *back, self.of_tokens(3 * model.hidden)]

    def by_operation(self, forward: Sequence[Operation], experts: bool) -> tuple[Operation, ...]:
        """Return what the backward pass computes again if it keeps the results of attention, of sums and, in a dense
        block, of every second matrix product."""
        products = [each for each in forward if isinstance(each, Gemm)]
        products = products if experts else [self.linear(*each) for each in self.model.every_second]
        gathers = [each for each in forward if isinstance(each, Exchange) and each.collective == "all_gather"]
        moved = [each for each in forward if isinstance(each, Elementwise)]
        return (*products, *moved, *(each for each in gathers if each.dimension == "tp"))

    def turned(self, forward: Iterable[Operation]) -> list[Operation]:
        """Return the backward pass of a forward pass: exchanges are mirrored, a multiplication becomes two, one for the
        gradient of its input and one for that of its weights. With sequence parallelism the input of a column-parallel
        layer is gathered again beside the first, and the gradient of its input is scattered beside the second."""
        back: list[Operation] = []
        mirror = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather", DISPATCH: COMBINE, COMBINE: DISPATCH}
        operations = list(forward)
        if not self.split.sequence_parallel:  # the sum moves from behind a layer to before it
            operations = self._summed_before(operations)
        for each in reversed(operations):
            if isinstance(each, Gemm):
                back.append(each._replace(n=each.k, k=each.n))
                back.append(Gemm(each.n, each.k, each.m, each.dtype, each.times, of_weights=True))
            elif isinstance(each, Elementwise):
                back.append(Elementwise(2 * each.nbytes))
            elif isinstance(each, Exchange) and each.dimension != "cp":
                mirrored = each._replace(collective=mirror.get(each.collective, each.collective))
                if each.collective == "all_gather" and self.split.sequence_parallel:
                    *back, of_input, of_weights = back
                    assert isinstance(of_input, Gemm) and isinstance(of_weights, Gemm)
                    back += [Beside((of_input,), each, 1), Beside((of_weights,), mirrored, 1)]
                else:
                    back.append(mirrored)
            elif isinstance(each, Attention | Beside):
                back += self.attended(backward=True)
        return back

    def _summed_before(self, operations: list[Operation]) -> list[Operation]:
        sums = [each for each in operations if isinstance(each, Exchange) and each.collective == "all_reduce"]
        rest = [each for each in operations if each not in sums]
        norm = next(i for i, each in enumerate(rest) if isinstance(each, Gemm))
        return [*rest[:norm], *sums, *rest[norm:]]


def block(
    model: Transformer,
    split: Split,
    micro: int,
    sequence: int,
    *,
    experts: bool = False,
    recompute: str = "none",
    stops: bool = False,
    types: Types = BF16,
) -> Block:
    """Return a transformer block on one rank, for `micro` sequences of `sequence` tokens (all ranks of the context
    together hold them). `experts`: a block with a mixture of experts. `recompute`: `none`, `selective` (the core of
    attention), `operations` (every second matrix product, elementwise kernels and gathers) or `full`. `stops`: a full
    recomputation of a dense block ends at the last tensor that the backward pass needs, the last matrix's input."""
    layer = _Layer(model, split, micro, sequence, types)
    halves = layer.attention(), layer.mixture() if experts else layer.dense()
    forward = tuple(halves[0] + halves[1])
    core, some = tuple(layer.attended(backward=False)), layer.by_operation(forward, experts)
    products = [number for number, each in enumerate(forward) if isinstance(each, Gemm)]
    whole = forward[: products[-1]] if stops and not experts else forward
    again = {"none": (), "selective": core, "operations": some, "full": whole}[recompute]
    own = model.attention_parameters // split.tp
    if not experts:
        own += model.mlp_parameters(model.ffn) // split.tp
        return Block(forward, tuple(layer.turned(halves[1]) + layer.turned(halves[0])), again, own)
    own += model.hidden * model.experts
    own += model.shared_experts * model.mlp_parameters(model.expert_width) // split.tp
    local = model.experts // split.ep * model.mlp_parameters(model.expert_width) // split.etp
    return Block(forward, tuple(layer.turned(halves[1]) + layer.turned(halves[0])), again, own, local)


def embedding(model: Transformer, split: Split, micro: int, sequence: int, types: Types = BF16) -> Block:
    """Return the embedding on one rank of the first stage; tensor parallelism divides the vocabulary."""
    layer = _Layer(model, split, micro, sequence, types)
    looked_up = layer.of_tokens(2 * model.hidden)
    own = _share(model.vocab, split.tp) * model.hidden + model.positions * model.hidden
    return Block((looked_up, *layer.leave), (*layer.enter, looked_up), (), own)


def head(model: Transformer, split: Split, micro: int, sequence: int, types: Types = BF16) -> Block:
    """Return the head on one rank of the last stage: the last norm, the product with the vocabulary in bf16 (or fp32),
    and the loss. Parameters of a tied head are counted here, too: its stage holds a copy."""
    layer = _Layer(model, split, micro, sequence, types)
    part = _share(model.vocab, split.tp)
    product = Gemm(layer.tokens, part, model.hidden, "fp32" if types.compute == "fp32" else "bf16")
    half = Elementwise(LOSS_BYTES * layer.tokens * part // 2)
    sums: tuple[Operation, ...] = (Exchange("tp", "all_reduce", 4 * layer.tokens, 3),) if split.tp > 1 else ()
    forward = (layer.of_tokens(2 * model.hidden), *layer.enter, product, half, *sums)
    backward = (half, *layer.turned(forward[:-2] if sums else forward[:-1]))
    return Block(forward, backward, (), part * model.hidden + model.norm_parameters)
