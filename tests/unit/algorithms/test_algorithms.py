"""The package of algorithms: what it offers, and what it says when something is missing or makes no sense."""

import importlib.util

import pytest

import rollway
import rollway.algorithms


@pytest.mark.parametrize("name", rollway.algorithms.__all__)
def test_every_name_is_there_and_documented(name, torch):
    assert getattr(rollway.algorithms, name).__doc__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="DqnRunner"):
        _ = rollway.algorithms.DqnRunner


@pytest.mark.parametrize("package", ["torch", "gymnasium"])
def test_a_missing_package_is_an_error_with_the_command_that_helps(package, monkeypatch, torch):
    real = importlib.util.find_spec
    monkeypatch.setattr("rollway.errors.find_spec", lambda name: None if name == package else real(name))
    with pytest.raises(rollway.errors.MissingExtra, match=rf"needs {package}: pip install '\.\[train\]' in the clone"):
        _ = rollway.algorithms.AppoRunner


def test_environments_must_be_shared_equally(torch):
    with pytest.raises(rollway.InvalidArgument, match="3 collectors"):
        rollway.algorithms.AppoRunner("CartPole-v1", num_envs=16, num_collectors=3)
