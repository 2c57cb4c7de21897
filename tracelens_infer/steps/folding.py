"""A name without what differs between two calls of the same thing."""

from __future__ import annotations

import re

__all__ = ["folded"]

_LINE = re.compile(r"\(\d+\): ")  # of the line being executed in one call, of the function in the next
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_DIGITS = re.compile(r"\d+")


def folded(name: str) -> str:
    """What is a name without lines, addresses and numbers?"""
    return _DIGITS.sub("#", _ADDRESS.sub("#", _LINE.sub(": ", name)))
