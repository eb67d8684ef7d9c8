"""Random networks that torch runs for several sizes: layer by layer, each tried as it is added."""

from __future__ import annotations

import random
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.networks import layers

#: The batch, height, width and steps of the example, and others.
SIZES = ((2, 8, 10, 6), (3, 11, 9, 7))

#: The inputs' dimensions that vary, as `from_torch` takes them.
DYNAMIC = {
    "n": [("image", 0), ("sequence", 0), ("tokens", 0)],
    "h": [("image", 2)],
    "w": [("image", 3)],
    "t": [("sequence", 1), ("tokens", 1)],
}

#: No tensor has more elements, and no element is larger.
_ELEMENTS, _LARGEST = 20_000, 50.0

#: How many tensors a layer takes, where it is not one.
_TAKES = {"nn.MultiheadAttention": 3, "nn.Bilinear": 2, "nn.TransformerDecoderLayer": 2}


@dataclass(frozen=True)
class Layer:
    """`made` is what the constructor keeps, "" of a statement; `called` gives the tensor `name`, of which `source`."""

    name: str
    source: str
    called: str
    made: str = ""


@dataclass(frozen=True)
class Network:
    """A module of image (n, 4, h, w), sequence (n, t, 6), both float, and tokens (n, t), int64 below 11."""

    layers: tuple[Layer, ...]
    results: tuple[str, ...]

    @property
    def text(self) -> str:
        """The class, in Python."""
        made = [f"self.m_{layer.name} = {layer.made}" for layer in self.layers if layer.made]
        called = [f"{layer.name} = {layer.called}" for layer in self.layers]
        parts = {
            "def __init__(self):": ["super().__init__()", *made],
            "def forward(self, image, sequence, tokens):": [*called, f"return {', '.join(self.results)},"],
        }
        methods = "\n".join(f"{head}\n{textwrap.indent(chr(10).join(body), '    ')}" for head, body in parts.items())
        return f"class Network(nn.Module):\n{textwrap.indent(methods, '    ')}\n"

    def module(self) -> nn.Module:
        """It, in training mode, with the same parameters at each call."""
        known: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "first": first}
        exec(compile(self.text, "<network>", "exec"), known)
        torch.manual_seed(0)
        made: nn.Module = known["Network"]()
        return made

    def smaller(self) -> Iterator[Network]:
        """The network without one of its results, or with one of its layers passed over."""
        for i in range(len(self.results)) if len(self.results) > 1 else ():
            yield Network(self.layers, (*self.results[:i], *self.results[i + 1 :]))
        for i in reversed(range(len(self.layers))):
            gone = self.layers[i]
            rest = [_renamed(layer, gone.name, gone.source) for layer in self.layers[i + 1 :]]
            results = tuple(dict.fromkeys(gone.source if name == gone.name else name for name in self.results))
            yield Network((*self.layers[:i], *rest), results)


def first(value: Any) -> torch.Tensor:
    """The first result of a layer that has several."""
    found: torch.Tensor = value[0] if isinstance(value, tuple) else value
    return found


def _renamed(layer: Layer, name: str, other: str) -> Layer:
    called = re.sub(rf"\b{name}\b", other, layer.called)
    return Layer(layer.name, other if layer.source == name else layer.source, called, layer.made)


