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


def test_seconds_of_a_call_include_what_the_device_has_queued():
    order = []
    seconds = seconds_of(
        lambda: (order.append("call"), time.sleep(0.02)), lambda: order.append("synchronize")
    )
    assert order == ["synchronize", "call", "synchronize"]
    assert 0.02 <= seconds < 2
