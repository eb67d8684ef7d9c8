"""`paddle.static.amp`: black and white lists, pure float16, and the optimizer that trains with them.

Source: PaddlePaddle's pull request 29544.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax

from autocast import amp
from autocast.compat.names import check_device, check_names, named, operators_of, table, translated
from autocast.compat.paddle.optimizer import Optimizer
from autocast.compat.paddle.static.program import Program, Variable
from autocast.errors import InputError, TrainingError
from autocast.frontend import from_relax
from autocast.ir import all_bindings, relax_functions
from autocast.messages import check_kind
from autocast.model import Model
from autocast.policy import Policy, fp16_guard
from autocast.training import DynamicLossScaling
from autocast.training.loss_scaling import LossScaling, StaticLossScaling

__all__ = [
    "AutoMixedPrecisionLists",
    "OptimizerWithMixedPrecision",
    "cast_model_to_fp16",
    "cast_parameters_to_fp16",
    "decorate",
    "fp16_guard",
]

#: Paddle's operators and ours.
OPERATORS = table("""
conv2d, depthwise_conv2d: nn.conv2d
conv2d_transpose: nn.conv2d_transpose
conv3d: nn.conv3d
mul, matmul, matmul_v2, fc: matmul
pool2d: nn.max_pool2d nn.avg_pool2d nn.adaptive_avg_pool2d
pool3d: nn.max_pool3d nn.avg_pool3d nn.adaptive_avg_pool3d
batch_norm, sync_batch_norm: nn.batch_norm
layer_norm: nn.layer_norm
group_norm: nn.group_norm
instance_norm: nn.instance_norm
softmax: nn.softmax
log_softmax: nn.log_softmax
softmax_with_cross_entropy: nn.cross_entropy_with_logits nn.cross_entropy
cross_entropy, cross_entropy2: nn.cross_entropy nn.nll_loss nn.cross_entropy_with_logits
elementwise_add: add
elementwise_sub: subtract
elementwise_mul: multiply
elementwise_div: divide
elementwise_max: maximum
elementwise_min: minimum
elementwise_pow, pow: power
lookup_table, lookup_table_v2, embedding: take
reduce_sum: sum
reduce_mean: mean
reduce_max: max
reduce_min: min
reduce_prod: prod
relu: nn.relu
gelu: nn.gelu nn.gelu_tanh
leaky_relu: nn.leakyrelu
prelu: nn.prelu
selu: nn.selu
silu, swish: nn.silu
softplus: nn.softplus
dropout: nn.dropout nn.seeded_dropout
pad, pad2d, pad3d: nn.pad
transpose, transpose2: permute_dims
reshape, reshape2: reshape
squeeze, squeeze2: squeeze
unsqueeze, unsqueeze2: expand_dims
slice: strided_slice
cast: astype
""")


@dataclass(frozen=True)
class AutoMixedPrecisionLists:
    """Operators that are low, operators that are float32, and variables whose operators are float32.

    Parameters
    ----------
    custom_white_list, custom_black_list
        Operators, by Paddle's names or ours. What stands in both is a PolicyError.
    custom_black_varnames
        Names of variables: the operators that give or read one are float32, white list or not.
    """

    custom_white_list: Iterable[str] | None = None
    custom_black_list: Iterable[str] | None = None
    custom_black_varnames: Iterable[str] | None = None

    def __post_init__(self) -> None:
        for name in ("custom_white_list", "custom_black_list", "custom_black_varnames"):
            check_names(name, getattr(self, name))

    def policy(self, model: Model, use_pure_fp16: bool, use_fp16_guard: bool, masters: bool = True) -> Policy:
        """The policy that these lists are for one model.

        The strategy of black and white lists is the preset "rules", and pure float16 the preset "pure"; only this may
        do without float32 masters.
        """
        called = operators_of(model.mod)
        return Policy(
            dtype="float16",
            preset="pure" if use_pure_fp16 else "rules",
            low_ops=translated(self.custom_white_list, OPERATORS, called),
            float32_ops=translated(self.custom_black_list, OPERATORS, called),
            float32_names=_with_readers(model, self.custom_black_varnames or ()),
            guarded=use_fp16_guard,
            fp32_params=masters or not use_pure_fp16,
        )


def _with_readers(model: Model, names: Iterable[str]) -> tuple[str, ...]:
    """Names of variables, and of the results of the operators that read them; a policy finds those of parameters."""
    black = frozenset(names)
    readers = {
        binding.var.name
        for _, function in relax_functions(model.mod)
        for binding in all_bindings(function.body)
        if not isinstance(binding.value, relax.If)
        and any(var.name in black for var in relax.analysis.free_vars(binding.value))
    }
    return tuple(sorted(black | readers))


def decorate(
    optimizer: Optimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
    use_pure_fp16: bool = False,
    use_fp16_guard: bool | None = None,
) -> OptimizerWithMixedPrecision:
    """The entry: an optimizer that trains in float16, with its loss scaled.

    Parameters
    ----------
    optimizer
        One of `paddle.optimizer`. Pure float16 keeps float32 masters if its `multi_precision` is True.
    amp_lists
        None: empty lists.
    init_loss_scaling, incr_every_n_steps, decr_every_n_nan_or_inf, incr_ratio, decr_ratio
        As in `DynamicLossScaling`, or the first alone in `StaticLossScaling`.
    use_dynamic_loss_scaling
        Which of these.
    use_pure_fp16
        As many operators in float16 as possible; else those that the rules say.
    use_fp16_guard
        Only what is inside `fp16_guard` is float16; None: if `use_pure_fp16`.
    """
    scaling: LossScaling = StaticLossScaling(float(init_loss_scaling))
    if use_dynamic_loss_scaling:
        scaling = DynamicLossScaling(
            init_loss_scaling=init_loss_scaling,
            incr_every_n_steps=incr_every_n_steps,
            decr_every_n_nan_or_inf=decr_every_n_nan_or_inf,
            incr_ratio=incr_ratio,
            decr_ratio=decr_ratio,
        )
    check_kind("decorate", optimizer, Optimizer, TrainingError, "an optimizer of paddle.optimizer, such as Adam()")
    guarded = use_pure_fp16 if use_fp16_guard is None else use_fp16_guard
    return OptimizerWithMixedPrecision(
        optimizer, amp_lists or AutoMixedPrecisionLists(), scaling, use_pure_fp16, guarded
    )


class OptimizerWithMixedPrecision:
    """What `decorate` returns."""

    def __init__(
        self,
        optimizer: Optimizer,
        amp_lists: AutoMixedPrecisionLists,
        loss_scaling: LossScaling,
        use_pure_fp16: bool,
        use_fp16_guard: bool,
    ) -> None:
        self._optimizer, self._lists, self._loss_scaling = optimizer, amp_lists, loss_scaling
        self._pure, self._guarded = use_pure_fp16, use_fp16_guard
        self._program: Program | None = None

    def minimize(self, loss: Variable, startup_program: Program | None = None) -> None:
        """Make a run of the program of `loss` a training step in mixed precision."""
        self._program = loss.program
        policy = self._policy(loss.program.forward)
        self._optimizer.train(loss, startup_program, policy, loss_scaling=self._loss_scaling)

    def amp_init(
        self,
        place: object = None,
        scope: Mapping[str, Any] | None = None,
        test_program: Program | None = None,
        use_fp16_test: bool = False,
    ) -> None:
        """Put the testing program into the precision of training; it reads the parameters that training reaches.

        Parameters
        ----------
        place
            None, "cpu" or `paddle.CPUPlace()`.
        scope
            Parameters by name, for the testing program alone; what it does not name is as it was.
        test_program
            A program of the same module. None: there is nothing to transform, as training casts its parameters itself.
        use_fp16_test
            Whether to transform it under black and white lists; pure float16 always does.

        Raises
        ------
        TrainingError
            `minimize` has not been called, or the startup program has not been run.
        UnsupportedError
            `place` is not the CPU.
        """
        check_device(place, "place")
        if self._program is None or (self._program.startup is not None and not self._program.is_ready):
            raise TrainingError(
                "amp_init: the parameters have no values yet; call minimize(loss, startup_program) and run the startup "
                "program first"
            )
        if test_program is None:
            return
        if scope is not None:
            test_program.model, test_program.module = _with_values(test_program.forward, scope), None
        if self._pure or use_fp16_test:
            model = test_program.forward.replace(params=test_program.parameters)
            test_program.model = amp.autocast(model, policy=self._policy(model))

    def _policy(self, model: Model) -> Policy:
        return self._lists.policy(model, self._pure, self._guarded, self._optimizer.multi_precision)


def cast_model_to_fp16(
    program: Program, amp_lists: AutoMixedPrecisionLists | None = None, use_fp16_guard: bool = True
) -> set[str]:
    """The casts of pure float16, in place, with parameters as they were.

    Returns
    -------
    set of str
        The parameters that `cast_parameters_to_fp16` can make float16: of which nothing else is read.
    """
    check_kind("cast_model_to_fp16", program, Program, InputError, "a paddle.static.Program")
    lists = amp_lists or AutoMixedPrecisionLists()
    program.model = amp.cast_model(program.forward, lists.policy(program.forward, True, use_fp16_guard))
    return set(amp.cast_parameters(program.model).report.parameters.stored)


def cast_parameters_to_fp16(
    place: object,
    program: Program,
    scope: Mapping[str, Any] | None = None,
    to_fp16_var_names: Iterable[str] | None = None,
) -> None:
    """Store parameters of `program`, of `cast_model_to_fp16`, in float16.

    Parameters
    ----------
    place
        None, "cpu" or `paddle.CPUPlace()`.
    program
        A program that was cast.
    scope
        Values of parameters by name; what it does not name is as it was.
    to_fp16_var_names
        The only parameters to cast; None: all of which nothing but float16 is read.
    """
    check_device(place, "place")
    model = _with_values(program.forward, scope or {})
    program.model = amp.cast_parameters(model, to_fp16_var_names)


def _with_values(model: Model, values: Mapping[str, Any]) -> Model:
    """`model` with other values for the parameters that `values` names."""
    known = {name: value for name, value in values.items() if name in model.params}
    return model.replace(params=from_relax(model.mod, {**model.params, **known}).params) if known else model


__getattr__ = named(__name__, __all__)
