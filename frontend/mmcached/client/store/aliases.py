"""Client calls that bind names of media to content: `resolve`, `bind` and `forget`.

    resolve ──name known──> digest of the content ──key of a record──> the record, under a lease
    bind    ──a claim on the name──> one caller fetches and hashes; the others wait for its digest

A binding is an ordinary record of the tenant: it expires, is evicted and flushed like one. Nothing here binds a name
that was only asked for.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, cast

import numpy as np

from mmcached.cache.aliases import CONTENT, FILE, content_in, is_digest, media_key
from mmcached.cache.hasher import MultiModalHasher
from mmcached.client.arguments import check_bool, checked_key, checked_ttl, invalid
from mmcached.client.media_files import ImageLike, read_file
from mmcached.client.media_names import MediaName, Resolved, checked_name, read_named_file
from mmcached.client.store.hits import Hit, Reading, reading_of
from mmcached.client.store.verbs import StoreVerbs
from mmcached.client.verb import ReadyResult, Verb
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library, encode
from mmcached.wire.errors import InvalidRequest

Content = ImageLike | str
"""Content of media: its bytes, the path of its file, or its digest, which the caller has computed."""
_PLAIN = Reading("bytes")


class NameVerbs(StoreVerbs):
    """Calls of one client id that concern names of media, besides those of `StoreVerbs`."""

    def resolve(
        self,
        name: MediaName,
        key: Callable[[str], str] | None = None,
        *,
        view: bool = False,
        tensors: Library = DEFAULT_LIBRARY,
        timeout_s: float | None = None,
        tenant: str | None = None,
        local: bool = False,
    ) -> Verb[Resolved | None]:
        """Return the content that a name is bound to, or None; sends no message for records in this host's store.

        With `key`, the record that the content has there is looked up in the same call: with `view=True` it is under a
        lease, so it cannot be gone between the answer and its use. Other processes open it by `hit.token`.

        Args:
            name: Text, a `Url`, or the `Path` of a file, which is not opened.
            key: Makes the key of a record from the digest of the content, such as `media_key`: the file that `bind`
                kept.
            view, tensors, timeout_s, tenant, local: As for `get`.

        Raises:
            InvalidRequest: The name is invalid, or there is no regular file at its path.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        reading, alias, tenant = reading_of(tensors, view), checked_name(name), self._tenant(tenant)
        content = yield from self._bound(alias, tenant, timeout_s=timeout_s, local=local)
        if content is None or key is None:
            return None if content is None else Resolved(content)
        record_key = checked_key(key(content))
        hit = yield from self._got(record_key, reading, tenant, timeout_s=timeout_s, local=local)
        return Resolved(content, hit)

    def bind(
        self,
        name: MediaName,
        content: Content | Callable[[], Content | Awaitable[Content]] | None = None,
        *,
        ttl_s: float | None = None,
        keeps_file: bool = False,
        timeout_s: float | None = None,
        tenant: str | None = None,
    ) -> Verb[str]:
        """Bind a name to content; return the digest of the content.

        Given a function, or a `Path` as name and no content, one caller on this host (with a second level, as a rule,
        on all its hosts) fetches and hashes the content of an unbound name, while the others wait for its digest, as
        for `get_or_compute`. The digest of a bound name is returned without a call of the function.

        Given content, a binding of the name to other content is an error: `forget` the name first. A binding to the
        same content is renewed, with this `ttl_s`.

        If the store does not keep the binding, the digest is returned all the same. That includes a file that changes
        while it is read, or changed within the last 50 ms.

        Args:
            name: As for `resolve`.
            content: Bytes, the `Path` of a file, a digest (32 to 128 lower-case hex digits), or a function that returns
                one of these; with `AsyncClient` also a coroutine function. None: the file of a name that is a `Path`.
            ttl_s: Expiry of the binding and of the kept file, as for `put`.
            keeps_file: Also keep the bytes, under `media_key(digest)`, before the binding can be found: whoever
                resolves the name has them, while the store has room. Not for content that is a digest.
            timeout_s: As for `get_or_compute`.
            tenant: As for `get`.

        Raises:
            InvalidRequest: An argument is invalid, or the name is bound to other content.
            MmcachedError: With `fail_open=False`: why the service did not answer.
        """
        check_bool("keeps_file", keeps_file)
        alias, ttl, tenant = checked_name(name), checked_ttl(ttl_s), self._tenant(tenant)
        if content is None or callable(content):
            if content is None and not isinstance(name, os.PathLike):
                raise invalid("content", content, "bytes, a path, a digest or a function; None only beside a path")
            fetch = content or (lambda: _settled(cast("os.PathLike[str]", name), alias))
            return (
                yield from self._bind_fetched(
                    alias, fetch, keeps_file=keeps_file, ttl_s=ttl, timeout_s=timeout_s, tenant=tenant
                )
            )
        if self.contact.welcome is None:  # it says how the service hashes
            yield from self._guarded("bind", self._in_contact(self.contact.deadline(timeout_s)), None)
        digest = yield from self._content(content, keeps_file, ttl, tenant)
        yield from self._put_binding(alias, digest, ttl, timeout_s, tenant)
        return digest

    def forget(self, name: MediaName, *, timeout_s: float | None = None, tenant: str | None = None) -> Verb[bool]:
        """Drop the binding of a name on this host, as `drop`; records of the content stay."""
        return self.drop(checked_name(name), timeout_s=timeout_s, tenant=tenant)

    # ---- for requests to the model

    def contents_of_names(self, aliases: list[str | None]) -> Verb[list[str | None]]:
        """Return the digests that bindings with these keys name; None without a key, or a binding."""
        known = [alias for alias in aliases if alias is not None]
        call = self.get_many(known, tensors="bytes")
        hits = call.result if isinstance(call, ReadyResult) else (yield from call)
        found = iter([None if hit is None else content_in(hit.record) for hit in hits])
        return [None if alias is None else next(found) for alias in aliases]

    def kept_file(self, content: str) -> Verb[bytes | None]:
        """Return the kept file with a digest; None if there is none, or the record has other bytes."""
        tenant = self.contact.options.tenant
        hit = yield from self._got(media_key(content), Reading("bytes", view=True), tenant, timeout_s=None, local=False)
        kept = None if hit is None else hit.record.get(FILE)
        if not isinstance(kept, np.ndarray):
            return None
        data = kept.tobytes()
        return data if self._digest(data) == content else None

    # ---- the calls, without error handling

    def _digest(self, data: bytes) -> str:
        welcome = self.contact.welcome
        return MultiModalHasher("blake3" if welcome is None else welcome.hasher_algorithm).content_digest(data)

    def _bind_fetched(
        self,
        alias: str,
        fetch: Callable[[], Any],
        *,
        keeps_file: bool,
        ttl_s: float,
        timeout_s: float | None,
        tenant: str,
    ) -> Verb[str]:
        """Return the digest that a name is bound to; if it has none, one caller fetches the content and binds it."""

        def make() -> Verb[dict[str, Any]]:
            fetched = yield fetch
            digest = yield from self._content(fetched, keeps_file, ttl_s, tenant)
            return {CONTENT: digest}

        try:
            record = yield from self._get_or_make(alias, make, _PLAIN, timeout_s, ttl_s=ttl_s, tenant=tenant)
        except _Unsettled as unsettled:
            return (yield from self._content(unsettled.data, keeps_file, ttl_s, tenant))
        digest = content_in(record)
        if digest is None:
            raise InvalidRequest("name", "a record of another kind", "a name that `bind` has bound; forget it")
        return digest

    def _bound(
        self, alias: str, tenant: str, *, timeout_s: float | None = None, local: bool = False
    ) -> Verb[str | None]:
        """Return the digest that a binding names; None without one."""
        hit = yield from self._got(alias, _PLAIN, tenant, timeout_s=timeout_s, local=local)
        return None if hit is None else content_in(hit.record)

    def _got(
        self, key: str, reading: Reading, tenant: str, *, timeout_s: float | None, local: bool
    ) -> Verb[Hit | None]:
        call = self.get(
            key, view=reading.view, tensors=reading.tensors, timeout_s=timeout_s, tenant=tenant, local=local
        )
        return call.result if isinstance(call, ReadyResult) else (yield from call)

    def _content(self, content: Any, keeps_file: bool, ttl_s: float, tenant: str) -> Verb[str]:
        """Return the digest of content, and keep its bytes if they are wanted."""
        if isinstance(content, str):
            if keeps_file or not is_digest(content):
                limit = "bytes or a path" if keeps_file else "32 to 128 lower-case hex digits, bytes, or a pathlib.Path"
                raise invalid("content", content, limit)
            return content
        data = read_file(content, "content")
        digest = self._digest(data)
        if keeps_file:
            record = {FILE: np.frombuffer(data, np.uint8)}
            yield from self.put(media_key(digest), record, ttl_s=ttl_s or None, tenant=tenant)
        return digest

    def _put_binding(self, alias: str, digest: str, ttl_s: float, timeout_s: float | None, tenant: str) -> Verb[None]:
        encoded, deadline = encode({CONTENT: digest}), self.contact.deadline(timeout_s)
        for _ in range(2):  # the second time if another caller has bound the name after the look
            known = yield from self._bound(alias, tenant, timeout_s=timeout_s)
            if known not in (None, digest):
                raise InvalidRequest("name", f"bound to {known}", f"{digest}, or a name that is not bound: forget it")
            put = self._put(alias, encoded, deadline, tenant, overwrites=known is not None, ttl_s=ttl_s)
            result = yield from self._guarded("bind", put, None)
            if result is None or result.outcome != "exists":
                return


class _Unsettled(Exception):
    """The bytes of a file are not certainly those that its name stands for."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data


def _settled(path: os.PathLike[str], alias: str) -> bytes:
    data, is_settled = read_named_file(path, alias)
    if not is_settled:
        raise _Unsettled(data)
    return data
