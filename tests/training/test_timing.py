import time

from llama_ablate.training.timing import interleave, seconds_of


def test_cases_take_turns_and_warm_up_rounds_are_dropped():
    order = []

    def case(name):
        return lambda: order.append(name) or len(order)

    progress = []
    cases = {name: case(name) for name in "abc"}
    results, errors = interleave(cases, 2, warm_up=1, progress=progress.append)
    assert "".join(order) == "abc" * 3
    assert results == {"a": [4, 7], "b": [5, 8], "c": [6, 9]}
    assert errors == {}
    assert progress == [*range(1, 10)]


def test_a_case_that_raises_has_an_error_and_no_results_and_the_others_go_on():
    calls = []

    def fails_in_the_second_round():
        calls.append("a")
        if len(calls) == 2:
            raise ZeroDivisionError("no")
        return 1

    progress = []
    cases = {"a": fails_in_the_second_round, "b": lambda: 2}
    results, errors = interleave(cases, 3, progress=progress.append)
    assert results == {"b": [2, 2, 2]}
    assert isinstance(errors.pop("a"), ZeroDivisionError)
    assert (errors, len(calls), progress[-1]) == ({}, 2, 6)


def test_seconds_of_a_call_include_what_the_device_has_queued():
    order = []
    seconds = seconds_of(
        lambda: (order.append("call"), time.sleep(0.02)), lambda: order.append("synchronize")
    )
    assert order == ["synchronize", "call", "synchronize"]
    assert 0.02 <= seconds < 2
