"""Models on torch's devices: `to_torch`, run eagerly or compiled by Inductor."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from threading import RLock
from typing import Any

import tvm_ffi

from autocast.errors import InputError, UnsupportedError
from autocast.messages import shown
from autocast.model.value import Model
from autocast.runtime.executable import checked_state
from autocast.runtime.results import Outputs, check_outputs
from autocast.runtime.signature import Signature
from autocast.runtime.tensors import from_tensor, is_torch, kind_of, to_tensor
from autocast.runtime.writing import check_writable, write_back
from autocast.vm.signatures import signature_of

#: How torch runs a model: its kernels one by one, or what its compiler makes of them.
MODES = ("inductor", "eager")

#: What marks torch's CPU, as "cpu" is that of our kernels.
_PREFIX = "torch:"


def devices() -> tuple[str, ...]:
    """What there is on this machine: "cpu", for our kernels, and torch's devices."""
    if importlib.util.find_spec("torch") is None:
        return ("cpu",)
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    count = torch.accelerator.device_count() if accelerator else 0
    return "cpu", f"{_PREFIX}cpu", *(f"{accelerator.type}:{index}" for index in range(count) if accelerator)


def device_name(device: Any) -> str:
    """The name of a device of torch's or TVM's, or the name itself; an UnsupportedError where it is a collection."""
    if isinstance(device, Collection) and not isinstance(device, str):
        raise UnsupportedError(
            f"compile: device {shown(device)} is not supported, expected one of {', '.join(devices())}; a model's "
            "inputs are passed as args="
        )
    return str(device)


def checked_device(device: Any) -> str:
    """The name of a device that there is; an UnsupportedError lists them where there is none."""
    name = device_name(device)
    if name != "cpu":
        torch_device(name)
    return name


def torch_device(name: str) -> Any:
    """Torch's device of a name such as "torch:cpu", "cuda" or "cuda:1".

    Raises
    ------
    UnsupportedError
        This machine's torch has no such device: it lists those that there are.
    """
    there = devices()
    plain = name.removeprefix(_PREFIX)
    if name == f"{_PREFIX}cpu" in there or plain in there[2:] or f"{plain}:0" in there:
        import torch

        return torch.device(plain)
    raise UnsupportedError(
        f"compile: device {shown(name)} is not supported, expected one of {', '.join(there)}: our kernels' CPU, and "
        "what torch has on this machine"
    )


#: How many kinds of inputs torch's compiler has code for: dimensions are 0, 1, or vary.
_MOST = 10_000


