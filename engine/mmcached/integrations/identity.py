"""Names what an output depends on: the content of a checkpoint, and all else beside the item.

    file ──blake3──> digest, remembered in the store by (device, inode, size, mtime, ctime)
    names and digests of a checkpoint's files ──blake3──> its identity

Where a checkpoint lies, and what it is called, does not matter. A host reads each file once, whoever asks; without a
service everybody reads it for himself. Needs no torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from mmcached.client import Client

SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".json", ".py"})
"""Files of a checkpoint that outputs may depend on: weights, configurations, and code that comes with them."""
SETTLED_S = 2.0
"""Age of a file's last change from which on its times name its content: a clock that ticks slowly may hide a change."""
_CHUNK_BYTES = 4 << 20
_WAIT_S = 60.0


def checkpoint_identity(
    path: str | Path, client: Client, *, suffixes: Set[str] = SUFFIXES, clock: Callable[[], float] = time.time
) -> str:
    """Return the name of a checkpoint's content: every byte of the files that matter, 64 hex digits.

    Args:
        path: its folder, or its only file, which matters whatever its suffix.
        client: of the store that remembers digests; one without a service will do.
        suffixes: of the files that matter.
        clock: seconds since 1970.
    Raises:
        OSError: there is no such checkpoint, or a file of it cannot be read, or changes while it is read.
    """
    root = Path(path)
    digest = blake3()
    for file in _files(root, suffixes):
        name = file.relative_to(root).as_posix() if file != root else file.suffix
        entry = f"{len(name.encode())}:{name}{_file_digest(file, client, clock)}"
        digest.update(entry.encode())
    return digest.hexdigest()


def checkpoint_folder(name: str, revision: str | None = None, download_dir: str | None = None) -> Path:
    """Return where the files of a checkpoint lie on this host: its own path, or the hub's copy of it.

    Args:
        name: as the host program was given it.
    Raises:
        OSError: they are not here.
    """
    if (path := Path(name)).exists():
        return path
    from huggingface_hub import snapshot_download  # comes with every host program

    try:
        return Path(snapshot_download(name, revision=revision, cache_dir=download_dir, local_files_only=True))
    except ValueError as error:  # no name that the hub could have
        raise FileNotFoundError(f"no checkpoint {name!r} is on this host: {error}") from error


def _files(root: Path, suffixes: Set[str]) -> Iterator[Path]:
    """Yield the files that matter, in the order of their names; hidden folders are no part of a checkpoint."""
    if not root.is_dir():
        yield root
        return
    found = []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(folder, name) for name in names if Path(name).suffix in suffixes and not name.startswith(".")]
    if not found:
        raise FileNotFoundError(f"{root} has no file of a checkpoint ({', '.join(sorted(suffixes))})")
    yield from sorted(found)


def _file_digest(file: Path, client: Client, clock: Callable[[], float]) -> str:
    with file.open("rb") as source:
        of = os.fstat(source.fileno())
        if clock() - max(of.st_mtime, of.st_ctime) < SETTLED_S:
            return _read(source)
        key = f"identity/{of.st_dev}.{of.st_ino}.{of.st_size}.{of.st_mtime_ns}.{of.st_ctime_ns}"
        record = client.get_or_compute(key, lambda: {"blake3": _read(source)}, timeout_s=_WAIT_S)
        return str(record["blake3"])


def _read(source: BinaryIO) -> str:
    digest, chunk = blake3(max_threads=blake3.AUTO), memoryview(bytearray(_CHUNK_BYTES))
    before = os.fstat(source.fileno())
    source.seek(0)
    while num_bytes := source.readinto(chunk):  # type: ignore[attr-defined]  # what `open` returns has it
        digest.update(chunk[:num_bytes])
    after = os.fstat(source.fileno())
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    ):
        raise OSError(f"{source.name} changes while it is read")
    return digest.hexdigest()
