"""What is the same in all processes that train together when they begin, and the one thing that is not: their seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import tvm

from autocast.frontend.importing.randomness import RANDOM_STATE
from autocast.messages import version_of
from autocast.model import Model
from autocast.training.parallel.ranks import Ranks

#: Bits without a pattern, the golden ratio's: what tells the seeds of ranks apart.
_GOLDEN = 0x9E3779B9

#: The packages whose versions have to be the same.
_PACKAGES = ("relax-autocast", "apache-tvm", "torch")


def shared(model: Model, ranks: Ranks, options: object) -> Model:
    """The model with the parameters of rank 0, after all ranks have said that they have the same model and `options`.

    Raises
    ------
    RankError
        They have not; on all ranks.
    """
    program = hashlib.sha256(model.mod.script(show_meta=False).encode()).hexdigest()[:16]
    parameters = [(name, *value.shape, str(value.dtype)) for name, value in model.params.items()]
    ranks.check_alike(
        {
            "versions": ", ".join(f"{package} {version_of(package)}" for package in _PACKAGES),
            "parameters": f"{len(parameters)}, {hashlib.sha256(repr(parameters).encode()).hexdigest()[:16]}",
            "model": program,
            "options": options,
        }
    )
    params = with_own_seed(ranks.same_params(model.params), ranks)
    return model.replace(params={name: tvm.runtime.tensor(array) for name, array in params.items()})


def with_own_seed(arrays: Mapping[str, np.ndarray], ranks: Ranks) -> dict[str, np.ndarray]:
    """The tensors of a state with the seed of this rank in the place of rank 0's, and the other way round.

    Dropout differs by rank so, and checkpoints do not.
    """
    arrays = dict(arrays)
    if RANDOM_STATE in arrays:
        seed, taken = np.asarray(arrays[RANDOM_STATE]).view("uint32")
        seeds = [int(seed) ^ ranks.rank * _GOLDEN % 2**32, taken]
        arrays[RANDOM_STATE] = np.array(seeds, "uint32").view("int32")
    return arrays
