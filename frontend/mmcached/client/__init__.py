"""Python clients of the service: `Client` for threads, `AsyncClient` for asyncio.

    synchronous, asynchronous   the two clients: thin drivers of the same verbs, with a shared `base`
    calls                       parameters, request and result of each call: one verb per call
    traced_calls                spans of calls, for OpenTelemetry: imported only with a tracer
    cached_functions            keys of functions that `cached` decorates
    namespaces                  a prefix for the keys of a client
    model_verbs                 requests to the model, and lookup of their large results
    verb                        runs a verb in a thread or an event loop
    contact                     one client id: greets the service, sends requests and returns their answers
    piece_stream, token_stream  one streamed generation: its verb, and its received pieces
    arguments, media_files      checks of a caller's arguments
    media_names                 names of media, and the files behind them
    chat, sampling              checks of chat messages, and of how tokens are chosen
    request_files               files of a request: beside a prompt, or in messages
    clips                       options of videos and sounds, and the encoder outputs of their slices
    results                     results of calls
    known_outputs               keys of the encoder's outputs for images and clips
    saver                       saves records in a thread of its own: bounded in bytes, dropped when late
    store/                      calls on the store, without sockets
    device/                     copies records out of shared memory onto a CUDA device; imports torch
    links/                      sockets of both clients, and fork handlers

Importing it does not import torch; a call that returns tensors does, and returns numpy arrays where torch is not
installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmcached.cache.aliases import media_key
from mmcached.client.clips import Audio, AudioLike, Clip, Video, VideoLike
from mmcached.client.media_files import ImageLike
from mmcached.client.media_names import MediaName, Resolved, Url
from mmcached.client.results import Generation, NewTokens, RowRange, TokenUsage
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
from mmcached.wire.messages.parts import RowsWanted, Sampling

if TYPE_CHECKING:
    from mmcached.client.asynchronous import AsyncClient

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
    "MediaName",
    "MmcachedError",
    "NewTokens",
    "PeerGone",
    "Pending",
    "PutResult",
    "RemoteProtocolError",
    "RequestAborted",
    "Resolved",
    "RowRange",
    "RowsWanted",
    "Sampling",
    "ServiceUnavailable",
    "StoreCounters",
    "TokenUsage",
    "Url",
    "Video",
    "VideoLike",
    "media_key",
]


def __getattr__(name: str) -> Any:
    """Import the client that needs asyncio on first use: asyncio takes as long as all the rest."""
    if name == "AsyncClient":
        return import_module(f"{__name__}.asynchronous").AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
