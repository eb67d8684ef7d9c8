"""Compile a model for a device, once."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import tvm
import tvm_ffi

from autocast import kernels, settings
from autocast.collecting import without_garbage_collection
from autocast.container import LayoutError
from autocast.errors import IllFormedModuleError, TrainingModeWarning, UnsupportedError
from autocast.ir.failures import repeatable
from autocast.messages import check_kind, check_value, is_count
from autocast.model.mode import is_trained, training_mode
from autocast.model.saving import check_params
from autocast.model.value import IMPORTED_FROM, Model, updates_of
from autocast.runtime.executable import Executable
from autocast.runtime.signature import Inputs
from autocast.runtime.tensors import to_tensor
from autocast.runtime.variant import Variant
from autocast.vm import finding
from autocast.vm.background import compile_elsewhere
from autocast.vm.checks import check_module
from autocast.vm.compiled import Compiled
from autocast.vm.generic import Generic
from autocast.vm.growing import GrowingExecutable
from autocast.vm.program import build, find, is_kept
from autocast.vm.signatures import signature_of
from autocast.vm.source import Source
from autocast.vm.starting import StartingExecutable
from autocast.vm.torch_devices import MODES, TorchExecutable, device_name, torch_device

#: The devices that our kernels are compiled for; `torch_devices.devices` lists those of torch, too.
DEVICES = ("cpu",)

#: Of each model: the executables, and how often its parameters were written when that was made.
_cache: WeakKeyDictionary[Model, dict[tuple[str, str, int, bool], tuple[int, Executable]]] = WeakKeyDictionary()
_cache_lock = threading.RLock()

#: The models whose training mode was warned of.
_warned: WeakSet[Model] = WeakSet()


def compile(
    model_or_module: Model | tvm.IRModule,
    device: str = "cpu",
    *,
    target: tvm.target.Target | None = None,
    opt_level: int = 3,
    mode: str | None = None,
) -> Executable:
    """Compile a model; the executable of a `Model` is kept and found again as long as that `Model` object lives.

    An executable of a model with updates has state of its own, so each call makes one, which starts from the model's
    parameters.

    Parameters
    ----------
    model_or_module : Model or IRModule
        Every parameter of an IRModule's `main` is an input; a `Model` binds its own parameters. They are read now,
        and an executable does not change with them. Where torch has written to those of an imported module since
        (`load_state_dict`, an optimizer), there is a new executable; after writes that torch does not count, and that
        no sample of the values shows, call `model.replace()` first.
    device : str
        "cpu", whose kernels are ours; or a device of torch's, which runs `to_torch`: "torch:cpu", "cuda", "cuda:1",
        "mps", "xpu", whichever there is. What is returned then takes calls and state as an Executable does.
    target : tvm.target.Target, optional
        What to generate code for; this machine's processor (or AUTOCAST_TARGET) if omitted.
    opt_level : int
        0 to 3: TVM's `PassContext(opt_level=...)`, which skips passes that ask for a higher level.
    mode : str, optional
        For a model that no cache knows. "fast", the default, compiles it now, by what was measured before and by
        heuristics. "normal" measures several ways to compute each product, convolution and attention, keeps the times,
        and compiles by them; "hybrid" measures what was not measured before (see `autocast tune`). "dynamic_hybrid"
        generates no code while somebody waits: torch's kernels answer calls at once, another process compiles the
        model meanwhile, and calls go on with that when it is done; `executable.wait()` waits for it,
        `executable.status` tells. Results differ by rounding between the two. AUTOCAST_FIND_MODE if omitted. On torch's
        devices: "inductor", the default, has torch's compiler compile at the first call; "eager" runs operators one by
        one.

    Raises
    ------
    UnsupportedError
        Another device, an `opt_level` out of range, a mode that there is not or that cannot keep its times, an input
        that is not a tensor, a result that is a function, or a packed function that nobody has registered.
    IllFormedModuleError
        A module that is not well formed, or has no Relax function `main`.
    CompileError
        A phase failed, which it names; the file that it names repeats that.

    Warns
    -----
    TrainingModeWarning
        The model was imported from a torch module in training mode, and is not trained.
    """
    device = device_name(device)
    where = None if device in DEVICES else torch_device(device)
    check_options(target, opt_level)
    modes, usual = (MODES, MODES[0]) if where else (settings.FIND_MODES, settings.text("AUTOCAST_FIND_MODE"))
    mode = usual if mode is None else mode
    if mode not in modes:
        raise UnsupportedError(f"compile: mode is {mode!r}, expected one of {', '.join(modes)} on the device {device}")
    if where and target is not None:
        raise UnsupportedError(
            f"compile: target is {target}, expected None on the device {device}, whose code is torch's"
        )
    if where and not isinstance(model_or_module, Model):
        return cast(Executable, TorchExecutable(_with_inputs_alone(model_or_module), device, where, mode))
    target = kernels.detect_target() if target is None else target
    if not isinstance(model_or_module, Model):
        return _compile(model_or_module, None, device, target, opt_level)
    _warn_of_training_mode(model_or_module)
    kind: Any
    if where:
        kind = partial(TorchExecutable, name=device, device=where, mode=mode)
    else:
        kind = partial(_KINDS[mode], device=device, target=target, opt_level=opt_level)
    make = partial(_of_model, model_or_module, kind)
    if model_or_module.updated:
        return make()
    with _cache_lock:
        executables = _cache.setdefault(model_or_module, {})
        key = (device, mode if where else str(target), opt_level, settings.debug().poison)
        writes = model_or_module.writes() if model_or_module.writes else 0
        if key not in executables or executables[key][0] != writes:
            executables[key] = writes, make()
        return executables[key][1]


def executable_for(
    model: Model | tvm.IRModule | Executable, device: str, inputs: Inputs, opt_level: int = 3
) -> tuple[Executable, Sequence[Any]]:
    """The executable that runs these inputs, compiled whole, and the inputs in its order."""
    is_compiled = hasattr(model, "wait")
    executable: Any = model if is_compiled else compile(cast(Model, model), device, opt_level=opt_level)
    ordered = executable.signature.in_order(inputs)
    return (executable.fitting(ordered) if isinstance(executable, GrowingExecutable) else executable).wait(), ordered


def check_options(target: Any, opt_level: Any) -> None:
    """UnsupportedError unless code can be generated so."""
    levels = "0, 1, 2 or 3"
    check_value("compile", "opt_level", opt_level, lambda n: is_count(n) and n < 4, UnsupportedError, levels)
    expected = "a tvm.target.Target for LLVM, such as tvm.target.Target('llvm'), or None for this machine's"
    check_kind("compile: target", target, tvm.target.Target | None, UnsupportedError, expected)
    if target is not None and target.kind.name != "llvm":
        raise UnsupportedError(f"compile: target is {target.kind.name}, expected {expected}")


def _warn_of_training_mode(model: Model) -> None:
    """A TrainingModeWarning, once for each model, where nobody trains what torch's training mode left."""
    if model in _warned or model.output_names == ("loss",) or IMPORTED_FROM not in model.main.attrs:
        return
    mode = training_mode(model.mod)
    if mode and not is_trained(model.mod):
        _warned.add(model)
        warnings.warn(
            f"compile: the model was imported in training mode ({mode}) and nothing trains it, so that its results are "
            "those of training. To infer, call module.eval() before from_torch; to train it, autocast.training.Trainer",
            TrainingModeWarning,
            stacklevel=3,
        )


