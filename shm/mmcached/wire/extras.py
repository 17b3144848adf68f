"""Says how to install what is missing: no package index has mmcached yet, so it is installed from a checkout."""

from __future__ import annotations


def how_to_install(*extras: str) -> str:
    """Return the command that installs extras.

    >>> how_to_install("video", "audio")
    "pip install '.[video,audio]' in a checkout of mmcached"
    """
    return f"pip install '.[{','.join(extras)}]' in a checkout of mmcached"
