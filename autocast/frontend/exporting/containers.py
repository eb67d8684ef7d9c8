"""Containers of tensors that torch knows how to take apart, but not how to name what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils import _pytree as pytree


@contextmanager
def named_containers() -> Iterator[None]:
    """In here torch has names for what is in containers that were registered without any, as all of diffusers' are.

    `torch.export` asks for them, and calls of a module never do. A container that keeps its keys to be put together
    again, as a dictionary does, names its parts by these; the parts of others have numbers.
    """
    unnamed = {kind: node for kind, node in pytree.SUPPORTED_NODES.items() if node.flatten_with_keys_fn is None}
    for kind, node in unnamed.items():
        named = node._replace(flatten_with_keys_fn=partial(_flatten_with_keys, node.flatten_fn))
        pytree.SUPPORTED_NODES[kind] = named
    try:
        yield
    finally:
        pytree.SUPPORTED_NODES.update(unnamed)


def _flatten_with_keys(flatten: Any, container: Any) -> tuple[list[tuple[Any, Any]], Any]:
    parts, context = flatten(container)
    keeps_keys = isinstance(context, list) and len(context) == len(parts) and all(isinstance(k, str) for k in context)
    keys = map(pytree.MappingKey, context) if keeps_keys else map(pytree.SequenceKey, range(len(parts)))
    return list(zip(keys, parts, strict=True)), context
