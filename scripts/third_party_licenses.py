"""THIRD_PARTY_LICENSES.txt: the licences of the crates that the native library links, for the wheel.

    python scripts/third_party_licenses.py [--check]

Run in the root of a checkout, after a change of Cargo.lock. With --check it writes nothing, and ends with status 1 if
the file is not what it would write. Crates that only run at build time, and those of the tests, are not in the wheel.
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

FILE = Path("THIRD_PARTY_LICENSES.txt")
HEAD = """The native library of Rollway links the Rust standard library (MIT OR Apache-2.0, https://github.com/rust-lang/rust)
and the crates below. Written by scripts/third_party_licenses.py.
"""
NAMES = ("LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "license*")
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")


def cargo(*arguments: str) -> str:
    return subprocess.run(["cargo", *arguments, "--locked"], check=True, stdout=subprocess.PIPE, text=True).stdout


def linked() -> set[tuple[str, str]]:
    """Names and versions of the crates that end up in the library."""
    tree = ["tree", "-p", "rollway-py", "-e", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]
    lines = [line for target in TARGETS for line in cargo(*tree, "--target", target).splitlines()]
    return {(line.split()[0], line.split()[1].removeprefix("v")) for line in lines if not line.startswith("rollway-")}


def texts(package: dict[str, str]) -> set[str]:
    """The licences of a crate. Where it offers a choice, the shortest: MIT."""
    folder = Path(package["manifest_path"]).parent
    files = {path for name in NAMES for path in folder.rglob(name) if path.is_file()}
    of_mit = {path for path in files if path.name.upper().startswith("LICENSE-MIT")}
    if not files:
        sys.exit(
            f"the crate {package['name']} has no file with its licence ({package['license']}): name it here by hand"
        )
    chosen = of_mit if of_mit and " AND " not in package["license"] else files
    return {"\n".join(line.rstrip() for line in path.read_text("utf-8").strip().splitlines()) for path in chosen}


def written() -> str:
    wanted = linked()
    users = defaultdict(list)
    for package in json.loads(cargo("metadata", "--format-version", "1"))["packages"]:
        if (package["name"], package["version"]) in wanted:
            for text in texts(package):
                users[text].append(f"{package['name']} {package['version']} ({package['license']})")
    parts = sorted((sorted(crates), text) for text, crates in users.items())
    return "\n".join([HEAD, *("\n".join(["=" * 80, *crates, "-" * 80, text, ""]) for crates, text in parts)])


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text("utf-8") != written():
            sys.exit(f"{FILE} does not fit Cargo.lock: run python scripts/third_party_licenses.py")
    else:
        FILE.write_text(written(), "utf-8")
