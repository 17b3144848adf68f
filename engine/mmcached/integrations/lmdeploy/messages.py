"""Reads LMDeploy's messages between preprocessing and the language model.

    {"role": "preprocess", "content": [item, …]}     most models
    {"role": "user", …, "preprocess": [item, …]}     MiniCPM-V: in each message
    {"role": "forward", "content": [feature, …]}     appended by `forward`: one tensor for each item, or for each slice

An item is what the model's processor has made of one picture: tensors, sizes, numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmcached.worker.encoders.content import Content

Item = dict[str, Any]
Message = dict[str, Any]


def items_in(messages: Sequence[Message]) -> list[Item]:
    """Return the preprocessed items of all messages, in the order of their features; empty for an unknown layout."""
    return [item for message in messages if (name := _place(message)) for item in message[name]]


def with_items(messages: Sequence[Message], chosen: Sequence[bool]) -> list[Message]:
    """Return copies of messages with some of their items.

    Args:
        chosen: For each of `items_in(messages)`: whether it stays.
    """
    left = iter(chosen)
    return [
        {**message, name: [item for item in message[name] if next(left)]} if (name := _place(message)) else message
        for message in messages
    ]


def content_of(item: Item) -> str:
    """Return the digest of an item.

    Raises:
        TypeError, ValueError: The item has values whose content cannot be read.
    """
    content = Content()
    _add(content, "item", item)
    return content.hexdigest()


def features_by_item(messages: Any, items: Sequence[Item]) -> list[list[torch.Tensor]] | None:
    """Return the features of each item after `forward`; None where messages do not have them in a known layout."""
    found = [message["content"] for message in messages if message.get("role") == "forward"]
    if len(found) != 1 or not all(isinstance(each, torch.Tensor) for each in found[0]):
        return None
    (features,) = found
    counts = [num_features(item) for item in items]
    if sum(counts) != len(features):
        return None
    rest = iter(features)
    return [[next(rest) for _ in range(count)] for count in counts]


def num_features(item: Item) -> int:
    """Return the number of features that a model makes of an item: those of its slices for MiniCPM-V, else one."""
    count = item.get("num_patches")
    return count if isinstance(count, int) else 1


def _place(message: Message) -> str:
    """Return the name under which a message has preprocessed items; empty if it has none."""
    name = "content" if message.get("role") == "preprocess" else "preprocess"
    items = message.get(name)
    return name if isinstance(items, list) and all(isinstance(each, dict) for each in items) else ""


def _add(content: Content, name: str, value: Any) -> None:
    if isinstance(value, dict):
        content.add(f"{name} keys", sorted(map(str, value)))
        for each, part in sorted(value.items()):
            _add(content, f"{name}.{each}", part)
    elif isinstance(value, list | tuple):
        content.add(f"{name} length", len(value))
        for index, part in enumerate(value):
            _add(content, f"{name}[{index}]", part)
    else:
        content.add(name, value)
