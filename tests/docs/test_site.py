"""The documentation site: short pages, and a reference with every public name. `make docs` checks links and builds it."""

import importlib
import pkgutil
import re

import pytest

import rollway
from tests import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
REFERENCE = {
    page.stem: re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE) for page in (DOCS / "reference").glob("*.md")
}
NOT_A_LIBRARY = {"rollway.cli"}  # its commands are in docs/cli.md


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_no_page_has_more_than_1500_words(page):
    words = [word for word in page.read_text().split() if re.search(r"\w", word)]
    assert len(words) <= 1500


def public_names():
    """The names in `__all__` of the package, of its folders, and of the folders of integrations; and every error."""
    yield from (("rollway", name) for name in rollway.__all__ if not name.startswith("_"))
    for package in (rollway, importlib.import_module("rollway.integrations")):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if found.ispkg and found.name not in NOT_A_LIBRARY:
                for name in getattr(importlib.import_module(found.name), "__all__", ()):
                    yield found.name, name


def test_the_reference_has_every_public_name():
    shown = {name for names in REFERENCE.values() for name in names}
    errors = {name for name, value in vars(rollway.errors).items() if isinstance(value, type)}
    assert "rollway.errors" in shown  # with all that is in it
    public = [*public_names()]
    missing = [
        f"{module}.{name}"
        for module, name in public
        if name not in errors and not {f"{module}.{name}", f"rollway.{name}"} & shown
    ]
    assert len(public) > 150 and not missing, "docs/reference/ needs a line `::: NAME` for each"


def test_the_first_page_of_the_reference_names_what_each_page_has():
    index = (DOCS / "reference/index.md").read_text()
    for page, names in REFERENCE.items():
        if page not in ("index", "errors"):
            (row,) = re.findall(rf"^\| \[.*\]\({page}\.md\) \| (.*) \|$", index, re.MULTILINE)
            assert re.findall(r"`(\w+)`", row) == [name.rpartition(".")[2] for name in names], page
