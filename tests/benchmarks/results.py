"""Did a measured split do its work? A benchmark of a wrong result is worth nothing."""

from __future__ import annotations

import json
from pathlib import Path


def check_split(
    folder: Path, steps_by_kind: dict[str, int] | None, *, whole_run: bool = False, singles: bool = False
) -> None:
    """Raises ValueError where the output in ``folder`` is not what the trace should give."""
    manifest = json.loads((folder / "split.json").read_text(encoding="utf-8"))
    found = manifest["steps_by_kind"]
    if steps_by_kind is not None and found != steps_by_kind:
        raise ValueError(f"{folder.name}: steps {found} instead of {steps_by_kind}")
    if manifest["status"] != "ok" or manifest["retention"]["share"] != 1.0:
        raise ValueError(f"{folder.name}: status {manifest['status']}, retention {manifest['retention']}")
    state = manifest["steady_state"]
    if singles:
        if len(manifest["outputs"]) != manifest["steps"]:
            raise ValueError(f"{folder.name}: {len(manifest['outputs'])} outputs of {manifest['steps']} steps")
    elif not state["plateau"] or not state["windows"]:
        raise ValueError(f"{folder.name}: no steady state")
    if whole_run and not (state["ramp_up"] and state["ramp_down"]):
        raise ValueError(f"{folder.name}: ramp-up or ramp-down was not found")
