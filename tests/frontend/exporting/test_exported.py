"""Programs that torch.export made already."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from autocast import from_torch, wrap
from autocast.errors import ImportModelError


def test_an_exported_program_is_imported_with_its_examples_and_dynamic_dimensions() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval()
    dim = torch.export.Dim("batch", min=1, max=9)
    program = torch.export.export(net, (torch.ones(2, 3),), dynamic_shapes=({0: dim},))
    x = torch.randn(5, 3)
    model = from_torch(program)
    torch.testing.assert_close(model(x), net(x))
    assert list(model.params) == ["0.weight", "0.bias"]


def test_an_exported_program_has_its_examples_itself() -> None:
    program = torch.export.export(nn.ReLU(), (torch.ones(2),))
    with pytest.raises(ImportModelError, match="ExportedProgram with examples or dynamic=, expected it alone"):
        from_torch(program, (torch.ones(2),))


class Fixed(nn.Module):
    """One that works for one size alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 3) * 2


def test_a_refusal_that_only_a_dynamic_dimension_causes_says_that_it_works_without() -> None:
    with pytest.raises(ImportModelError, match=r"Without dynamic=, for inputs of these sizes alone, torch exports it"):
        from_torch(Fixed(), (torch.ones(2, 3),), dynamic={"n": ("x", 0)})


class Thins(nn.Module):
    """One that makes a sparse tensor, in the middle of its computation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu().to_sparse().to_dense()


class Counts(nn.Module):
    """One that decides by what it finds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = int(x.max())
        return x + 1 if count > 3 else x


def test_a_refused_import_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    cases = ((Thins(), torch.ones(2, 3)), (nn.Linear(3, 2), torch.ones(2, 4)), (Counts(), torch.arange(5)))
    for module, example in cases:
        with pytest.raises(ImportModelError):
            from_torch(module, (example,))
    assert capfd.readouterr() == ("", "")


class Remembers(nn.Module):
    """One that keeps what it made for a size, and is of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.places is None:
            self.places = torch.arange(x.shape[1], dtype=x.dtype)
            self.size = int(x.shape[1])
        return (x + self.places).reshape(2, 3)


def test_an_import_leaves_the_module_as_it_was() -> None:
    module, x = Remembers(), torch.ones(2, 3)
    with pytest.raises(ImportModelError, match="cannot export Remembers"):
        from_torch(module, (x,), dynamic={"n": ("x", 1)})
    with pytest.raises(ImportModelError, match="Remembers makes the buffers places in its first call"):
        from_torch(module, (x,))
    assert module.places is None and not hasattr(module, "size")
    expected = module(x)
    torch.testing.assert_close(from_torch(module, (x,))(x), expected, rtol=0, atol=0)
    torch.testing.assert_close(wrap(Remembers())(x), expected, rtol=0, atol=0)


class Tabulates(nn.Module):
    """One that keeps tables for sizes, which no state has: one that it assigns, one that it registers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", None, persistent=False)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        if self.places is None or self.places.shape[0] < n:
            self.places = torch.arange(n, dtype=x.dtype)
            self.register_buffer("signs", 1 - 2 * (torch.arange(n) % 2), persistent=False)
        return (x + self.places[:n]) * self.signs[:n] * self.scale


def test_tables_that_the_first_call_makes() -> None:
    module = Tabulates().eval()
    before = dict(module._buffers), dict(module.__dict__), set(module._non_persistent_buffers_set)
    model = from_torch(module, (torch.ones(2, 3),), dynamic={"n": ("x", 1)})
    assert (module._buffers, module.__dict__, module._non_persistent_buffers_set) == before
    assert list(model.params) == ["scale"]
    for n in (3, 7):
        x = torch.randn(2, n)
        torch.testing.assert_close(model(x), Tabulates()(x), rtol=0, atol=0)


class Watches(nn.Module):
    """Keeps results of a layer: by a hook that its first call makes, in a dictionary, in an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen, self.tables, self.memory = nn.Linear(3, 3), [], {}, SimpleNamespace(last=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "watched"):
            self.layer.register_forward_hook(lambda layer, args, output: self.seen.append(output))
            self.watched = True
        self.memory.last = self.layer(x)
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.arange(3) * self.seen[-1]
        return self.tables[len(x)] + len(self.seen)


def test_hooks_and_what_objects_keep_are_as_they_were() -> None:
    module, x = Watches(), torch.ones(2, 3)
    expected = copy.deepcopy(module)(x)
    torch.testing.assert_close(from_torch(module, (x,))(x), expected)
    assert not (module.seen or module.tables or module.layer._forward_hooks or module.memory.last)
    torch.testing.assert_close(module(x), expected)


def test_a_dimension_of_size_0_is_imported_with_the_bounds_that_an_error_proposes() -> None:
    net = nn.Linear(3, 2).eval()
    model = from_torch(net, (torch.ones(2, 3),), dynamic={"n": ("input", 0, 0, 8)})
    assert tuple(model(torch.ones(0, 3)).shape) == (0, 2)


class Weighs(nn.Module):
    """Reads an input, another one, and a parameter of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x + y * self.weight


def test_examples_that_are_one_tensor_are_inputs_of_their_own() -> None:
    net, (x, y) = Weighs(), torch.randn(2, 2, 3)
    for examples in ((x, x), (x, net.weight)):
        assert torch.equal(from_torch(net, examples)(x, y), net(x, y))


def test_an_exported_program_stays_as_it_was() -> None:
    """An import erases dropout that drops nothing, in a program of its own."""
    program = torch.export.export(nn.Sequential(nn.Linear(4, 3), nn.Dropout()).eval(), (torch.zeros(2, 4),))
    before = str(program.graph)
    from_torch(program)
    assert str(program.graph) == before
