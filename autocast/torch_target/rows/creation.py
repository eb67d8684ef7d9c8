"""What makes tensors of nothing."""

from __future__ import annotations

import torch

from autocast.torch_target.asked import Asked, Row, Value


def _filled(number: float) -> Row:
    return lambda asked: torch.full(asked.shape, number, dtype=asked.dtype)


def _full(asked: Asked) -> Value:
    return asked.args[1].to(asked.dtype).expand(asked.shape)


def _arange(asked: Asked) -> Value:
    return torch.arange(*asked.args, dtype=asked.dtype)


def _eye(asked: Asked) -> Value:
    rows, columns = asked.shape
    offset = asked.args[-1]
    places = torch.arange(columns)[None, :] - torch.arange(rows)[:, None]
    return (places == offset).to(asked.dtype)


def _one_hot(asked: Asked) -> Value:
    indices, on, off = asked.args
    depth, axis = int(asked.attrs.depth), int(asked.attrs.axis)
    hot = indices[..., None] == torch.arange(depth)
    chosen = torch.where(hot, _number(asked, on), _number(asked, off))
    return torch.movedim(chosen, -1, axis)


def _number(asked: Asked, value: Value) -> Value:
    return torch.tensor(value, dtype=asked.dtype)


def _hamming_window(asked: Asked) -> Value:
    size, periodic, alpha, beta = asked.args
    return torch.hamming_window(size, bool(periodic), alpha, beta, dtype=asked.dtype)


ROWS: dict[str, Row] = {
    "null_value": lambda asked: None,
    "zeros": _filled(0),
    "ones": _filled(1),
    "zeros_like": _filled(0),
    "ones_like": _filled(1),
    "full": _full,
    "full_like": _full,
    "arange": _arange,
    "eye": _eye,
    "eye_like": _eye,
    "one_hot": _one_hot,
    "hamming_window": _hamming_window,
}
