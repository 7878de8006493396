"""Whether a tag may be released: it names the version of Cargo.toml, and the changelog has a dated section for it.

    python scripts/check_release.py v0.2.0

Run in the root of a checkout; ends with status 1 and says what to change. `make check-release` calls it.
"""

import re
import sys
import tomllib
from pathlib import Path


def problems(tag: str) -> list[str]:
    version = tomllib.loads(Path("Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    sections = re.split(r"^## ", Path("CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    contents = {title: body.strip() for title, _, body in (section.partition("\n") for section in sections)}
    found = []
    if not tag:
        found.append(f"there is no tag: make check-release TAG=v{version}")
    elif tag != f"v{version}":
        found.append(
            f"the tag is {tag!r}, and Cargo.toml has version {version}: tag it 'v{version}', or change the version"
        )
    if not any(re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", title) for title in contents):
        found.append(
            f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)': rename '## Unreleased', and begin a new one"
        )
    if contents.get("Unreleased"):
        found.append(f"'## Unreleased' is not empty in CHANGELOG.md: move its lines to the section of {version}")
    return found


if __name__ == "__main__":
    found = problems(sys.argv[1] if len(sys.argv) > 1 else "")
    sys.exit("\n".join(found) if found else None)
