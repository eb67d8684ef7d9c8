"""Take a Relax module as a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from autocast.errors import ImportModelError
from autocast.frontend.names import variable_name
from autocast.frontend.tensor_inputs import flat, with_tensor_inputs
from autocast.ir import (
    check_well_formed,
    first_order,
    is_op,
    lacks_dtype,
    main_of,
    parts_of,
    relax_functions,
    same_shape,
    shape_in,
    shape_of,
    static_shape,
    with_inferred_types,
    with_plain_layouts,
)
from autocast.ir.failures import in_phase, repeatable
from autocast.ir.rewriting import replace_variables
from autocast.messages import is_count, reason, shown
from autocast.model.value import Model, updates_of


def from_relax(
    mod: tvm.IRModule | relax.Function,
    params: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    function: str | None = None,
) -> Model:
    """A Model from a Relax module.

    Parameters
    ----------
    mod : tvm.IRModule or relax.Function
        A well-formed module with a Relax function `main`, or with exactly one Relax function that is not private, which
        becomes `main`. Its trailing parameters are the model's parameters. If it has the attribute `num_input`, that
        must agree. In place of a tuple `t`, the model takes its tensors (`t_0`, `t_1`, `t_2_0` of one in it); in place
        of a whole number or a truth value, a tensor without dimensions; in place of a shape, its sizes as int64.
        Private functions are inlined, unless they call themselves, or `main` has updates.
    params : mapping or sequence, optional
        The values of the trailing parameters (numpy arrays, torch or TVM tensors): in order, those of a tuple one by
        one or in a tuple, or by name, as main names them or as torch does (`0.weight` for `p_0_weight`: what
        `Model.params` holds). They say what their symbolic dimensions are, in `main`'s other types, too.
    function : str, optional
        The name of the function that becomes `main`, where the module has several.

    Returns
    -------
    Model

    Raises
    ------
    ImportModelError
        There is no such function, the module is not well formed, an argument's type leaves out its dtype or its number
        of axes, the values do not fit the parameters, or one of them is none of these.
    """
    if isinstance(mod, relax.Function):
        mod = tvm.IRModule({"main": mod.with_attr("global_symbol", "main")})
    if not isinstance(mod, tvm.IRModule):
        raise ImportModelError(f"from_relax: got a {type(mod).__name__}; expected a tvm.IRModule or a relax.Function.")
    if function is not None and not isinstance(function, str):
        raise ImportModelError(
            f"from_relax: function is a {type(function).__name__}, expected the name of one of the module's functions"
        )
    if params is not None and (isinstance(params, str) or hasattr(params, "shape") or not isinstance(params, Iterable)):
        raise ImportModelError(
            f"from_relax: params is a {type(params).__name__}, expected the values of main's last parameters, by name "
            "or in order; try {'weight': value} or [value]"
        )
    mod = _with_main(mod, function)
    check_well_formed("from_relax", mod, ImportModelError)
    _check_grids(mod)
    mod = _with_own_names(mod)
    with repeatable("from_relax", mod, ""):
        with in_phase("with_tensor_inputs", mod, with_tensor_inputs):
            mod = _with_named_sizes(with_tensor_inputs(mod))
        with in_phase("with_inferred_types", mod, with_inferred_types):
            mod = with_inferred_types(mod)
        with in_phase("with_plain_layouts", mod, with_plain_layouts):
            mod = with_plain_layouts(mod)
        with in_phase("first_order", mod, _first_order):
            mod = _first_order(mod)
    main = mod["main"]
    _check_known(main)
    if params is not None and not isinstance(params, Mapping):
        params = [*flat(params)]
    values = _values(main, params)
    num_input = len(main.params) - len(values)
    declared = (main.attrs or {}).get("num_input", num_input)
    if not is_count(declared) or declared > len(main.params):
        raise ImportModelError(
            f"from_relax: main declares num_input={declared}, but it has {len(main.params)} parameters; expected the "
            "number of those that are inputs, which come first. Try main.without_attr('num_input')"
        )
    if params is not None and declared != num_input:
        raise ImportModelError(
            f"from_relax: main declares num_input={declared} of {len(main.params)} parameters, but {len(values)} "
            f"values were given; expected {len(main.params) - declared}."
        )
    keys = {name: key for key, name in _variables(main, params).items()}
    given = [_tensor(var.name, values[var.name]) for var in main.params[num_input:]]
    main = _bound(main, _sizes(main.params[num_input:], given))
    tensors = {}
    for var, value in zip(main.params[num_input:], given, strict=True):
        _check_type(var, value)
        tensors[keys.get(var.name, var.name)] = value
    mod = mod.clone()
    mod["main"] = main.with_attr("num_input", num_input)
    of_torch = {keys.get(name, name): value for name, value in values.items() if hasattr(value, "detach")}
    return Model(mod, tensors, writes=_writes(of_torch, tensors))


def _writes(of_torch: Mapping[str, Any], params: Mapping[str, tvm.runtime.Tensor]) -> Callable[[], int] | None:
    """What counts the writes to tensors of torch, where there are any."""
    if not of_torch:
        return None
    from autocast.frontend.parameters import writes_to  # needs torch, which is there if its tensors are

    return writes_to(of_torch, params)


def _first_order(mod: tvm.IRModule) -> tvm.IRModule:
    """`first_order`, with private functions inlined; but those of a training step, which compute updates in float32."""
    main = main_of(mod)
    return first_order(mod, inline_private=main is not None and not updates_of(main))


def _with_main(mod: tvm.IRModule, name: str | None) -> tvm.IRModule:
    """`mod` with the function `name`, or the one that is meant, as its `main`."""
    functions = {var.name_hint: (var, function) for var, function in relax_functions(mod)}
    public = [var.name_hint for var, function in functions.values() if "global_symbol" in (function.attrs or {})]
    if name is None:
        candidates = [*functions] if len(functions) == 1 else public
        name = candidates[0] if len(candidates) == 1 and "main" not in functions else "main"
    if name not in functions:
        other = f" Say which: from_relax(mod, function={[*public, *functions][0]!r})" if functions else ""
        raise ImportModelError(
            f"from_relax: the module has the Relax functions {[*functions]}; expected one, or one of the name {name!r}."
            f"{other}"
        )
    var, function = functions[name]
    if name == "main" and name in public:
        return mod
    mod = mod.clone()
    if name != "main" and "main" in public:
        mod.update_func(functions["main"][0], functions["main"][1].without_attr("global_symbol"))
    mod.update_func(var, function.with_attr("global_symbol", "main"))
    return relax.transform.NormalizeGlobalVar()(mod)


def _with_own_names(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod`, in which each of `main`'s parameters has a name of its own: a second `w` is `w_1`."""
    main = mod["main"]
    taken = {param.name for param in main.params}
    seen: set[str] = set()
    new: dict[relax.Var, relax.Var] = {}
    for param in main.params:
        name, number = param.name, 0
        while name in seen or (number and name in taken):
            number += 1
            name = f"{param.name}_{number}"
        seen.add(name)
        if name != param.name and not isinstance(param.ty, tvm.ir.PrimType):
            new[param] = relax.Var(name, param.ty, param.span)
    if not new:
        return mod
    params = [new.get(param, param) for param in main.params]
    main = relax.Function(params, main.body, main.ret_ty, main.is_pure, main.attrs, main.span)
    mod = mod.clone()
    mod["main"] = replace_variables(main, new)
    return mod


