"""Tokens that are read while the next is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from autocast.errors import InputError
from autocast.runtime.workers import Worker


def streamed(generate: Callable[..., Any]) -> Iterator[torch.Tensor]:
    """The tokens that `generate(streamer=...)` makes in a thread of its own: int64 (batch,) for each step.

    Where nobody reads on, it ends after the next token.
    """
    failed: list[BaseException] = []

    def run(_: threading.Event) -> None:
        try:
            generate(streamer=queue)
        except BaseException as error:  # raised where the tokens are read
            failed.append(error)
            queue.end()

    worker = Worker(run)
    queue = _Queue(worker.stopping)
    worker.start()
    try:
        yield from iter(queue.tokens.get, None)
    finally:
        worker.stopping.set()
    if failed:
        raise failed[0]


class _Queue(BaseStreamer):
    """Tokens on their way to another thread; None after the last. transformers puts the prompt first."""

    def __init__(self, stopping: threading.Event) -> None:
        self.tokens: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        self._stopping = stopping
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self._stopping.is_set():
            raise InputError("Generator.stream: nobody reads the tokens any more")
        if not self._prompt:
            self.tokens.put(value)
        self._prompt = False

    def end(self) -> None:
        self.tokens.put(None)
