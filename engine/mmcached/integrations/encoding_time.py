"""Divides the time of an encoder among the items that it has encoded together.

A host program encodes the items of a step in batches, and then passes on all outputs, so the time of one item is not
known. Each item has the share of its rows.
"""

from __future__ import annotations

from collections.abc import Callable

from mmcached.client.device.stopwatch import Stopwatch


class EncodingTime:
    """The encoder's time in one step.

    Args:
        watch: Runs since the encoder's start; stopped with the first item that has a share.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._is_stopped = False
        self._num_rows = 0

    def add(self, num_rows: int) -> None:
        """Count the rows of an item that the step has encoded, saved or not."""
        self._num_rows += num_rows

    def share(self, num_rows: int) -> Callable[[], float]:
        """Return a function that returns the seconds of an item; 0.0 while the device is not done.

        Call the function once all items of the step are added.
        """
        if not self._is_stopped:
            self._is_stopped = True
            self._watch.stop()
        return lambda: self._watch.seconds() * num_rows / max(self._num_rows, 1) if self._watch.is_over() else 0.0
