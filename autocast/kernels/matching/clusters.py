"""Convex sets of bindings: what one kernel with several results can compute at one place of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import numpy as np
from tvm import relax

from autocast.ir.rewriting import users_of


def _ones(mask: int) -> list[int]:
    """The places of the bits of a number that are 1."""
    octets = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    places: list[int] = np.flatnonzero(np.unpackbits(octets, bitorder="little")).tolist()
    return places


class Clusters:
    """The bindings of one function, and the sets of them that are to become kernels.

    A set is convex if no path leaves it and comes back: then all that it reads can be computed before it, and all that
    reads it after it. Settled sets count as single bindings from then on, so that no two of them wait for each other.

    A `match_cast` stays where it is, between what comes before it and after it: types may name the sizes that it finds.

    Attributes
    ----------
    bound, users, operands
        What each variable is bound to, in order; which are computed from it directly, and from which it is computed.
    block
        A number for each variable of a dataflow block: that of the block, or of its part between `match_cast`s.
    """

    def __init__(self, function: relax.Function) -> None:
        self.bound, self.users = users_of(function)
        self.block: dict[relax.Var, int] = {}
        number = 0
        for block in function.body.blocks:
            for binding in block.bindings if isinstance(block, relax.DataflowBlock) else ():
                if isinstance(binding, relax.MatchCast):
                    number += 1
                else:
                    self.block[binding.var] = number
            number += 1
        self.variables = list(self.bound)
        self.position = {var: position for position, var in enumerate(self.variables)}
        self.operands: dict[relax.Var, list[relax.Var]] = {var: [] for var in self.variables}
        for operand, users in self.users.items():
            for user in users if operand in self.position else ():
                self.operands[user].append(operand)
        readers = [[self.position[user] for user in self.users.get(var, ())] for var in self.variables]
        self._before, self._after = [0] * len(readers), [0] * len(readers)
        for position, users in enumerate(readers):
            for user in users:
                self._before[user] |= self._before[position] | 1 << position
        for position in reversed(range(len(readers))):
            for user in readers[position]:
                self._after[position] |= self._after[user] | 1 << user
        self.settled: dict[relax.Var, frozenset[relax.Var]] = {}

    def neighbours(self, members: Iterable[relax.Var]) -> list[relax.Var]:
        """Variables of no settled set that members read or that read members, in order."""
        members = set(members)
        near = {user for member in members for user in self.users.get(member, ())}
        near |= {operand for member in members for operand in self.operands[member]}
        return sorted((var for var in near - members if var not in self.settled), key=self.position.__getitem__)

    def is_convex(self, members: Iterable[relax.Var]) -> bool:
        """Whether one kernel may compute `members`: all of one number in `block`, and no path leaves and returns."""
        members = list(members)
        if len({self.block.get(member, -1) for member in members}) != 1 or members[0] not in self.block:
            return False
        mask, before, after = self._masks(members)
        return not before & after & ~mask

    def grow(self, seed: relax.Var, fits: Callable[[relax.Var, set[relax.Var]], bool]) -> set[relax.Var]:
        """The largest convex set around `seed` of neighbours that fit: `fits(variable, members so far)`."""
        members = {seed}
        grown = True
        while grown:
            grown = False
            for var in self.neighbours(members):
                if self.is_convex(members | {var}) and fits(var, members):
                    members.add(var)
                    grown = True
        return members

    def settle(self, members: Iterable[relax.Var]) -> None:
        """Make a kernel of `members`."""
        group = frozenset(members)
        self.settled.update(dict.fromkeys(group, group))
        if len(group) == 1:  # who comes after it comes after all that it comes after as it is
            return
        mask, before, after = self._masks(group)
        for position in _ones(after | mask):
            self._before[position] |= before | mask
        for position in _ones(before | mask):
            self._after[position] |= after | mask

    def _masks(self, members: Iterable[relax.Var]) -> tuple[int, int, int]:
        mask = before = after = 0
        for member in members:
            position = self.position[member]
            mask |= 1 << position
            before |= self._before[position]
            after |= self._after[position]
        return mask, before, after

    def reordered(self, function: relax.Function) -> relax.Function:
        """`function` with the bindings of each settled set next to each other."""
        if all(len(group) == 1 for group in self.settled.values()):
            return function
        blocks = []
        for block in function.body.blocks:
            if not isinstance(block, relax.DataflowBlock):
                blocks.append(block)
                continue
            bindings: list[relax.Binding] = []
            for number, group in groupby(block.bindings, lambda binding: self.block.get(binding.var)):
                part = list(group)
                bindings += part if number is None else self._sorted(part)
            blocks.append(relax.DataflowBlock(bindings))
        body = relax.SeqExpr(blocks, function.body.body)
        return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span)

    def _sorted(self, bindings: Sequence[relax.Binding]) -> list[relax.Binding]:
        by_var = {binding.var: binding for binding in bindings}
        done: dict[relax.Var, relax.Binding] = {}
        for binding in bindings:
            waiting = [binding.var]
            while waiting:
                var = waiting[-1]
                if var in done:
                    waiting.pop()
                    continue
                group = sorted(self.settled.get(var, (var,)), key=self.position.__getitem__)
                missing = [
                    operand
                    for member in group
                    for operand in self.operands[member]
                    if operand in by_var and operand not in done and operand not in group
                ]
                if missing:
                    waiting.extend(missing)
                    continue
                waiting.pop()
                done.update((member, by_var[member]) for member in group)
        return list(done.values())
