"""Which fields does a Hugging Face config.json hold, under which of their names, and are they what they should be?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from tracelens_infer.errors import InputError

__all__ = ["LARGEST_SIZE", "MOST_LAYERS", "ConfigFields"]

# Configs of models that see or hear keep the language model's fields in one of these; the outer one has the rest.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")

LARGEST_SIZE = 10**8
"""Of anything in a config: beyond every model's, and small enough that products of several stay countable."""
MOST_LAYERS = 10_000

_NEXT = "Give the config.json of a decoder-only language model as Hugging Face has it."


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """A config.json's fields, those of a nested language model before those around it. ``name`` is for errors."""

    values: Mapping[str, object]
    name: str

    @classmethod
    def of(cls, config: Mapping[str, object], name: str) -> ConfigFields:
        """The fields of this config, with the language model's own taken out of its nest."""
        merged = dict(config)
        inner: Mapping[str, object] | None = config
        while inner is not None:
            inner = next((value for key in _NESTED if _is_mapping(value := inner.get(key))), None)
            merged.update(inner or {})
        return cls(merged, name)

    def has(self, *keys: str) -> bool:
        """Is one of these fields there, and not null?"""
        return any(self.values.get(key) is not None for key in keys)

    def whole(self, *keys: str) -> int | None:
        """The first of these fields that is there; None where none is, or it is a list (one value a layer)."""
        for key in keys:
            value = self.values.get(key)
            if _is_int(value):
                if not 0 <= value <= LARGEST_SIZE:
                    raise self.error(f"Its {key} is not a number from 0 to {LARGEST_SIZE:,}.")
                return value
            if value is not None and not isinstance(value, list):
                raise self.error(f"Its {key} is {value!r}, not a whole number.")
        return None

    def required(self, *keys: str) -> int:
        """The first of these fields that is there. Raises InputError where none is, or it is not above 0."""
        value = self.whole(*keys)
        if value is None:
            raise self.error(f"It has no {' or '.join(keys)}.")
        if value <= 0:
            raise self.error(f"Its {keys[0]} is {value}.")
        return value

    def each(self, layers: int, *keys: str) -> list[int | None]:
        """One value a layer: of a list its own (null is None), of a number the same for all, else None."""
        for key in keys:
            value = self.values.get(key)
            if isinstance(value, list) and value:
                if len(value) < layers or not all(item is None or _is_size(item) for item in value):
                    raise self.error(f"Its {key} is a list, but not of {layers} whole numbers.")
                return list(value[:layers])
        return [self.whole(*keys)] * layers

    def texts(self, *keys: str) -> list[str] | None:
        """A list of texts, where one of these fields is one."""
        for key in keys:
            value = self.values.get(key)
            if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
                return [str(item) for item in value]
        return None

    def wholes(self, key: str) -> list[int] | None:
        """A list of whole numbers, where this field is one; an empty one included."""
        value = self.values.get(key)
        return list(value) if isinstance(value, list) and all(_is_size(item) for item in value) else None

    def text(self, *keys: str) -> str | None:
        """The first of these fields that is a text."""
        for key in keys:
            value = self.values.get(key)
            if isinstance(value, str):
                return value
        return None

    def flag(self, key: str) -> bool | None:
        """True or false, where this field is either."""
        value = self.values.get(key)
        return value if isinstance(value, bool) else None

    def mapping(self, key: str) -> ConfigFields | None:
        """The fields of a nested mapping; None where there is none."""
        value = self.values.get(key)
        return ConfigFields(value, self.name) if _is_mapping(value) else None

    def error(self, reason: str) -> InputError:
        """What is wrong with this config?"""
        return InputError(self.name, reason, _NEXT)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_size(value: object) -> TypeGuard[int]:
    return _is_int(value) and 0 <= value <= LARGEST_SIZE


def _is_mapping(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)
