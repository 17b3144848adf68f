"""Computes the identity of a checkpoint from the content of its files.

    file ──blake3──> digest, remembered in the store by (device, inode, size, mtime, ctime)
    names and digests of a checkpoint's files ──blake3──> its identity

The checkpoint's path and name do not matter. One process per host reads each file, and the store remembers the digest;
without a service every process reads it. Does not import torch.
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
"""Suffixes of checkpoint files that outputs may depend on: weights, configurations, and code."""
OF_PROCESSORS = frozenset({".json", ".py", ".txt", ".jinja", ".model", ".tiktoken"})
"""Suffixes of checkpoint files that a processor or its tokenizer may read; it reads no weights."""
SETTLED_S = 2.0
"""Age of a file's last change from which its times identify its content: a coarse clock may hide a later change."""
_CHUNK_BYTES = 4 << 20
_WAIT_S = 60.0


def checkpoint_identity(
    path: str | Path, client: Client, *, suffixes: Set[str] = SUFFIXES, clock: Callable[[], float] = time.time
) -> str:
    """Return the digest of a checkpoint's content, covering every byte of the relevant files: 64 hex digits.

    Args:
        path: The checkpoint's folder, or its only file, which counts whatever its suffix.
        client: Client of the store that remembers digests; it may lack a service.
        suffixes: Suffixes of the relevant files.
        clock: Seconds since 1970.

    Raises:
        OSError: The checkpoint does not exist, or a file cannot be read, or changes while it is read.
    """
    root = Path(path)
    digest = blake3()
    for file in _files(root, suffixes):
        name = file.relative_to(root).as_posix() if file != root else file.suffix
        entry = f"{len(name.encode())}:{name}{_file_digest(file, client, clock)}"
        digest.update(entry.encode())
    return digest.hexdigest()


def checkpoint_folder(name: str, revision: str | None = None, download_dir: str | None = None) -> Path:
    """Return the folder of a checkpoint on this host: the given path, or the hub's local copy.

    Args:
        name: The model's name or path, as the host program was given it.

    Raises:
        OSError: The files are not on this host.
    """
    if (path := Path(name)).exists():
        return path
    from huggingface_hub import snapshot_download  # comes with every host program

    try:
        return Path(snapshot_download(name, revision=revision, cache_dir=download_dir, local_files_only=True))
    except ValueError as error:  # not a valid name on the hub
        raise FileNotFoundError(f"no checkpoint {name!r} is on this host: {error}") from error


def _files(root: Path, suffixes: Set[str]) -> Iterator[Path]:
    """Yield the relevant files in the order of their names; hidden files and folders are left out."""
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
    while num_bytes := source.readinto(chunk):  # type: ignore[attr-defined]  # the file that `open` returns has it
        digest.update(chunk[:num_bytes])
    after = os.fstat(source.fileno())
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (
        after.st_size,
        after.st_mtime_ns,
        after.st_ctime_ns,
    ):
        raise OSError(f"{source.name} changes while it is read")
    return digest.hexdigest()
