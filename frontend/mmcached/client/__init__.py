"""Lets a host program use the service: `Client` for threads, `AsyncClient` for asyncio.

    synchronous, asynchronous   the two clients: thin drivers of the same verbs, over what both have (`base`)
    calls                       what each call takes, asks and returns: one verb per call
    traced_calls                spans of calls, for OpenTelemetry: imported where there is a tracer
    cached_functions            the keys of functions that `cached` decorates
    namespaces                  a name before the keys of a client
    model_verbs                 what the service computes: what is asked, and where large results are found
    verb                        runs a verb in a thread or an event loop
    contact                     one client id: greets the service, and exchanges requests for answers
    piece_stream, token_stream  one streamed generation: its verb, and the pieces that have come
    arguments, media_files      checks of what a caller passes
    clips                       what may be wanted of a video or a sound, and the outputs of its slices
    results                     what a caller gets
    known_outputs               names of what the encoder has said of images, as the service gives them
    saver                       saves records in a thread of its own: bounded in bytes, dropped when late
    store/                      the verbs of the store, without sockets
    device/                     copies records out of shared memory onto a CUDA device; imports torch
    links/                      the sockets of both clients, and what a fork lets go of
    kv_events/                  changes of an engine's prefix cache, for routers

Importing it does not import torch; a call that returns tensors does, and returns arrays of numpy where torch is not
installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmcached.client.clips import Audio, AudioLike, Clip, Video, VideoLike
from mmcached.client.media_files import ImageLike
from mmcached.client.results import Generation, RowRange
from mmcached.client.store.claims import Claim, Pending
from mmcached.client.store.fail_open import StoreCounters
from mmcached.client.store.hits import Hit
from mmcached.client.store.put_result import PutResult
from mmcached.client.synchronous import Client
from mmcached.wire.errors import (
    CacheMiss,
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
from mmcached.wire.messages.parts import RowsWanted

if TYPE_CHECKING:
    from mmcached.client.asynchronous import AsyncClient
    from mmcached.client.kv_events.subscriber import KVEventSubscriber

__all__ = [
    "AsyncClient",
    "Audio",
    "AudioLike",
    "CacheMiss",
    "Claim",
    "Client",
    "ClientClosed",
    "Clip",
    "ClipTooLarge",
    "ConfigError",
    "CorruptClip",
    "CorruptImage",
    "DeadlineExceeded",
    "EmptyClip",
    "EmptyImage",
    "Generation",
    "Hit",
    "ImageLike",
    "ImageTooLarge",
    "InvalidRequest",
    "KVEventSubscriber",
    "MmcachedError",
    "PeerGone",
    "Pending",
    "PutResult",
    "RemoteProtocolError",
    "RequestAborted",
    "RowRange",
    "RowsWanted",
    "ServiceUnavailable",
    "StoreCounters",
    "Video",
    "VideoLike",
]


_LATE = {"AsyncClient": "asynchronous", "KVEventSubscriber": "kv_events.subscriber"}


def __getattr__(name: str) -> Any:
    """Import what brings asyncio or ZeroMQ when somebody asks for it: together as long as all the rest takes."""
    if name in _LATE:
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
