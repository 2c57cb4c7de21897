"""What was lost or mended while a damaged trace was read, counted by kind."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens_infer.notes import Level, Note

__all__ = ["Losses"]

_TEXTS: dict[str, tuple[Level, str]] = {
    "truncated_compression": ("warning", "The compressed file ends early; what was unpacked before that is kept."),
    "corrupt_compression": ("warning", "The compressed data is damaged; what was unpacked before that is kept."),
    "trailing_garbage": ("info", "Bytes after the end of the compressed data were ignored."),
    "truncated": ("warning", "The trace ends in the middle: it is partial."),
    "missing_bracket": ("info", "The event list is not closed; every event before its end is kept."),
    "unreadable_event": ("warning", "Events that could not be read were skipped."),
    "not_a_number": ("warning", "NaN or Infinity in place of a number: read as missing."),
    "bad_escape": ("info", "Backslashes that are no JSON escape were read as plain backslashes."),
    "control_character": ("info", "Raw control characters inside texts were read as they are."),
    "invalid_utf8": ("info", "Bytes that are not UTF-8 were replaced."),
    "unescaped_quote": ("warning", "Quotes inside texts were not escaped; the texts were mended."),
    "lone_surrogate": ("info", "Escapes of half a character (lone surrogates) were replaced."),
    "trailing_comma": ("info", "Commas with nothing after them were ignored."),
    "missing_comma": ("info", "Commas between events were missing."),
    "stray_text": ("warning", "Text between events, which belongs to none of them, was skipped."),
    "broken_syntax": (
        "warning",
        "Events with broken syntax were read field by field; fields that could not be read are missing.",
    ),
    "number_as_text": ("info", "Numbers written as texts were read as numbers."),
    "number_out_of_range": ("warning", "Numbers beyond 64 bits were read as missing."),
    "wrong_type": ("warning", "Fields of the wrong type were read as missing."),
    "not_an_event": ("warning", "Entries of the event list that are no events were skipped."),
    "byte_order_mark": ("info", "The file begins with a byte-order mark."),
    "duplicate_keys": ("info", "The header holds a key more than once; the last one counts."),
    "second_event_list": ("warning", "The file holds more than one event list; all were read."),
    "damaged_header": ("warning", "The keys around the event list could not be read; they are left out."),
    "trailing_text": ("warning", "Text after the end of the trace was ignored."),
}


@dataclass(slots=True)
class _Tally:
    count: int
    first_offset: int


class Losses:
    """A count and a first byte offset for each kind of damage."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def add(self, code: str, offset: int, count: int = 1) -> None:
        """Count ``count`` more losses of kind ``code``; ``offset`` is a byte of the uncompressed input."""
        tally = self._tallies.get(code)
        if tally is None:
            self._tallies[code] = _Tally(count, offset)
        else:
            tally.count += count
            tally.first_offset = min(tally.first_offset, offset)

    def notes(self) -> tuple[Note, ...]:
        """One note a kind, in the order in which the kinds are listed above."""
        return tuple(
            Note(level, code, text, self._tallies[code].count, self._tallies[code].first_offset)
            for code, (level, text) in _TEXTS.items()
            if code in self._tallies
        )

    def __contains__(self, code: str) -> bool:
        return code in self._tallies
