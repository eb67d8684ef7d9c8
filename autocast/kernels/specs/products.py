"""What a matrix product kernel computes: frozen descriptions that equal products share."""

from __future__ import annotations

from dataclasses import dataclass, field

from autocast.errors import UnsupportedError
from autocast.kernels.specs.checks import STORAGE_DTYPES, check_one_of
from autocast.kernels.specs.epilogue import Epilogue


@dataclass(frozen=True)
class Product:
    """`out = epilogue(op(A) @ op(B))`, op being the identity or the transposition of the last two dimensions.

    Attributes
    ----------
    m, n, k
        Rows of op(A), columns of op(B), and the dimension that is summed; None: known at run time.
    a_dtype, b_dtype, out_dtype
        Storage dtypes: float32, bfloat16 or float16. Sums are float32.
    transpose_a, transpose_b
        Whether A is stored as (k, m), and B as (n, k).
    batch
        The leading dimension, or a tuple of them, of those operands that are batched; None: known at run time.
    a_batched, b_batched
        Which operands have the leading dimensions; the other is shared by the whole batch. The output has them if
        either operand has.
    a_repeated, b_repeated
        Those leading dimensions (by number) in which a batched operand has extent 1, and is the same for all.
    epilogue
        What is done to the sums before they are stored.
    compute
        `bfloat16`: operands may be rounded to bfloat16 (while they are packed, where the target multiplies bfloat16);
        products are summed in float32. `float32`: both are widened. None: bfloat16 if both are stored so, else float32.
    b_packed
        Whether the kernel is given B as the target packs it once.
    """

    m: int | None
    n: int | None
    k: int | None
    a_dtype: str = "float32"
    b_dtype: str = "float32"
    out_dtype: str = "float32"
    transpose_a: bool = False
    transpose_b: bool = False
    batch: int | tuple[int | None, ...] | None = 1
    a_batched: bool = False
    b_batched: bool = False
    a_repeated: tuple[int, ...] = ()
    b_repeated: tuple[int, ...] = ()
    epilogue: Epilogue = field(default_factory=Epilogue)
    compute: str | None = None
    b_packed: bool = False

    def __post_init__(self) -> None:
        for name in ("a_dtype", "b_dtype", "out_dtype"):
            check_one_of(f"Product.{name}", getattr(self, name), STORAGE_DTYPES)
        check_one_of("Product.compute", self.compute, (None, "float32", "bfloat16"))
        if self.compute == "bfloat16" and "float16" in (self.a_dtype, self.b_dtype):
            raise UnsupportedError(
                "Product: compute='bfloat16' with a float16 operand would lose three bits; use compute='float32'"
            )
        for name, extent in (("m", self.m), ("n", self.n), ("k", self.k), *(("batch", d) for d in self.batch_dims)):
            if extent is not None and extent < 1:
                raise UnsupportedError(f"Product.{name}: got {extent}, expected at least 1, or None for run time")

    @property
    def batch_dims(self) -> tuple[int | None, ...]:
        """The leading dimensions of batched operands and of the output; empty for a plain matrix product."""
        if not (self.a_batched or self.b_batched):
            return ()
        return self.batch if isinstance(self.batch, tuple) else (self.batch,)

    @property
    def compute_dtype(self) -> str:
        """The dtype that operands have when they are multiplied."""
        if self.compute:
            return self.compute
        return "bfloat16" if self.a_dtype == self.b_dtype == "bfloat16" else "float32"


@dataclass(frozen=True)
class GroupedProduct:
    """`out[rows of group g] = A[rows of group g] @ op(B[g])`; a third argument says where the rows of each group end.

    Rows behind the last end are zeros. Sums are float32.

    Attributes
    ----------
    m
        Rows of A, of all groups together; None: known at run time.
    n, k
        Columns of each op(B[g]), and the dimension that is summed.
    groups
        How many matrices B has.
    dtype
        How A, B and the output are stored: float32, bfloat16 or float16.
    ends_dtype
        The dtype of the ends: int32 or int64.
    transpose_b
        Whether each matrix of B is stored as (n, k).
    """

    m: int | None
    n: int
    k: int
    groups: int
    dtype: str = "float32"
    ends_dtype: str = "int32"
    transpose_b: bool = False

    def __post_init__(self) -> None:
        check_one_of("GroupedProduct.dtype", self.dtype, STORAGE_DTYPES)
        check_one_of("GroupedProduct.ends_dtype", self.ends_dtype, ("int32", "int64"))
        for name in ("m", "n", "k", "groups"):
            if (extent := getattr(self, name)) is not None and extent < 1:
                raise UnsupportedError(f"GroupedProduct.{name}: got {extent}, expected at least 1")
