"""The `mmcached` command: `serve`, its roles, and the demo. Only the worker role and the demo's proof import torch."""

from mmcached.cli.app import main

__all__ = ["main"]