def _of_model(model: Model, make: Callable[[Model], Executable]) -> Executable:
    return cast(Executable, GrowingExecutable(model, make)) if model.reimport else make(model)


def _compile_model(model: Model, device: str, target: tvm.target.Target, opt_level: int) -> Executable:
    return _compile(model.mod, model.params, device, target, opt_level, _lent(model))


def _start(model: Model, device: str, target: tvm.target.Target, opt_level: int) -> Executable:
    """The executable of a model that answers at once, whether or not it was compiled before."""
    with without_garbage_collection():
        source, others, state = source_of(model.mod, model.params, target, opt_level)
    if not is_kept(source) or find(source) is not None:
        return _compile_model(model, device, target, opt_level)

    def compiled(stopping: threading.Event) -> Executable:
        made = compile_elsewhere(source, stopping)
        return _executable(Variant(made.program, made.library, others, state), made, device, _lent(model))

    with without_garbage_collection():
        generic = Generic(model)
    return cast(Executable, StartingExecutable(source.signature, generic, compiled))


def _lent(model: Model) -> Iterable[tvm_ffi.Tensor]:
    """The parameters whose memory torch may write to."""
    return model.params.values() if model.writes else ()


def _find(model: Model, device: str, target: tvm.target.Target, opt_level: int, *, again: bool) -> Executable:
    """The executable of a model whose kernels are measured before."""
    finding.find(source_of(model.mod, model.params, target, opt_level)[0], again=again)
    return _compile_model(model, device, target, opt_level)


