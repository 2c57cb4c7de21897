"""Tables as files: one writer a format, straight from columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tracelens_infer.steps.table import Cell, Kind, Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["write_csv", "write_parquet"]


def write_csv(table: Table, path: Path) -> None:
    """One line a row; missing values are empty; times with three decimals, which is one nanosecond."""
    formatted = [
        ["" if cell is None else f"{cell:.3f}" for cell in column] if kind == "float" else column
        for column, kind in zip(table.columns, table.kinds, strict=True)
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.names)
        writer.writerows(zip(*formatted, strict=True))


def write_parquet(table: Table, path: Path) -> None:
    """The same columns, typed: int64, double and text, null where missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [_arrow_array(column, kind) for column, kind in zip(table.columns, table.kinds, strict=True)]
    # Dictionaries pay for texts of few values; for other columns they take ten times as long and make the file larger.
    texts = [
        name for name, kind in zip(table.names, table.kinds, strict=True) if kind == "text" and name != "annotation"
    ]
    with path.open("wb") as file:  # of a path pyarrow asks whether it is an address, and refuses bytes that are no text
        pq.write_table(pa.Table.from_arrays(arrays, names=list(table.names)), file, use_dictionary=texts)


def _arrow_array(column: Sequence[Cell], kind: Kind) -> pa.Array:
    """An Arrow array out of its buffers; pa.array() would import pandas to ask whether the column is one of its own."""
    import pyarrow as pa

    present = np.array([cell is not None for cell in column], dtype=np.bool_)
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    if kind == "text":
        texts = [str(cell or "").encode() for cell in column]
        ends = np.append(0, np.cumsum([len(text) for text in texts], dtype=np.int64)).astype(np.int32)
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(pa.string(), len(column), buffers)
    dtype = np.int64 if kind == "int" else np.float64
    values = np.array([0 if cell is None else cell for cell in column], dtype=dtype)
    arrow_type = pa.int64() if kind == "int" else pa.float64()
    return pa.Array.from_buffers(arrow_type, len(column), [validity, pa.py_buffer(values)])
