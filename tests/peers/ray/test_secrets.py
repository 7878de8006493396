"""The token of a run is found by its workers, and in no log, name, title or table of Ray."""

import json
from pathlib import Path

import numpy as np

import rollway
from rollway.integrations.ray import connect, publish
from tests.peers.ray.conftest import WAIT_S


def test_the_token_is_in_no_log_and_no_table_of_ray(ray):
    def send():
        with connect("secret", route="forwarder").client() as client:
            client.send({"x": np.ones(1)})
            client.wait()

    weights = rollway.SharedWeightSync.from_state_dict({"w": np.ones(1)})
    with weights, rollway.Server({"x": np.zeros(1)}, 1, rollway.ShmTransport()) as server:
        with publish("secret", server, weights=weights) as publication:
            plane = connect("secret", route="forwarder")
            with plane.weights() as mine:
                mine.wait_for_version(1, timeout=WAIT_S)
            ray.get(ray.remote(num_cpus=0)(send).remote())
            tokens = {str(endpoint.token) for endpoint in server.endpoints}
            (token,) = tokens
            shown = [repr(one) for one in (publication, plane, plane._entry, server)]
            shown.append(json.dumps(ray._private.state.actors(), default=str))
            shown += [str(path.read_bytes()) for path in Path("/proc").glob("[0-9]*/cmdline")]
    log_folder = Path(ray._private.worker._global_node.get_session_dir_path())
    logs = [path for path in log_folder.rglob("*") if path.is_file()]
    assert len(token) > 40 and "rollway:secret" in "".join(shown) and len(logs) > 10
    assert not [text for text in shown if token in text]
    assert not [path for path in logs if token.encode() in path.read_bytes()]
