"""A Ray cluster of two nodes on this machine, for all tests of this folder: it takes seconds to start."""

import contextlib
import os
from pathlib import Path

import pytest

NAMESPACE = "rollway-tests"
WAIT_S = 200.0
"""For what Ray starts or ends: on a busy machine it is slow."""


def pytest_collection_modifyitems(items):
    """Ray starts and ends processes slowly on a busy machine."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(600))


def add_node(cluster, **options):
    """Ray gives a node 30 s to start, and then raises a plain `Exception`: a busy machine may need longer."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return cluster.add_node(**options)
    return cluster.add_node(**options)


@pytest.fixture(scope="package")
def ray_cluster():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ["RAY_DEDUP_LOGS"] = "0"
    quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "_system_config": quick},
    )
    add_node(cluster, num_cpus=2, resources={"far": 100})
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def ray(ray_cluster):
    import ray

    return ray


@pytest.fixture
def address(ray_cluster):
    return ray_cluster.address
