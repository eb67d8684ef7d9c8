"""AutoCast on real models: the eight architectures, and BERT-base with 12 layers against the figures of others."""

from __future__ import annotations

import pytest
import torch
import tvm
from tvm import relax

import autocast
from autocast import Model, amp
from tests.architectures import ARCHITECTURES, imported


@pytest.mark.parametrize(
    ("name", "is_dynamic", "dtype"),
    [*((name, False, "float16") for name in ARCHITECTURES), *((n, True, "bfloat16") for n in ("t5", "resnet", "lstm"))],
)
def test_an_architecture_is_cast_optimally_and_stays_well_formed(name, is_dynamic, dtype):
    model = imported(name, is_dynamic)
    after = amp.autocast(model, dtype=dtype)
    relax.analysis.well_formed(after.mod)
    assert after.report.is_optimal
    assert after.report.casts > 0


@pytest.mark.parametrize("objective", ["bytes", "casts"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_never_costs_more_than_the_greedy_pass(name, objective):
    report = amp.autocast(imported(name), objective=objective).report
    assert report.cost <= report.greedy_cost
    if objective == "casts":
        assert report.casts <= report.greedy_casts


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_casting_an_architecture_twice_changes_nothing(name):
    once = amp.autocast(imported(name))
    twice = amp.autocast(once)
    tvm.ir.assert_structural_equal(twice.mod, once.mod)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_keeps_its_parameters_and_signature(name):
    model = imported(name)
    after = amp.autocast(model)
    assert after.params is model.params
    before, now = model.mod["main"], after.mod["main"]
    assert [p.name for p in now.params] == [p.name for p in before.params]
    tvm.ir.assert_structural_equal(now.ret_ty, before.ret_ty, map_free_vars=True)
    assert before.attrs["num_input"] == now.attrs["num_input"]


@pytest.fixture(scope="module")
def bert_base() -> Model:
    """BERT-base with 12 layers, a masked-LM head, batch 8 x 128."""
    from transformers import BertConfig, BertForMaskedLM
    from transformers.initialization import no_init_weights

    with no_init_weights():
        module = BertForMaskedLM(BertConfig(num_hidden_layers=12)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()  # whatever the memory held might not fit bfloat16
    return autocast.from_torch(module, (torch.zeros(8, 128, dtype=torch.int64),))


def test_bert_base_needs_fewer_casts_and_bytes_than_torch_autocast(bert_base):
    # Eager torch.autocast makes 197 casts there, which move 845 MiB.
    report = amp.autocast(bert_base).report
    assert report.is_optimal
    assert report.casts < 197
    assert report.cast_bytes < 845 * 2**20


def test_bert_base_needs_no_more_than_148_casts(bert_base):
    # TVM's ToMixedPrecision inserts 368.
    report = amp.autocast(bert_base, objective="casts").report
    assert report.is_optimal
    assert report.casts <= 148
    assert report.casts <= report.greedy_casts


def test_bert_base_is_cast_the_same_a_second_time(bert_base):
    once = amp.autocast(bert_base)
    tvm.ir.assert_structural_equal(amp.autocast(once).mod, once.mod)
