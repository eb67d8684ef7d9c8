"""Data movement: elements change place, never value."""

from __future__ import annotations

from type_hints.helpers import follow
from type_hints.registry import rule

_MOVES = "moves data only"
_JOINS = "moves data only; the fields of the tuple must agree"

RULES = (
    rule("relax.reshape", follow(1), why=_MOVES),
    rule("relax.flatten", follow(1), why=_MOVES),
    rule("relax.nn.batch_flatten", follow(1), why=_MOVES),
    rule("relax.squeeze", follow(1), why=_MOVES),
    rule("relax.expand_dims", follow(1), why=_MOVES),
    rule("relax.permute_dims", follow(1), why=_MOVES),
    rule("relax.layout_transform", follow(1), why=_MOVES),
    rule("relax.nn.pixel_shuffle", follow(1), why=_MOVES),
    rule("relax.broadcast_to", follow(1), why=_MOVES),
    rule("relax.repeat", follow(1), why=_MOVES),
    rule("relax.tile", follow(1), why=_MOVES),
    rule("relax.flip", follow(1), why=_MOVES),
    rule("relax.reverse_sequence", follow(1), why=_MOVES),
    rule("relax.split", follow(1), why=_MOVES),
    rule("relax.concat", follow(1), why=_JOINS),
    rule("relax.stack", follow(1), why=_JOINS),
    rule("relax.meshgrid", follow(1), why=_JOINS),
    rule("relax.nn.pad", follow(1), why="moves data, and fills the border with a constant"),
    rule("relax.tril", follow(1), why="moves data, and fills the rest with zeros"),
    rule("relax.triu", follow(1), why="moves data, and fills the rest with zeros"),
    rule("relax.to_vdevice", follow(1), why="moves data to another device"),
    rule("relax.hint_on_device", follow(1), why="says where data should be"),
    rule("relax.shape_of", follow(1), why="reads the shape only, which no cast changes"),
    rule("relax.size", follow(1), why="reads the shape only, which no cast changes"),
)
