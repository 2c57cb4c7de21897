"""A roofline as a folder of tables: roofline.json, and attention and steps as csv and Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from tracelens_infer.report.output_folder import output_folder
from tracelens_infer.report.roofline_tables import points_table, steps_table
from tracelens_infer.report.tables import write_csv, write_parquet
from tracelens_infer.roofline.roofline import Roofline

__all__ = ["MANIFEST", "write_roofline"]

MANIFEST = "roofline.json"


def write_roofline(roofline: Roofline, found: Mapping[str, Any], folder: Path, *, force: bool) -> None:
    """Write the tables of a roofline, whole or not at all. ``found`` is its :func:`roofline_dict`.

    Raises OutputExistsError where the folder is there and ``force`` is not given.
    """
    with output_folder(folder, force=force, marker=MANIFEST) as partial:
        files = []
        for name, table in (("attention", points_table(roofline)), ("steps", steps_table(roofline))):
            write_csv(table, partial / f"{name}.csv")
            write_parquet(table, partial / f"{name}.parquet")
            files += [f"{name}.csv", f"{name}.parquet"]
        manifest = {**found, "outputs": [], "tables": files}  # as the manifest of split lists what belongs to it
        (partial / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
