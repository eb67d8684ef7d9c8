"""Import a PyTorch module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram

from autocast.collecting import without_garbage_collection
from autocast.errors import ImportModelError
from autocast.frontend.caching.imported_before import imported_before
from autocast.frontend.exporting.checks import check_module
from autocast.frontend.importing.randomness import random_state
from autocast.frontend.reimport import Reimport
from autocast.messages import shown
from autocast.model.value import Model

#: What may become of an operator that nothing here computes.
FALLBACKS = ("torch", "error")


def from_torch(
    module: torch.nn.Module | ExportedProgram,
    example_args: Sequence[Any] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic: Mapping[str, Any] | Sequence[Any] | str | None = None,
    seed: int = 0,
    fallback: str = "torch",
    cached: bool = False,
) -> Model:
    """Import a PyTorch module as it stands: `module.eval()` to infer, `module.train()` to train.

    Parameters
    ----------
    module : torch.nn.Module or torch.export.ExportedProgram
        Any module that torch.export can export, or what it made of one. Its dtypes (float32, bfloat16, float16) are
        kept. An exported program has its examples and dynamic dimensions already: it is imported without the others.
    example_args : sequence
        Example positional inputs. Tensors become inputs of the model; plain Python values are baked in.
    example_kwargs : mapping, optional
        Example keyword inputs.
    dynamic : mapping, sequence or "auto", optional
        Dimensions that may differ from call to call: `{"batch": ("input_ids", 0, 1, 64)}` (name: input, axis, minimum,
        maximum; torch infers bounds that are left out), a list of such tuples where inputs share the dimension, `"*"`
        for every tensor input; or what torch.export takes as `dynamic_shapes`, nested as the inputs are:
        `{"input_ids": {0: torch.export.Dim("batch", min=1, max=64)}}`, in the order of the inputs
        `({0: torch.export.Dim("batch", min=1, max=64)}, None)`, or a `torch.export.ShapesCollection`. "auto":
        sizes are those of the examples until a call has another; then `module` is imported again with that dimension
        dynamic, once, and a ReimportWarning says so.
    seed : int
        Where random numbers start, in a model that has any (dropout in training mode).
    fallback : str
        What becomes of an operator that nothing here computes: "torch" leaves it to torch when the model runs, without
        mixed precision, and says so in a warning and in `Model.fallbacks`; "error" refuses the model.
    cached : bool
        Do not export a module that was imported before, in this process or another, and is unchanged since: its code,
        its configuration, the shapes of its parameters and inputs. Seconds become a tenth of one. What cannot be seen
        are variables that somebody changes in modules of code while they run, and environment variables that they
        read: leave it False where the model depends on such. See docs/cache.md.

    Returns
    -------
    Model
        `main` takes the inputs, in the order in which they were given, then the parameters that it uses. Outputs are
        the tensors and numbers that the module returns, flattened (a number or a size without dimensions, of bool,
        int64 or float64); None and words are left out. Caches are not built: `use_cache` is off in the configuration
        while a Hugging Face module is exported, unless `example_kwargs` sets it. What a call changes (statistics of
        BatchNorm, the state of random numbers) are parameters with `updates`. Buffers and parameters that need no
        gradient are `frozen`. `module` is left as it was.

    Raises
    ------
    ImportModelError
        The module cannot be exported, holds an operator that cannot be imported (all are listed, with where they come
        from), or would not be imported faithfully (parameters that it changes, outputs that are no numbers), or
        `dynamic` names what is not there.

    Warns
    -----
    FallbackWarning
        Some operators are left to torch.
    DrawnNumberWarning
        The module draws by `random` or `numpy.random`.
    CacheWarning
        `cached` is asked for, and the module has something that cannot be compared with what it was.
    """
    if fallback not in FALLBACKS:
        raise ImportModelError(
            f"from_torch: fallback is {fallback!r}; expected one of {', '.join(map(repr, FALLBACKS))}."
        )
    if not isinstance(cached, bool):
        raise ImportModelError(f"from_torch: cached is {shown(cached)}; expected True or False.")
    check_module(module)
    start = random_state(seed)
    if isinstance(module, ExportedProgram):
        return _translate(module, (example_args, example_kwargs, dynamic), start, fallback)
    if isinstance(example_args, torch.Tensor):
        example_args = (example_args,)
    if not isinstance(example_args, Sequence) or isinstance(example_args, str):
        raise ImportModelError(
            f"from_torch: example_args is a {type(example_args).__name__}; expected a tuple of what the module is "
            "called with, such as (tensor,). Inputs by name are example_kwargs={...}, with example_args=()."
        )
    if example_kwargs is not None and not isinstance(example_kwargs, Mapping):
        raise ImportModelError(
            f"from_torch: example_kwargs is a {type(example_kwargs).__name__}; expected inputs by their names, such as "
            "{'attention_mask': tensor}. Inputs without names are example_args."
        )

    def import_(*given: Any) -> Model:
        exported_now = partial(_translate, module, given, start, fallback)
        return imported_before(module, (*given, fallback), start, exported_now) if cached else exported_now()

    args, kwargs = tuple(example_args), dict(example_kwargs or {})
    if isinstance(dynamic, torch.export.ShapesCollection | torch.export.AdditionalInputs):
        dynamic = dynamic.dynamic_shapes(module, args, kwargs)
    if dynamic == "auto":
        return import_(args, kwargs, None).replace(reimport=Reimport(import_, args, kwargs))
    return import_(args, kwargs, dynamic)


def _translate(*args: Any) -> Model:
    """`translate`; its converters take half a second to import, which a cached import saves."""
    with without_garbage_collection():
        from autocast.frontend.translate import translate

        return translate(*args)
