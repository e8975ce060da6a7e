"""The wall time of stages that run side by side, on schedules worked out by hand."""

import pytest

from tasks.planning.schedule import Job, Room, makespan, schedule, start_times

# a 2 s, then b 3 s and c 4 s, which both need a; d 1 s needs both.
DIAMOND = [Job("a", 2), Job("b", 3, ("a",)), Job("c", 4, ("a",)), Job("d", 1, ("b", "c"))]


def span(jobs: list[Job], workers: int) -> float:
    return makespan(schedule(jobs, Room(workers)))


def test_one_worker_takes_the_sum() -> None:
    assert span(DIAMOND, 1) == 10
    assert start_times(DIAMOND, Room(1)) == {"a": 0, "b": 2, "c": 5, "d": 9}


def test_two_workers_overlap_what_the_inputs_allow() -> None:
    assert span(DIAMOND, 2) == 7  # a, then the longer of b and c, then d
    assert start_times(DIAMOND, Room(2)) == {"a": 0, "b": 2, "c": 2, "d": 6}


def test_more_workers_than_stages_change_nothing() -> None:
    assert span(DIAMOND, 9) == 7


def test_a_free_worker_takes_the_first_ready_stage_in_running_order() -> None:
    jobs = [Job("long", 5), Job("short", 1), Job("next", 1), Job("after", 1, ("short",))]
    assert start_times(jobs, Room(2)) == {"long": 0, "short": 0, "next": 1, "after": 2}


def test_stages_that_are_done_hold_nothing_up() -> None:
    assert span([Job("b", 3, ("done before",))], 1) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_no_stages_take_no_time_and_unknown_ones_count_as_zero(workers: int) -> None:
    assert span([], workers) == 0
    assert span([Job("a", 0.0), Job("b", 2, ("a",))], workers) == 2
