"""Broken JSON text -> the JSON it was meant to be, with the kinds of damage found on the way."""

from __future__ import annotations

import re

from tracelens_infer.trace.event import FIELD_INSIDE

__all__ = ["MendedText", "UnfinishedError", "mend_json"]

_SPACE = re.compile(rb"[ \t\r\n]*")
_NUMBER = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.+-])")
_WORD = re.compile(rb"[^\s,:\[\]{}\"]+")
_NOT_A_NUMBER = re.compile(rb"[+-]?(?:nan|inf(?:inity)?)(?:\([a-z]*\))?", re.IGNORECASE)
_LITERALS = (b"true", b"false", b"null")
_NEXT_KEY = re.compile(rb"\s*\"(?:[^\"\\\n]|\\.){0,120}\"\s*:")
_NEXT_VALUE = re.compile(rb"\s*(?:[\[{\"\]}]|-?\d|true|false|null)")
# After a quote: what can only follow the end of a text, since a quote follows that is itself not escaped.
_SURE_END = re.compile(rb"(?:\s*[}\]])*\s*,\s*(?:\{\s*)?\"[^\"\\\n]{1,120}\"\s*:|(?:\s*[}\]])+\s*\Z")
_LOW_SURROGATE = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!" + _LOW_SURROGATE + rb")|" + _LOW_SURROGATE
_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}" + _LOW_SURROGATE
_TEXT_PART = re.compile(
    rb"(?P<valid>" + _PAIR + rb"|\\(?:[\"\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))"
    rb"|(?P<lone>" + _LONE_SURROGATE + rb")|[\\\"\x00-\x1f]"
)  # a valid escape, or damage
_CONTROL_ESCAPES = {0x0A: b"\\n", 0x0D: b"\\r", 0x09: b"\\t"}
_MAX_QUOTES = 400  # candidates for one text's closing quote; a bound, so that hostile input stays linear
_MAX_BACKSLASHES = 1 << 10  # before one quote; likewise


class _HopelessError(Exception):
    """The text cannot be mended."""


class UnfinishedError(Exception):
    """The text ends before the value does: with more of it, more could be said."""


class MendedText:
    """One JSON value read from the front of a text: its mended form, where it ended, and what was wrong with it.

    ``codes``: kind of damage -> where in the text it occurs first.
    """

    __slots__ = ("codes", "end", "json")

    def __init__(self, json: bytes, end: int, codes: dict[str, int]) -> None:
        self.json = json
        self.end = end
        self.codes = codes


def mend_json(text: bytes) -> MendedText | None:
    """What was the value at the front of ``text`` meant to be? None where nobody can tell.

    Mends NaN and Infinity (to null), unescaped quotes, bad escapes, raw control characters, bytes that are not
    UTF-8 and trailing commas. Works on one event at a time: cost is linear in its length. Raises UnfinishedError.
    """
    mender = _Mender(text)
    try:
        end = mender.value(_skip(text, 0), closer=b"", is_key=False)
    except (_HopelessError, RecursionError):
        return None
    return MendedText(b"".join(mender.out), end, mender.codes)


