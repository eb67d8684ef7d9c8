"""`autocast cache`: what is in the cache, whether it is whole, and how it moves to other machines."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

from autocast import settings
from autocast.cache.folders import LAYOUT, folders
from autocast.cache.store import File, Store, store
from autocast.container import Format, read, whole_file, write
from autocast.errors import AutocastError, InputError
from autocast.terminal import at_least, output

#: What a packed cache is marked with: one entry for each file, under its path in the folder.
PACK = Format("autocast.cache.pack", 1, "autocast cache pack", "autocast cache unpack")

_MIB = 2**20


def add_to(commands: Any) -> None:
    """Add the command and its parts to a parser's commands."""
    cache = commands.add_parser("cache", help="what is kept on disk of compiled models")
    parts = cache.add_subparsers(required=True, metavar="what")

    def part(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = parts.add_parser(name, help=text, description=text)
        parser.set_defaults(run=run)
        return parser

    part("info", _info, "the folders, how many files they have, and how much room these take")
    part("list", _list, "every file, the most recently used first")
    part("verify", _verify, "check every byte of every file; what was damaged is removed from the user's folder")
    prune = part("prune", _prune, "remove the least recently used files of the user's folder")
    prune.add_argument("--size", type=at_least(0), metavar="MIB", help="what may stay (default: AUTOCAST_CACHE_SIZE)")
    clear = part("clear", _clear, "remove all files of the user's folder; at a terminal it asks before")
    clear.add_argument("--yes", action="store_true", help="do not ask")
    pack = part("pack", _pack, "write all files into one, to be unpacked on other machines")
    pack.add_argument("file", type=Path)
    pack.add_argument("--target", default="", help="only what was compiled for targets with this in their names")
    unpack = part("unpack", _unpack, "add the files that were packed to the user's folder, or to another")
    unpack.add_argument("file", type=Path)
    unpack.add_argument("--into", type=Path, metavar="FOLDER", help="a folder that AUTOCAST_SYSTEM_CACHE will name")


def _info(options: argparse.Namespace) -> int:
    kept = store()
    table = Table(title=f"AUTOCAST_CACHE is {settings.text('AUTOCAST_CACHE')}")
    for heading in ("folder", "path", "kind", "files", "MiB"):
        table.add_column(heading, justify="right" if heading in ("files", "MiB") else "left", overflow="fold")
    for folder in kept.folders:
        files = list(Store((folder,)).files())
        sizes: Counter[str] = Counter()
        for file in files:
            sizes[file.kind] += file.size
        kinds = sorted(sizes) or ["-"]
        for kind in kinds:
            count = sum(file.kind == kind for file in files)
            table.add_row(folder.name, str(folder.path), kind, str(count), f"{sizes[kind] / _MIB:.2f}")
    output().print(table)
    output().print(f"the user's folder may take {settings.integer('AUTOCAST_CACHE_SIZE')} MiB", highlight=False)
    return 0


def _list(options: argparse.Namespace) -> int:
    table = Table(title="the cache, the most recently used first")
    for heading in ("kind", "key", "KiB", "used", "target", "of"):
        table.add_column(heading, justify="right" if heading in ("KiB", "used") else "left", overflow="fold")
    now = time.time()
    for file in sorted(store().files(), key=lambda file: -file.used):
        facts = _facts(file)
        row = (file.kind, file.key[:12], f"{file.size / 1024:.0f}", _ago(now - file.used))
        of = facts.get("inputs") or facts.get("symbol") or facts.get("module", "-")
        table.add_row(*row, _processor(facts.get("target", "-")), of)
    output().print(table)
    return 0


def _processor(target: str) -> str:
    """What a target generates code for; the text itself where it does not say so."""
    found = re.search(r'"mcpu": *"([^"]+)"', target)
    return found[1] if found else target


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"


def _facts(file: File) -> dict[str, Any]:
    """What was noted of a file; nothing where it is damaged, which `verify` says."""
    try:
        return read(file.path, _format_of(file)).metadata
    except AutocastError:
        return {}


def _format_of(file: File) -> Format:
    return Format(f"autocast.cache.{file.kind}", 1, "autocast.vm.compile", "autocast cache")


def _verify(options: argparse.Namespace) -> int:
    kept = store()
    writable = {folder.path for folder in kept.folders if folder.writable}
    checked = damaged = 0
    for file in kept.files():
        checked += 1
        try:
            read(file.path, _format_of(file))
        except AutocastError as error:
            damaged += 1
            output().print(str(error), highlight=False, markup=False)
            if file.path.parents[2] in writable:
                file.path.unlink(missing_ok=True)
    output().print(f"{checked} files checked, {damaged} damaged", highlight=False)
    return 1 if damaged else 0


def _prune(options: argparse.Namespace) -> int:
    limit = None if options.size is None else options.size * _MIB
    output().print(f"{store().prune(limit)} files removed", highlight=False)
    return 0


def _clear(options: argparse.Namespace) -> int:
    if not options.yes and sys.stdin.isatty():
        files = list(Store(tuple(folder for folder in store().folders if folder.writable)).files())
        size = sum(file.size for file in files) / _MIB
        answer = input(f"Remove {len(files)} files ({size:.2f} MiB), with all that was measured? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            output().print("nothing removed", highlight=False)
            return 1
    output().print(f"{store().prune(0)} files removed", highlight=False)
    return 0


def _pack(options: argparse.Namespace) -> int:
    entries: dict[str, bytes] = {}
    for file in store().files():
        if options.target in str(_facts(file).get("target", "")):
            entries.setdefault(f"{file.kind}/{file.key[:2]}/{file.key}", file.path.read_bytes())
    if not entries:
        raise InputError(
            f"cache pack: there is nothing to pack{f' for targets with {options.target!r}' if options.target else ''}; "
            "expected a cache with files, which autocast cache list shows. Compile a model first"
        )
    write(options.file, PACK, entries, {"layout": LAYOUT})
    output().print(f"{len(entries)} files in {options.file}", highlight=False, soft_wrap=True)
    return 0


def _unpack(options: argparse.Namespace) -> int:
    container = read(options.file, PACK)
    if options.into is None:
        user = next((folder for folder in folders() if folder.writable), None)
        if user is None:
            raise InputError(
                "cache unpack: there is no folder of the user's to unpack into, as AUTOCAST_CACHE is "
                f"{settings.text('AUTOCAST_CACHE')}, or the folder cannot be used. Try --into FOLDER"
            )
        root = user.path
    else:
        options.into.mkdir(mode=0o755, parents=True, exist_ok=True)
        root = options.into / str(container.metadata["layout"])
    console = output()
    for name in track(container.names, "unpacking", console=console, disable=not console.is_terminal, transient=True):
        with whole_file(root / name) as file:
            file.write(container[name])
    console.print(f"{len(container.names)} files in {root}", highlight=False, soft_wrap=True)
    return 0
