"""What can be said of a placement without a cluster."""

import pytest

from rollway.errors import ClusterUnavailable, InvalidArgument
from rollway.integrations.ray import RayPlacement
from rollway.runner import Runner


class Learner(Runner):
    def learn(self, max_iterations, save_interval=50, log_dir="logs"):
        raise NotImplementedError


@pytest.mark.parametrize(
    "wrong, says",
    [({"num_cpus": -1}, "num_cpus = -1"), ({"route": "direct"}, "route is 'direct'"), ({"num_gpus": -0.5}, "num_gpus")],
)
def test_what_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(InvalidArgument, match=says):
        RayPlacement(**wrong)


def test_it_says_what_each_collector_takes():
    assert RayPlacement(num_cpus=0.5, resources={"arm": 1}).needs() == {"CPU": 0.5, "arm": 1}
    assert RayPlacement(num_cpus=0).needs() == {}


def test_a_runner_needs_an_initialised_ray():
    ray = pytest.importorskip("ray")
    assert not ray.is_initialized()
    with pytest.raises(ClusterUnavailable, match=r"call ray\.init\(\)"):
        Learner(placement=RayPlacement())
