"""Types of the extension module of the distribution `mmcached-native`; see `native/mmcached_native.c`."""

from collections.abc import Callable
from typing import Any, final

from typing_extensions import Buffer

from mmcached.shm.segment.pages import Pages
from mmcached.wire.handle import Handle

LAYOUT_VERSION: int

@final
class Entry:
    num_out: int
    def __init__(
        self, *, words: memoryview, handle_type: type[Handle], ring_id: str, epoch: int, num_slots: int
    ) -> None: ...
    def pause(self) -> None: ...
    def resume(self, is_shared: bool, /) -> None: ...
    def stop(self) -> None: ...

@final
class Lease(Buffer):
    handle: Handle
    data: memoryview
    def end(self) -> None: ...

Form = tuple[dict[bytes, Any], Callable[[bytes], Any], Callable[[Lease], dict[str, Any]]]

@final
class Reader:
    store_epoch: int
    def __init__(
        self,
        *,
        entry: Entry,
        pages: Pages,
        reader_id: int,
        incarnation: int,
        data_bytes: int,
        index_words: int,
        board: int,
        slots: int,
        index: int,
        nurseries: dict[int, Pages],
        map_nursery: Callable[[int, int], Pages],
        unreadable: tuple[type[BaseException], ...],
        hit_type: type[Any],
        array_type: type[Any],
    ) -> None: ...
    def find(
        self,
        keys: list[str],
        tenant: str,
        kept: dict[str, bytes],
        form: Form,
        owned: Form,
        touches: bool,
        counts_misses: bool,
        /,
    ) -> list[Any] | bool: ...
    def contains(self, keys: list[str], tenant: str, kept: dict[str, bytes], /) -> list[bool] | None: ...
    def take(
        self, slot: int, generation: int, offset: int, nbytes: int, nursery: int, is_held: bool, /
    ) -> Lease | bool | None: ...
    def take_key(self, first: int, second: int, /) -> Lease | bool | None: ...
    def report(self, found: Lease | None, counts_hits: bool, /) -> None: ...
    def close(self) -> None: ...
