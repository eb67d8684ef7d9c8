"""The errors this project raises. Each message says where, what it got, what it expected and what to try."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from type_hints.errors import CastingRuleError, UnknownOperatorError

__all__ = [
    "ArtifactError",
    "AutocastError",
    "BackgroundWarning",
    "CacheWarning",
    "CastErasureError",
    "CastingRuleError",
    "CheckpointError",
    "CompileError",
    "DivergedError",
    "EndOfDataWarning",
    "FallbackWarning",
    "GradientError",
    "IllFormedModuleError",
    "ImportModelError",
    "InputError",
    "PolicyError",
    "PolicyWarning",
    "RankError",
    "SlowDtypeWarning",
    "TrainingError",
    "TrainingModeWarning",
    "UnknownOperatorError",
    "UnsupportedError",
]


class AutocastError(Exception):
    """Base class of the errors raised on purpose by this package (casting rules have their own, `CastingRuleError`)."""


class ImportModelError(AutocastError):
    """A model cannot be imported faithfully."""


class GradientError(AutocastError):
    """A gradient was asked for that does not exist, or that nobody has written."""


class IllFormedModuleError(AutocastError):
    """A module handed to a pass is not something that the pass can work on."""


class CastErasureError(AutocastError):
    """Erasing the inserted casts does not give the input module back: a bug in the AutoCast pass."""


class UnsupportedError(AutocastError):
    """A device, dtype or operator that is not supported (yet)."""


class CompileError(AutocastError):
    """A phase of compilation failed on a module that was accepted: a fault of this project, of TVM, or of a PrimFunc.

    Attributes
    ----------
    phase : str
        Where it failed; its cause (`__cause__`) is what was raised there.
    function : str
        The function of the module that makes it fail; empty where no single one does.
    path : str
        The Python file that repeats the failure when it is run; empty where none was written.
    """

    phase = function = path = ""


class OperatorError(AutocastError):
    """An operator of a user's that cannot be registered as it is described."""


class PolicyError(AutocastError):
    """A policy that contradicts itself, or says something that no operator, name or option answers to."""


class InputError(AutocastError):
    """The inputs of a call do not fit what the model takes: their number, dtypes or sizes."""


class CheckpointError(AutocastError):
    """A checkpoint cannot be read, or does not belong to the model that it is loaded into."""


class ArtifactError(AutocastError):
    """A file that holds a model, or what was compiled of one, cannot be written, or is not what was written."""


class TrainingError(AutocastError):
    """A training step that cannot be built: of this model, loss, optimizer or option."""


class RankError(AutocastError):
    """Processes that train one model together cannot go on: one of them is missing, or they were not started alike."""


class DivergedError(AutocastError):
    """Training has come to a loss that is not a finite number."""


class CacheWarning(UserWarning):
    """Nothing is cached, or not all that could be: a compilation takes longer than it has to, and works."""


class BackgroundWarning(UserWarning):
    """What was to be compiled while a model runs could not be: its calls go on, slower than they might be."""


class SlowDtypeWarning(UserWarning):
    """The AMP dtype that was asked for saves memory on this machine, but no time: nothing multiplies it here."""


class TrainingModeWarning(UserWarning):
    """A model that was imported in training mode is compiled to infer: it drops, or normalizes by its batch; or it is
    evaluated, and updates something by its own code."""


class OwnBackwardWarning(UserWarning):
    """A model is trained that computes by an `autograd.Function`: by the gradient of its forward, not its backward."""


class DrawnNumberWarning(UserWarning):
    """A module draws numbers by other generators than torch's, as its import traces it: each run has the same ones."""


class FallbackWarning(UserWarning):
    """A model calls operators of torch when it runs: in the dtypes of the torch module, and only where torch is."""


class ReimportWarning(UserWarning):
    """A call had a size that the model was not imported for, so the model is imported and compiled again."""


class EndOfDataWarning(UserWarning):
    """The batches ended before the steps that a trainer was asked for."""


class PolicyWarning(UserWarning):
    """An entry of a policy concerns nothing in the module."""


def __getattr__(name: str) -> Any:
    """Import the errors of casting rules when they are first asked for: with the rules comes TVM's compiler."""
    if name in ("CastingRuleError", "UnknownOperatorError"):
        from type_hints import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
