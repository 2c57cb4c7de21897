"""Notes: what the library says instead of printing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Level", "Note"]

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Note:
    """What should the reader of a result know about how it came to be?

    ``code`` is stable and machine-readable, ``text`` one sentence for people. ``count`` is how many events (or
    steps) the note is about and ``first_offset_bytes`` where in the uncompressed input the first of them lies.
    """

    level: Level
    code: str
    text: str
    count: int | None = None
    first_offset_bytes: int | None = None
