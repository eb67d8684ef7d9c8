"""Measure the kernels of a model, and keep which way to compute them is the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from autocast import kernels, settings
from autocast.cache import store
from autocast.errors import UnsupportedError
from autocast.kernels import found
from autocast.kernels.contexts import changed_context
from autocast.kernels.found import Measured
from autocast.kernels.measuring import measure
from autocast.kernels.targets import backend_of
from autocast.vm.source import Source


class Finding(NamedTuple):
    """What was measured of a kernel's spec."""

    spec: Any
    measured: Measured


def find(source: Source, *, again: bool, shown: Callable[[list[Any]], Iterable[Any]] = iter) -> tuple[Finding, ...]:
    """Measure the kernels of a module for which there are several ways, on this machine, and keep the times.

    Parameters
    ----------
    source : Source
        For the target of this machine.
    again : bool
        Measure what was measured before, too.
    shown : function
        Answers the specs that it is given, one by one: where progress is shown.

    Raises
    ------
    UnsupportedError
        The times cannot be kept, or the target is another machine's.
    """
    if not any(folder.writable for folder in store().folders):
        raise UnsupportedError(
            f"find: what is measured is kept in the cache; AUTOCAST_CACHE is {settings.text('AUTOCAST_CACHE')!r}, "
            "or its folder cannot be used; expected 'on' and a folder. Try mode='fast', which measures nothing"
        )
    if str(source.target) != str(kernels.detect_target()):
        raise UnsupportedError(
            f"find: the target is {source.target}, expected this machine's, on which kernels are measured. Try "
            "mode='fast', which measures nothing"
        )
    with found.asking() as specs, changed_context(opt_level=source.opt_level):
        kernels.plan(source.mod, source.target)
    backend = backend_of(source.target)
    findings = []
    for spec in shown([one for one in specs if again or found.measured(one, source.target) is None]):
        findings.append(Finding(spec, measure(spec, backend)))
        found.record(spec, source.target, findings[-1].measured)
    return tuple(findings)
