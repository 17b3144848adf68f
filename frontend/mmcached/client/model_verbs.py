"""Says what the verbs of the model ask, in which order, and where their large results are found.

    known outputs ──the store's ring──> no message          the rest: asked for, named in the answer, found in the ring
    generate      ──the answer names rows──> found there    what has gone again is asked for once more, and comes inline

Knows nothing of arguments as callers give them, of sockets and of event loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from mmcached.cache.store_keys import ROWS
from mmcached.client.contact import Contact, Deadline
from mmcached.client.known_outputs import output_keys
from mmcached.client.results import Generation, embeddings_from, expect, generation_from, plain
from mmcached.client.store.hits import Reading
from mmcached.client.store.verbs import StoreVerbs
from mmcached.client.verb import Verb
from mmcached.wire.errors import MmcachedError, RemoteProtocolError
from mmcached.wire.messages.client import Encoded, Generated, Welcome
from mmcached.wire.messages.frontend import DropRecord, Encode, Generate
from mmcached.wire.sockets.frames import Frame

_BYTES = Reading("bytes", view=True)


class ModelVerbs:
    """What the service computes, as one client id asks for it; arguments are checked."""

    def __init__(self, contact: Contact, store: StoreVerbs) -> None:
        self._contact = contact
        self._store = store
        self._welcome: Welcome | None = None  # the last one, also of a frontend that has died since

    def generate(self, request: Generate, files: list[bytes], deadline: Deadline) -> Verb[Generation]:
        """Have a prompt continued.

        Raises:
            RemoteProtocolError: rows are named that were to come inline.
        """
        yield from self._contact.connect(deadline)
        if request.rows is not None:
            yield from self._store.look([], _BYTES, deadline)  # as a reader of the store it is told where rows lie
        for takes_keys in (request.rows is not None and self._store.is_reader, False):
            request = replace(request, request_id=self._contact.next_id(), takes_keys=takes_keys)
            yield from self._contact.connect(deadline)
            message, payload = yield from self._contact.exchange(request, deadline, files)
            generation = yield from self._generation(expect(message, Generated), payload, deadline)
            if generation is not None:
                return generation
        raise RemoteProtocolError("rows are named that were to come inline", "saved_rows")

    def encode(
        self, files: list[bytes], image_ids: list[str | None], reading: Reading, deadline: Deadline
    ) -> Verb[list[Any]]:
        """Return the encoder's output for each image; what is known already is not asked for."""
        outputs = yield from self._known_outputs(files, image_ids, reading, deadline)
        for takes_keys in (self._store.is_reader, False):  # what has gone from the store again comes with the answer
            missing = [index for index, output in enumerate(outputs) if output is None]
            if missing or not files:
                wanted = [image_ids[index] for index in missing] if image_ids else []
                made = yield from self._encoded(
                    [files[index] for index in missing], wanted, reading, deadline, takes_keys
                )
                for index, output in zip(missing, made, strict=True):
                    outputs[index] = output
        return outputs

    def _generation(self, message: Generated, payload: Sequence[Frame], deadline: Deadline) -> Verb[Generation | None]:
        """Return what an answer says; None if rows that it names are not in the store any more."""
        names = [rows.name for rows in message.saved_rows]
        if not names:
            return generation_from(message, payload)
        hits = yield from self._store.look(names, _BYTES, deadline)
        found = [memoryview(hit.record[ROWS]) for hit in hits if hit is not None]
        if len(found) < len(names):
            return None
        generation = generation_from(message, payload, found)
        for name in names:  # nobody else knows it
            self._contact.tell(DropRecord(self._contact.next_id(), name, self._contact.options.tenant))
        return generation

    def _encoded(
        self,
        files: list[bytes],
        image_ids: list[str | None],
        reading: Reading,
        deadline: Deadline,
        takes_keys: bool,
    ) -> Verb[list[Any]]:
        """Have images encoded; return their outputs, None of each that was named and is not in the store any more."""
        contact = self._contact
        request = Encode(
            contact.client_id, contact.next_id(), deadline.timeout_s, contact.options.tenant, image_ids, takes_keys
        )
        yield from contact.connect(deadline)
        message, payload = yield from contact.exchange(request, deadline, files)
        answer = expect(message, Encoded)
        if len(answer.outputs) != len(files):
            raise RemoteProtocolError(f"{len(answer.outputs)} outputs for {len(files)} images", "outputs")
        outputs = embeddings_from(answer, payload, reading.tensors)
        keys = {index: output for index, output in enumerate(answer.outputs) if isinstance(output, str)}
        if keys and not takes_keys:
            raise RemoteProtocolError(f"{len(keys)} outputs are named, none was to be", "outputs")
        hits = (yield from self._store.look(list(keys.values()), reading, deadline)) if keys else []
        for index, hit in zip(keys, hits, strict=True):
            outputs[index] = None if hit is None else plain(hit.record)
        return outputs

    def _known_outputs(
        self, files: Sequence[bytes], image_ids: Sequence[str | None], reading: Reading, deadline: Deadline
    ) -> Verb[list[Any]]:
        """Return what the encoder has said of some images, as far as the store shows it; None for the others.

        A frontend that is away has said before how outputs are named.
        """
        try:
            self._welcome = yield from self._contact.connect(deadline, is_patient=self._welcome is None)
        except MmcachedError:
            if self._welcome is None or self._contact.is_over:
                raise
        keys = output_keys(self._welcome, files, image_ids, self._contact.options.tenant)
        outputs: list[Any] = [None] * len(files)
        hits = (yield from self._store.look(list(keys.values()), reading, deadline)) if keys else []
        for index, hit in zip(keys, hits, strict=True):
            outputs[index] = None if hit is None else plain(hit.record)
        return outputs
