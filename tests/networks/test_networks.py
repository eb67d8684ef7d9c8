"""A few random networks of each kind: `python -m tests.networks` runs as many as you like."""

from __future__ import annotations

import pytest

from tests.networks.check import SEARCH, WAYS, check
from tests.networks.generate import Layer, Network, generate
from tests.programs.outcome import Outcome

pytestmark = pytest.mark.filterwarnings(
    "ignore::autocast.errors.SlowDtypeWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf",  # torch.compile reads it
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(2))
def test_what_comes_of_a_network_is_what_comes_of_it_by_torch(seed: int, way: str) -> None:
    network = generate(seed, length=5)
    outcome = check(network, way)
    assert not outcome.is_bad, f"{outcome.why}\n{network.text}"


def test_a_network_that_fails_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(
        (
            Layer("t0", "image", "first(self.m_t0(image))", "nn.Conv2d(4, 4, 3)"),
            Layer("t1", "t0", "first(self.m_t1(t0))", "nn.Tanh()"),
            Layer("t2", "t1", "t1.mean((2, 3))"),
        ),
        ("t0", "t2"),
    )
    monkeypatch.setattr(SEARCH, "_check", lambda part, way: Outcome("wrong" if "mean" in part.text else "right"))
    small = SEARCH.smallest(network, "imported", Outcome("wrong"))
    assert small == Network((Layer("t2", "image", "image.mean((2, 3))"),), ("t2",))


def test_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network((Layer("t0", "image", "first(self.m_t0(image))", "nn.Conv2d(4, 4, 3)"),), ("t0",))
    monkeypatch.setattr("tests.networks.check._FLOOR", -1.0)
    assert [check(network, way).kind for way in ("imported", "to torch", "trained")] == ["wrong"] * 3
