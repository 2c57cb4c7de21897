"""The keys around the event list -> TraceMetadata, and the header that outputs repeat."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tracelens_infer.notes import Note
from tracelens_infer.trace.columns import DeviceProperties, TraceHeader, TraceMetadata
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.mend import MendedText, UnfinishedError, mend_json

__all__ = ["HeaderText", "read_header"]

_RANK = re.compile(rb"\"rank\"\s*:\s*(\d+)")
# Labels by which an engine betrays itself where the header does not name it; vLLM's are put around other engines', too.
_LABEL_START = 8
_ENGINE_LABELS = (("sglang", ("step[",)), ("atom", ("prefill[", "decode[")), ("vllm", ("execute_",)))


_EVENTS_KEY = "traceEvents"
_BARE = TraceHeader(b'{"traceEvents": ', b"}")


@dataclass(frozen=True, slots=True)
class HeaderText:
    """What stands around the events, as bytes, and where in the input it does.

    ``prefix`` ends with the key of the event list (or is empty for a bare list); ``suffixes`` follow the closing
    bracket of each event list, of which a sound trace has one.
    """

    prefix: bytes
    suffixes: tuple[bytes, ...]
    prefix_offset: int = 0
    suffix_offset: int = 0

    @property
    def suffix(self) -> bytes:
        """Everything after the first event list, with other lists emptied."""
        return b'"traceEvents": []'.join(self.suffixes)

    @property
    def text(self) -> bytes:
        """The header as JSON, with its list emptied; where the file ends before its header does, closed."""
        suffix = self.suffix
        return self.prefix + b"[]" + (suffix if suffix.strip() else b"}")

    def offset(self, position: int) -> int:
        """Where in the input does this byte of :attr:`text` lie?"""
        if position < len(self.prefix):
            return self.prefix_offset + position
        return self.suffix_offset + max(0, position - len(self.prefix) - len(b"[]"))


def read_header(
    header: HeaderText, foreign: Iterable[bytes], labels: Iterable[str], losses: Losses
) -> tuple[TraceHeader, TraceMetadata, tuple[Note, ...]]:
    """What do the keys around the event list tell?

    ``foreign`` are headers of other writers found among the events, ``labels`` the host annotations.
    """
    repeated, documents = _parse(header, losses)
    pairs = documents[0] if documents else []
    told = [_rank_of(value) for document in documents for key, value in document if key == "distributedInfo"]
    ranks = {rank for rank in told if rank is not None}
    foreign = list(foreign)
    for text in foreign:
        ranks |= {int(match) for match in _RANK.findall(text)}
    metadata = _metadata(dict(pairs), tuple(sorted(ranks)), 1 + len(foreign), labels)
    return repeated, metadata, _merge_notes(metadata)


_Document = list[tuple[str, Any]]


def _parse(header: HeaderText, losses: Losses) -> tuple[TraceHeader, list[_Document]]:
    """The header as outputs repeat it; and the keys and values of each JSON document in the file, in order."""
    if not header.prefix:
        _note_trailing(header, b"[]", losses)
        return _BARE, []
    if not header.suffix.strip() and "truncated" not in losses and "missing_bracket" not in losses:
        losses.add("truncated", header.suffix_offset + len(header.suffix))
    text = header.text
    documents, end = _documents(text)
    repeats = _BARE
    if documents:
        suffix = text[len(header.prefix) + 2 : end]
        lists = sum(key == _EVENTS_KEY for key, _ in documents[0])
        sound = len(documents) == 1 and len(header.suffixes) == 1 and lists == 1
        repeats = TraceHeader(header.prefix, suffix) if sound else _rewritten(documents[0])
    else:
        document, end = _mended(header, losses)
        if document is None:
            losses.add("damaged_header", header.prefix_offset)
            return _BARE, []
        repeats = _rewritten(document)
        others, length = _documents(text[end:])
        documents, end = [document, *others], end + length
    _note_trailing(header, text[:end], losses)
    counts = Counter(key for key, _ in documents[0])
    again = [text.rfind(json.dumps(key).encode()) for key, count in counts.items() if count > 1 and key != _EVENTS_KEY]
    for position in again:
        losses.add("duplicate_keys", header.offset(max(0, position)))
    return repeats, documents


def _note_trailing(header: HeaderText, used: bytes, losses: Losses) -> None:
    rest = header.text[len(used) :] if header.prefix else header.suffix
    if rest.strip():
        begin = len(used) + len(rest) - len(rest.lstrip())
        losses.add("trailing_text", header.offset(begin))


def _documents(text: bytes) -> tuple[list[_Document], int]:
    """The objects that follow each other in ``text``, up to what is none; and where that is."""
    decoder = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_refuse)
    documents: list[_Document] = []
    end = 0
    try:
        string = text.decode()
        while begin := _NEXT_OBJECT.match(string, end):
            document, end = decoder.raw_decode(string, begin.end() - 1)
            documents.append([(_clean(key), _plain(value)) for key, value in document])
    except (ValueError, RecursionError):
        pass
    return documents, len(string[:end].encode()) if end else 0


_NEXT_OBJECT = re.compile(r"\s*\{")


class _Pairs(list[tuple[str, Any]]):
    """An object's keys and values with repeated keys kept."""


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _clean(text: str) -> str:
    """JSON may name halves of characters, which no other text may hold."""
    return text.encode("utf-8", "replace").decode()


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, _Pairs):
        return {_clean(key): _plain(item) for key, item in value}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _clean(value) if isinstance(value, str) else value