def _with_named_sizes(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with a name for each size of `main`'s tensors of which only the number of axes is known."""
    vague = {var for var in mod["main"].params if var.ty.shape is None and var.ty.ndim >= 0 and not lacks_dtype(var.ty)}

    def named(var: relax.Var) -> relax.TensorType | None:
        if var not in vague:
            return None
        return relax.TensorType([tirx.Var(f"{var.name}_{i}", "int64") for i in range(var.ty.ndim)], var.ty.dtype)

    return relax.transform.UpdateParamType(named)(mod) if vague else mod


def _check_grids(mod: tvm.IRModule) -> None:
    """ImportModelError where grids are of other shapes than TVM says: it types those of "xy" as those of "ij"."""
    for var, function in relax_functions(mod):
        for call in parts_of(function, relax.Call):
            if not is_op(call, "relax.meshgrid") or str(call.attrs.indexing) != "xy":
                continue
            shape = shape_in(call.ty.fields[0]) if len(call.ty.fields) > 1 else None
            if shape is not None and not same_shape(shape[:1], shape[1:2]):
                raise ImportModelError(
                    f"from_relax: R.meshgrid(..., indexing='xy') in @{var.name_hint} has the type {call.ty.fields[0]} "
                    "to TVM, whose kernel swaps the first two axes; expected indexing='ij', where both agree. Try "
                    "R.meshgrid((y, x, ...), indexing='ij'), whose first two results change places"
                )


def _check_known(main: relax.Function) -> None:
    """ImportModelError unless each argument of `main` is a tensor that kernels can be made for."""
    for var in main.params:
        if shape_of(var) is None or lacks_dtype(var.ty):
            raise ImportModelError(
                f"from_relax: the argument {var.name!r} of main is a {var.ty}, expected a tensor whose dtype and "
                f'number of axes are known. Declare them, with names for sizes that vary: {var.name}: R.Tensor(("n", 8)'
                f', "float32"); autocast.frontend.with_dtypes(mod, {{"{var.name}": "float32"}}) completes dtypes alone'
            )


def _values(main: relax.Function, params: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Any]:
    names = [var.name for var in main.params]
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        values = list(params)
        if len(values) > len(names):
            raise ImportModelError(
                f"from_relax: got {len(values)} values, expected at most main's {len(names)} parameters"
            )
        return dict(zip(names[len(names) - len(values) :], values, strict=True))
    if wrong := [key for key in params if not isinstance(key, str)]:
        raise ImportModelError(
            f"from_relax: params has the key {wrong[0]!r}, expected names of main's parameters: {', '.join(names)}"
        )
    variables = _variables(main, params)
    unknown = sorted(set(variables.values()) - set(names))
    if unknown:
        raise ImportModelError(f"from_relax: main has no parameters {unknown}; expected some of {names}")
    trailing = names[len(names) - len(params) :]
    if set(trailing) != set(variables.values()):
        raise ImportModelError(
            f"from_relax: values were given for {sorted(params)}, expected main's last parameters, {trailing}; "
            "inputs come first"
        )
    return {name: params[key] for key, name in variables.items()}


def _variables(main: relax.Function, params: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, str]:
    """The names that values were given under -> those of main's parameters."""
    names = {var.name for var in main.params}
    keys = params if isinstance(params, Mapping) else ()
    return {key: key if key in names or variable_name(key) not in names else variable_name(key) for key in keys}


def _tensor(name: str, value: Any) -> tvm.runtime.Tensor:
    if hasattr(value, "detach"):
        from autocast.frontend.parameters import share  # needs torch, which is there if its tensors are

        if value.device.type == "meta" or value.is_complex():
            kind = "complex" if value.is_complex() else "meta"
            raise ImportModelError(
                f"from_relax: the value of the parameter {name!r} is a {kind} torch tensor, expected one that has "
                "floats, integers or truth values in memory"
            )
        return share(value)
    if isinstance(value, tvm.runtime.Tensor):
        return value
    try:
        return tvm.runtime.tensor(np.asarray(value))
    except (TypeError, ValueError):
        raise ImportModelError(
            f"from_relax: the value of the parameter {name!r} is {shown(value)}, expected a numpy array, or a torch or "
            "TVM tensor, of numbers. Try numpy.asarray(value, 'float32')"
        ) from None


def _sizes(params: Sequence[relax.Var], values: Sequence[tvm.runtime.Tensor]) -> dict[tirx.Var, int]:
    """The symbolic dimensions that the parameters' values say."""
    pairs = ((shape_of(var) or (), value.shape) for var, value in zip(params, values, strict=True))
    return {
        dim: int(size)
        for dims, shape in pairs
        for dim, size in zip(dims, shape, strict=False)
        if isinstance(dim, tirx.Var)
    }


def _bound(main: relax.Function, sizes: dict[tirx.Var, int]) -> relax.Function:
    try:
        return main.bind_symbolic_vars(sizes)
    except Exception as error:
        said = ", ".join(f"{var.name} = {size}" for var, size in sizes.items())
        raise ImportModelError(
            f"from_relax: the values that were given say {said}, which TVM refuses in main: {reason(error)}. Expected "
            "parameters whose dimensions agree with each other and with what main computes; look at their shapes"
        ) from error


def _check_type(var: relax.Var, value: tvm.runtime.Tensor) -> None:
    if tuple(value.shape) != static_shape(var) or str(value.dtype) != str(var.ty.dtype):
        raise ImportModelError(
            f"from_relax: the parameter {var.name!r} is a {var.ty}; got {value.dtype} of shape {tuple(value.shape)}. "
            "Expected its dtype and its dimensions, all of them known: BindSymbolicVars says what symbolic ones are"
        )
