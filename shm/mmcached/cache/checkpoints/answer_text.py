"""Decodes the tokens of a generation one by one, and ends its text before the first stop string.

    tokens ──decoded with a few before them──> whole characters ──> certain text ──> given
                                                └── the begin of a character, or of a stop string: held back

Engine and gateway both make the text of a generation with stop strings: the engine to end the generation with the token
that completes one, the gateway to cut the text there. Invariant: the text depends on the tokens alone, not on how many
come at a time; texts that `add` has returned, joined, are a prefix of what `finish` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

Decode = Callable[[Sequence[int]], str]
"""Returns the text of tokens; bytes that are not UTF-8 are U+FFFD."""
_NOT_WHOLE = "\ufffd"


class AnswerText:
    r"""The text of one generation.

    Args:
        stop: Stop strings.
        end_token_ids: Tokens that end a generation. As the last token, they have no text.

    Attributes:
        num_tokens: Number of tokens so far.
        is_stopped: Whether a stop string has come; later tokens add nothing.

    >>> text = AnswerText(lambda ids: bytes(ids).decode(errors="replace"), ["stop"])
    >>> [text.add(token_ids) for token_ids in (b"a cup \xe2", b"\x82\xac s", b"t", b"ay, sto")]
    ['a cup ', '€ ', '', 'stay, ']
    >>> text.finish(b"a cup \xe2\x82\xac stay, stop it")
    'a cup € stay, '
    """

    def __init__(self, decode: Decode, stop: Sequence[str] = (), *, end_token_ids: Set[int] = frozenset()) -> None:
        self.num_tokens = 0
        self.is_stopped = False
        self._decode = decode
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._end_token_ids = end_token_ids
        self._text = ""
        self._num_given = 0
        # Tokens are decoded behind those of the last characters: a tokenizer may treat the first one in another way.
        self._window: list[int] = []
        self._num_before = 0
        self._num_shown = 0

    def add(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the text that has become certain with them."""
        for token_id in token_ids:
            self._add(token_id)
        end = len(self._text) - (0 if self.is_stopped else num_held(self._text, self._stop))
        given, self._num_given = self._text[self._num_given : end], max(end, self._num_given)
        return given

    def finish(self, token_ids: Sequence[int]) -> str:
        """Add the tokens that are new among all those of the generation; return the whole text."""
        ends = len(token_ids) > 0 and token_ids[-1] in self._end_token_ids
        for token_id in token_ids[self.num_tokens : len(token_ids) - ends]:
            self._add(token_id)
        if not self.is_stopped:
            self._text += self._decode(self._window)[self._num_shown :]
            self._window, self._num_before, self._num_shown = [], 0, 0
        return self._text

    def _add(self, token_id: int) -> None:
        self.num_tokens += 1
        if self.is_stopped:
            return
        self._window.append(token_id)
        decoded = self._decode(self._window)
        whole = decoded.rstrip(_NOT_WHOLE)
        new = whole[self._num_shown :]
        if not new:
            # A special token has no text, and would be decoded with each later one. Without a token before it, a token
            # may have none because a tokenizer strips the first space.
            if whole == decoded and self._num_before:
                self._window.pop()
            return
        begin = max(0, len(self._text) - self._longest + 1)
        self._text += new
        self._num_shown = len(whole)
        end = first_stop(self._text, self._stop, begin)
        if end is not None:
            self._text, self.is_stopped = self._text[:end], True
        elif whole == decoded:
            del self._window[: self._num_before]
            self._num_before = len(self._window)
            self._num_shown = len(self._decode(self._window))


def first_stop(text: str, stop: Sequence[str], begin: int = 0) -> int | None:
    """Return where the first stop string in `text[begin:]` begins; None without one."""
    found = [place for place in (text.find(each, begin) for each in stop) if place >= 0]
    return min(found, default=None)


def num_held(text: str, stop: Sequence[str]) -> int:
    """Return the length of the longest end of a text that is the begin of a stop string, but not all of it."""
    lengths = (
        length
        for each in stop
        for length in range(min(len(each) - 1, len(text)), 0, -1)
        if text.endswith(each[:length])
    )
    return max(lengths, default=0)