def _mended(header: HeaderText, losses: Losses) -> tuple[_Document | None, int]:
    """The keys of a damaged header, and where in the text it ends."""
    text = header.text
    mended = _mend(text)
    documents = _documents(mended.json)[0] if mended else []
    if not documents:  # perhaps only what follows the events is damaged
        mended = _mend(header.prefix + b"[]}")
        documents = _documents(mended.json)[0] if mended else []
        if mended is None or not documents:
            return None, 0
        losses.add("damaged_header", header.suffix_offset)
        end = len(text)
    else:
        assert mended is not None
        end = mended.end
    for code, position in mended.codes.items():
        losses.add(code, header.offset(position))
    return documents[0], end


def _mend(text: bytes) -> MendedText | None:
    try:
        return mend_json(text)
    except UnfinishedError:
        return None


def _rewritten(pairs: _Document) -> TraceHeader:
    rest = {key: value for key, value in pairs if key != _EVENTS_KEY}
    keys = json.dumps(rest, ensure_ascii=False).encode()
    opening = keys[:-1] + (b", " if rest else b"")
    return TraceHeader(opening + b'"traceEvents": ', b"}")


def _rank_of(value: Any) -> int | None:  # noqa: ANN401 - JSON
    rank = value.get("rank") if isinstance(value, dict) else None
    return _number(rank)


def _metadata(values: Mapping[str, Any], ranks: tuple[int, ...], writers: int, labels: Iterable[str]) -> TraceMetadata:
    distributed = values.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    devices = values.get("deviceProperties")
    devices = [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    version = values.get("vllm_version")
    engine = "vllm" if isinstance(version, str) else _engine_of(labels)
    world_size = distributed.get("world_size")
    base_time = values.get("baseTimeNanoseconds")
    trace_id = values.get("trace_id")
    return TraceMetadata(
        engine=engine,
        engine_version=version if isinstance(version, str) else None,
        rank=_rank_of(distributed),
        world_size=_number(world_size),
        device_names=tuple(dict.fromkeys(str(device.get("name") or "") for device in devices)),
        device_count=len(devices),
        base_time_ns=_number(base_time) or 0,
        has_shapes=values.get("record_shapes") == 1,
        has_stacks=values.get("with_stack") == 1,
        trace_id=trace_id if isinstance(trace_id, str) else None,
        ranks=ranks,
        writers=writers,
        devices=tuple(
            DeviceProperties(
                str(device.get("name") or ""), _number(device.get("totalGlobalMem")), _number(device.get("numSms"))
            )
            for device in devices
        ),
    )


def _engine_of(labels: Iterable[str]) -> str | None:
    begun = {label[:_LABEL_START] for label in labels}
    for engine, beginnings in _ENGINE_LABELS:
        if any(text.startswith(beginnings) for text in begun):
            return engine
    return None


def _merge_notes(metadata: TraceMetadata) -> tuple[Note, ...]:
    if metadata.writers == 1 and len(metadata.ranks) < 2:
        return ()
    ranks = ", ".join(str(rank) for rank in metadata.ranks) or "unknown"
    if metadata.writers > 1:
        text = (
            f"{metadata.writers} writers wrote into this file in turn (ranks: {ranks}); their events are interleaved."
        )
        return (Note("error", "interleaved_writers", text, metadata.writers),)
    text = f"This file holds several ranks ({ranks}); their processes and correlations cannot be told apart."
    return (Note("error", "merged_ranks", text, len(metadata.ranks)),)


def _number(value: Any) -> int | None:  # noqa: ANN401 - JSON
    """A whole number that fits 64 bits, as every number does that a profiler writes."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None
