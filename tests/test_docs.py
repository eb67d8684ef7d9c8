"""The documentation is right: its Python blocks run, in order, and its links lead to files and headings that exist."""

from __future__ import annotations

import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
#: Packages of extras that a page's blocks need; `make test` installs them.
NEEDED = {"onnx.md": ("onnx", "onnxscript", "onnxruntime")}
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)(?: \"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: what stands after the fence, its text, and the line (from 1) on which the text begins."""

    info: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(found["info"].strip(), found["text"], page.count("\n", 0, found.start("text")) + 1)
        for found in FENCE.finditer(page)
    ]


def anchor(title: str) -> str:
    """The name under which a heading is linked to, as GitHub derives it."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def broken_links(path: Path, page: str) -> list[str]:
    """Every link of a page to a file, folder or heading of the repository that does not exist."""
    prose = FENCE.sub("", page)
    broken = []
    for target in (found["target"] for found in LINK.finditer(prose)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            broken.append(f"{target}: no such file")
        elif heading and heading not in {anchor(h["title"]) for h in HEADING.finditer(FENCE.sub("", file.read_text()))}:
            broken.append(f"{target}: no such heading")
    return broken


def run(page: str, directory: Path) -> int:
    """Run a page's Python blocks as one module; return how many there are. One marked `no-run` only has to compile.

    They become a file in `directory`, as TVMScript reads its functions' source; each keeps its lines in the page.
    """
    lines: list[str] = []
    ran = 0
    for block in blocks(page):
        language, *words = block.info.split()[:2] or [""]
        if language != "python":
            continue
        if words == ["no-run"]:
            compile("\n" * (block.line - 1) + block.text, "page", "exec")
            continue
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
        ran += 1
    file = directory / "page.py"
    file.write_text("\n".join(lines))
    runpy.run_path(str(file), run_name="page")
    return ran


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_the_python_blocks_of_every_page_run(path, monkeypatch, tmp_path):
    for package in NEEDED.get(path.name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    run(path.read_text(), tmp_path)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_the_links_of_every_page_lead_somewhere(path):
    assert broken_links(path, path.read_text()) == []


def test_the_readme_has_an_example_that_runs():
    readme = (REPOSITORY / "README.md").read_text()
    assert any(block.info == "python" for block in blocks(readme))


def test_a_block_that_fails_is_reported_with_its_line(tmp_path):
    page = "# Title\n\n```python\nx = 1\n```\n\n```python\nraise ValueError(x)\n```\n"
    with pytest.raises(ValueError, match="1") as error:
        run(page, tmp_path)
    assert error.traceback[-1].lineno == 7  # counted from 0: the eighth line of the page


def test_a_block_marked_no_run_is_compiled_and_not_run(tmp_path):
    assert run("```python no-run\nraise ValueError\n```\n```python\nx = 1\n```\n", tmp_path) == 1
    with pytest.raises(SyntaxError):
        run("```python no-run\nx = = 1\n```\n", tmp_path)


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A title, `code`\n[a](page.md#a-title-code) [b](missing.md) [c](#nothing) [d](https://example.org)\n"
    )
    assert broken_links(page, page.read_text()) == ["missing.md: no such file", "#nothing: no such heading"]
