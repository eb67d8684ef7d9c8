"""Paddle's interface: programs that are tested, cast by themselves, and saved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from autocast.compat import paddle
from autocast.compat.paddle.static import Executor, amp
from tests.compat.paddle_programs import FEED, Built, minimized, modes


@pytest.fixture
def built() -> Built:
    return Built()


def test_the_testing_program_reads_the_parameters_that_training_reaches(built):
    optimizer = minimized(built, use_pure_fp16=True)
    assert optimizer.amp_init(paddle.CPUPlace(), test_program=built.test) is None
    before = built.predict()
    for _ in range(3):
        built.step()
    reached = built.train.trainer.trained().params["fc.weight"].numpy()
    np.testing.assert_array_equal(built.test.parameters["fc.weight"].numpy(), reached.astype("float16"))
    assert (built.predict() != before).any()
    assert before.shape == (3, 5)


def test_under_lists_the_testing_program_is_transformed_only_if_asked(built):
    optimizer = minimized(built)
    optimizer.amp_init(test_program=built.test)
    assert built.test.model.report is None
    optimizer.amp_init(test_program=built.test, use_fp16_test=True)
    assert modes(built.test.model)["matmul"] == "float16"


def test_a_scope_gives_the_testing_program_values_of_its_own(built):
    optimizer = minimized(built, use_pure_fp16=True)
    scope = {"fc.weight": np.full((5, 8), 0.25, "float32"), "another": np.zeros(3)}
    optimizer.amp_init(scope=scope, test_program=built.test)
    built.step()
    assert (built.test.parameters["fc.weight"].numpy() == 0.25).all()


def test_parameters_are_cast_by_the_names_that_the_cast_of_the_model_answers():
    for chosen in (None, ["fc.bias"]):
        built = Built()
        names = amp.cast_model_to_fp16(built.test)
        assert names == {"fc.weight", "fc.bias"}
        amp.cast_parameters_to_fp16("cpu", built.test, to_fp16_var_names=chosen or names)
        low = {name for name, tensor in built.test.parameters.items() if tensor.dtype == "float16"}
        assert low == set(chosen or names)


def test_a_clone_for_testing_neither_trains_nor_drops():
    built = Built(dropout=0.5)
    minimized(built)
    clone = built.train.clone(for_test=True)
    first, second = (built.exe.run(clone, feed=FEED, fetch_list=[built.trained, built.loss]) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_allclose(first[0], built.predict(), rtol=1e-5)
    expected = nn.functional.cross_entropy(torch.from_numpy(first[0]), torch.from_numpy(FEED["label"][:, 0]))
    np.testing.assert_allclose(first[1], expected.item(), rtol=1e-5)
    built.step()
    assert (built.exe.run(clone, feed=FEED, fetch_list=[built.trained])[0] != first[0]).any()


@pytest.mark.parametrize("pure", [True, False])
def test_what_was_saved_predicts_the_same_to_the_last_bit(built, tmp_path, pure):
    optimizer = minimized(built, use_pure_fp16=pure)
    built.step()
    optimizer.amp_init(test_program=built.test)
    paddle.static.save_inference_model(
        tmp_path / "net", built.test.arguments, [built.logits], built.exe, program=built.test
    )
    program, feeds, fetches = paddle.static.load_inference_model(tmp_path / "net", built.exe)
    found = Executor().run(program, feed={feeds[0]: FEED["pixels"]}, fetch_list=fetches)[0]
    np.testing.assert_array_equal(found, built.predict())
    assert str(program.parameters["fc.weight"].dtype) == ("float16" if pure else "float32")


def test_what_is_saved_of_a_training_program_is_its_evaluation(tmp_path):
    built = Built(dropout=0.5)
    minimized(built)
    built.step()
    paddle.static.save_inference_model(tmp_path / "net", built.train.arguments[0], built.trained, built.exe)
    program, _, fetches = paddle.static.load_inference_model(tmp_path / "net", built.exe)
    found = built.exe.run(program, feed={"pixels": FEED["pixels"]}, fetch_list=fetches)[0]
    np.testing.assert_allclose(found, built.predict(), rtol=1e-5)
