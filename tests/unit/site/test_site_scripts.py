"""What `make docs` adds to mkdocs and mkdocstrings: scripts/docs. Where those are not installed, nothing runs."""

import importlib.util
from types import SimpleNamespace

import pytest

from tests import ROOT


def script(name, package):
    pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(path):
    return SimpleNamespace(file=SimpleNamespace(src_uri=path))


@pytest.mark.parametrize(
    ("path", "link", "shown"),
    [
        ("net.md", "../examples/remote.py", "https://github.com/rollway/rollway/blob/main/examples/remote.py"),
        ("bench/index.md", "../../benches", "https://github.com/rollway/rollway/tree/main/benches"),
        ("bench/index.md", "../training.md#measured", "../training.md#measured"),
        ("net.md", "../examples/no_such_file.py", "../examples/no_such_file.py"),
    ],
)
def test_a_link_that_leaves_the_docs_goes_to_the_repository(path, link, shown):
    markdown = script("hooks", "mkdocs").on_page_markdown(f"see [it]({link}).", page=page(path))
    assert markdown == f"see [it]({shown})."


@pytest.mark.parametrize("loads", ['<script src="https://a.example/x.js">', '<link rel="x" href="//a.example/x.css">'])
def test_a_page_that_loads_something_from_the_internet_is_refused(loads):
    hooks = script("hooks", "mkdocs")
    with pytest.raises(Exception, match=r"net\.md loads something from the internet: .*a\.example"):
        hooks.on_post_page(f"<html>{loads}</html>", page=page("net.md"))


@pytest.mark.parametrize(
    "says",
    [
        '<script src="assets/x.js">',
        '<a href="https://a.example/">',
        '<link rel="canonical" href="http://a.example/net.html">',
    ],
)
def test_a_page_may_link_to_the_internet_and_name_its_own_address(says):
    assert script("hooks", "mkdocs").on_post_page(says, page=page("net.md")) == says


def test_a_page_with_too_many_words_is_a_warning_which_ends_the_build(caplog):
    hooks = script("hooks", "mkdocs")
    hooks.on_page_content("<p>one <b>w</b>ord &amp; more</p>" * 500, page=page("net.md"))
    assert not caplog.records
    hooks.on_page_content("<p>one word more</p> " * 501, page=page("net.md"))
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "net.md has 1503 words" in caplog.text


def test_examples_become_blocks_of_code_and_public_names_become_links():
    docstrings = script("docstrings", "griffe")
    text = docstrings.fenced("Makes a `Server`, not a `thing`.\n\n>>> Server\n1\n\nAnd `Tls`.")
    text = docstrings.linked(text, {"Server": "rollway.Server", "Tls": "rollway.Tls"})
    assert text == (
        "Makes a [`Server`][rollway.Server], not a `thing`.\n\n"
        "```pycon\n>>> Server\n1\n```\n\nAnd [`Tls`][rollway.Tls]."
    )


def test_native_classes_have_signatures_and_docstrings_in_the_reference():
    docstrings = script("docstrings", "griffe")
    import griffe

    extensions = griffe.load_extensions(docstrings.Docstrings)
    package = griffe.load("rollway", search_paths=[ROOT / "python"], extensions=extensions)
    assert [parameter.name for parameter in package["ring.shm_client.ShmClient.__init__"].parameters][1:3] == [
        "name",
        "example",
    ]
    assert [parameter.name for parameter in package["records.key.GroupKey.__init__"].parameters][1:] == [
        "run",
        "phase",
        "step",
        "instance_id",
    ]
    assert package["_core.Producer.send"].docstring.value.startswith("Copies one sample into the ring.")
    assert package["_core.TcpSender.send"].docstring.value.startswith("Takes one sample.")
