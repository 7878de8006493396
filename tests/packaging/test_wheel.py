"""What `make wheel` built, as a user gets it: installed without cargo on every Python here that it is for.

`make test-wheel` sets ROLLWAY_DIST and ROLLWAY_UV, and in ROLLWAY_PYTHONS the versions that must be here.
"""

import email
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import ROOT

if "ROLLWAY_DIST" not in os.environ:
    pytest.skip("`make test-wheel` builds the wheel and tests it", allow_module_level=True)

(WHEEL,) = Path(os.environ["ROLLWAY_DIST"]).glob("*.whl")
(SOURCES,) = Path(os.environ["ROLLWAY_DIST"]).glob("*.tar.gz")
UV = os.environ["ROLLWAY_UV"]
LIBRARY = "rollway/_core.abi3.so"
MOST_BYTES = 5_000_000
NEWEST_GLIBC = 17  # 2.17: manylinux2014

DESCRIBE = """
import json, sys, sysconfig
suits = sys.implementation.name == "cpython" and sys.version_info >= (3, 11)
print(json.dumps([suits and not sysconfig.get_config_var("Py_GIL_DISABLED"), sys.base_prefix, sys.version_info[:3]]))
"""


def pythons():
    """Paths by version, of every Python on PATH and of pyenv that the wheel is for. One that does not start is none."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin")
    found = {}
    for path in [path for folder in (*os.get_exec_path(), *of_pyenv) for path in Path(folder).glob("python3.[0-9]*")]:
        if re.fullmatch(r"python3\.\d+", path.name):
            said = subprocess.run([path, "-I", "-c", DESCRIBE], capture_output=True, text=True, timeout=60).stdout
            suits, prefix, version = json.loads(said or "[false, null, null]")
            if suits:
                found[prefix] = ".".join(map(str, version)), path
    return dict(sorted(found.values()))


PYTHONS = pythons()


def call(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class BareVenv:
    """An environment of a user who has no Rust: no cargo on PATH, a home of its own, and only what is installed."""

    def __init__(self, folder, python):
        self.folder = folder
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "UV_CACHE_DIR": call(UV, "cache", "dir").strip(),
        }
        kept = ("PIP_", "UV_", "SSL_", "ROLLWAY_SHM_DIR")
        self.environment |= {name: value for name, value in os.environ.items() if name.startswith(kept)}
        assert shutil.which("cargo", path=self.environment["PATH"]) is None
        self.call(UV, "venv", "-q", "--python", python, "venv")

    def call(self, *command):
        return call(*command, env=self.environment, cwd=self.folder)

    def run(self, program, *arguments):
        return self.call(self.folder / "venv/bin" / program, *arguments)

    def install(self, requirement):
        self.call(UV, "pip", "install", "-q", "--no-build", "--python", "venv", requirement)
        return {
            line.partition("==")[0] for line in self.call(UV, "pip", "freeze", "-q", "--python", "venv").splitlines()
        }


def test_every_python_that_must_be_here_is():
    here = {version.rpartition(".")[0] for version in PYTHONS}
    assert PYTHONS and set(os.environ.get("ROLLWAY_PYTHONS", "").split()) <= here


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_runs_the_twenty_lines_of_the_readme_without_cargo(version, tmp_path):
    venv = BareVenv(tmp_path, PYTHONS[version])
    packages = venv.install(WHEEL)
    assert {package.partition(" ")[0] for package in packages} == {"numpy", "optree", "rollway", "typing-extensions"}
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "twenty_lines.py").write_text(block)
    assert venv.run("python", "twenty_lines.py").splitlines() == ["(32, 4) 32.0"] * 4


@pytest.mark.timeout(600)
def test_the_extra_cli_brings_the_command(tmp_path):
    venv = BareVenv(tmp_path, next(iter(PYTHONS.values())))
    assert {"rich", "typer"} <= venv.install(f"rollway[cli] @ file://{WHEEL}")
    assert json.loads(venv.run("rollway", "ls", "--json")) == []


NOT_IN_THE_LIBRARY = """
import ast, pathlib, rollway._core as core
stubs = ast.parse(pathlib.Path(core.__file__).with_name("_core.pyi").read_text())
kinds = [kind for kind in stubs.body if isinstance(kind, ast.ClassDef) and hasattr(core, kind.name)]
names = [(kind.name, method.name) for kind in kinds for method in kind.body if isinstance(method, ast.FunctionDef)]
assert len(names) > 100
print([name for name in names if not hasattr(getattr(core, name[0]), name[1])])
"""


@pytest.mark.timeout(600)
def test_the_library_in_the_wheel_is_of_the_same_sources_as_its_types(tmp_path):
    venv = BareVenv(tmp_path, next(iter(PYTHONS.values())))
    venv.install(WHEEL)
    assert venv.run("python", "-c", NOT_IN_THE_LIBRARY) == "[]\n"


def content(name):
    with zipfile.ZipFile(WHEEL) as wheel:
        return wheel.read(name)


def test_the_wheel_is_for_every_python_from_3_11_on_and_for_an_old_glibc():
    machine = platform.machine()
    tags = rf"cp311-abi3-manylinux2014_{machine}\.manylinux_2_{NEWEST_GLIBC}_{machine}"
    assert re.fullmatch(rf"rollway-[\d.]+-{tags}\.whl", WHEEL.name)
    needed = {int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", content(LIBRARY))}
    assert needed and max(needed) <= NEWEST_GLIBC


def test_the_wheel_is_small():
    assert WHEEL.stat().st_size <= MOST_BYTES


def test_the_wheel_has_the_package_its_types_and_its_licences():
    with zipfile.ZipFile(WHEEL) as wheel:
        names = set(wheel.namelist())
    (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
    package = {name for name in names if not name.startswith(info)}
    assert package == {path.removeprefix("python/") for path in tracked("python/rollway")} | {LIBRARY}
    licences = email.message_from_bytes(content(f"{info}/METADATA")).get_all("License-File")
    assert (
        set(licences) == {"LICENSE", "THIRD_PARTY_LICENSES.txt"}
        and {f"{info}/licenses/{file}" for file in licences} <= names
    )


def test_the_wheel_tells_nothing_of_the_machine_that_built_it():
    home = Path(os.environ.get("CARGO_HOME", "~/.cargo")).expanduser()
    assert not [path for path in (ROOT, home) if str(path).encode() in content(LIBRARY)]


def test_the_source_distribution_has_every_source_and_nothing_built():
    with tarfile.open(SOURCES) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    assert {*tracked("python", "crates"), "Cargo.toml", "Cargo.lock", "pyproject.toml"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def tracked(*folders):
    return call("git", "ls-files", *folders, cwd=ROOT).splitlines()
