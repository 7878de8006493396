"""The workflows: they run what a contributor runs, `make` targets, and no more than they must."""

import re

import pytest
from ruamel.yaml import YAML

from tests import ROOT

WORKFLOWS = {path.stem: YAML(typ="safe").load(path) for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}
HOOKS = YAML(typ="safe").load(ROOT / ".pre-commit-config.yaml")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
ACTIONS = {  # of GitHub and of PyPI; none of others
    "actions/cache",
    "actions/checkout",
    "actions/download-artifact",
    "actions/setup-python",
    "actions/upload-artifact",
    "pypa/gh-action-pypi-publish",
}


def jobs():
    return [
        (f"{name}.{job}", content) for name, workflow in WORKFLOWS.items() for job, content in workflow["jobs"].items()
    ]


def steps():
    return [(name, step) for name, job in jobs() for step in job.get("steps", [])]


def test_every_workflow_that_we_need_is_here():
    assert set(WORKFLOWS) == {"check", "nightly", "publish", "wheels"}
    ran = {(name.partition(".")[0], step["run"]) for name, step in steps() if "run" in step}
    wanted = [("check", "make check"), ("check", "make deny"), ("nightly", "make test"), ("nightly", "make soak")]
    wanted += [("nightly", "make advisories"), ("wheels", "make wheel"), ("publish", "make check-release")]
    assert set(wanted) <= ran


def test_every_step_runs_one_make_target_that_exists():
    ran = [step["run"] for _, step in steps() if "run" in step]
    found = [re.fullmatch(r"make ([a-z-]+)( [A-Z_]+=\"[\w. ]*\")?", line) for line in ran]
    assert len(ran) > 6 and all(found)
    assert {match[1] for match in found} <= TARGETS


@pytest.mark.parametrize(("name", "step"), steps())
def test_every_action_is_one_that_we_trust(name, step):
    assert "uses" not in step or step["uses"].partition("@")[0] in ACTIONS
    if step.get("uses", "").startswith("actions/checkout"):
        assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_workflow_may_only_read(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert "secrets" not in (ROOT / f".github/workflows/{name}.yml").read_text()


def test_only_the_job_that_uploads_to_pypi_has_an_identity_and_runs_no_code_of_ours():
    more = {name: job for name, job in jobs() if "permissions" in job}
    assert {name: job["permissions"] for name, job in more.items()} == {"publish.publish": {"id-token": "write"}}
    job = more["publish.publish"]
    assert [step["uses"].partition("@")[0] for step in job["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    assert set(job["needs"]) == {"release", "wheels"} and job["environment"]["name"] == "pypi"


def test_every_job_ends():
    assert all("timeout-minutes" in job for _, job in jobs() if "steps" in job)


def test_wheels_are_built_and_tested_on_both_architectures():
    job = WORKFLOWS["wheels"]["jobs"]["wheel"]
    assert {row["runner"] for row in job["strategy"]["matrix"]["include"]} == {"ubuntu-24.04", "ubuntu-24.04-arm"}
    assert job["runs-on"] == "${{ matrix.runner }}"
    (tested,) = [step["run"] for step in job["steps"] if "test-wheel" in step.get("run", "")]
    (installed,) = [
        step["with"]["python-version"].split() for step in job["steps"] if "setup-python" in step.get("uses", "")
    ]
    assert re.search(r'PYTHONS="(.*)"', tested)[1].split() == sorted(installed)


def test_every_git_hook_calls_a_make_target_that_exists():
    (local,) = HOOKS["repos"]
    entries = [hook["entry"].split() for hook in local["hooks"]]
    assert local["repo"] == "local" and entries
    assert all(entry[0] == "make" and set(entry[1:]) <= TARGETS for entry in entries)
