"""mmcached: a host-wide cache for multimodal model serving. `import mmcached` loads only this file.

    from mmcached import Client

`Client`, `AsyncClient` and the errors are loaded on first use; `mmcached.client` has all names. Four source roots share
this package: `frontend/`, `engine/`, `worker/` and `shm/` of a checkout. In this one:

    client          the clients, for host programs
    frontend        P0: the loop, connections, store
    gateway         P0, with workers: requests, engines, caches, processing
    second_level    between a store and a server that several hosts share
    pictures, clips     decoding of images, videos and sounds, run by decoder processes
    cli             the command line; `__main__` runs it
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmcached.client import (
        AsyncClient,
        CacheMiss,
        Client,
        ClientClosed,
        ClipTooLarge,
        ConfigError,
        CorruptClip,
        CorruptImage,
        DeadlineExceeded,
        EmptyClip,
        EmptyImage,
        ImageTooLarge,
        InvalidRequest,
        MmcachedError,
        PeerGone,
        RemoteProtocolError,
        RequestAborted,
        ServiceUnavailable,
    )

__path__ = __import__("pkgutil").extend_path(__path__, __name__)  # in the form that documentation tools recognise
__all__ = [
    "AsyncClient",
    "CacheMiss",
    "Client",
    "ClientClosed",
    "ClipTooLarge",
    "ConfigError",
    "CorruptClip",
    "CorruptImage",
    "DeadlineExceeded",
    "EmptyClip",
    "EmptyImage",
    "ImageTooLarge",
    "InvalidRequest",
    "MmcachedError",
    "PeerGone",
    "RemoteProtocolError",
    "RequestAborted",
    "ServiceUnavailable",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("mmcached.client"), name)
    if name == "__version__":
        return import_module("importlib.metadata").version("mmcached")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def get_include() -> str:
    """Return the folder of the headers in C, `mmcached_reader.h` and `mmcached_connection.h`.

    In a shell: `cc -I"$(python -c 'import mmcached; print(mmcached.get_include())')" …`.
    """
    from os.path import isdir

    return next(folder for portion in __path__ if isdir(folder := f"{portion}/include"))


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
