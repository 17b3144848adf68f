"""Puts the reader in C on the words of the modelled memory in which the explorer explores the reader in Python.

    scenario ──> C reader ──every access──> hook ──> ModelWords ──> machine: its result, or the end of this replay

A replay ends in the middle of a C function, out of which no exception can lead: from then on the hooks do nothing, and
the exception is raised when the function has returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.shm.ring.slot_table import KeyDigest
from mmcached.shm.segment.layout import SLOT_BITS
from mmcached.wire.handle import Handle
from scripts.verification import self_lease_words, self_lease_world
from scripts.verification.replay import Machine
from scripts.verification.self_lease_words import RUNNING
from scripts.verification.self_lease_world import Reader

_U64 = ctypes.c_uint64
_SPACE = 1 << 32
_BASES = tuple(number * _SPACE for number in range(1, 5))
_BOARD, _SLOTS, _INDEX, _ENTRY = range(4)
_OK = 1


class _Record(ctypes.Structure):
    _fields_ = tuple((name, _U64) for name in ("slot", "generation", "offset", "nbytes", "nursery"))


_LOAD = ctypes.CFUNCTYPE(_U64, _U64)
_LOAD_WORDS = ctypes.CFUNCTYPE(None, ctypes.POINTER(_U64), _U64, ctypes.c_uint)
_STORE = ctypes.CFUNCTYPE(None, _U64, _U64)
_FENCE = ctypes.CFUNCTYPE(None)


class _Hooks(ctypes.Structure):
    _fields_ = (
        ("load", _LOAD),
        ("load_words", _LOAD_WORDS),
        ("store", _STORE),
        ("store_release", _STORE),
        ("full_fence", _FENCE),
    )


class ModelledReader:
    """One compiled reader: calls its functions on modelled words."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._bases = (_U64 * 4)(*_BASES)
        self._spaces: dict[int, Any] = {}
        self._mark = 0
        self._error: BaseException | None = None
        self._hooks = _Hooks(
            _LOAD(self._guarded(self._load)),
            _LOAD_WORDS(self._guarded(self._load_words)),
            _STORE(self._guarded(self._store)),
            _STORE(self._guarded(self._store_release)),
            _FENCE(self._guarded(self._fence)),
        )
        self._library.model_begin(ctypes.byref(self._hooks))

    def find(self, look: Lookup, key: KeyDigest, num_slots: int) -> _Record | None:
        self._mark = key[0] >> SLOT_BITS << SLOT_BITS
        self._num_slots = num_slots
        found, digest = _Record(), (_U64 * 2)(*key)
        return found if self._call("model_find", {_SLOTS: look._slots}, num_slots, digest, found) == _OK else None

    def take(self, look: Lookup, entry: ReaderEntry, words: Any, handle: Handle, *, is_held: bool = False) -> bool:
        spaces = {_BOARD: look._board, _SLOTS: look._slots, _ENTRY: words}
        reader = _U64(entry.reader_id), _U64(entry.incarnation)
        passed = *reader, _record(handle), int(is_held)
        return self._call("model_take", spaces, entry.announcement.num_slots, *passed) == _OK

    def find_held(self, look: Lookup, slot: int, generation: int, num_slots: int) -> _Record | None:
        found, wanted = _Record(), (_U64(slot), _U64(generation))
        return found if self._call("model_find_held", {_SLOTS: look._slots}, num_slots, *wanted, found) == _OK else None

    def end(self, words: Any, handle: Handle, num_slots: int) -> None:
        self._call("model_end", {_ENTRY: words}, num_slots, _record(handle))

    def end_former_life(self, words: Any, num_slots: int) -> None:
        self._call("model_end_former_life", {_ENTRY: words}, num_slots)

    def patches(self) -> tuple[tuple[Any, str, Any], ...]:
        """Return what a setting has in the place of the reader in Python."""
        modelled = self

        class NativeLookup(Lookup):
            def find(self, key: KeyDigest) -> Handle | None:
                names = self._names
                found = modelled.find(self, key, names.num_slots)
                if found is None:
                    return None
                return Handle(names.ring_id, names.epoch, found.slot, found.generation, found.offset, found.nbytes)

            def find_generation(self, slot: int, generation: int) -> Handle | None:
                names = self._names
                found = modelled.find_held(self, slot, generation, names.num_slots)
                if found is None:
                    return None
                return Handle(names.ring_id, names.epoch, found.slot, found.generation, found.offset, found.nbytes)

        class NativeEntry(ReaderEntry):
            def take_leases(self, leases: Sequence[Any], look: Lookup) -> list[bool]:
                for lease in leases:
                    lease.is_counted = modelled.take(look, self, self._open_control().words, lease.handle)
                return [lease.is_counted for lease in leases]

            def take_beside(self, lease: Any, look: Lookup) -> bool:
                words = self._open_control().words
                lease.is_counted = modelled.take(look, self, words, lease.handle, is_held=True)
                return bool(lease.is_counted)

            def end(self, lease: Any) -> None:
                if lease.is_counted:  # a lease that does not hold was given back where it was taken
                    modelled.end(self._open_control().words, lease.handle, self.announcement.num_slots)
                    lease.is_counted = False

        class NativeReader(Reader):
            def end_former_life(self, machine: Machine) -> None:
                the_map = self.setting.the_map
                modelled.end_former_life(the_map.entry(self.reader_id), the_map.num_slots)

        return (
            (self_lease_words, "Lookup", NativeLookup),
            (self_lease_words, "ReaderEntry", NativeEntry),
            (self_lease_world, "Reader", NativeReader),
        )

    # ---- hooks

    def _call(self, name: str, spaces: dict[int, Any], num_slots: int, *arguments: Any) -> int:
        self._spaces, self._error = spaces, None
        passed = [ctypes.byref(each) if isinstance(each, _Record) else each for each in arguments]
        outcome: int = getattr(self._library, name)(self._bases, _U64(num_slots), *passed)
        if self._error is not None:
            raise self._error
        return outcome

    def _guarded(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any) -> Any:
            if self._error is None:
                try:
                    return hook(*arguments)
                except BaseException as error:
                    self._error = error
            return 0

        return guarded

    def _words(self, address: int) -> tuple[Any, int]:
        space, offset = divmod(address, _SPACE)
        return self._spaces[space - 1], offset // 8

    def _load(self, address: int) -> int:
        if address == _BASES[_INDEX]:  # not modelled: it names any slot
            return self._mark | (RUNNING.machine.choose(self._num_slots) if self._num_slots > 1 else 0)
        words, index = self._words(address)
        return int(words[index])

    def _load_words(self, copy: Any, address: int, num: int) -> None:
        words, index = self._words(address)
        values = words[index : index + num] if num > 1 else [words[index]]
        for number, value in enumerate(values):
            copy[number] = value

    def _store(self, address: int, value: int) -> None:
        words, index = self._words(address)
        words[index] = value

    def _store_release(self, address: int, value: int) -> None:
        words, index = self._words(address)
        if (word := words.word(index, value)) is not None:
            RUNNING.machine.store_release(word, value)

    def _fence(self) -> None:
        RUNNING.machine.fence()


def _record(handle: Handle) -> _Record:
    return _Record(handle.slot, handle.generation, handle.offset, handle.nbytes, handle.nursery)
