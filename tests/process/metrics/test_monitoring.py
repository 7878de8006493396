"""The dashboard and the alert rules of monitoring/: they name metrics that a real run has, and are sound."""

import json
import re
import shutil
import subprocess

import gymnasium
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import rollway
from rollway.metrics import SegmentCollector
from rollway.transport import Forwarder
from rollway.weights import WeightSync
from tests import ROOT

MONITORING = ROOT / "monitoring"
EXAMPLE = {"x": np.zeros(4, np.float32)}


@pytest.fixture(scope="module")
def registry():
    """One segment of each kind, with participants in every role, and what a scrape of them gives."""
    name = f"test-monitoring-{np.random.default_rng().integers(2**63)}"
    both = [rollway.ShmTransport(name), rollway.TcpTransport()]
    with (
        rollway.Server(EXAMPLE, 2, both) as server,
        rollway.TcpClient("127.0.0.1", server.port, EXAMPLE) as remote,
        rollway.ShmClient(name, EXAMPLE) as local,
        Forwarder(f"{name}-node", EXAMPLE, "127.0.0.1", server.port),
        rollway.RecordServer({"x": "int32[*]"}, rollway.ShmTransport(f"{name}-records")) as records,
        WeightSync.from_state_dict(EXAMPLE, name=f"{name}-weights"),
        WeightSync.attach(f"{name}-weights") as reader,
        rollway.replay.TransitionBuffer(4, 1, 1, name=f"{name}-replay"),
        rollway.make_vec(lambda: gymnasium.make("CartPole-v1"), 1) as envs,
    ):
        for _ in range(2):
            local.send(EXAMPLE, version=1)
        server.submit(EXAMPLE)
        remote.send(EXAMPLE)
        remote.wait(30)
        records.submit({"x": [1, 2]}, version=1)
        records.publish(2)
        reader.read_weights()
        envs.reset()
        names = [segment.name for segment in rollway.segments()]
        with server.sample(timeout=30):
            metrics = list(SegmentCollector(*names, f"{name}-missing").collect())

    class Once:
        def collect(self):
            return metrics

    found = CollectorRegistry(auto_describe=False)
    found.register(Once())
    return found


@pytest.fixture(scope="module")
def exported(registry):
    """The names of all samples, and for each the names and values of its labels."""
    labels = {"up": {"job": {"rollway"}, "instance": set()}}
    for family in registry.collect():
        for sample in family.samples:
            known = labels.setdefault(sample.name, {"job": set(), "instance": set()})
            for label, value in sample.labels.items():
                known.setdefault(label, set()).add(value)
    return labels


def dashboard():
    return json.loads((MONITORING / "grafana.json").read_text())


def panels():
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions():
    """Every question that the dashboard asks Prometheus."""
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def queries():
    """Everything that has names of metrics in it."""
    variables = [variable.get("definition", "") for variable in dashboard()["templating"]["list"]]
    rules = re.findall(r"expr: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", (MONITORING / "alerts.yaml").read_text())
    series = re.findall(r"series: '(.*?)'", (MONITORING / "alerts_test.yaml").read_text())
    assert len(rules) > 10 and len(series) > 20
    return [*expressions(), *variables, *(one or other for one, other in rules), *series]


def test_every_metric_and_label_that_is_asked_for_is_exported(exported):
    asked = set()
    for query in queries():
        for metric, selector in re.findall(r"\b(rollway_\w+|up\b)(?:\{(.*?)\})?", query):
            asked.add(metric)
            assert metric in exported, f"{metric}, in {query}"
            for label, value in re.findall(r"(\w+)(?:=~|!=|!~|=)\"(.*?)\"", selector):
                assert label in exported[metric], f"{label} of {metric}, in {query}"
                if label in ("kind", "role", "activity", "state", "quantile"):
                    assert {*value.split("|")} <= exported[metric][label], f"{label}={value} of {metric}, in {query}"
    assert len(asked) > 30


def test_the_labels_that_queries_keep_are_exported(exported):
    known = set().union(*exported.values())
    for query in queries():
        for labels in re.findall(r"\b(?:by|on) \((.*?)\)", query):
            assert {*labels.split(", ")} <= known, query


def test_the_dashboard_is_sound():
    found = dashboard()
    assert found["title"] == "Rollway" and found["uid"] and found["schemaVersion"] >= 36
    ids = [panel["id"] for panel in found["panels"]]
    titles = [panel["title"] for panel in panels()]
    assert len(set(ids)) == len(ids) and len(set(titles)) == len(titles)
    taken = set()
    for panel in found["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert max(x for x, _ in cells) < 24 and not cells & taken, panel["title"]
        taken |= cells
    variables = {variable["name"] for variable in found["templating"]["list"]}
    for panel in panels():
        assert panel["description"] and panel["targets"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
            used = {*re.findall(r"\$(\w+)", target["expr"])} - {"__rate_interval"}
            assert used <= variables and "$instance" in target["expr"], target["expr"]


def test_every_alert_has_a_test_and_says_what_to_do():
    alerts = re.findall(r"alert: (\w+)", (MONITORING / "alerts.yaml").read_text())
    tests = (MONITORING / "alerts_test.yaml").read_text()
    fires = re.findall(r"alertname: (\w+)\n\s+exp_alerts", tests)
    assert set(alerts) == set(fires) and len(alerts) == len(set(alerts))
    assert (MONITORING / "alerts.yaml").read_text().count("description: ") == len(alerts)


@pytest.fixture
def promtool():
    """Runs promtool where it is, or where `make lint-monitoring` has put it."""
    path = shutil.which("promtool") or shutil.which("promtool", path=ROOT / "target/promtool")
    if path is None:
        pytest.skip("promtool is not here: `make lint-monitoring` downloads it")

    def run(*args, **options):
        return subprocess.run([path, *map(str, args)], capture_output=True, text=True, timeout=100, **options)

    return run


def test_promtool_accepts_the_rules_and_their_tests(promtool):
    for args in (("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")):
        done = promtool(*args, cwd=MONITORING)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_can_read_what_the_dashboard_asks(promtool, tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(expressions())
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_metrics(promtool, registry):
    done = promtool("check", "metrics", input=generate_latest(registry).decode())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
