"""Errors a command ends with: each names the thing, the reason and the next action, and carries its exit code."""

from __future__ import annotations

__all__ = [
    "DecompressionLimitError",
    "InputError",
    "LowCoverageError",
    "MergedTraceError",
    "NothingFoundError",
    "OutputExistsError",
    "TracelensError",
    "UnreadableTraceError",
    "UsageError",
]


class TracelensError(Exception):
    """Base of every error that the package raises on purpose.

    ``thing`` is what the error is about (a file, an option), ``reason`` what is wrong with it and ``action`` what
    to do next; a command prints them on one line each and ends with ``exit_code``.
    """

    exit_code = 1

    def __init__(self, thing: str, reason: str, action: str) -> None:
        super().__init__(thing, reason, action)
        self.thing = thing
        self.reason = reason
        self.action = action

    def __str__(self) -> str:
        return f"{self.thing}\n{self.reason}\n{self.action}"


class UsageError(TracelensError):
    """The request itself cannot be carried out: a value out of range, options that exclude each other."""

    exit_code = 2


class OutputExistsError(UsageError):
    """The output is there already and nothing may be overwritten without --force."""


class InputError(TracelensError):
    """The input cannot be read."""

    exit_code = 3


class UnreadableTraceError(InputError):
    """The input is missing, or holds no trace at all."""


class DecompressionLimitError(InputError):
    """The input unpacks to more bytes than the limit allows."""


class MergedTraceError(InputError):
    """Several ranks or writers share one file, so that their events cannot be told apart."""


class NothingFoundError(TracelensError):
    """The input was read, and what was asked for is not in it."""

    exit_code = 4


class LowCoverageError(NothingFoundError):
    """Steps were found that explain too little of the device's time to be trusted."""
