"""Implements the `second_level.backend` interface for Redis or Valkey.

    mmcached:3:epoch            19 digits; set by a script that compares; read with every value, in the same round trip
    mmcached:3:record:NAME      SET … PX; GET; GETRANGE; DEL
    mmcached:3:record:drops     the log of drops: appended to by a script
    mmcached:3:claim:NAME       SET … PX by a script that compares; renewed and dropped only by its owner

The 3 is `records.VERSION`: hosts of two versions can share a server without sharing keys; `namespaces` has the prefix
of a fleet. All commands of one call are sent, to each server of a cluster its own, before any reply is read.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from mmcached.second_level.backend import MAX_EPOCH, BackendError, BackendRefused, Got, Value
from mmcached.second_level.drops import ENTRY_BYTES, MAX_LOGGED
from mmcached.second_level.namespaces import key_prefix
from mmcached.second_level.records import HEAD_BYTES, VERSION
from mmcached.second_level.redis.attempts import Connections
from mmcached.second_level.redis.link import RedisLink
from mmcached.second_level.redis.nodes import nodes_of
from mmcached.second_level.redis.place import RedisPlace
from mmcached.second_level.redis.replies import Reply
from mmcached.wire.closeable import Closeable
from mmcached.wire.stats import Trouble

_EPOCH_DIGITS = 19
_RAISE_EPOCH = """
local found = redis.pcall('get', KEYS[1])
local is_epoch = type(found) == 'string' and #found == #ARGV[1] and not found:find('%D') and found <= ARGV[3]
if not (is_epoch and found > ARGV[2]) then redis.call('set', KEYS[1], ARGV[1]) end
return is_epoch and found or string.rep('0', #ARGV[1])
"""
_CLAIM_OR_RENEW = """
local owner = redis.call('get', KEYS[1])
if owner and owner ~= ARGV[1] then return 'theirs' end
redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'ours'
"""
_LOG_DROP = """
local found = redis.pcall('get', KEYS[1])
local count, entries = tonumber(ARGV[4]), ''
if type(found) == 'string' and #found >= tonumber(ARGV[2]) and not found:sub(1, 19):find('%D') then
  count, entries = tonumber(found:sub(1, 19)), found:sub(tonumber(ARGV[2]) + 1)
end
local head = string.format('%019.0f', count + 1)
head = head .. string.rep(' ', tonumber(ARGV[2]) - #head)
redis.call('set', KEYS[1], head .. (entries .. ARGV[1]):sub(-tonumber(ARGV[3])), 'PX', ARGV[5])
return 'done'
"""
_DROP_OWN = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


@dataclass(frozen=True, slots=True)
class _Command:
    key: str
    pieces: list[Value]


class RedisBackend(Closeable):
    """The backend. Any number of threads may call; each call takes a connection."""

    def __init__(self, place: RedisPlace) -> None:
        self._nodes = nodes_of(place)
        self._word = secrets.token_hex(16)
        prefix = key_prefix(place.namespace)
        self._namespace = place.namespace
        self._epoch, self._record, self._claim = f"{prefix}epoch", f"{prefix}record:", f"{prefix}claim:"

    def get_many(self, names: Sequence[str], *, deadline: float) -> tuple[int, list[Got]]:
        keys = [self._epoch, *(self._record + name for name in names)]
        return self._values([_command(key, "GET", key) for key in keys], deadline)

    def get_heads(self, names: Sequence[str], num_bytes: int, *, deadline: float) -> tuple[int, list[Got]]:
        keys = [self._record + name for name in names]
        heads = [_command(key, "GETRANGE", key, 0, num_bytes - 1) for key in keys]
        epoch, values = self._values([_command(self._epoch, "GET", self._epoch), *heads], deadline)
        return epoch, [value or None for value in values]

    def put(self, name: str, pieces: Sequence[Value], *, ttl_s: float, deadline: float) -> None:
        key = self._record + name
        self._set(_command(key, "SET", key, list(pieces), "PX", _ms(ttl_s)), deadline)

    def remove(self, names: Sequence[str], *, deadline: float) -> None:
        keys = [self._record + name for name in names]
        for reply in self._exchange([_command(key, "DEL", key) for key in keys], deadline):
            _good(reply)

    def log_drop(self, name: str, entry: bytes, *, ttl_s: float, deadline: float) -> None:
        key = self._record + name
        limits = (HEAD_BYTES, MAX_LOGGED * ENTRY_BYTES, secrets.randbits(52), _ms(ttl_s))
        (reply,) = self._exchange([_command(key, "EVAL", _LOG_DROP, 1, key, entry, *limits)], deadline)
        if _good(reply) != b"done":
            raise BackendError("Redis does not confirm that a drop is announced")

    def claim(self, name: str, *, ttl_s: float, deadline: float) -> bool:
        key = self._claim + name
        (reply,) = self._exchange([_command(key, "EVAL", _CLAIM_OR_RENEW, 1, key, self._word, _ms(ttl_s))], deadline)
        answer = _good(reply)
        if answer not in (b"ours", b"theirs"):
            raise BackendError("Redis does not say whose a claim is")
        return answer == b"ours"

    def drop_claim(self, name: str, *, deadline: float) -> None:
        key = self._claim + name
        (reply,) = self._exchange([_command(key, "EVAL", _DROP_OWN, 1, key, self._word)], deadline)
        _good(reply)

    def raise_epoch(self, epoch: int, *, over: int, deadline: float) -> int:
        words = (_digits(number) for number in (epoch, over, MAX_EPOCH))
        (reply,) = self._exchange([_command(self._epoch, "EVAL", _RAISE_EPOCH, 1, self._epoch, *words)], deadline)
        answer = _good(reply)
        text = answer if isinstance(answer, bytes | memoryview) else b""
        if len(text) != _EPOCH_DIGITS or not bytes(text).isdigit():
            raise BackendError("Redis does not confirm the epoch")
        return _epoch(text)

    def other_versions(self, *, deadline: float) -> dict[int, str]:
        """Return the other versions that hosts use, or have used, on this server, each with the key of its epoch."""
        numbers = (number for number in range(2, VERSION + 4) if number != VERSION)
        others = {number: f"{key_prefix(self._namespace, number)}epoch" for number in numbers}
        if not self._namespace:
            others = {1: "mmcached:epoch", **others}
        replies = self._exchange([_command(key, "GET", key) for key in others.values()], deadline)
        found = zip(others.items(), replies, strict=True)
        return {number: key for (number, key), reply in found if _value(reply) is not None}

    def memory(self, *, deadline: float) -> tuple[int, str]:
        """Return the server's memory limit in bytes (0 if it has none) and its eviction policy.

        Raises:
            BackendError: As for every call, and if this user may not ask.
        """
        (reply,) = self._exchange([_command(self._epoch, "INFO", "memory")], deadline)
        found = _value(reply)
        if isinstance(found, BackendError):
            raise found
        lines = (line.partition(":") for line in bytes(found or b"").decode(errors="replace").splitlines())
        said = {name: value for name, _, value in lines}
        limit = said.get("maxmemory", "")
        return int(limit) if limit.isdecimal() else 0, said.get("maxmemory_policy", "")

    def close(self) -> None:
        self._nodes.close()

    def _set(self, command: _Command, deadline: float) -> None:
        (reply,) = self._exchange([command], deadline)
        answer = _good(reply)
        if answer != b"OK":
            raise BackendError(f"Redis does not confirm a write: {str(answer)[:20]}")

    def _values(self, commands: Sequence[_Command], deadline: float) -> tuple[int, list[Got]]:
        epoch, *values = (_value(reply) for reply in self._exchange(commands, deadline))
        return _epoch(epoch), values

    def _exchange(self, commands: Sequence[_Command], deadline: float) -> list[Reply]:
        """Return the reply to each command; commands whose key has moved to another server are sent once more."""
        replies = self._round(commands, deadline)
        moved = [number for number, reply in enumerate(replies) if isinstance(reply, MovedError)]
        if moved:
            self._nodes.forget()
            for number, reply in zip(moved, self._round([commands[at] for at in moved], deadline), strict=True):
                replies[number] = reply
        return replies

    def _round(self, commands: Sequence[_Command], deadline: float) -> list[Reply]:
        """Send each command to the server of its key, then read the replies; failures are returned as replies."""
        replies: list[Reply] = [None] * len(commands)
        borrowed: list[tuple[Connections, RedisLink, list[int]]] = []
        try:
            for connections, numbers in self._by_server(commands, deadline).items():
                with self._failing(numbers, replies):
                    link = connections.take_connection(deadline)
                    borrowed.append((connections, link, numbers))
                    link.send(
                        [piece for number in numbers for piece in commands[number].pieces], len(numbers), deadline
                    )
            for _, link, numbers in borrowed:
                if link.is_owed:
                    unread = list(numbers)
                    with self._failing(unread, replies):
                        while unread:
                            replies[unread[0]] = link.read(deadline)
                            del unread[0]
        finally:
            for connections, link, _ in borrowed:
                connections.give_back(link)
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            self._nodes.forget()
        return replies

    def _by_server(self, commands: Sequence[_Command], deadline: float) -> dict[Connections, list[int]]:
        groups: dict[Connections, list[int]] = {}
        for number, command in enumerate(commands):
            groups.setdefault(self._nodes.at(command.key, deadline), []).append(number)
        return groups

    @contextlib.contextmanager
    def _failing(self, numbers: Sequence[int], replies: list[Reply]) -> Iterator[None]:
        """Store a `BackendError` raised inside as the reply to each of the commands."""
        try:
            yield
        except BackendError as error:
            self._nodes.forget()
            for number in numbers:
                replies[number] = error


def _command(key: str, *words: Value | str | int | list[Value]) -> _Command:
    """Frame a command: small words are joined, the pieces of a value are only referred to."""
    pieces: list[Value] = []
    small = [b"*%d\r\n" % len(words)]
    for word in words:
        if isinstance(word, list):
            small.append(b"$%d\r\n" % sum(memoryview(piece).nbytes for piece in word))
            pieces += [b"".join(small), *word]
            small = [b"\r\n"]
        else:
            text = str(word).encode() if isinstance(word, str | int) else bytes(word)
            small.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return _Command(key, [*pieces, b"".join(small)])


def _value(reply: Reply) -> Got:
    """Return a value, or the error of reading it; None for a key that is being moved, or of another type."""
    if isinstance(reply, BackendError):
        return reply
    if isinstance(reply, AskError | TryAgainError):
        return None
    if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
        return None
    found = _good(reply)
    if isinstance(found, int):
        raise BackendError(f"Redis sent a number instead of a value: {found}")
    return found


def _good(reply: Reply) -> Value | int | None:
    """Return a reply that is no error.

    Raises:
        BackendRefused: The server refuses the command.
        BackendError: The server cannot execute it now, or is not there.
    """
    if isinstance(reply, BackendError):
        raise reply
    if isinstance(reply, ResponseError) and not isinstance(reply, AskError | ClusterDownError | TryAgainError):
        raise BackendRefused(f"Redis refuses: {str(reply)[:200]}", _trouble(reply))
    if isinstance(reply, Exception):
        raise BackendError(f"Redis failed: {str(reply)[:200]}", _trouble(reply))
    return reply


def _trouble(error: Exception) -> Trouble:
    if isinstance(error, OutOfMemoryError) or "used memory > 'maxmemory'" in str(error):
        return "full"  # the message of a script whose command was refused
    if isinstance(error, AuthenticationError | NoPermissionError):
        return "denied"
    return "refused" if isinstance(error, ResponseError) else "unreached"


def _epoch(value: Got) -> int:
    if isinstance(value, BackendError):
        raise value
    text = b"" if value is None else bytes(value[: _EPOCH_DIGITS + 1])
    return int(text) if len(text) == _EPOCH_DIGITS and text.isdigit() and int(text) <= MAX_EPOCH else 0


def _digits(epoch: int) -> str:
    """Return an epoch as text that sorts like the number."""
    return f"{epoch:0{_EPOCH_DIGITS}}"


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
