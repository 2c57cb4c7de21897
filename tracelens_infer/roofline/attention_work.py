"""How many query-key pairs does a mask leave, and how many cached tokens are read? From sums, or request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tracelens_infer.errors import UsageError
from tracelens_infer.roofline.model import AttentionKind, AttentionShape
from tracelens_infer.steps.annotation import PhaseLoad

__all__ = ["Bounds", "PhaseColumns", "Values", "Work", "work_of_requests", "work_of_sums"]

Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
N = TypeVar("N")

Values: TypeAlias = npt.NDArray[np.int64]
"""int64, or in truth Python's own integers (dtype object), which have no limit: one load is a column of one such row.
numpy's functions used here work on both alike, and to the type checker they look alike."""


@dataclass(frozen=True, slots=True)
class Bounds(Generic[N]):
    """Between which two values does a figure lie? They are equal where it is exact."""

    low: N
    high: N

    @property
    def exact(self) -> bool:
        """Are both the same (in every row)?"""
        return bool(np.all(np.asarray(self.low == self.high)))


@dataclass(frozen=True, slots=True, eq=False)
class PhaseColumns:
    """The sums of one phase's requests as int64 columns, one row a step; the names are those of PhaseLoad."""

    requests: Int64Array
    query_tokens: Int64Array
    kv_tokens: Int64Array
    query_kv: Int64Array
    query_query: Int64Array

    @classmethod
    def of(cls, loads: Iterable[PhaseLoad]) -> PhaseColumns:
        """What are the columns of these loads? Raises UsageError where a load with requests lacks a sum."""
        rows = [_five(load) for load in loads]
        table = np.array(rows, dtype=np.int64).reshape(len(rows), 5)
        return cls(*(np.ascontiguousarray(table[:, place]) for place in range(5)))


def _five(load: PhaseLoad) -> tuple[int, int, int, int, int]:
    if not load.has_sums:
        raise UsageError(
            "attention load", "Its requests have sums that are not known.", "Leave such loads out: check has_sums."
        )
    sums = (load.query_tokens, load.kv_tokens, load.query_kv, load.query_query)
    query, kv, query_kv, query_query = (value or 0 for value in sums)
    return load.requests, query, kv, query_kv, query_query


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What do the requests of one phase ask of a mask? Columns of one row a step.

    Attributes:
        requests, query_tokens, kv_tokens, query_kv, query_query: the sums R, N_Q, N_KV, N_Q * N_KV and N_Q squared.
        causal_pairs: pairs without a window: N_Q * N_KV - N_Q * (N_Q - 1) / 2 a request. Always exact.
        pairs: pairs that the layer's own mask leaves.
        kv_read: cached tokens read, each once a request; the lower bound reads a shared prefix once for all.
        kv_whole: the same without the mask (what an indexer reads).
        state_reads: requests that come with a past.
    """

    requests: Values
    query_tokens: Values
    kv_tokens: Values
    query_kv: Values
    query_query: Values
    causal_pairs: Values
    pairs: Bounds[Values]
    kv_read: Bounds[Values]
    kv_whole: Bounds[Values]
    state_reads: Bounds[Values]


def work_of_sums(
    load: PhaseLoad | PhaseColumns, shape: AttentionShape, *, causal: bool, shared_prefix: int, kv_ranks: int
) -> Work:
    """What do these sums ask of the layer's mask? Every request is taken to bring at least one query token.

    A window's and a chunk's figures are bounds, exact for a single request, for requests that fit in the window, and
    for equal prompts without cached tokens.
    """
    sums = _Sums.of(load)
    pairs, read = _BY_KIND.get(shape.kind, _full)(sums, shape.topk_tokens or shape.window_tokens or 1)
    if not causal:
        pairs = Bounds(sums.query_kv, sums.query_kv)
    whole = Bounds(sums.kv, sums.kv)
    sparse = shape.kind is AttentionKind.SPARSE_TOPK
    reach = _reach(shape, shared_prefix)
    return Work(
        sums.requests,
        sums.query,
        sums.kv,
        sums.query_kv,
        sums.query_query,
        sums.causal,
        pairs,
        _per_rank(sums.requests, _with_prefix(sums, read, reach, sparse=sparse), kv_ranks),
        _per_rank(sums.requests, _with_prefix(sums, whole, shared_prefix, sparse=False), kv_ranks),
        Bounds(np.minimum(sums.cached, 1), np.minimum(sums.cached, sums.requests)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    requests: Values
    query: Values
    kv: Values
    query_kv: Values
    query_query: Values

    @classmethod
    def of(cls, load: PhaseLoad | PhaseColumns) -> _Sums:
        if isinstance(load, PhaseColumns):
            return cls(load.requests, load.query_tokens, load.kv_tokens, load.query_kv, load.query_query)
        return cls(*(_unlimited([value]) for value in _five(load)))

    @property
    def cached(self) -> Values:
        """Tokens computed before this step: SUM(N_KV - N_Q)."""
        return np.asarray(np.maximum(self.kv - self.query, 0))

    @property
    def causal(self) -> Values:
        """SUM(N_Q N_KV - N_Q (N_Q - 1) / 2)."""
        return self.query_kv - (self.query_query - self.query) // 2

    @property
    def some(self) -> Values:
        """Requests, but 1 where there are none: something to divide by."""
        return np.maximum(self.requests, 1)

    @property
    def uniform(self) -> BoolArray:
        """Do all requests have the same N_Q? Only then does Cauchy and Schwarz' inequality hold with equality."""
        return np.asarray(self.requests * self.query_query == self.query * self.query)

    def fit_in(self, tokens: int) -> BoolArray:
        """Does every request's N_KV fit in so many tokens for sure? The others have one token at least."""
        return np.asarray(self.kv - (self.requests - 1) <= tokens)


