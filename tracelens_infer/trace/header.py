"""The keys around the event list -> TraceMetadata, and the header that outputs repeat."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tracelens_infer.notes import Note
from tracelens_infer.trace.columns import TraceHeader, TraceMetadata
from tracelens_infer.trace.losses import Losses
from tracelens_infer.trace.mend import mend_json

__all__ = ["read_header"]

_RANK = re.compile(rb"\"rank\"\s*:\s*(\d+)")
# Labels by which an engine betrays itself where the header does not name it.
_ENGINE_LABELS = (("vllm", "execute_"), ("sglang", "step["), ("atom", "prefill["), ("atom", "decode["))


def read_header(
    prefix: bytes, suffix: bytes, foreign: Iterable[bytes], labels: Iterable[str], losses: Losses
) -> tuple[TraceHeader, TraceMetadata, tuple[Note, ...]]:
    """What do the keys around the event list tell?

    ``prefix`` ends with the key of the event list (or is empty for a bare list), ``suffix`` begins after its closing
    bracket, ``foreign`` are headers of other writers found among the events, ``labels`` the host annotations.
    """
    header, pairs = _parse(prefix, suffix, losses)
    values = dict(pairs)
    ranks = {rank for key, value in pairs if key == "distributedInfo" and (rank := _rank_of(value)) is not None}
    foreign = list(foreign)
    for text in foreign:
        ranks |= {int(match) for match in _RANK.findall(text)}
    writers = 1 + len(foreign)
    metadata = _metadata(values, tuple(sorted(ranks)), writers, labels)
    return header, metadata, _merge_notes(metadata)


def _parse(prefix: bytes, suffix: bytes, losses: Losses) -> tuple[TraceHeader, list[tuple[str, Any]]]:
    """The header as outputs repeat it, and its keys and values in order, repeated keys included."""
    if not prefix:
        if suffix.strip():
            losses.add("trailing_text", 0)
        return TraceHeader(b'{"traceEvents": ', b"}"), []
    if not suffix.strip():
        suffix = b"}"  # the file ends before its header does
    for text in (prefix + b"[]" + suffix, _mended(prefix, suffix, losses)):
        pairs = _pairs(text)
        if pairs is None:
            continue
        repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        if repeated:
            losses.add("duplicate_keys", len(prefix), len(repeated))
        sound = text is not None and text == prefix + b"[]" + suffix
        return (TraceHeader(prefix, suffix) if sound else _rewritten(pairs)), pairs
    losses.add("damaged_header", 0)
    return TraceHeader(b'{"traceEvents": ', b"}"), []


def _pairs(text: bytes | None) -> list[tuple[str, Any]] | None:
    if text is None:
        return None
    try:
        decoded = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return [(key, _plain(value)) for key, value in decoded] if isinstance(decoded, _Pairs) else None


class _Pairs(list[tuple[str, Any]]):
    """An object's keys and values with repeated keys kept."""


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, _Pairs):
        return {key: _plain(item) for key, item in value}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _mended(prefix: bytes, suffix: bytes, losses: Losses) -> bytes | None:
    mended = mend_json(prefix + b"[]" + suffix)
    if mended is None:  # perhaps only what follows the events is damaged
        mended = mend_json(prefix + b"[]}")
        if mended is None:
            return None
        losses.add("damaged_header", len(prefix))
    for code in mended.codes:
        losses.add(code, len(prefix))
    return mended.json


def _rewritten(pairs: list[tuple[str, Any]]) -> TraceHeader:
    rest = {key: value for key, value in pairs if key != "traceEvents"}
    keys = json.dumps(rest, ensure_ascii=False).encode()
    opening = keys[:-1] + (b", " if rest else b"")
    return TraceHeader(opening + b'"traceEvents": ', b"}")


def _rank_of(value: Any) -> int | None:  # noqa: ANN401 - JSON
    rank = value.get("rank") if isinstance(value, dict) else None
    return rank if isinstance(rank, int) else None


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
        world_size=world_size if isinstance(world_size, int) else None,
        device_names=tuple(dict.fromkeys(str(device.get("name") or "") for device in devices)),
        device_count=len(devices),
        base_time_ns=base_time if isinstance(base_time, int) else 0,
        has_shapes=values.get("record_shapes") == 1,
        has_stacks=values.get("with_stack") == 1,
        trace_id=trace_id if isinstance(trace_id, str) else None,
        ranks=ranks,
        writers=writers,
    )


def _engine_of(labels: Iterable[str]) -> str | None:
    for label in labels:
        for engine, beginning in _ENGINE_LABELS:
            if label.startswith(beginning):
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
