"""Loads SGLang's plugins in the processes that an encoder server starts, where SGLang itself does not.

    encoder server ──spawn──> launch_encoder, one per further tensor-parallel rank
                   └─spawn──> launch_dp_worker, one per data-parallel rank

Their targets are found by name in the new process. Here they have the names of SGLang's own; in the new process, whose
plugins are not loaded yet, these are what is called in the end.
"""

from __future__ import annotations

from typing import Any


def launch_encoder(*arguments: Any, **named: Any) -> None:
    """Run SGLang's function of that name, with plugins."""
    from sglang.srt.disaggregation.encoder import server

    _run(server.launch_encoder, *arguments, **named)


def launch_dp_worker(*arguments: Any, **named: Any) -> None:
    """Run SGLang's function of that name, with plugins."""
    from sglang.srt.disaggregation.encoder import runtime

    _run(runtime.launch_dp_worker, *arguments, **named)


def reach_children() -> None:
    """Have encoder servers that are started from this process start their processes by way of this module."""
    from sglang.srt.disaggregation.encoder import runtime, server

    server.launch_encoder = launch_encoder  # for the gRPC server, which takes it from there when it is imported
    runtime.launch_encoder = launch_encoder
    runtime.launch_dp_worker = launch_dp_worker


def _run(target: Any, *arguments: Any, **named: Any) -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    target(*arguments, **named)