def _unlimited(values: list[int]) -> Values:
    return cast(Values, np.array(values, dtype=object))


def window_triangle(tokens: Values, window: int) -> Values:
    """How many pairs do the first ``tokens`` queries of a sequence have, each with the last ``window`` positions?"""
    return np.where(
        tokens <= window, tokens * (tokens + 1) // 2, window * (window + 1) // 2 + (tokens - window) * window
    )


def chunk_triangle(tokens: Values, chunk: int) -> Values:
    """How many pairs do the first ``tokens`` queries of a sequence have, each with its own chunk up to itself?"""
    rest = tokens % chunk
    return tokens // chunk * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2


def _full(sums: _Sums, _size: int) -> tuple[Bounds[Values], Bounds[Values]]:
    return Bounds(sums.causal, sums.causal), Bounds(sums.kv, sums.kv)


def _window(sums: _Sums, window: int) -> tuple[Bounds[Values], Bounds[Values]]:
    fits = sums.fit_in(window)
    beyond = window - 1  # how far a request's first query looks back
    low = sums.query + np.minimum(sums.cached, beyond)
    high = sums.query + np.minimum(sums.cached, sums.requests * beyond)
    read = Bounds(np.where(fits, sums.kv, low), np.where(fits, sums.kv, high))
    return _window_pairs(sums, window), read


def _window_pairs(sums: _Sums, window: int) -> Bounds[Values]:
    """Pairs of a sliding window, T(N_KV) - T(N_KV - N_Q) a request with T = window_triangle, from sums.

    Lower: with nothing cached it is T(N_Q), convex, so least for equal N_Q; what cached tokens add is concave in their
    number, so least where one request, and the one with the fewest queries, has them all.
    Upper: N_Q times the window, and the causal pairs; where all N_Q are equal, concave in the cached tokens, so most
    where these are equal, too.
    """

    def triangle(tokens: Values) -> Values:
        return window_triangle(tokens, window)

    fits, cached, each = sums.fit_in(window), sums.cached, sums.query // sums.some
    fewest = np.where(sums.uniform, each, 1)
    added = triangle(cached + fewest) - triangle(cached) - triangle(fewest)
    low = _evenly(triangle, sums.query, sums) + added
    high = np.minimum(sums.query * window, sums.causal)
    even = _evenly(lambda past: triangle(past + each) - triangle(past), cached, sums)
    high = np.where(sums.uniform, np.minimum(high, even), high)
    high = np.where(fits, sums.causal, high)
    return Bounds(np.minimum(np.where(fits, sums.causal, low), high), high)


