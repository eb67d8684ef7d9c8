"""Weights lie in huge pages where the system gives some."""

import mmap

import numpy as np
import pytest
import tvm

from autocast.runtime.huge_pages import HUGE_PAGE, NEIGHBOURS, spans, use_huge_pages

H = HUGE_PAGE


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(0, H)], [(0, H)]),
        ([(1, H)], []),
        ([(H - 1, 3 * H + 1)], [(H, 3 * H)]),
        ([(0, 3 * H // 2), (3 * H // 2 + 64, 2 * H)], [(0, 2 * H)]),
        ([(3 * H // 2, 2 * H), (0, 3 * H // 2)], [(0, 2 * H)]),
        ([(0, 3 * H // 2), (3 * H // 2 + NEIGHBOURS + 1, 3 * H)], [(0, H), (2 * H, 3 * H)]),
        ([(0, 4 * H), (H, 2 * H)], [(0, 4 * H)]),
    ],
)
def test_spans_are_the_whole_huge_pages_of_neighbouring_ranges(ranges, expected):
    assert spans(ranges) == expected


def test_tensors_keep_their_place_and_their_values():
    values = np.random.default_rng(0).standard_normal((3, 2**20), "float32")
    tensors = [tvm.runtime.tensor(row) for row in values]
    places = [tensor.data_ptr() for tensor in tensors]
    moved = use_huge_pages(tensors)
    assert moved % HUGE_PAGE == 0
    assert moved <= values.nbytes + 2 * NEIGHBOURS
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert all((tensor.numpy() == row).all() for tensor, row in zip(tensors, values, strict=True))


def test_memory_of_a_file_is_left_as_it_is(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(4 * HUGE_PAGE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        tensor = tvm.runtime.from_dlpack(np.frombuffer(mapped, "float32"))
        use_huge_pages([tensor])
        assert not tensor.numpy().any()
        del tensor
