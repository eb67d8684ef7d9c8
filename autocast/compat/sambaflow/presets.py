"""The arguments of SambaFlow's compiler, as a policy.

Source: SambaNova's documentation, "Compile with mixed precision".
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from autocast.policy import Policy

#: The values of `--graphamp-preset`.
PRESETS = ("mp0", "mp1", "mp4", "default")


def graphamp_preset(
    preset: str = "default",
    *,
    tiling_accum: str = "fp32",
    weight_grad_reduce: str = "fp32",
    fp32_params: bool = False,
    enable_mixed_precision_ops: Iterable[str] = (),
) -> Policy:
    """The policy of a preset and of the compiler's further arguments.

    Parameters
    ----------
    preset
        "mp0", "mp1", "mp4" or "default".
    tiling_accum, weight_grad_reduce
        "fp32", or "bf16sr": bfloat16 with stochastic rounding, of accumulation and of weight gradients.
    fp32_params
        Whether an optimizer keeps a float32 copy of a parameter beside the bfloat16 one.
    enable_mixed_precision_ops
        "gemm": bfloat16 in, float32 out. "softmax": float32 in, bfloat16 out.

    Raises
    ------
    PolicyError
        An argument has none of its legal values.
    """
    return Policy(
        preset=preset,
        accumulation=tiling_accum,
        weight_gradients=weight_grad_reduce,
        fp32_params=fp32_params,
        mixed_ops=tuple(enable_mixed_precision_ops),
    )


def graphamp_policy(arguments: Sequence[str]) -> Policy:
    """The policy of a command line: `["--graphamp-preset", "mp1", "--tiling-accum", "bf16sr"]`.

    Raises
    ------
    SystemExit
        An argument is not known, as argparse has it.
    """
    parser = argparse.ArgumentParser("compile", allow_abbrev=False)
    add_arguments(parser)
    return graphamp_preset(**vars(parser.parse_args(arguments)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the arguments of SambaFlow's compiler; what it reads are those of `graphamp_preset`."""
    parser.add_argument(
        "--graphamp-preset",
        choices=PRESETS,
        default="default",
        dest="preset",
        help="what is bfloat16 (default: default)",
    )
    for name, what in (("--tiling-accum", "sums of products"), ("--weight-grad-reduce", "gradients of linear weights")):
        parser.add_argument(
            name,
            choices=("fp32", "bf16sr"),
            default="fp32",
            help=f"how {what} are kept: bf16sr rounds stochastically (default: fp32)",
        )
    parser.add_argument("--fp32-params", action="store_true", help="keep float32 masters of bfloat16 parameters")
    parser.add_argument(
        "--enable-mixed-precision-ops",
        nargs="+",
        choices=("gemm", "softmax"),
        default=(),
        help="gemm: bfloat16 in, float32 out; softmax: float32 in, bfloat16 out",
    )
