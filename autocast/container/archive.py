"""The layout of a file: a ZIP archive of stored entries at aligned offsets, which can be written in one way only.

Names, sizes and CRCs determine every other byte of the archive: headers, padding and directory. So a reader makes these
bytes again and compares: what overlaps, lies about a size, hides something between the entries, or was damaged cannot
be equal. Every tool that knows ZIP64 can list and extract such a file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")
_SIZES = struct.Struct("<HHQQ")
_SIZES_AND_OFFSET = struct.Struct("<HHQQQ")
_PADDING = struct.Struct("<HH")

#: Version 4.5 of ZIP, which has 64 bits for sizes; names in UTF-8; the first day that ZIP knows, in every file.
_VERSION, _UTF8, _DAY = 45, 0x800, 0x21
_IN_EXTRA_16, _IN_EXTRA_32 = 0xFFFF, 0xFFFFFFFF
#: The fields of the extra data: sizes of 64 bits, and the padding that Android's zipalign has a number for.
_ZIP64, _ALIGNMENT = 0x0001, 0xD935

#: Entries of at least `_LARGE` bytes begin on a page, others on a line of the cache.
_LARGE, _PAGE, _LINE = 2**16, 4096, 64

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


class Entry(NamedTuple):
    """One entry: its name, how many bytes it has, and the CRC-32 of these."""

    name: str
    size: int
    crc: int


class LayoutError(ValueError):
    """What is wrong with the bytes of an archive."""


def check_names(names: Sequence[str]) -> None:
    """Raise LayoutError unless each name is a relative path of plain characters, and none is there twice."""
    for name in names:
        if not _NAME.fullmatch(name) or len(name) > 255:
            raise LayoutError(
                f"the name {name[:80]!r} is not a relative path of letters, digits and _ . - of at most 255"
            )
    if twice := sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []:
        raise LayoutError(f"the name {twice[0]!r} is there twice")


def header(entry: Entry, at: int) -> bytes:
    """What stands before an entry's data where the header begins at the offset `at`: the data are aligned then."""
    name = entry.name.encode()
    alignment = _PAGE if entry.size >= _LARGE else _LINE
    padding = -(at + _LOCAL.size + len(name) + _SIZES.size + _PADDING.size) % alignment
    extra = _SIZES.pack(_ZIP64, _SIZES.size - 4, entry.size, entry.size) + _PADDING.pack(_ALIGNMENT, padding)
    fixed = _LOCAL.pack(
        *(0x04034B50, _VERSION, _UTF8, 0, 0, _DAY, entry.crc, _IN_EXTRA_32, _IN_EXTRA_32, len(name)),
        len(extra) + padding,
    )
    return fixed + name + extra + bytes(padding)


def directory(entries: Sequence[Entry], offsets: Sequence[int], at: int) -> bytes:
    """What stands after the last entry, at the offset `at`, where the header of each entry is at its offset."""
    parts = []
    for entry, offset in zip(entries, offsets, strict=True):
        name = entry.name.encode()
        extra = _SIZES_AND_OFFSET.pack(_ZIP64, _SIZES_AND_OFFSET.size - 4, entry.size, entry.size, offset)
        fixed = _CENTRAL.pack(
            *(0x02014B50, _VERSION, _VERSION, _UTF8, 0, 0, _DAY, entry.crc, _IN_EXTRA_32, _IN_EXTRA_32),
            *(len(name), len(extra), 0, 0, 0, 0, _IN_EXTRA_32),
        )
        parts.append(fixed + name + extra)
    size, count = sum(map(len, parts)), len(entries)
    parts.append(_END64.pack(0x06064B50, _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, size, at))
    parts.append(_LOCATOR.pack(0x07064B50, 0, at + size, 1))
    parts.append(
        _END.pack(0x06054B50, _IN_EXTRA_16, _IN_EXTRA_16, _IN_EXTRA_16, _IN_EXTRA_16, _IN_EXTRA_32, _IN_EXTRA_32, 0)
    )
    return b"".join(parts)


def parse(data: memoryview) -> dict[str, tuple[Entry, memoryview]]:
    """The entries of an archive and their data, in order.

    Raises
    ------
    LayoutError
        `data` is not byte for byte what `header` and `directory` make of the names, sizes and CRCs in it.
    """
    entries = _listed(data)
    check_names([entry.name for entry in entries])
    found: dict[str, tuple[Entry, memoryview]] = {}
    at, offsets = 0, []
    for entry in entries:
        expected = header(entry, at)
        begin = at + len(expected)
        if data[at:begin] != expected:
            raise LayoutError(f"the header of {entry.name!r}, at byte {at}, is not the one that was written there")
        if entry.size > len(data) - begin:
            raise LayoutError(f"{entry.name!r} has {entry.size} bytes, the file {len(data) - begin} after its header")
        offsets.append(at)
        at = begin + entry.size
        found[entry.name] = entry, data[begin:at]
    if data[at:] != directory(entries, offsets, at):
        raise LayoutError(f"the directory at byte {at} is not the one that was written there")
    return found


def _listed(data: memoryview) -> list[Entry]:
    """The names, sizes and CRCs in the directory; that the rest of it is right is for `parse` to see."""
    tail = _END64.size + _LOCATOR.size + _END.size
    end = len(data) - tail
    if end < 0:
        raise LayoutError(f"it has {len(data)} bytes, fewer than the {tail} at the end of every archive")
    signature, *_, at = _END64.unpack_from(data, end)
    if signature != 0x06064B50 or at > end:
        raise LayoutError("the end of its directory is not where it should be")
    entries = []
    while at < end:
        if at + _CENTRAL.size > end:
            raise LayoutError("its directory ends in the middle of an entry")
        fixed = _CENTRAL.unpack_from(data, at)
        crc, name_size, extra_size = fixed[7], fixed[10], fixed[11]
        begin = at + _CENTRAL.size
        at = begin + name_size + extra_size
        if at > end or extra_size != _SIZES_AND_OFFSET.size:
            raise LayoutError("its directory ends in the middle of an entry")
        try:
            name = bytes(data[begin : begin + name_size]).decode("ascii")
        except UnicodeDecodeError:
            raise LayoutError("a name in its directory is not of plain characters") from None
        entries.append(Entry(name, _SIZES_AND_OFFSET.unpack_from(data, begin + name_size)[2], crc))
    return entries
