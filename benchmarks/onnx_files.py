"""ONNX files in float16, each made of the same float32 file by this project and by other tools, in onnxruntime.

    python -m benchmarks.onnx_files [--only BERT] [--rounds 10] [--quick]

Counted are Cast nodes between floating-point dtypes, those of weights apart: runtimes compute these once, as they load
the file. The error is that of the results against torch in float64, relative to their norm. Peers are measured where
they are installed: `onnxconverter-common` (all of the graph in float16) and `nvidia-modelopt` (its AutoCast).
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from rich.console import Console
from rich.table import Table

import autocast
from autocast import amp
from benchmarks.timing import alternate, save
from benchmarks.workload import Inputs, bert, gpt2, resnet50, vit

MODELS: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    "BERT, 2 layers, 2 x 64": lambda: bert(2, 2, 64),
    "GPT-2, 2 layers, 2 x 64": lambda: gpt2(2, 64, 2),
    "ViT, 2 layers, 2 images": lambda: vit(2, 2),
    "ResNet-50, 2 images": lambda: resnet50(2),
}

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Figures:
    """What is to be said of a file.

    Attributes
    ----------
    casts, of_weights : int
        Cast nodes between floating-point dtypes; those of them whose operand is an initializer.
    mib : float
        The size of the file.
    error : float
        Relative to the norm of the results, against float64.
    milliseconds : float
        A call in onnxruntime, the median.
    """

    casts: int
    of_weights: int
    mib: float
    error: float
    milliseconds: float


def ours(source: Path, target: Path, **options: Any) -> None:
    """This project: imported, cast, written."""
    low = amp.autocast(autocast.from_onnx(source), **(options or {"dtype": "float16"}))
    autocast.to_onnx(low, target)


def converter(source: Path, target: Path) -> None:
    """`onnxconverter-common`: float16 wherever its list of operators allows it."""
    float16 = import_module("onnxconverter_common.float16")
    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def model_optimizer(source: Path, target: Path) -> None:
    """NVIDIA Model Optimizer's AutoCast, with its defaults."""
    optimizer = import_module("modelopt.onnx.autocast")
    onnx.save(optimizer.convert_to_mixed_precision(str(source), low_precision_type="fp16", keep_io_types=True), target)


#: Who makes a file, and the package that it takes.
TOOLS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "AutoCast": (ours, "autocast"),
    "AutoCast, parameters offline": (partial(ours, policy="dtype=float16,parameters=offline"), "autocast"),
    "AutoCast, pure": (partial(ours, policy="dtype=float16,preset=pure"), "autocast"),
    "onnxconverter-common": (converter, "onnxconverter_common"),
    "Model Optimizer": (model_optimizer, "modelopt"),
}


def casts_in(path: Path) -> tuple[int, int]:
    """Cast nodes to floating-point dtypes of activations, and of initializers."""
    graph = onnx.load(path).graph
    constants = {tensor.name for tensor in graph.initializer}
    casts = [
        node
        for node in graph.node
        if node.op_type == "Cast" and next(a.i for a in node.attribute if a.name == "to") in _FLOATS
    ]
    weights = sum(node.input[0] in constants for node in casts)
    return len(casts) - weights, weights


def _session(path: Path) -> Callable[[Inputs], Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))[0]


def measure(module: torch.nn.Module, inputs: Inputs, rounds: int) -> dict[str, Figures | str]:
    """The figures of each tool's file, or why it makes none."""
    wide = copy.deepcopy(module).double()
    with torch.no_grad():
        expected = wide(*(x.double() if x.is_floating_point() else x for x in inputs))
    found: dict[str, Figures | str] = {}
    calls: dict[str, Callable[[], Any]] = {}
    paths: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "float32.onnx"
        torch.onnx.export(module, inputs, str(source), dynamo=True, verbose=False, external_data=False)
        for name, (make, package) in {"float32": (None, "onnx"), **TOOLS}.items():
            if find_spec(package) is None:
                found[name] = f"{package} is not installed"
                continue
            paths[name] = Path(folder) / f"{len(paths)}.onnx" if make else source
            try:
                if make:
                    make(source, paths[name])
                calls[name] = partial(_session(paths[name]), inputs)
            except Exception as reason:
                found[name] = f"{type(reason).__name__}: {str(reason).splitlines()[0][:90]}"
        timings = alternate(calls, rounds=rounds)
        for name, call in calls.items():
            got = torch.from_numpy(call()).double()
            error = float((got - expected).norm() / expected.norm())
            size = sum(p.stat().st_size for p in Path(folder).glob(f"{paths[name].stem}.*")) / 2**20
            found[name] = Figures(*casts_in(paths[name]), size, error, timings[name].median)
    return found


def table(name: str, found: dict[str, Figures | str]) -> Table:
    """One model's rows."""
    rows = Table(title=name)
    for heading in ("file", "casts", "of weights", "MiB", "error", "ms", "/ float32"):
        rows.add_column(heading, justify="left" if heading == "file" else "right")
    base = found["float32"]
    for tool, figures in found.items():
        if isinstance(figures, str) or isinstance(base, str):
            rows.add_row(tool, str(figures))
            continue
        ratio = figures.milliseconds / base.milliseconds
        numbers = f"{figures.mib:.1f}", f"{figures.error:.1e}", f"{figures.milliseconds:.2f}", f"{ratio:.2f}"
        rows.add_row(tool, str(figures.casts), str(figures.of_weights), *numbers)
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the tables, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only models whose name holds this text; nothing is written")
    parser.add_argument("--rounds", type=int, default=10, help="calls of each file, in turn")
    parser.add_argument("--quick", action="store_true", help="one round; nothing is written")
    options = parser.parse_args(arguments)
    console = Console(width=140)
    results = {}
    for name, make in MODELS.items():
        if options.only in name:
            found = measure(*make(), 1 if options.quick else options.rounds)
            console.print(table(name, found))
            results[name] = {tool: f if isinstance(f, str) else asdict(f) for tool, f in found.items()}
    if not (options.only or options.quick):
        console.print(f"written to {save('onnx_files', {'models': results})}")


if __name__ == "__main__":
    main()
