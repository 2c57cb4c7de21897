"""Which sizes of the model do the op shapes of a trace tell, and do they agree with a config?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from tracelens_infer.notes import Note
from tracelens_infer.roofline.attention_types import Ranks
from tracelens_infer.roofline.model import AttentionKind, ModelShape
from tracelens_infer.steps.attention_ops import ATTENTION_OPS
from tracelens_infer.steps.step import Step, StepKind, Steps
from tracelens_infer.trace.arguments import Shapes, op_shapes
from tracelens_infer.trace.columns import Int64Array, Role, RowArray, Trace

__all__ = ["ObservedShape", "observed_shape", "shape_notes"]

SAMPLED_STEPS = 9
"""Steps whose ops are read: every forward has the same layers, and a second pass over a whole trace costs seconds."""

_IDLE = (StepKind.EMPTY, StepKind.DUMMY)
_KEY, _VALUE = 1, 2  # the arguments after the query
_CONTIGUOUS = -2  # [..., heads, size]: where the heads are unless told otherwise


@dataclass(frozen=True, slots=True)
class _HeadPlaces:
    """In which dimension of the query and of the key are the heads? None where the key does not tell them."""

    query: int = _CONTIGUOUS
    key: int | None = _CONTIGUOUS


# As seen in traces (vLLM on CPU) or as documented (torch); the keys of MLA ops are latents without heads.
_PLACES = {
    "_C::cpu_attention_with_kv_cache": _HeadPlaces(key=1),  # cache [blocks, KV heads, block, size]
    "aten::scaled_dot_product_attention": _HeadPlaces(1, 1),  # [batch, heads, sequence, size]
    "sgl_kernel::fwd_kvcache_mla": _HeadPlaces(key=None),
    "vllm::unified_mla_attention": _HeadPlaces(key=None),
    "vllm::unified_mla_attention_with_output": _HeadPlaces(key=None),
}


@dataclass(frozen=True, slots=True)
class ObservedShape:
    """What do a trace's op shapes tell about the model, on the rank that was recorded? None for what they do not.

    Attributes:
        query_heads, kv_heads: this rank's.
        d_qk, d_v: elements of a head's query and key, and of its value.
        layers: attention calls a step: layers that attend, without those of linear attention.
        op: the op that told it.
        notes: where ops of one trace contradict each other.
    """

    query_heads: int | None = None
    kv_heads: int | None = None
    d_qk: int | None = None
    d_v: int | None = None
    layers: int | None = None
    op: str | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class _Sizes:
    query_heads: int
    kv_heads: int | None
    d_qk: int | None
    d_v: int | None


def observed_shape(trace: Trace, steps: Steps) -> ObservedShape:
    """Which sizes do the attention ops of this trace's steps tell? Reads the host ops of a few steps again.

    Only ops whose arguments are known count (steps/attention_ops.py); a step that was replayed from a graph has none.
    Raises InputError where the file has changed since it was read.
    """
    chosen = _sampled(steps)
    sizes: Counter[tuple[str, _Sizes]] = Counter()
    calls: dict[str, Counter[int]] = {}
    if not chosen:
        return ObservedShape()
    rows, numbers = _ops_of(trace, chosen)
    for batch in op_shapes(trace, rows):
        places = numbers[np.searchsorted(rows, batch.rows)]
        for name, shape, number in zip(batch.name.tolist(), batch.shape.tolist(), places.tolist(), strict=True):
            op = batch.names[name]
            if op in ATTENTION_OPS:
                calls.setdefault(op, Counter())[number] += 1
                seen = _sizes(op, batch.shapes[shape])
                if seen is not None:
                    sizes[op, seen] += 1
    return _summary(sizes, calls)


def _sampled(steps: Steps) -> list[Step]:
    """Steps from the whole length of the trace, those with tokens only."""
    busy = [step for step in steps.steps if step.kind not in _IDLE]
    if len(busy) <= SAMPLED_STEPS:
        return busy
    return [busy[int(place)] for place in np.linspace(0, len(busy) - 1, SAMPLED_STEPS)]


def _ops_of(trace: Trace, chosen: list[Step]) -> tuple[RowArray, Int64Array]:
    """The rows of the host ops that began in these steps, ascending, and the number of each one's step."""
    rows = np.sort(trace.rows(Role.HOST_OP))
    times = trace.columns.start_ns[rows]
    starts = np.array([step.host_start_ns for step in chosen], dtype=np.int64)
    ends = np.array([step.tile_end_ns for step in chosen], dtype=np.int64)
    numbers = np.searchsorted(starts, times, side="right") - 1
    inside = (numbers >= 0) & (times < ends[numbers])
    return rows[inside], numbers[inside].astype(np.int64)


