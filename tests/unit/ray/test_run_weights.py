"""The weights of a run, without Ray: a learner comes back with others. tests/peers/ray has the way through a node."""

import numpy as np
import pytest

import rollway
from rollway.integrations.ray.run_weights import RunWeights
from rollway.weights import WeightSync
from tests.support.processes import until


class Run:
    """Says where the weights are now."""

    name = "run1"
    at: str

    def weights_name(self, timeout_s=None):
        return self.at


def test_weights_of_another_shape_are_named_until_a_learner_has_the_old_one_again(name):
    run = Run()

    def publish(number, shape):
        run.at = f"{name}-{number}"
        return WeightSync.from_state_dict({"w": np.full(shape, float(number))}, name=run.at)

    with publish(1, 3):
        mine = RunWeights(run, 5.0)
        assert mine.read_weights()["w"].tolist() == [1.0] * 3
    with mine:
        with publish(2, 5):
            other = r"leaf 'w' is float64\[3\] here but float64\[5\] at the learner .*'run1'.* call plane\.weights\(\) again"
            with pytest.raises(rollway.SchemaMismatch, match=other):
                until(lambda: not mine.read_weights())
            with pytest.raises(rollway.SchemaMismatch, match=other):
                mine.wait_for_version(1, 5.0)
            with RunWeights(run, 5.0) as again:
                assert again.read_weights()["w"].shape == (5,)

        def reads_those_of_the_third():
            try:
                return mine.read_weights()["w"].tolist() == [3.0] * 3
            except rollway.SchemaMismatch:
                return False

        with publish(3, 3):
            until(reads_those_of_the_third)