def _skip(text: bytes, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


class _Mender:
    def __init__(self, text: bytes) -> None:
        self.text = text
        self.out: list[bytes] = []
        self.codes: dict[str, int] = {}

    def value(self, at: int, closer: bytes, *, is_key: bool) -> int:
        """Copy one value from ``at`` on; returns where it ends."""
        first = self.text[at : at + 1]
        if first == b'"':
            return self._string(at, closer, is_key=is_key)
        if not first:
            raise UnfinishedError
        if is_key:
            raise _HopelessError
        if first == b"{":
            return self._container(at, b"}")
        if first == b"[":
            return self._container(at, b"]")
        return self._word(at)

    def _found(self, code: str, at: int) -> None:
        self.codes.setdefault(code, at)

    def _expect(self, at: int, byte: bytes) -> None:
        if self.text[at : at + 1] != byte:
            raise _HopelessError if at < len(self.text) else UnfinishedError

    def _container(self, at: int, closer: bytes) -> int:
        text, out = self.text, self.out
        out.append(text[at : at + 1])
        at = _skip(text, at + 1)
        first = True
        while text[at : at + 1] != closer:
            if not first:
                self._expect(at, b",")
                comma, at = at, _skip(text, at + 1)
                if text[at : at + 1] == closer:
                    self._found("trailing_comma", comma)
                    break
                out.append(b", ")
            first = False
            if closer == b"}":
                at = _skip(text, self.value(at, b":", is_key=True))
                self._expect(at, b":")
                out.append(b": ")
                at = _skip(text, at + 1)
            at = _skip(text, self.value(at, closer, is_key=False))
        out.append(closer)
        return at + 1

    def _word(self, at: int) -> int:
        number = _NUMBER.match(self.text, at)
        if number:
            self.out.append(number.group())
            return number.end()
        word = _WORD.match(self.text, at)
        if word is None:
            raise _HopelessError
        if word.group() in _LITERALS:
            self.out.append(word.group())
        elif _NOT_A_NUMBER.fullmatch(word.group()):
            self._found("not_a_number", at)
            self.out.append(b"null")
        else:
            self._found("wrong_type", at)
            self.out.append(b"null")
        return word.end()

    def _string(self, at: int, closer: bytes, *, is_key: bool) -> int:
        text = self.text
        quote, unescaped = at, 0
        for _ in range(_MAX_QUOTES):
            quote = text.find(b'"', quote + 1)
            if quote < 0:
                raise UnfinishedError
            if _is_escaped(text, quote, at):
                if is_key or not _SURE_END.match(text, quote + 1):
                    continue
                # a path that ends with a backslash, not an escaped quote
                self.out.append(b'"' + self._clean(at + 1, quote) + b'"')
                return quote + 1
            if not self._closes(quote, closer, is_key=is_key):
                if is_key:
                    self._expect(_skip(text, quote + 1), b":")
                unescaped = unescaped or quote
                continue
            if unescaped and FIELD_INSIDE.search(text, at + 1, quote):
                raise _HopelessError  # the closing quote is missing: what follows are other fields
            self.out.append(b'"' + self._clean(at + 1, quote) + b'"')
            return quote + 1
        raise _HopelessError

    def _closes(self, quote: int, closer: bytes, *, is_key: bool) -> bool:
        """Does this quote end its text, or was it left unescaped inside it? What follows tells."""
        after = _skip(self.text, quote + 1)
        following = self.text[after : after + 1]
        if is_key:
            return following == b":"
        if following == b",":
            pattern = _NEXT_KEY if closer == b"}" else _NEXT_VALUE
            if pattern.match(self.text, after + 1):
                return True
            after = _skip(self.text, after + 1)
            following = self.text[after : after + 1]
        return following == closer

    def _clean(self, begin: int, end: int) -> bytes:
        content = self.text[begin:end]
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            self._found("invalid_utf8", begin + error.start)
            content = content.decode("utf-8", "replace").encode()

        def escaped(part: re.Match[bytes]) -> bytes:
            return self._escape(part, begin)

        return _TEXT_PART.sub(escaped, content)

    def _escape(self, part: re.Match[bytes], begin: int) -> bytes:
        byte, at = part.group(), begin + part.start()
        if part.lastgroup == "valid":
            return byte
        if part.lastgroup == "lone":
            self._found("lone_surrogate", at)
            return b"\\ufffd"
        if byte == b"\\":
            self._found("bad_escape", at)
            return b"\\\\"
        if byte == b'"':
            self._found("unescaped_quote", at)
            return b'\\"'
        self._found("control_character", at)
        return _CONTROL_ESCAPES.get(byte[0], b"\\u%04x" % byte[0])


def _is_escaped(text: bytes, quote: int, start: int) -> bool:
    """An odd number of backslashes before a quote escapes it."""
    backslashes = 0
    while backslashes < min(quote - 1 - start, _MAX_BACKSLASHES) and text[quote - 1 - backslashes] == 0x5C:
        backslashes += 1
    return backslashes % 2 == 1