def inputs(sizes: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Random values, the same for the same sizes."""
    n, h, w, t = sizes
    generator = torch.Generator().manual_seed(h)
    return {
        "image": torch.randn((n, 4, h, w), generator=generator).to(dtype),
        "sequence": torch.randn((n, t, 6), generator=generator).to(dtype),
        "tokens": torch.randint(0, 11, (n, t), generator=generator),
    }


def generate(seed: int, length: int = 8) -> Network:
    """A network of so many layers, most of which follow one another."""
    source = random.Random(seed)
    made: list[Layer] = []
    first_read = source.choice(["image", "sequence", "tokens"])
    for i in range(40 * length):
        shapes = _shapes(Network(tuple(made), ("image", "sequence", "tokens", *(layer.name for layer in made))))
        assert shapes is not None
        last = made[-1].name if made and source.random() < 0.8 else source.choice(list(shapes))
        layer = _layer(source, f"t{i}", last if made else first_read, shapes)
        tried = Network((*made, layer), (layer.name,))
        if _shapes(tried) is not None:
            made.append(layer)
        if len(made) >= length:
            break
    unused = [layer.name for layer in made if not any(re.search(rf"\b{layer.name}\b", o.called) for o in made)]
    return Network(tuple(made), tuple(unused))


def _layer(source: random.Random, name: str, a: str, shapes: dict[str, tuple[int, ...]]) -> Layer:
    shape = shapes[a]
    tables, calls = _tables(a, len(shape))
    alike = [other for other in shapes if shapes[other] == shape and other != a]
    if alike and a != "tokens" and source.random() < 0.3:
        return Layer(name, a, _filled(source, source.choice(layers.OF_TWO), a, 1, b=source.choice(alike)))
    kind = source.choice(["layer", "layer", "call", "activation"])
    if kind == "activation" and a != "tokens":
        return Layer(name, a, f"first(self.m_{name}({a}))", source.choice(layers.ACTIVATIONS))
    if kind == "call" or not tables:
        return Layer(name, a, _filled(source, source.choice(calls), a, shape[-1]))
    table = source.choice(tables)
    channels = shape[1 if table in (layers.IMAGE, layers.CHANNELS, layers.VOLUME) else -1]
    row = _filled(source, source.choice(table), a, channels)
    taken = next((count for head, count in _TAKES.items() if row.startswith(head)), 1)
    made = f"nn.Sequential({row})" if "), nn." in row else row
    return Layer(name, a, f"first(self.m_{name}({', '.join([a] * taken)}))", made)


def _tables(name: str, rank: int) -> tuple[Sequence[Sequence[str]], Sequence[str]]:
    if name == "tokens":
        return [layers.TOKENS], layers.TOKENS_CALLS
    return {
        2: ([layers.VECTOR], layers.VECTOR_CALLS),
        3: ([layers.SEQUENCE, layers.CHANNELS], layers.SEQUENCE_CALLS),
        4: ([layers.IMAGE], layers.IMAGE_CALLS),
        5: ([layers.VOLUME], layers.VOLUME_CALLS),
    }.get(rank, ([], ("{a} * 2", "{a}.sigmoid()", "{a}.flatten()[None]")))


def _filled(source: random.Random, row: str, a: str, channels: int, b: str = "") -> str:
    other = source.choice([channels, 8, 12, 16, 6])
    divisors = [g for g in range(1, channels + 1) if channels % g == 0 and other % g == 0]
    return row.format(
        a=a,
        b=b,
        c=channels,
        o=other,
        g=source.choice(divisors),
        h=max(1, channels // 2),
        k=source.choice([1, 2, 3]),
        s=source.choice([1, 2]),
        p=source.choice([0, 1]),
        yes=source.choice([True, False]),
        mode=source.choice(["zeros", "reflect", "replicate", "circular"]),
        relu=source.choice(["relu", "gelu"]),
        bag=source.choice(["sum", "mean", "max"]),
    )


def _shapes(network: Network) -> dict[str, tuple[int, ...]] | None:
    """The shapes of the results for the example's sizes; None where torch fails, or what comes is of no use."""
    found = {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        try:
            for training in (True, False):
                for sizes in reversed(SIZES):
                    results = network.module().train(training)(**inputs(sizes))
                    if not all(_is_useful(y) for y in results):
                        return None
                    found = {name: tuple(y.shape) for name, y in zip(network.results, results, strict=True)}
        except (RuntimeError, IndexError, ValueError, TypeError, AssertionError, UserWarning, AttributeError):
            return None
    return found


def _is_useful(value: torch.Tensor) -> bool:
    return 0 < value.numel() <= _ELEMENTS and bool(value.isfinite().all() and (value.abs() <= _LARGEST).all())