#: What makes an executable of a model, by mode.
_KINDS: dict[str, Callable[..., Executable]] = {
    "fast": _compile_model,
    "normal": partial(_find, again=True),
    "hybrid": partial(_find, again=False),
    "dynamic_hybrid": _start,
}


def _compile(
    mod: tvm.IRModule,
    params: Mapping[str, Any] | None,
    device: str,
    target: tvm.target.Target,
    opt_level: int,
    lent: Iterable[tvm_ffi.Tensor] = (),
) -> Executable:
    variant, compiled = variant_of(mod, params, target, opt_level)
    with repeatable("vm.compile", mod, _written(target, opt_level), params):
        return _executable(variant, compiled, device, lent)


def _executable(variant: Variant, compiled: Compiled, device: str, lent: Iterable[tvm_ffi.Tensor]) -> Executable:
    return Executable(
        variant, device=device, seconds=compiled.seconds, origin=compiled.origin, kernels=compiled.kernels, lent=lent
    )


def variant_of(
    mod: tvm.IRModule, params: Mapping[str, Any] | None, target: tvm.target.Target, opt_level: int
) -> tuple[Variant, Compiled]:
    """What a model, or a module without parameters, is compiled to; nothing of it was run."""
    source, others, state = source_of(mod, params, target, opt_level)
    with repeatable("vm.compile", source.mod, _written(target, opt_level), params):
        compiled = build(source)
    return Variant(compiled.program, compiled.library, others, state), compiled


def source_of(
    mod: tvm.IRModule, params: Mapping[str, Any] | None, target: tvm.target.Target, opt_level: int
) -> tuple[Source, tuple[tvm_ffi.Tensor, ...], dict[str, tvm_ffi.Tensor]]:
    """What is compiled; the parameters that stay as they are, and the state."""
    mod = check_module(mod)
    main = mod["main"]
    if params is None:
        params = {}
        mod = tvm.IRModule(
            {**mod.functions, mod.get_global_var("main"): _with_inputs_only(main)},
            attrs=mod.attrs,
            global_infos=mod.global_infos,
        )
    updates = updates_of(mod["main"])
    names = list(params)
    try:
        check_params(params, main.params[len(main.params) - len(params) :])
    except LayoutError as error:
        raise IllFormedModuleError(
            f"compile: {error}; expected a tensor of that dtype and shape. Try model.replace(params=...)"
        ) from None
    values = [to_tensor(value) for value in params.values()]
    state = {names[position]: values[position] for position in updates}
    others = tuple(value for position, value in enumerate(values) if position not in updates)
    signature = signature_of(main, len(main.params) - len(params))
    return Source(mod, signature, tuple(state), target, opt_level), others, state


def _written(target: tvm.target.Target, opt_level: int) -> str:
    """The arguments beside the model, as Python writes them."""
    return f"target=tvm.target.Target({str(target)!r}), opt_level={opt_level}"


def _with_inputs_alone(mod: tvm.IRModule) -> Model:
    """A module as a model without parameters."""
    mod = check_module(mod)
    main = _with_inputs_only(mod["main"])
    functions = {**mod.functions, mod.get_global_var("main"): main.with_attr("num_input", len(main.params))}
    return Model(tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos))


def _with_inputs_only(main: tvm.relax.Function) -> tvm.relax.Function:
    """`main` with each of its arguments an input, whichever were parameters, and each of its outputs a result."""
    for name in ("num_input", "updates", "written"):
        main = main.without_attr(name) if name in (main.attrs or {}) else main
    return main
