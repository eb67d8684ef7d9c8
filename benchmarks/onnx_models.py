"""ONNX files by our kernels beside onnxruntime: models as torch exports them, quantized, and files of yours.

    python -m benchmarks.onnx_models [FILE.onnx ...] [--size NAME=NUMBER ...] [--rounds 20] [--quick]

Without files, a BERT, a ResNet-50 and a ViT are exported and quantized by onnxruntime to 8 bits: products with weights
that were quantized before and activations at each call (`dynamic`), both before, as pairs of QuantizeLinear and
DequantizeLinear (`QDQ`) or as operators of integers (`QOperator`). `--size` says what a dimension of a file that has a
name is; others are 1.

Both use all cores, in turn, and rest before each other's calls. The error is the largest difference from onnxruntime's
first result, relative to the largest number in it; quantized activations near the middle of two steps may take either.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from rich.console import Console
from rich.table import Table

import autocast
from autocast import amp, vm
from benchmarks.timing import alternate, save
from benchmarks.workload import Inputs, bert, resnet50, vit

MODELS: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    "BERT, 4 layers, 4 x 128": lambda: bert(4, 4, 128),
    "ViT, 4 layers, 2 images": lambda: vit(2, 4),
    "ResNet-50, 2 images": lambda: resnet50(2),
}

_FORMS = ("float32", "dynamic", "QDQ", "QOperator")

#: How onnxruntime writes the dtypes that are not written as numpy does.
_DTYPES = {"float": "float32", "double": "float64"}


@dataclass(frozen=True)
class Figures:
    """Medians in milliseconds, and the errors in float32 and in mixed precision."""

    onnxruntime: float
    float32: float
    mixed: float
    error: float
    mixed_error: float


class _Once(CalibrationDataReader):
    """One batch to calibrate with."""

    def __init__(self, feed: Mapping[str, np.ndarray]) -> None:
        self.rest = iter([feed])

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self.rest, None)


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _feed(session: onnxruntime.InferenceSession, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Random inputs: normal numbers, and small integers."""
    generator = np.random.default_rng(0)
    feed = {}
    for given in session.get_inputs():
        shape = [size if isinstance(size, int) else sizes.get(str(size), 1) for size in given.shape]
        kind = given.type.removeprefix("tensor(").removesuffix(")")
        dtype = np.dtype(_DTYPES.get(kind, kind))
        random = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, 4, shape)
        feed[given.name] = random.astype(dtype)
    return feed


def _size(text: str) -> tuple[str, int]:
    """A dimension's name and number, for argparse: what is neither is an error that quotes it."""
    name, _, number = text.partition("=")
    return name, int(number)


def exported(name: str, folder: Path) -> Iterator[tuple[str, Path, dict[str, np.ndarray]]]:
    """Each form of a model of the table: its name, its file and its inputs."""
    module, inputs = MODELS[name]()
    source = folder / "float32.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter, about itself
        torch.onnx.export(module, inputs, str(source), dynamo=True, verbose=False, external_data=False)
    names = [given.name for given in _session(source).get_inputs()]
    feed = dict(zip(names, (x.numpy() for x in inputs), strict=True))
    for form in _FORMS:
        path = folder / f"{form}.onnx"
        if form == "dynamic":
            quantize_dynamic(source, path)
        elif form != "float32":
            kind = QuantFormat[form]
            quantize_static(source, path, _Once(feed), kind, per_channel=True, activation_type=QuantType.QUInt8)
        yield f"{name}, {form}", path, feed


def measure(path: Path, feed: Mapping[str, np.ndarray], rounds: int) -> Figures:
    """A file's figures."""
    session, model = _session(path), autocast.from_onnx(path)
    calls: dict[str, Callable[[], Any]] = {"onnxruntime": partial(session.run, None, dict(feed))}
    for name, each in {"float32": model, "mixed": amp.autocast(model)}.items():
        calls[name] = partial(vm.compile(each), *feed.values())
    expected = np.asarray(calls["onnxruntime"]()[0], "float64")

    def error(name: str) -> float:
        got = calls[name]()
        first = np.asarray(got[0] if isinstance(got, list | tuple) else got, "float64")
        return float(np.abs(first - expected).max() / max(float(np.abs(expected).max()), 1e-30))

    timings = alternate(calls, rounds=rounds, calls=5, warmup=2, pause=0.1)
    return Figures(
        onnxruntime=timings["onnxruntime"].median,
        float32=timings["float32"].median,
        mixed=timings["mixed"].median,
        error=error("float32"),
        mixed_error=error("mixed"),
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="ONNX files; nothing is written")
    parser.add_argument(
        "--size", type=_size, action="append", default=[], metavar="NAME=NUMBER", help="what a dimension is"
    )
    parser.add_argument("--rounds", type=int, default=20, help="rounds of five calls of each, in turn")
    parser.add_argument("--quick", action="store_true", help="one round; nothing is written")
    options = parser.parse_args(arguments)
    table = Table("file", "onnxruntime, ms", "float32, ms", "mixed, ms", "mixed / onnxruntime", "error", "mixed error")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        given = ((path.name, path, _feed(_session(path), dict(options.size))) for path in options.files)
        made = (form for name in MODELS for form in exported(name, Path(folder)))
        for name, path, feed in given if options.files else made:
            figures = measure(path, feed, 1 if options.quick else options.rounds)
            found[name] = asdict(figures)
            times = (f"{ms:.2f}" for ms in (figures.onnxruntime, figures.float32, figures.mixed))
            ratio = f"{figures.mixed / figures.onnxruntime:.2f}"
            table.add_row(name, *times, ratio, f"{figures.error:.1e}", f"{figures.mixed_error:.1e}")
    console = Console(width=140)
    console.print(table)
    if not (options.files or options.quick):
        console.print(f"written to {save('onnx_models', {'models': found})}")


if __name__ == "__main__":
    main()
