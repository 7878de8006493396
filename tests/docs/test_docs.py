"""What the documents say is executed: docstrings, the README, the examples; and their links lead somewhere."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollway

ROOT = Path(__file__).parents[2]
MODULES = [
    module.name
    for module in pkgutil.walk_packages(rollway.__path__, "rollway.")
    if not module.name.endswith(("_core", "__main__"))
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_run(module):
    failed, _ = doctest.testmod(importlib.import_module(module))
    assert failed == 0


def test_there_are_examples_in_docstrings():
    finder = doctest.DocTestFinder()
    with_examples = {
        test.name for module in MODULES for test in finder.find(importlib.import_module(module)) if test.examples
    }
    assert {"rollway.server.Server", "rollway.shm_client.ShmClient"} <= with_examples


def run(path):
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs(example):
    result = run(example)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_the_readme_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        script = tmp_path / f"readme{number}.py"
        script.write_text(block)
        result = run(script)
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines() == ["(32, 4) 32.0"] * 4


DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benches").glob("*.md")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_public_name_is_exported_and_documented():
    for name in rollway.__all__:
        value = getattr(rollway, name)
        assert name.startswith("__") or value.__doc__, name


def test_the_error_tree_in_the_docs_is_the_real_one():
    from rollway import errors

    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__))
    real = {c.__name__ for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RollwayError)}
    assert drawn == real - {"RollwayError"} and real <= set(rollway.__all__)
