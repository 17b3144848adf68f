"""Logs to SGLang's log, at its default level, whether the service answers, so that items are shared."""

from __future__ import annotations

import logging

from mmcached.client import Client, MmcachedError

_LOG = logging.getLogger("mmcached.sglang")


def log_contact(client: Client, what: str = "embeddings") -> None:
    """Log whether the service answers; if it starts later, the client connects by itself."""
    try:
        _ = client.service
    except MmcachedError as error:
        _LOG.warning("mmcached: %s are not shared yet: %s", what, error)
    else:
        _LOG.info("mmcached: %s are shared with the SGLang processes of this host", what)
