"""Versions: what the package, the changelog, the page on versions and the sources say of them is the same."""

import re
import subprocess
import sys
import tomllib

import pytest

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
SECTION = re.compile(r"^## (.*)$", re.MULTILINE)


def number(constant, path):
    return re.search(rf"pub const {constant}: u\d+ = (\d+);", (ROOT / "crates/core/src" / path).read_text())[1]


def rows(page, head):
    text = (ROOT / page).read_text()
    table = text[text.index(head) :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]


def test_the_changelog_begins_with_what_is_not_released_and_has_the_version():
    first, *released = SECTION.findall((ROOT / "CHANGELOG.md").read_text())
    assert first == "Unreleased"
    assert VERSION in [title.split()[0] for title in released]


def test_the_page_on_versions_has_the_layout_and_protocol_of_each_version():
    table = rows("docs/versions.md", "| Rollway |")
    assert table[0] == [
        "unreleased",
        number("LAYOUT_VERSION", "segment/header.rs"),
        number("PROTOCOL", "net/wire/frame.rs"),
    ]
    released = [title.split()[0] for title in SECTION.findall((ROOT / "CHANGELOG.md").read_text())[1:]]
    assert [row[0] for row in table[1:]] == released


def test_the_metadata_say_who_it_is_for():
    classifiers = PROJECT["classifiers"]
    assert "License :: OSI Approved :: Apache Software License" not in classifiers  # PyPI refuses it beside `license`
    assert {f"Programming Language :: Python :: {v}" for v in ("3.11", "3.12", "3.13")} <= set(classifiers)
    assert set(PROJECT["urls"]) == {"Documentation", "Source", "Issues", "Changelog"}
    assert all((ROOT / file).exists() for file in PROJECT["license-files"])


def test_every_extra_that_a_message_names_exists():
    named = set()
    for path in [*(ROOT / "python").rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text()
        named.update(re.findall(r'need_packages\("[^"]*", "(\w+)"', text))
        named.update(extra for extras in re.findall(r"\.\[([a-z,]+)\]", text) for extra in extras.split(","))
    assert len(named) >= 6 and named <= set(PROJECT["optional-dependencies"])


def checkout(folder, changelog, version="0.3.0"):
    (folder / "Cargo.toml").write_text(f'[workspace.package]\nversion = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    return folder


def check_release(folder, tag):
    return subprocess.run(
        [sys.executable, ROOT / "scripts/check_release.py", tag], cwd=folder, capture_output=True, text=True, timeout=60
    )


def test_a_release_whose_tag_version_and_changelog_agree_is_let_through(tmp_path):
    done = check_release(
        checkout(tmp_path, "# Changelog\n\n## Unreleased\n\n## 0.3.0 (2027-01-31)\n\n- new\n"), "v0.3.0"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("tag", "changelog", "says"),
    [
        (
            "v0.3.1",
            "## Unreleased\n\n## 0.3.0 (2027-01-31)\n\n- new\n",
            "the tag is 'v0.3.1', and Cargo.toml has version 0.3.0",
        ),
        ("0.3.0", "## Unreleased\n\n## 0.3.0 (2027-01-31)\n\n- new\n", "tag it 'v0.3.0'"),
        ("", "## Unreleased\n\n## 0.3.0 (2027-01-31)\n\n- new\n", "make check-release TAG=v0.3.0"),
        ("v0.3.0", "## Unreleased\n\n- new\n\n## 0.2.0 (2026-12-31)\n\n- old\n", "no section '## 0.3.0 (YYYY-MM-DD)'"),
        ("v0.3.0", "## Unreleased\n\n## 0.3.0\n\n- new\n", "no section '## 0.3.0 (YYYY-MM-DD)'"),
        ("v0.3.0", "## Unreleased\n\n- late\n\n## 0.3.0 (2027-01-31)\n\n- new\n", "'## Unreleased' is not empty"),
    ],
)
def test_a_release_that_does_not_fit_together_is_refused(tmp_path, tag, changelog, says):
    done = check_release(checkout(tmp_path, changelog), tag)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr
