"""Names and input shapes of chosen host ops, read in a second pass over the slices that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np

from tracelens_infer.trace.columns import Int64Array, RowArray, Trace
from tracelens_infer.trace.reader import SliceEvents, iter_slice_events

__all__ = ["NO_SHAPES", "OpShapes", "Shapes", "op_shapes"]

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""One entry an argument: a tensor's dimensions; () for what is no tensor, a list of tensors, or cannot be read."""

NO_SHAPES: Shapes = ()
"""The profiler did not record this op's shapes."""

_NULL = msgspec.Raw(b"null")


class _OpArgs(msgspec.Struct, gc=False, frozen=True):
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NULL)


_NO_ARGS = _OpArgs()


class _ShapedOp(msgspec.Struct, gc=False):
    name: str = ""
    args: _OpArgs | None = _NO_ARGS


class _BareOp(msgspec.Struct, gc=False):
    name: str = ""


_decoder = msgspec.json.Decoder(_ShapedOp)
_bare_decoder = msgspec.json.Decoder(_BareOp)


@dataclass(frozen=True, slots=True)
class OpShapes:
    """The ops of one slice as columns: few names and shapes, each told once.

    Attributes:
        rows: the ops' rows in the trace, ascending.
        name, shape: each op's position in ``names`` and in ``shapes``.
    """

    rows: RowArray
    name: Int64Array
    shape: Int64Array
    names: tuple[str, ...]
    shapes: tuple[Shapes, ...]

    def __len__(self) -> int:
        return len(self.rows)


def op_shapes(trace: Trace, rows: RowArray) -> Iterator[OpShapes]:
    """What are these ops called, and which shapes did they get? One batch a slice, so that memory stays bounded.

    Only the slices that hold one of ``rows`` are decoded. An op without shapes gets :data:`NO_SHAPES`; an event whose
    name or arguments cannot be read gets the name "".
    """
    wanted = np.sort(rows)
    bounds = np.searchsorted(wanted, trace.slices.first_row)
    for part in iter_slice_events(trace, lambda number: bool(bounds[number + 1] > bounds[number])):
        chosen = part.among(wanted)
        if chosen:
            yield _of_slice(part, chosen)


def _of_slice(part: SliceEvents, rows: list[int]) -> OpShapes:
    names: dict[str, int] = {}
    dims: dict[bytes, int] = {}
    name = np.zeros(len(rows), dtype=np.int64)
    shape = np.zeros(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        op = _decoded(part.text(row))
        name[i] = names.setdefault(op.name, len(names))
        shape[i] = dims.setdefault(bytes((op.args or _NO_ARGS).dims), len(dims))
    return OpShapes(np.array(rows, dtype=np.intp), name, shape, tuple(names), tuple(map(_shapes, dims)))


def _decoded(text: bytes) -> _ShapedOp:
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:  # arguments of another form are no reason to lose the name
        return _ShapedOp(_bare_decoder.decode(text).name)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _ShapedOp()


def _shapes(text: bytes) -> Shapes:
    try:
        told = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return NO_SHAPES
    if not isinstance(told, list):
        return NO_SHAPES
    return tuple(tuple(dims) if _is_tensor(dims) else () for dims in told)


def _is_tensor(dims: object) -> bool:
    # bool is an int to Python, and -1 stands for an unknown size in some writers.
    return isinstance(dims, list) and all(type(size) is int and size >= 0 for size in dims)
