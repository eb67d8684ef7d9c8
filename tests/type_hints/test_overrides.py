"""`CustomTypeHint`: scope, nesting, threads, tasks, and its errors."""

from __future__ import annotations

import asyncio
import threading

import pytest

import type_hints
from type_hints import CastingRuleError, CustomTypeHint, UnknownOperatorError, follow, full, get_rule, low

SOFTMAX = "relax.nn.softmax"
DEFAULT = get_rule(SOFTMAX)


@pytest.mark.parametrize(
    "key",
    ["relax.nn.softmax", "nn.softmax", "softmax", "autocast.op.softmax", "raf.op.softmax", "autocast.op.nn.softmax"],
)
def test_every_spelling_of_an_operator_overrides_it(key):
    custom = follow(1)
    with CustomTypeHint({key: custom}):
        assert get_rule(SOFTMAX) is custom
    assert get_rule(SOFTMAX) is DEFAULT


def test_the_innermost_block_wins_operator_by_operator():
    outer, inner = follow(1), low(1)
    with CustomTypeHint({"softmax": outer, "exp": outer}):
        with CustomTypeHint({"softmax": inner}):
            assert get_rule(SOFTMAX) is inner
            assert get_rule("relax.exp") is outer
        assert get_rule(SOFTMAX) is outer
    assert get_rule(SOFTMAX) is DEFAULT


def test_an_exception_restores_the_rules():
    with pytest.raises(ZeroDivisionError), CustomTypeHint({"softmax": follow(1)}):
        raise ZeroDivisionError
    assert get_rule(SOFTMAX) is DEFAULT


def test_one_block_may_be_entered_again_while_it_is_active():
    custom = follow(1)
    block = CustomTypeHint({"softmax": custom})
    with block:
        with block:
            assert get_rule(SOFTMAX) is custom
        assert get_rule(SOFTMAX) is custom
    assert get_rule(SOFTMAX) is DEFAULT


def test_a_suspended_generator_may_leave_its_block_after_a_later_one_was_entered():
    first, second = follow(1), low(1)

    def generator():
        with CustomTypeHint({"exp": first}):
            yield

    suspended = generator()
    next(suspended)
    with CustomTypeHint({"softmax": second}):
        next(suspended, None)
        assert get_rule(SOFTMAX) is second
        assert get_rule("relax.exp") is not first
    assert get_rule(SOFTMAX) is DEFAULT


def test_threads_do_not_see_each_other():
    barrier = threading.Barrier(4)
    shared = CustomTypeHint({"exp": follow(1)})
    seen: dict[int, tuple] = {}

    def work(number: int) -> None:
        before = get_rule(SOFTMAX)
        custom = follow(1)
        with shared, CustomTypeHint({"softmax": custom}):
            barrier.wait(timeout=10)
            inside = get_rule(SOFTMAX) is custom
            barrier.wait(timeout=10)
        seen[number] = (before is DEFAULT, inside, get_rule(SOFTMAX) is DEFAULT)

    with CustomTypeHint({"softmax": low(1)}):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == dict.fromkeys(range(4), (True, True, True))


def test_asyncio_tasks_do_not_see_each_other_but_inherit_from_their_creator():
    outer = follow(1)

    async def task(number: int) -> bool:
        inherited = get_rule("relax.exp") is outer
        custom = follow(1)
        with CustomTypeHint({"softmax": custom}):
            for _ in range(3):
                await asyncio.sleep(0)
                assert get_rule(SOFTMAX) is custom, number
        return inherited and get_rule(SOFTMAX) is DEFAULT

    async def main() -> list[bool]:
        with CustomTypeHint({"exp": outer}):
            return await asyncio.gather(*(task(number) for number in range(5)))

    assert asyncio.run(main()) == [True] * 5


def test_a_decorated_function_runs_inside_the_block():
    custom = follow(1)

    @CustomTypeHint({"softmax": custom})
    def compile_it(argument: int) -> bool:
        """Compile."""
        return argument == 1 and get_rule(SOFTMAX) is custom

    assert compile_it(1) and compile_it.__doc__ == "Compile."
    assert get_rule(SOFTMAX) is DEFAULT


def test_a_decorated_coroutine_runs_inside_the_block():
    custom = follow(1)

    @CustomTypeHint({"softmax": custom})
    async def compile_it() -> bool:
        await asyncio.sleep(0)
        return get_rule(SOFTMAX) is custom

    assert asyncio.run(compile_it())


def test_a_generator_cannot_be_decorated():
    def generator():
        yield

    with pytest.raises(CastingRuleError, match="cannot decorate the generator generator"):
        CustomTypeHint({"softmax": follow(1)})(generator)


def test_an_unknown_operator_is_an_error_with_the_nearest_names():
    with pytest.raises(UnknownOperatorError, match=r"'sofmax' is not known; nearest: relax\.nn\.softmax") as error:
        CustomTypeHint({"sofmax": follow(1)})
    assert isinstance(error.value, KeyError) and isinstance(error.value, CastingRuleError)
    assert "\\n" not in str(error.value) and not str(error.value).startswith(('"', "'"))


def test_a_rule_that_is_not_callable_is_an_error():
    with pytest.raises(CastingRuleError, match=r"the rule of 'softmax' is 'float32', expected a callable"):
        CustomTypeHint({"softmax": "float32"})


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"matmul": low(3)}, r"low\(3\) names the arguments 0, 1, 2 .* takes 2 tensors \(0: x1, 1: x2\); try low\(2\)"),
        ({"reshape": follow((0, 1))}, r"relax.reshape takes 1 tensor \(0: x\); try follow\(1\)"),
        ({"bias_add": full(3)}, r"relax.bias_add takes 2 tensors \(0: data, 1: bias\); try full\(2\)"),
        ({"attention_bias": low(3, keep=4)}, r"names the arguments 0, 1, 2, 4"),
        ({"where": follow((3,))}, r"takes 3 tensors .*; try follow\(3\)"),
        ({"zeros": low(1)}, r"relax.zeros takes no tensor; try untouched\(\)"),
    ],
)
def test_a_rule_that_names_arguments_which_the_operator_lacks_is_an_error(rules, message):
    with pytest.raises(CastingRuleError, match=message):
        CustomTypeHint(rules)


def test_two_spellings_of_one_operator_are_an_error():
    with pytest.raises(CastingRuleError, match=r"relax\.nn\.softmax is named twice, the second time as 'nn\.softmax'"):
        CustomTypeHint({"softmax": follow(1), "nn.softmax": full(1)})


def test_something_else_than_a_mapping_is_an_error():
    with pytest.raises(CastingRuleError, match="got list, expected a mapping"):
        CustomTypeHint([("softmax", follow(1))])


def test_the_callers_dictionary_may_change_afterwards():
    rules = {"softmax": follow(1)}
    block = CustomTypeHint(rules)
    rules.clear()
    with block:
        assert get_rule(SOFTMAX) is not DEFAULT


def test_an_active_override_shows_in_the_listing_with_its_name():
    def never_cast_softmax(args, ret_type, amp_dtype):
        """Keep the scores as they are."""
        return [type_hints.PrimType("float32")]

    with CustomTypeHint({"softmax": never_cast_softmax}):
        row = next(row for row in type_hints.list_rules() if row.name == SOFTMAX)
    assert (row.label, row.family) == ("custom", "CustomTypeHint")
    assert row.why == "CustomTypeHint: never_cast_softmax (Keep the scores as they are.)"
