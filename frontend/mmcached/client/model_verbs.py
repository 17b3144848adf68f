"""Verbs of the model: the order of their requests, and the lookup of their large results.

known outputs ──the store's ring──> no message     the rest: requested, named in the answer, found in the ring
generate      ──the answer names rows──> found there   evicted meanwhile: requested again, and comes inline
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from msgspec.structs import replace

from mmcached.cache.store_keys import ROWS
from mmcached.client.clips import together
from mmcached.client.contact import Contact, Deadline
from mmcached.client.known_outputs import KnownSlice, clip_records, contents_of, output_keys, slices_in
from mmcached.client.request_files import RequestFiles
from mmcached.client.results import Generation, embeddings_from, expect, generation_from, plain
from mmcached.client.sampling import further_requests
from mmcached.client.store.aliases import NameVerbs
from mmcached.client.store.hits import Reading
from mmcached.client.verb import Verb
from mmcached.wire.errors import CacheMiss, MmcachedError, RemoteProtocolError
from mmcached.wire.messages.client import Encoded, Generated, Welcome
from mmcached.wire.messages.frontend import DropRecord, Encode, Generate
from mmcached.wire.sockets.frames import Frame

T = TypeVar("T")
_BYTES = Reading("bytes", view=True)


class ModelVerbs:
    """Model requests of one client id, with checked arguments.

    Args:
        note_known: Called for each `encode` with the number of items found in the store, and of all items.
    """

    def __init__(self, contact: Contact, store: NameVerbs, note_known: Callable[[int, int], object]) -> None:
        self._note_known = note_known
        self._contact = contact
        self._store = store
        self._welcome: Welcome | None = None  # the last greeting, also of a frontend that has died since

    def generate(self, request: Generate, files: RequestFiles, deadline: Deadline, n: int = 1) -> Verb[Generation]:
        """Continue a prompt `n` times, with consecutive seeds.

        The first answer comes alone: the others, which are computed together, find its prompt in the prefix cache.

        Raises:
            RemoteProtocolError: The answer names rows that were requested inline.
            CacheMiss: Files that came by name only are needed; names them.
        """
        return self.by_name(
            files, lambda contents, data: self._answers(replace(request, contents=contents), data, deadline, n)
        )

    def _answers(self, request: Generate, files: list[bytes], deadline: Deadline, n: int) -> Verb[Generation]:
        first = yield from self._generate(request, files, deadline)
        if n == 1:
            return first
        others = further_requests(request, n, self._contact.next_id)
        found = yield from self._contact.exchange_all(others, deadline, files)
        answers = [generation_from(expect(message, Generated), payload) for message, payload in found]
        return dataclasses.replace(first, others=answers)

    def _generate(self, request: Generate, files: list[bytes], deadline: Deadline) -> Verb[Generation]:
        yield from self._contact.connect(deadline)
        if request.rows is not None:
            yield from self._store.look([], _BYTES, deadline)  # makes it a reader: answers then name rows by key
        for takes_keys in (request.rows is not None and self._store.is_reader, False):
            request = replace(request, request_id=self._contact.next_id(), takes_keys=takes_keys)
            yield from self._contact.connect(deadline)
            message, payload = yield from self._contact.exchange(request, deadline, files)
            generation = yield from self._generation(expect(message, Generated), payload, deadline)
            if generation is not None:
                return generation
        raise RemoteProtocolError("rows are named that were to come inline", "saved_rows")

    def encode(self, request: Encode, files: RequestFiles, reading: Reading, deadline: Deadline) -> Verb[list[Any]]:
        """Return the encoder's output of each image and clip; outputs found in the store are not requested.

        Raises:
            CacheMiss: Files that came by name only are needed; names them.
        """
        return self.by_name(
            files,
            lambda contents, data: self._all_encoded(replace(request, contents=contents), data, reading, deadline),
        )

    def by_name(self, files: RequestFiles, ask: Callable[[list[str | None], list[bytes]], Verb[T]]) -> Verb[T]:
        """Make a request with the digests of known names in place of their files, and again with the files that the
        service then needs: the caller's, or those that the store keeps.

        Args:
            ask: Makes the request with the digests, one per file or none at all, and with the files.
        """
        if not files.names:
            return (yield from ask([], files.read()))
        contents = yield from self._store.contents_of_names([name and name[0] for name in files.names])
        data = files.read({index for index, content in enumerate(contents) if content is not None})
        while True:
            try:
                return (yield from ask(contents if any(contents) else [], data))
            except CacheMiss as miss:
                needed = [index for index, content in enumerate(contents) if content in miss.mm_hashes]
                if not needed:
                    raise
            missing = []
            for index in needed:  # fewer digests remain each time
                file = files.read_one(index)
                if file is None:
                    file = yield from self._store.kept_file(contents[index] or "")
                if file is None:
                    missing.append((files.names[index] or ("", ""))[1])
                data[index], contents[index] = file or b"", None
            if missing:
                raise CacheMiss(list(dict.fromkeys(missing)))

    def _all_encoded(
        self, request: Encode, files: list[bytes], reading: Reading, deadline: Deadline
    ) -> Verb[list[Any]]:
        results = yield from self._known_outputs(request, files, reading, deadline)
        self._note_known(sum(result is not None for result in results), len(results))
        try:
            # Outputs evicted meanwhile are requested inline; while hits are verified all are: a named one could be the
            # found record.
            by_key = self._store.is_reader and not self._store.is_verifying().result
            for takes_keys in (by_key, False):
                missing = [index for index, result in enumerate(results) if result is None]
                if missing or not files:
                    part = _part_of(request, missing, len(files))
                    part = replace(part, request_id=self._contact.next_id(), takes_keys=takes_keys)
                    made = yield from self._encoded(part, [files[index] for index in missing], reading, deadline)
                    for index, result in zip(missing, made, strict=True):
                        results[index] = result
        except BaseException:
            results.clear()  # the error's traceback would keep them, and their leases
            raise
        return results

    def _generation(self, message: Generated, payload: Sequence[Frame], deadline: Deadline) -> Verb[Generation | None]:
        """Return the generation of an answer; None if rows that it names are no longer in the store."""
        names = [rows.name for rows in message.saved_rows]
        if not names:
            return generation_from(message, payload)
        hits = yield from self._store.look(names, _BYTES, deadline, counts_hits=False)
        found = [memoryview(hit.record[ROWS]) for hit in hits if hit is not None]
        if len(found) < len(names):
            return None
        generation = generation_from(message, payload, found)
        for name in names:  # no other client knows the name
            self._contact.tell(DropRecord(self._contact.next_id(), name, self._contact.options.tenant, is_local=True))
        return generation

    def _encoded(self, request: Encode, files: list[bytes], reading: Reading, deadline: Deadline) -> Verb[list[Any]]:
        """Have images and clips encoded; None for each with a named output that is no longer in the store."""
        yield from self._contact.connect(deadline)
        message, payload = yield from self._contact.exchange(request, deadline, files)
        answer = expect(message, Encoded)
        num_clips, num_slices = len(request.clips), sum(map(len, answer.clips))
        if len(answer.clips) != num_clips or not all(answer.clips):
            raise RemoteProtocolError(f"the slices of {len(answer.clips)} clips, asked for were {num_clips}", "clips")
        if len(answer.outputs) != len(files) - num_clips + num_slices:
            expected = f"{len(files) - num_clips} images and {num_slices} slices"
            raise RemoteProtocolError(f"{len(answer.outputs)} outputs for {expected}", "outputs")
        keys = {index: output for index, output in enumerate(answer.outputs) if isinstance(output, str)}
        if keys and not request.takes_keys:
            raise RemoteProtocolError(f"{len(keys)} outputs are named, none was to be", "outputs")
        outputs = embeddings_from(answer, payload, reading.tensors)
        for index, output in (yield from self._outputs(keys, reading, deadline, is_answer=True)).items():
            outputs[index] = output
        return together(outputs, answer.clips)

    def _known_outputs(
        self, request: Encode, files: Sequence[bytes], reading: Reading, deadline: Deadline
    ) -> Verb[list[Any]]:
        """Return the outputs of images and clips that are in the store; None for the others.

        Without contact, the keys are made from the last greeting.
        """
        try:
            self._welcome = yield from self._contact.connect(deadline, is_patient=self._welcome is None)
        except MmcachedError:
            if self._welcome is None or self._contact.is_over:
                raise
        num_images, contents = len(files) - len(request.clips), contents_of(self._welcome, files, request.contents)
        keys = output_keys(self._welcome, contents[:num_images], request.image_ids, request.tenant)
        clips: list[list[KnownSlice]] = [[] for _ in request.clips]
        if contents and request.clips:
            clips = yield from self._known_slices(self._welcome, request, contents[num_images:], deadline)
            keys |= {index: each.key for index, each in enumerate(chain.from_iterable(clips), num_images)}
        found = yield from self._outputs(keys, reading, deadline)
        outputs = [found.get(index) for index in range(num_images + sum(map(len, clips)))]
        return together(outputs, [[each.time for each in slices] for slices in clips])

    def _known_slices(
        self, welcome: Welcome, request: Encode, contents: Sequence[str], deadline: Deadline
    ) -> Verb[list[list[KnownSlice]]]:
        """Return the slices of each clip whose outputs are all in the store; empty for other clips."""
        clips: list[list[KnownSlice]] = [[] for _ in contents]
        records = clip_records(welcome, request.clips, contents, request.tenant)
        hits = (yield from self._store.look(list(records.values()), _BYTES, deadline)) if records else []
        for index, hit in zip(records, hits, strict=True):
            slices = [] if hit is None else slices_in(hit.record, welcome)
            if self._store.sees([each.key for each in slices]):  # else the whole clip is requested, without any lease
                clips[index] = slices
        return clips

    def _outputs(
        self, keys: Mapping[int, str], reading: Reading, deadline: Deadline, *, is_answer: bool = False
    ) -> Verb[dict[int, Any]]:
        """Return the outputs with these keys that are in the store, by their index.

        Outputs of an answer were put just now for this client, and do not count as hits. Hits that are to be recomputed
        count as missing.
        """
        sampled = frozenset() if is_answer else self._store.sampled(list(keys.values())).result
        keys = {index: key for index, key in keys.items() if key not in sampled}
        if not keys:
            return {}
        hits = yield from self._store.look(list(keys.values()), reading, deadline, counts_hits=not is_answer)
        return {index: plain(hit.record) for index, hit in zip(keys, hits, strict=True) if hit is not None}


def _part_of(request: Encode, indices: Sequence[int], num_files: int) -> Encode:
    num_images = num_files - len(request.clips)
    image_ids = [request.image_ids[index] for index in indices if index < num_images] if request.image_ids else []
    clips = [request.clips[index - num_images] for index in indices if index >= num_images]
    contents = [request.contents[index] for index in indices] if request.contents else []
    return replace(request, image_ids=image_ids, clips=clips, contents=contents if any(contents) else [])
