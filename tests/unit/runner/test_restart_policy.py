"""RestartPolicy, and what counts against it."""

import pickle
import time

import pytest

import rollway
from rollway.runner.restart_policy import RestartCount
from rollway.vector_env import FaultPolicy


def allowed(policy, *times):
    """Which of the faults at these times are followed by a restart."""
    count = RestartCount(policy)
    with pytest.MonkeyPatch.context() as patch:
        answers = []
        for now in times:
            patch.setattr(time, "monotonic", lambda now=now: now)
            answers.append(count.allows_another())
        return answers


def test_faults_count_in_all_or_within_a_time():
    assert allowed(rollway.RestartPolicy.never(), 1) == [False]
    assert allowed(rollway.RestartPolicy.always(), *range(100)) == [True] * 100
    assert allowed(rollway.RestartPolicy.up_to(2), 0, 1, 1e9, 2e9) == [True, True, False, False]
    within = rollway.RestartPolicy.up_to(2, within_s=10)
    assert allowed(within, 0, 1, 10.5, 11.5, 12, 30) == [True, True, True, True, False, True]
    assert allowed(FaultPolicy(1, 5.0), 0, 4, 8, 14) == [True, False, False, True]


def test_a_fault_policy_is_a_restart_policy_with_other_defaults():
    policy = FaultPolicy()
    assert isinstance(policy, rollway.RestartPolicy)
    assert (policy.max_restarts, policy.within_s) == (3, 60.0) and FaultPolicy(3, within_s=60.0) == policy
    assert repr(policy) == "FaultPolicy(max_restarts=3, within_s=60.0)"
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy and type(again) is FaultPolicy


@pytest.mark.parametrize(
    "make",
    [
        lambda: FaultPolicy(0),
        lambda: FaultPolicy(within_s=0.0),
        lambda: rollway.RestartPolicy(-1),
        lambda: rollway.RestartPolicy(1, within_s=-1.0),
        lambda: rollway.RestartPolicy(1, within_s=float("nan")),
        lambda: rollway.RestartPolicy(1, backoff_s=2, backoff_cap_s=1),
    ],
)
def test_numbers_out_of_range_are_refused(make):
    with pytest.raises(rollway.InvalidArgument):
        make()
