"""Loads SGLang's plugins in the processes that an encoder server starts, where SGLang itself does not.

    encoder server ──spawn──> launch_encoder, one per further tensor-parallel rank
                   └─spawn──> launch_dp_worker, one per data-parallel rank

A spawned process finds its target by name. The functions here have the names of SGLang's own and replace them in the
parent; in the new process, where nothing is replaced yet, they load the plugins and call SGLang's.
"""

from __future__ import annotations

from typing import Any


def launch_encoder(*arguments: Any, **named: Any) -> None:
    from sglang.srt.disaggregation.encoder import server

    _run(server.launch_encoder, *arguments, **named)


def launch_dp_worker(*arguments: Any, **named: Any) -> None:
    from sglang.srt.disaggregation.encoder import runtime

    _run(runtime.launch_dp_worker, *arguments, **named)


def reach_children() -> None:
    """Make encoder servers that this process starts spawn their processes through this module."""
    from sglang.srt.disaggregation.encoder import runtime, server

    server.launch_encoder = launch_encoder  # for the gRPC server, which imports it from there
    runtime.launch_encoder = launch_encoder
    runtime.launch_dp_worker = launch_dp_worker


def _run(target: Any, *arguments: Any, **named: Any) -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    target(*arguments, **named)