def _evenly(function: Callable[[Values], Values], total: Values, sums: _Sums) -> Values:
    """The function's sum where the requests' parts of ``total`` differ by one at most: the least of a convex one."""
    part, rest = total // sums.some, total % sums.some
    return (sums.requests - rest) * function(part) + rest * function(part + 1)


def _chunked(sums: _Sums, chunk: int) -> tuple[Bounds[Values], Bounds[Values]]:
    """Chunk-local pairs: a query has (chunk + 1) / 2 on average over whole chunks, off by chunk^2 / 8 a request."""
    single, fits = np.asarray(sums.requests == 1), sums.fit_in(chunk)
    alone = chunk_triangle(sums.kv, chunk) - chunk_triangle(sums.cached, chunk)
    equal = np.asarray(sums.cached == 0) & sums.uniform
    twice, off = sums.query * (chunk + 1), sums.requests * (chunk * chunk // 4)
    low = np.maximum(sums.query, -((off - twice) // 2))
    high = np.minimum(_window_pairs(sums, chunk).high, (twice + off) // 2)
    choices = [fits, single, equal]
    exact = [sums.causal, alone, sums.requests * chunk_triangle(sums.query // sums.some, chunk)]
    high = np.select(choices, exact, high)
    pairs = Bounds(np.minimum(np.select(choices, exact, low), high), high)
    most = sums.query + np.minimum(sums.cached, sums.requests * (chunk - 1))
    read_alone = sums.query + sums.cached % chunk
    read = Bounds(
        np.select([fits, single], [sums.kv, read_alone], sums.query),
        np.select([fits, single], [sums.kv, read_alone], most),
    )
    return pairs, read


def _sparse(sums: _Sums, topk: int) -> tuple[Bounds[Values], Bounds[Values]]:
    """A query has min(position, K) pairs, as with a window of K; which tokens these are decides how many are read."""
    others = sums.some - 1
    low = np.minimum(sums.kv, others + np.minimum(topk, sums.kv - others))
    high = np.minimum(sums.kv, sums.query * topk)
    return _window_pairs(sums, topk), Bounds(low, high)


_BY_KIND = {
    AttentionKind.WINDOW: _window,
    AttentionKind.CHUNKED: _chunked,
    AttentionKind.SPARSE_TOPK: _sparse,
}


def _reach(shape: AttentionShape, shared_prefix: int) -> int:
    """How many tokens of a shared prefix can one request of this layer read?"""
    if shape.window_tokens is not None and shape.kind in (AttentionKind.WINDOW, AttentionKind.CHUNKED):
        return min(shared_prefix, shape.window_tokens - 1)
    return shared_prefix


def _with_prefix(sums: _Sums, read: Bounds[Values], prefix: int, *, sparse: bool) -> Bounds[Values]:
    """The lower bound where a prefix's pages are read once for all: all but one request save what they read of it.

    A request's own tokens are its own, and all that is read is no less than what one of the requests reads.
    """
    if prefix <= 0:
        return read
    own = 0 if sparse else sums.query  # what a top-k picks need not hold a request's own tokens
    least = np.maximum(-(-read.low // sums.some), own)
    return Bounds(np.minimum(read.low, np.maximum(least, read.low - (sums.some - 1) * prefix)), read.high)


def _per_rank(requests: Values, read: Bounds[Values], ranks: int) -> Bounds[Values]:
    """Tokens on the fullest of the ranks that share each request's context token by token."""
    if ranks == 1:
        return read
    return Bounds(-(-read.low // ranks), (read.high + requests * (ranks - 1)) // ranks)


def work_of_requests(
    requests: Sequence[tuple[int, int]], shape: AttentionShape, *, causal: bool, shared_prefix: int, kv_ranks: int
) -> Work:
    """What do these requests, each (N_Q, N_KV), ask of the layer's mask? Exact, but for what a top-k picks.

    Raises UsageError where a request has no query tokens, or fewer KV than query tokens.
    """
    _check(requests)
    # A last request of nothing, so that there is something to sum up.
    query, kv = _unlimited([*(one for one, _ in requests), 0]), _unlimited([*(other for _, other in requests), 0])
    size = shape.topk_tokens or shape.window_tokens or 1
    causal_each = query * kv - query * (query - 1) // 2
    pairs = _pairs_each(shape.kind, query, kv, size, causal_each) if causal else query * kv
    low, high, start = _read_each(shape.kind, query, kv, size)
    read = _read_of_all(_Reads(low, high, start, kv - query), shape.kind, shared_prefix, kv_ranks)
    whole = _read_of_all(_Reads(kv, kv, 0 * kv, kv - query), AttentionKind.FULL, shared_prefix, kv_ranks)
    past = _unlimited([sum(many > few for few, many in requests)])
    return Work(
        _unlimited([len(requests)]),
        _total(query),
        _total(kv),
        _total(query * kv),
        _total(query * query),
        _total(causal_each),
        Bounds(_total(pairs), _total(pairs)),
        read,
        whole,
        Bounds(past, past),
    )


def _check(requests: Sequence[tuple[int, int]]) -> None:
    for query, kv in requests:
        if not 1 <= query <= kv:
            raise UsageError(
                f"request ({query}, {kv})", "N_Q has to be 1 to N_KV.", "Give (N_Q, N_KV) of each request."
            )


def _total(each: Values) -> Values:
    return _unlimited([int(each.sum())])


def _pairs_each(kind: AttentionKind, query: Values, kv: Values, size: int, causal: Values) -> Values:
    if kind in (AttentionKind.WINDOW, AttentionKind.SPARSE_TOPK):
        return window_triangle(kv, size) - window_triangle(kv - query, size)
    if kind is AttentionKind.CHUNKED:
        return chunk_triangle(kv, size) - chunk_triangle(kv - query, size)
    return causal


def _read_each(kind: AttentionKind, query: Values, kv: Values, size: int) -> tuple[Values, Values, Values]:
    """The least and the most tokens that each request reads, and the first of them."""
    cached = kv - query
    if kind is AttentionKind.SPARSE_TOPK:
        return np.minimum(kv, size), np.minimum(kv, query * size), 0 * kv
    start = 0 * kv
    if kind is AttentionKind.WINDOW:
        start = np.maximum(cached - (size - 1), 0)
    elif kind is AttentionKind.CHUNKED:
        start = cached // size * size
    return kv - start, kv - start, start


@dataclass(frozen=True, slots=True, eq=False)
class _Reads:
    low: Values
    high: Values
    start: Values
    cached: Values


def _read_of_all(reads: _Reads, kind: AttentionKind, prefix: int, ranks: int) -> Bounds[Values]:
    high = _total(-(-reads.high // ranks))
    if prefix <= 0:
        return Bounds(_total(-(-reads.low // ranks)), high)
    shared_end = np.minimum(reads.cached, prefix)
    if kind is AttentionKind.SPARSE_TOPK:
        picked = np.minimum(reads.low, shared_end)  # at best all pick the same of the shared tokens
        low = int((reads.low - picked).sum()) + int(picked.max())
    else:
        parts = np.maximum(shared_end - reads.start, 0)
        low = int((reads.low - parts).sum()) + _union(reads.start.tolist(), shared_end.tolist())
    return Bounds(_unlimited([-(-low // ranks)]), high)


def _union(starts: list[int], ends: list[int]) -> int:
    """How many positions lie in any of these ranges?"""
    covered, reached = 0, 0
    for start, end in sorted(zip(starts, ends, strict=True)):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered
