"""Paddle's mixed precision (`paddle.static.amp`), in its words: a program is a `Model`, an optimizer one of ours.

What Paddle changes in place is returned here: models are values. Source: PaddlePaddle's pull request 29544.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax

from autocast import amp
from autocast.compat.names import check_device, operators_of, table, translated
from autocast.errors import TrainingError
from autocast.frontend import from_relax
from autocast.ir import all_bindings, relax_functions
from autocast.model import Model
from autocast.policy import Policy, fp16_guard
from autocast.training import DynamicLossScaling, Loss, Optimizer, Trainer
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

    def policy(self, program: Model, use_pure_fp16: bool, use_fp16_guard: bool) -> Policy:
        """The policy that these lists are for one program.

        The strategy of black and white lists is the preset "rules", and pure float16 the preset "pure".
        """
        called = operators_of(program.mod)
        return Policy(
            dtype="float16",
            preset="pure" if use_pure_fp16 else "rules",
            low_ops=translated(self.custom_white_list, OPERATORS, called),
            float32_ops=translated(self.custom_black_list, OPERATORS, called),
            float32_names=_with_readers(program, self.custom_black_varnames or ()),
            guarded=use_fp16_guard,
        )


def _with_readers(program: Model, names: Iterable[str]) -> tuple[str, ...]:
    """Names of variables, and of the results of the operators that read them; a policy finds those of parameters."""
    black = frozenset(names)
    readers = {
        binding.var.name
        for _, function in relax_functions(program.mod)
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
        One of `autocast.training`; its masters are float32 (Paddle's `multi_precision=True`).
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
    guarded = use_pure_fp16 if use_fp16_guard is None else use_fp16_guard
    return OptimizerWithMixedPrecision(
        optimizer, amp_lists or AutoMixedPrecisionLists(), scaling, use_pure_fp16, guarded
    )


class OptimizerWithMixedPrecision:
    """What `decorate` returns.

    Attributes
    ----------
    trainer : Trainer
        What `minimize` made; None before.
    """

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
        self.trainer: Trainer | None = None

    def minimize(self, program: Model, loss: Loss, *, learning_rate: float, **options: Any) -> Trainer:
        """The compiled training step: `step(batch)` is Paddle's `exe.run(train_program, feed, fetch_list=[loss])`.

        Call it inside `fp16_guard()` to compute the loss in there. The learning rate, which Paddle's optimizers hold,
        and `options` are a `Trainer`'s.
        """
        policy = self._lists.policy(program, self._pure, self._guarded)
        self.trainer = Trainer(
            program,
            loss,
            self._optimizer,
            learning_rate=learning_rate,
            amp=policy,
            loss_scaling=self._loss_scaling,
            **options,
        )
        return self.trainer

    def amp_init(
        self,
        place: object = None,
        scope: Mapping[str, Any] | None = None,
        test_program: Model | None = None,
        use_fp16_test: bool = False,
    ) -> Model | None:
        """The testing program in the precision of training, with the parameters that training has reached.

        Parameters
        ----------
        place
            None or "cpu".
        scope
            Parameters by name, in place of those that training has reached; what it does not name is as it was.
        test_program
            The model as it is tested: imported in evaluation mode. None: there is nothing to transform, as training
            casts its parameters itself.
        use_fp16_test
            Whether to transform it under black and white lists; pure float16 always does.

        Returns
        -------
        Model or None
            The testing program; its parameters are float16 under pure float16, where all that is read of them is that.

        Raises
        ------
        TrainingError
            `minimize` has not been called.
        UnsupportedError
            `place` is not the CPU.
        """
        check_device(place, "place")
        if self.trainer is None:
            raise TrainingError("amp_init: there are no parameters yet; call minimize(program, loss, ...) first")
        if test_program is None:
            return None
        reached = self.trainer.trained().params if scope is None else scope
        program = _with_values(test_program, reached)
        if not (self._pure or use_fp16_test):
            return program
        return amp.autocast(program, policy=self._lists.policy(program, self._pure, self._guarded))


def cast_model_to_fp16(
    program: Model, amp_lists: AutoMixedPrecisionLists | None = None, use_fp16_guard: bool = True
) -> tuple[Model, set[str]]:
    """The casts of pure float16, with parameters as they were.

    Returns
    -------
    program : Model
    to_fp16_var_names : set of str
        The parameters that `cast_parameters_to_fp16` can make float16: of which nothing else is read.
    """
    lists = amp_lists or AutoMixedPrecisionLists()
    cast = amp.cast_model(program, lists.policy(program, True, use_fp16_guard))
    return cast, set(amp.cast_parameters(cast).report.parameters.stored)


def cast_parameters_to_fp16(
    place: object,
    program: Model,
    scope: Mapping[str, Any] | None = None,
    to_fp16_var_names: Iterable[str] | None = None,
) -> Model:
    """`program`, of `cast_model_to_fp16`, with float16 parameters.

    Parameters
    ----------
    place
        None or "cpu".
    program
        A model that was cast.
    scope
        Values of parameters by name; what it does not name is as it was.
    to_fp16_var_names
        The only parameters to cast; None: all of which nothing but float16 is read.
    """
    check_device(place, "place")
    return amp.cast_parameters(_with_values(program, scope or {}), to_fp16_var_names)


def _with_values(program: Model, values: Mapping[str, Any]) -> Model:
    """`program` with other values for the parameters that `values` names."""
    known = {name: value for name, value in values.items() if name in program.params}
    return program.replace(params=from_relax(program.mod, {**program.params, **known}).params) if known else program