def _plain(tensor: Any) -> Any:
    """A torch tensor as models take it: dense, and what its elements are, not what they are with another sign."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    return tensor.contiguous().resolve_conj().resolve_neg()


class TorchExecutable:
    """A model on a device of torch's: is called, waited for and has state as an `Executable`.

    Inputs of any kind are moved to the device. Outputs are of the inputs' kind: torch tensors stay on the device.
    Products of 16 bits are rounded to 16 bits by torch's kernels, which accumulate in float32; what depends on
    parameters alone is computed once, unless calls replace some. On CUDA devices what Inductor compiled for sizes that
    never change is captured as a graph, in the second call.

    Parameters
    ----------
    model : Model
    name : str
        The device, as it was asked for.
    device : torch.device
    mode : str
        One of `MODES`. "inductor" compiles when it is called first, and for sizes that vary a second time.

    Raises
    ------
    UnsupportedError
        Some of the model's operators have no meaning in torch: all are listed.
    """

    def __init__(self, model: Model, name: str, device: Any, mode: str) -> None:
        import torch

        from autocast.torch_target import multiplied_slowly, to_torch
        from autocast.torch_target.eager import use_fast_forms
        from autocast.torch_target.folding import drop_unused, fold
        from autocast.torch_target.padding import pad_products
        from autocast.vm.cuda_graphs import CapturedCalls, can_be_captured, sums_in_float32

        self.signature: Signature = signature_of(model.main, model.num_input)
        self.device, self.torch_device, self.mode = name, device, mode
        widened = multiplied_slowly(device)
        module: Any = to_torch(model, exact=False, fused=not widened, widened=widened)
        is_cuda = device.type == "cuda"
        is_captured = is_cuda and mode == "inductor" and can_be_captured(module, self.signature)
        if is_captured:
            pad_products(module, self.signature.inputs)
        module = module.to(device)
        if mode == "eager" and device.type == "cpu":
            use_fast_forms(module, module.graph)
            module.recompile()
        if not model.updated:
            fold(module, module.graph)
            module.recompile()
            drop_unused(module)
        for parameter in module.parameters():
            if parameter.device.type == "cpu":  # it shares the memory of the model's, which others may write
                parameter.data = parameter.data.clone()
        self._module, self._updated = module, model.updated
        self._run = self._launch = torch.compile(module.forward, fullgraph=True) if mode == "inductor" else module
        if is_cuda:
            self._run = self._launch = sums_in_float32()(self._run)
        if is_captured:
            self._launch = CapturedCalls(self._run, self.signature.written, device)
        self._turn = RLock()

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run `main`, as `Executable` does.

        Raises
        ------
        InputError
            The inputs do not fit the signature.
        """
        if named:
            inputs = self.signature.in_places(inputs, named)
        sizes = self.signature.bind(inputs)
        self.signature.check_rows(inputs, sizes)
        check_writable(self.signature.written, inputs)
        arguments = self.arguments(inputs)
        returned = self.run(arguments)
        check_outputs(_results(self.signature), returned, sizes)
        outputs = _of_kind(returned, kind_of(inputs))
        write_back(self.signature.written, arguments, inputs)
        return outputs

    def arguments(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Checked `inputs` as torch tensors on the device."""
        import torch

        if any(is_torch(value) and value.is_meta for value in inputs):
            raise InputError("main: an input is on meta, expected one with values, on any device")
        tensors = (_plain(value) if is_torch(value) else torch.from_dlpack(to_tensor(value)) for value in inputs)
        return tuple(value.to(self.torch_device) for value in tensors)

    def run(self, arguments: tuple[Any, ...], *, one_by_one: bool = False) -> Any:
        """Run `main` on what `arguments` returned: its kernels `one_by_one`, or a graph of them where there is one."""
        import torch

        function = self._run if one_by_one else self._launch
        with self._turn, torch.no_grad():
            if self.mode != "inductor":
                return function(*arguments)
            try:
                return function(*arguments)
            except torch._dynamo.exc.FailOnRecompileLimitHit:  # sizes of 0, of 1 and others, along several dimensions
                with torch._dynamo.config.patch(recompile_limit=_MOST, accumulated_recompile_limit=_MOST):
                    return function(*arguments)

    def wait(self, timeout: float | None = None) -> TorchExecutable:
        """This executable: nothing of it is compiled elsewhere."""
        return self

    @property
    def params(self) -> tuple[Any, ...]:
        """The tensors on the device that calls read, state and what was computed of parameters among them."""
        return (*self._module.parameters(), *self._module.buffers())

    @property
    def state(self) -> Mapping[str, Any]:
        """The parameters that calls update, by name, in the memory that they update: torch tensors on the device."""
        values = self._module.state_dict(keep_vars=True)
        return {name: values[name] for name in self._updated}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from other values, as `Executable.load_state` does."""
        values = checked_state(self.state, {name: _on_host(value) for name, value in state.items()})
        with self._turn:
            for name, value in values.items():
                self.state[name].copy_(from_tensor(value, "torch"))

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Go on with this state, all of it."""
        with self._turn:
            for name, value in state.items():
                self.state[name].copy_(value)

    def share(self, other: TorchExecutable) -> None:
        """Go on with the state of another program of the same model, in its memory; before the first call."""
        for name in self._updated:
            path, _, own = name.rpartition(".")
            self._module.get_submodule(path).register_buffer(own, other.state[name])

    def __repr__(self) -> str:
        inputs = ", ".join(f"{spec.name}: {spec}" for spec in self.signature.inputs)
        return f"TorchExecutable({inputs}; {self.mode}; {self.device})"


def _results(signature: Signature) -> Outputs:
    """What is returned: what is written into inputs is not."""
    if not signature.written:
        return signature.outputs
    outputs = signature.outputs if isinstance(signature.outputs, tuple) else (signature.outputs,)
    results = outputs[: len(outputs) - len(signature.written)]
    return results[0] if len(results) == 1 else results


def _on_host(value: Any) -> Any:
    return value.cpu() if is_torch(value) else value


def _of_kind(value: Any, kind: str) -> Any:
    """An output as the inputs are."""
    if isinstance(value, tuple | list):
        return tuple(_of_kind(one, kind) for one in value)
    if kind == "torch" or not is_torch(value):  # a size
        return value
    tensor: tvm_ffi.Tensor = to_tensor(value.cpu())
    return from_tensor(tensor, kind)
