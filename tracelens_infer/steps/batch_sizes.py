"""How many tokens and requests does each step run? Told by the shapes of its ops, without a label."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod

import numpy as np

from tracelens_infer.steps.attention_ops import AttentionSize, Serves, attention_size
from tracelens_infer.steps.candidates import Candidate
from tracelens_infer.steps.coverage import step_numbers
from tracelens_infer.trace.arguments import OpShapes, Shapes, op_shapes
from tracelens_infer.trace.columns import MISSING, BoolArray, Int64Array, Role, Trace

__all__ = ["UNTOLD", "BatchSizes", "TokensFrom", "batch_sizes"]

UNTOLD = -1

_BLED_SHARE = 0.5
"""A tile with fewer attention calls than this share of what is usual has some of its neighbour's, no forward's own."""
_ONCE = 1.5  # the output layer runs once a step; what runs more often a step is a layer's

# Ops that move, view or make data: their shapes are those of buffers and weights.
_MEMORY_OPS = re.compile(
    r"empty|copy|view|reshape|as_strided|slice|select|narrow|split|chunk|unbind|expand|transpose|permute|numpy_T"
    r"|::t$|detach|alias|fill_|zero|ones|full|arange|resize|clone|contiguous|lift|resolve_|squeeze|flatten|::cat$"
    r"|stack|rand|::to$|result_type|cache|gather|scatter|nonzero|argmax|topk|sort|softmax|::index$"
)
_MATRIX_OPS = re.compile(r"mm|linear|gemm|matmul")
_EMBEDDING = "aten::embedding"
_PICK = "aten::argmax"  # greedy sampling: a row of logits for each request, as wide as the vocabulary
_LOGIT_DIMS = 2


class TokensFrom(StrEnum):
    """What tells a step's tokens?"""

    ATTENTION = "attention op"
    PATTERN = "attention-like op"  # an op that is not known, read by pattern
    MODAL = "op shapes"  # the first dimension that most ops share
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, eq=False)
class BatchSizes:
    """Sizes of each step, one entry a step; UNTOLD where nothing tells.

    Attributes:
        tokens: query tokens of all requests.
        requests: requests that run, by the attention op.
        logit_rows: rows of the output layer: one a request, but for engines that compute them for every token.
        context_tokens, generation_tokens: of ops that serve one phase only.
        padded: tokens may be rounded up to a captured graph's size.
        tokens_from: position in TokensFrom.
        ops: host ops that began in the step's tile.
    """

    tokens: Int64Array
    requests: Int64Array
    logit_rows: Int64Array
    context_tokens: Int64Array
    generation_tokens: Int64Array
    padded: BoolArray
    tokens_from: tuple[TokensFrom, ...]
    ops: Int64Array


def batch_sizes(trace: Trace, candidate: Candidate) -> BatchSizes:
    """How large is each step's batch? Ops belong to the tile in which they begin. Reads the file's host ops again."""
    count = len(candidate.boundaries)
    rows = trace.rows(Role.HOST_OP)
    rows = rows[trace.columns.start_ns[rows] != MISSING]
    step = np.full(len(rows), -1) if candidate.on_device else step_numbers(candidate, trace.columns.start_ns[rows])
    inside = step >= 0
    rows, step = rows[inside], step[inside]
    ops = np.bincount(step, minlength=count).astype(np.int64)
    tallies = _Tallies(count)
    order = np.argsort(rows)
    rows, step = rows[order], step[order]
    for batch in op_shapes(trace, rows):
        tallies.add(batch, step[np.searchsorted(rows, batch.rows)])
    return tallies.sizes(ops)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A product with a weight: rows of the input, and the weight's outputs."""

    name: str
    rows: int
    outputs: int


_Seen = AttentionSize | _Matrix | int  # an int is the first dimension of any other op