def _sizes(op: str, shapes: Shapes) -> _Sizes | None:
    places = _PLACES.get(op, _HeadPlaces())
    if not shapes or len(shapes[0]) < 3:  # a query is at least [tokens, heads, size]
        return None
    query = shapes[0]
    if places.key is None:
        return _Sizes(query[places.query], None, None, None)
    key, value = (shapes[place] if place < len(shapes) else () for place in (_KEY, _VALUE))
    if len(key) < 3 or len(value) < 3:
        return _Sizes(query[places.query], None, query[-1], None)
    return _Sizes(query[places.query], key[places.key], query[-1], value[-1])


def _summary(sizes: Counter[tuple[str, _Sizes]], calls: dict[str, Counter[int]]) -> ObservedShape:
    if not calls:
        return ObservedShape()
    # Where ops wrap each other each is called once a layer; where prefills and decodes have ops of their own, a mixed
    # step calls both: so the op with the most calls a step counts, and of equals the one that tells more arguments.
    usual = {op: _modal(steps) for op, steps in calls.items()}
    op = max(usual, key=lambda name: (usual[name], ATTENTION_OPS[name].starts is not None, name))
    own = Counter({seen: many for (name, seen), many in sizes.items() if name == op})
    layers = usual[op]
    if not own:
        return ObservedShape(layers=layers, op=op)
    seen = own.most_common(1)[0][0]
    notes: tuple[Note, ...] = ()
    if len(own) > 1:
        text = f"{op} was called with heads of {len(own)} sizes; the most frequent one is told."
        notes = (Note("info", "layers_of_several_sizes", text, len(own)),)
    return ObservedShape(seen.query_heads, seen.kv_heads, seen.d_qk, seen.d_v, layers, op, notes)


def _modal(steps: Counter[int]) -> int:
    """The most frequent number of calls a step; the larger one of equally frequent ones."""
    times = Counter(steps.values())
    return max(times, key=lambda many: (times[many], many))


def shape_notes(observed: ObservedShape, model: ModelShape, ranks: Ranks | None = None) -> tuple[Note, ...]:
    """Where does the trace contradict this model, as spread over these ranks? One Note a size that differs.

    A size agrees where any of the model's layers has it; layers of linear attention are not counted. A trace that does
    not tell a size does not contradict it.
    """
    ranks = ranks or Ranks()
    layers = [layer.attention for layer in model.layers if layer.attention.kind is not AttentionKind.LINEAR]
    told = {
        "Query heads a rank": (observed.query_heads, {ranks.query_heads(one.query_heads) for one in layers}),
        "KV heads a rank": (observed.kv_heads, {ranks.kv_heads(one.kv_heads) for one in layers if not one.latent}),
        "Head size of queries and keys": (observed.d_qk, {one.d_qk for one in layers if not one.latent}),
        "Head size of values": (observed.d_v, {one.d_v for one in layers if not one.latent}),
        "Layers with attention": (observed.layers, {len(layers)}),
    }
    return tuple(
        Note(
            "warning",
            "model_contradicts_trace",
            f"{what}: {seen} by the op shapes ({observed.op}), {_listed(expected)} by {model.name}.",
        )
        for what, (seen, expected) in told.items()
        if seen is not None and expected and seen not in expected
    )


def _listed(sizes: set[int]) -> str:
    return " or ".join(str(size) for size in sorted(sizes))