class _Tallies:
    """Counts of each size seen in each step. Of the many ops only a step's distinct sizes are kept."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._numbers: dict[_Seen, int] = {}
        self._tally: dict[tuple[int, int], int] = {}
        self._vocabulary = 0

    def add(self, batch: OpShapes, step: Int64Array) -> None:
        """Count one batch's ops."""
        pair = batch.name * max(len(batch.shapes), 1) + batch.shape
        pairs, inverse = np.unique(pair, return_inverse=True)
        numbers = np.array([self._number(batch, int(value)) for value in pairs], dtype=np.int64)[inverse]
        known = numbers >= 0
        width = len(self._numbers) + 1
        keys, times = np.unique(step[known] * width + numbers[known], return_counts=True)
        for key, many in zip(keys.tolist(), times.tolist(), strict=True):
            place = divmod(key, width)
            self._tally[place] = self._tally.get(place, 0) + many

    def _number(self, batch: OpShapes, pair: int) -> int:
        name, shape = divmod(pair, max(len(batch.shapes), 1))
        shapes = batch.shapes[shape]
        if batch.names[name] == _EMBEDDING and shapes and shapes[0]:
            self._vocabulary = max(self._vocabulary, shapes[0][0])
        seen = _seen(batch.names[name], shapes)
        return -1 if seen is None else self._numbers.setdefault(seen, len(self._numbers))

    def sizes(self, ops: Int64Array) -> BatchSizes:
        """What do the counts say of each step?"""
        kinds = list(self._numbers)
        entries = [(place[0], kinds[place[1]], many) for place, many in self._tally.items()]
        attention = [(step, seen, many) for step, seen, many in entries if isinstance(seen, AttentionSize)]
        matrices = [(step, seen, many) for step, seen, many in entries if isinstance(seen, _Matrix)]
        outputs = self._output_layer(matrices)
        logit_rows = _modal(
            self._count, ((step, seen.rows, many) for step, seen, many in matrices if seen.outputs == outputs)
        )
        modal = _modal(self._count, _first_dimensions(entries, outputs))
        found = _Attention.of(self._count, attention)
        tokens = np.where(found.tokens != UNTOLD, found.tokens, np.where(modal != UNTOLD, modal, logit_rows))
        tokens_from = tuple(
            (TokensFrom.ATTENTION if exact else TokensFrom.PATTERN)
            if told != UNTOLD
            else (TokensFrom.MODAL if any_tokens != UNTOLD else TokensFrom.NOTHING)
            for told, exact, any_tokens in zip(found.tokens, found.exact, tokens, strict=True)
        )
        return BatchSizes(
            tokens,
            found.requests,
            logit_rows,
            found.context_tokens,
            found.generation_tokens,
            found.padded | (found.tokens == UNTOLD),
            tokens_from,
            ops,
        )

    def _output_layer(self, matrices: list[tuple[int, _Matrix, int]]) -> int:
        """Which number of outputs is the vocabulary's (or a rank's share of it)? 0 where no op has it."""
        if any(seen.outputs == self._vocabulary > 0 for _, seen, _ in matrices):
            return self._vocabulary
        widest = max((seen.outputs for _, seen, _ in matrices), default=0)
        by_name: dict[str, list[int]] = {}
        for _, seen, many in matrices:
            if seen.outputs == widest:
                by_name.setdefault(seen.name, []).append(many)
        return widest if by_name and all(float(np.mean(times)) < _ONCE for times in by_name.values()) else 0


def _seen(name: str, shapes: Shapes) -> _Seen | None:
    """What does an op's shape say about the batch? None for ops that move data or tell nothing."""
    attention = attention_size(name, shapes)
    if attention is not None:
        return attention
    if name == _EMBEDDING:
        return prod(shapes[1]) if len(shapes) > 1 and shapes[1] else None
    if name == _PICK:
        return _Matrix(name, shapes[0][0], shapes[0][1]) if shapes and len(shapes[0]) == _LOGIT_DIMS else None
    if _MEMORY_OPS.search(name):
        return None
    tensors = [dims for dims in shapes if len(dims) > 1]
    if not tensors or 0 in tensors[0]:
        return None
    if not _MATRIX_OPS.search(name):
        return tensors[0][0]
    rows, inputs = prod(tensors[0][:-1]), tensors[0][-1]
    weight = tensors[1] if len(tensors) > 1 else ()
    outputs = UNTOLD
    if inputs in weight:
        outputs = prod(weight) // inputs
    elif weight and prod(weight[:-1]) == rows:
        outputs = inputs  # the result comes first, then the input
    return _Matrix(name, rows, outputs)


def _first_dimensions(entries: list[tuple[int, _Seen, int]], outputs: int) -> Iterator[tuple[int, int, int]]:
    """Step, first dimension and count of every op that computes, but for the output layer's few rows."""
    for step, seen, many in entries:
        if isinstance(seen, int):
            yield step, seen, many
        elif isinstance(seen, _Matrix) and seen.outputs != outputs:
            yield step, seen.rows, many


def _modal(count: int, sized: Iterator[tuple[int, int, int]]) -> Int64Array:
    """Which size is the most frequent one of each step? The larger one of equally frequent ones."""
    totals: dict[tuple[int, int], int] = {}
    for step, size, many in sized:
        totals[step, size] = totals.get((step, size), 0) + many
    best: dict[int, tuple[int, int]] = {}
    for (step, size), many in totals.items():
        best[step] = max(best.get(step, (0, 0)), (many, size))
    modal = np.full(count, UNTOLD, dtype=np.int64)
    for step, (_, size) in best.items():
        modal[step] = size
    return modal


@dataclass(frozen=True, slots=True, eq=False)
class _Attention:
    """What the attention ops of each step tell."""

    tokens: Int64Array
    requests: Int64Array
    context_tokens: Int64Array
    generation_tokens: Int64Array
    padded: BoolArray
    exact: BoolArray

    @classmethod
    def of(cls, count: int, entries: list[tuple[int, AttentionSize, int]]) -> _Attention:
        chosen = _own_calls(count, entries)
        tokens, requests, context, generation = (np.full(count, UNTOLD, dtype=np.int64) for _ in range(4))
        padded, exact = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        found = cls(tokens, requests, context, generation, padded, exact)
        for (step, serves), (_, size) in chosen.items():
            found.tokens[step] = max(found.tokens[step], 0) + size.tokens
            if size.requests is not None:
                found.requests[step] = max(found.requests[step], 0) + size.requests
            found.padded[step] |= size.padded
            found.exact[step] = size.exact
            if serves is Serves.CONTEXT:
                found.context_tokens[step] = size.tokens
            elif serves is Serves.GENERATION:
                found.generation_tokens[step] = size.tokens
        return found


def _own_calls(
    count: int, entries: list[tuple[int, AttentionSize, int]]
) -> dict[tuple[int, Serves], tuple[int, AttentionSize]]:
    """(step, whose attention) -> how many calls of which size, the most frequent one: a forward has one size.

    Calls that tell the requests go before those that wrap them. An engine with an op for decodes uses the others for
    prefills.
    """
    split = any(size.serves is Serves.GENERATION for _, size, _ in entries)
    best: dict[tuple[int, Serves], tuple[tuple[bool, bool, int, int], AttentionSize]] = {}
    for step, size, many in entries:
        serves = Serves.CONTEXT if split and size.serves is Serves.BOTH else size.serves
        if serves is Serves.CONTEXT and size.serves is Serves.BOTH and size.requests is None:
            continue  # the custom op around both
        rank = (size.requests is not None, size.exact, many, size.tokens)
        if (step, serves) not in best or rank > best[step, serves][0]:
            best[step, serves] = (rank, size)
    calls: dict[Serves, list[int]] = {}
    for (_, serves), (rank, _) in best.items():
        calls.setdefault(serves, []).append(rank[2])
    usual = {serves: float(np.median(times)) for serves, times in calls.items()}
    return {place: (rank[2], size) for place, (rank, size) in best.items() if rank[2] >= _BLED_SHARE * usual[place[1]]}
