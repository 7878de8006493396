"""What the documents say is executed: docstrings, the README, the guides, the examples; and their links lead somewhere."""

import ast
import asyncio
import contextlib
import doctest
import importlib
import os
import pkgutil
import re
import runpy
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest

import rollway
from tests import ROOT
from tests.support.documents import blocks

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
    assert {"rollway.ring.server.Server", "rollway.ring.shm_client.ShmClient"} <= with_examples


def run(path, *arguments):
    """As a user runs it; what it started and did not end, ends with it."""
    process = subprocess.Popen(
        [sys.executable, path, *arguments],
        env=os.environ | {"RAY_ADDRESS": "local"},  # not the cluster of other tests, if there is one
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=250)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, err
    return out


@pytest.fixture
def run_here(monkeypatch, capfd):
    """Runs a script that learns in this process, where torch is imported already: that takes six seconds in one of its own."""

    def run(path):
        monkeypatch.setattr("sys.argv", [str(path)])
        runpy.run_path(str(path), run_name="__main__")
        return capfd.readouterr().out

    return run


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ARGUMENTS = {"rllib.py": ["1"]}  # how many updates
LEARNERS = [path for path in EXAMPLES if "rollway.algorithms" in path.read_text()]


@pytest.mark.timeout(300)  # one of them imports Atropos and SkyRL, on a machine that may be busy
@pytest.mark.parametrize("example", [path for path in EXAMPLES if path not in LEARNERS], ids=lambda path: path.name)
def test_every_example_runs(example):
    assert run(example, *ARGUMENTS.get(example.name, [])).strip()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", LEARNERS, ids=lambda path: path.name)
def test_every_example_that_learns_runs(example, run_here, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_here(example).strip()


def test_the_readme_runs(tmp_path):
    (block,) = blocks(ROOT / "README.md")
    assert blocks(ROOT / "docs/start.md") == [block]
    script = tmp_path / "readme.py"
    script.write_text(block)
    assert run(script).splitlines() == ["(32, 4) 32.0"] * 4


def execute(document, number, changes=None, **names):
    """Runs a block of a document in this process, and gives what it defined. Changes: text that is different here."""
    block = blocks(ROOT / document)[number]
    for old, new in (changes or {}).items():
        assert old in block, f"{document} no longer says {old}"
        block = block.replace(old, new)
    exec(compile(block, f"{document}, block {number}", "exec"), names)
    return names


def test_remote_workers_send_as_their_page_says(capsys):
    execute("docs/net.md", 0)
    assert capsys.readouterr().out == "32\n"


def test_workers_share_a_forwarder_as_their_page_says(capsys):
    execute("docs/net.md", 1)
    assert capsys.readouterr().out == "32\n"


def test_workers_share_a_forwarder_of_records_as_their_page_says(capsys):
    execute("docs/net.md", 2)
    assert capsys.readouterr().out == "[1, 2, 3] {'stop': 'length'}\n"


def test_transitions_are_replayed_as_their_page_says(capsys):
    execute("docs/replay.md", 0)
    assert capsys.readouterr().out == "".join(f"{step} (256, 3)\n" for step in range(3))
    both = {"terminated, truncated = np.zeros(8, bool)": "terminated, truncated = np.ones(8, bool)"}
    batch = execute("docs/replay.md", 0, both)["batch"]
    assert (1 - batch["dones"] + batch["truncated"] == 0).all()  # a terminated episode has no value afterwards


def test_windows_of_steps_are_replayed_as_their_page_says():
    batch = execute("docs/tables.md", 0)["batch"]
    obs, later = (batch.data[column][:, :, 0, 0].astype(int) for column in ("obs", "next_obs"))
    assert obs.shape == (32, 4) and ((later - obs) % 256 == 3).all() and (batch.data["reward"] == 1).all()


def test_weights_are_published_as_their_page_says():
    names = execute("docs/weights.md", 0)
    assert names["version"] == 3 and (names["mine"]["w"] == 1).all() and (names["mine"]["b"] == 3).all()
    assert execute("docs/weights.md", 1)["version"] == 1
    assert execute("docs/weights.md", 2)["version"] == 2


def test_the_page_on_records_runs(capsys, name):
    execute("docs/records.md", 0, {"docs-records": name})
    assert capsys.readouterr().out == "(4, 6) 18 task-17\n"
    execute("docs/records.md", 1)
    assert capsys.readouterr().out == "[1, 2, 3, 4, 5, 6, 7, 8]\n"
    execute("docs/records.md", 2)
    assert capsys.readouterr().out == "[[1, 2, 3], [4, 5]]\n"


def test_an_environment_is_wrapped_as_the_page_on_atropos_says():
    from atroposlib.envs.base import BaseEnv

    class MyEnv(BaseEnv):
        pass

    wrapped = execute("docs/atropos.md", 0, MyEnv=MyEnv)["FastEnv"]
    assert issubclass(wrapped, MyEnv) and "shm_name" in wrapped.env_config_cls.model_fields


def test_a_trainer_reads_as_the_page_on_atropos_says(name):
    from rollway.integrations.atropos import ATROPOS_SCHEMA
    from rollway.integrations.atropos.group_sender import GroupSender

    async def generate():
        client = rollway.ShmRecordClient(name, ATROPOS_SCHEMA, connect_timeout_s=30)
        sender = GroupSender(client, "run")
        for item in range(2 * 16):
            scored = {
                "tokens": [[1, item], [1, item, 3]],
                "masks": [[-100, item], [-100, item, 3]],
                "scores": [0.0, 1.0],
            }
            await sender.send(scored, str(item), 0)
        sender.close()

    with ThreadPoolExecutor() as pool:
        generated = pool.submit(asyncio.run, generate())
        names = execute("docs/atropos.md", 1, {"run1": name, "1001": "3"})
        generated.result(timeout=30)
    assert names["step"] == 2 and names["batch"].fields["tokens"].shape == (32, 3)
    assert names["scored"]["tokens"] == [[1, 16], [1, 16, 3]]
    assert names["server"].closed


def test_a_vector_env_is_stepped_as_its_page_says(tmp_path):
    block = blocks(ROOT / "docs/vector_env.md")[0]
    assert "range(1000)" in block
    script = tmp_path / "vector.py"
    script.write_text(block.replace("range(1000)", "range(20)") + "        print(observations.shape)\n")
    assert run(script) == "(16, 4)\n"


class Rounds:
    """True so many times."""

    def __init__(self, rounds):
        self.left = rounds

    def __bool__(self):
        self.left -= 1
        return self.left >= 0


def test_half_of_a_vector_env_is_received_as_its_page_says():
    def make():
        return gymnasium.make("CartPole-v1")

    def policy(observations):
        return np.zeros(len(observations), np.int64)

    names = execute("docs/vector_env.md", 1, rollway=rollway, make=make, training=Rounds(3), policy=policy)
    with names["envs"]:
        assert names["observations"].shape == (8, 4) and len(names["infos"]["env_id"]) == 8


def test_a_rollout_is_collected_as_the_page_on_vector_envs_says(name):
    step = np.zeros((3, 16), np.float32)
    example = {"obs": np.zeros((4, 16, 4), np.float32), "rewards": step, "terminated": step, "truncated": step}
    example["actions"] = step.astype(np.int64)
    seen = []

    def policy(observations):
        seen.append(observations.copy())
        return np.zeros(16, np.int64)

    with rollway.Server(example, 1, rollway.ShmTransport(name)) as server:
        changes = {"while True": "for _ in range(2)"}
        execute("docs/vector_env.md", 2, changes, rollway=rollway, name=name, example=example, policy=policy)
        for rollout in range(2):
            batch = server.sample(timeout=10).batch
            assert np.array_equal(batch["obs"][0, :3], seen[3 * rollout : 3 * rollout + 3])
            assert (batch["rewards"] == 1).all()


def test_one_step_goes_through_shared_memory_as_the_page_on_vector_envs_says(capsys):
    execute("docs/vector_env.md", 3)
    assert capsys.readouterr().out == "[2.0, 3.0] 1.0 1\n"


@pytest.mark.timeout(300)
def test_an_agent_is_trained_as_the_page_on_training_says(tmp_path, run_here):
    (block,) = blocks(ROOT / "docs/training.md")
    assert ">= 475" in block and "logs/mine" in block
    script = tmp_path / "mine.py"
    script.write_text(block.replace(">= 475", ">= 15").replace("logs/mine", str(tmp_path / "logs")))
    assert float(run_here(script).splitlines()[-1]) > 0


def test_batches_become_tensors_as_the_page_on_torch_says(capsys):
    execute("docs/torch.md", 0)
    assert capsys.readouterr().out.splitlines()[0] == "tensor(0.5000) tensor(2.)"


def test_records_and_transitions_go_to_a_device_as_the_page_on_torch_says(capsys):
    execute("docs/torch.md", 1)
    assert capsys.readouterr().out.splitlines() == ["[[0, 0, 0], [0, 1, 2]] [1, 3]", *["tensor(768.)"] * 2]


def test_weights_go_from_device_to_device_as_the_page_on_torch_says():
    execute("docs/torch.md", 2)


@pytest.mark.parametrize("block", [0, 1])
def test_batches_become_arrays_as_the_page_on_jax_says(block, capsys):
    execute("docs/jax.md", block)
    assert capsys.readouterr().out == "4.0\n"


def test_a_run_is_observed_as_its_page_says(capsys, name):
    execute("docs/observe.md", 0, {'"observed"': repr(name)})
    culprit, nans, *participants = capsys.readouterr().out.splitlines()
    assert (culprit, nans) == ("nobody", "1")
    assert [line.partition(" Shares(")[0] for line in participants] == ["learner", "own producer"]


def test_numbers_are_written_to_tensorboard_as_the_page_on_metrics_says(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    execute("docs/metrics.md", 0, {"logs/run1": str(tmp_path)})
    (event,) = EventAccumulator(str(tmp_path)).Reload().Tensors("rollway/samples_released")
    assert event.tensor_proto.float_val == [2.0]


def test_every_alert_is_on_the_page_on_metrics():
    alerts = set(re.findall(r"alert: (\w+)", (ROOT / "monitoring/alerts.yaml").read_text()))
    assert alerts == set(re.findall(r"`(Rollway[A-Z]\w+)` ?[,|]", (ROOT / "docs/metrics.md").read_text()))


@pytest.mark.parametrize("package", ["async_vector_env", "mp_queue", "unilab"])
def test_a_program_for_another_package_and_its_successor_print_the_same(package, tmp_path):
    printed = []
    for block in blocks(ROOT / f"docs/coming_from/{package}.md"):
        script = tmp_path / f"program_{len(printed)}.py"
        script.write_text(block)
        printed.append(run(script))
    before, after = printed
    assert before == after != ""


def test_a_program_for_echo_runs_with_one_changed_import(capsys):
    execute("docs/coming_from/echo.md", 0, {"from echo import": "from rollway import"})
    execute("docs/coming_from/echo.md", 1)
    assert capsys.readouterr().out == "(32, 4)\n" * 2


def test_replay_works_as_the_page_for_users_of_reverb_says(capsys):
    execute("docs/coming_from/reverb.md", 0)
    assert capsys.readouterr().out == "(256, 3) 256.0\n"


@pytest.mark.timeout(300)  # starts Ray, once for both blocks
def test_tasks_of_ray_send_as_the_page_for_users_of_ray_says(tmp_path):
    script = tmp_path / "tasks.py"
    script.write_text("\n".join(blocks(ROOT / "docs/coming_from/ray.md")))
    assert run(script).splitlines() == ["(32, 4) 1984.0"] * 2


@pytest.mark.timeout(300)  # starts Ray, once for all blocks
def test_workers_find_a_learner_by_name_as_the_page_on_ray_says(tmp_path):
    program, rank = blocks(ROOT / "docs/ray.md")
    (training,) = blocks(ROOT / "docs/ray_training.md")
    server = "server, rank = rollway.Server(example, batch_size=1), 0\nserver.submit(example)\n"
    script = tmp_path / "by_name.py"
    room = "import os\nos.chdir(os.path.dirname(__file__))\nfor worker in workers:\n    ray.kill(worker)\n"
    script.write_text(f"{program}\n{server}{rank}    print(len(sample))\n{room}{training}")
    first, second, third, *trained = run(script).splitlines()
    assert (first, second, third) == ("(32, 4) 4.0", "(32, 4) 4.0", "1")
    assert [int(line.split()[0]) for line in trained] == [512 * 2 * iteration for iteration in range(1, 6)]


def test_every_block_is_run():
    found = {str(document.relative_to(ROOT)): len(blocks(document)) for document in DOCUMENTS}
    run_above = {
        "README.md": 1,
        "docs/start.md": 1,
        "docs/restarts.md": 1,  # in tests/process/ring/test_ctrl_c.py
        "docs/net.md": 3,
        "docs/replay.md": 1,
        "docs/tables.md": 1,
        "docs/weights.md": 3,
        "docs/records.md": 3,
        "docs/ray.md": 2,
        "docs/ray_training.md": 1,
        "docs/atropos.md": 2,
        "docs/vector_env.md": 4,
        "docs/training.md": 1,
        "docs/torch.md": 3,
        "docs/jax.md": 2,
        "docs/observe.md": 1,
        "docs/metrics.md": 1,
        "docs/coming_from/async_vector_env.md": 2,
        "docs/coming_from/echo.md": 2,
        "docs/coming_from/mp_queue.md": 2,
        "docs/coming_from/ray.md": 2,
        "docs/coming_from/reverb.md": 1,
        "docs/coming_from/unilab.md": 2,
    }
    assert {document: count for document, count in found.items() if count} == run_above


DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benches").glob("*.md")]


def anchors(document):
    """The anchors of a page, as GitHub and the site make them of its headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", document.read_text()):
        if not target.startswith("http"):
            found = document.parent / target if target else document
            assert found.exists(), f"{document.name} links to {target}"
            assert not anchor or anchor in anchors(found), f"{document.name} links to {target}#{anchor}"


def nouns():
    """The rows of the table of nouns: the noun, and the cells that say where it lies: core, py, python, tests."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text[text.index("| noun |") : text.index("Beside the nouns")].strip().splitlines()
    rows = [[cell.strip("` ") for cell in line.split("|")[1:-1]] for line in table[2:]]
    return {noun: cells[:4] for noun, _, *cells in rows}


def test_the_nouns_lie_where_the_architecture_says():
    found = nouns()
    assert len(found) == 10
    for noun, cells in found.items():
        for tree, cell in zip(("crates/core/src", "crates/py/src", "python/rollway"), cells, strict=False):
            folder = noun if cell in ("●", "") else cell
            assert (ROOT / tree / folder).is_dir() == bool(cell), (noun, tree)
        pages = [ROOT / "docs/design" / f"{noun}.md", ROOT / "docs/design" / noun / "index.md"]
        assert [*(ROOT / "tests").glob(f"*/{noun}")] and [page for page in pages if page.exists()], noun


def test_the_architecture_names_every_folder_of_the_trees_and_no_other():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:crates|python|tests|benches|examples|scripts|fuzz)/[\w/.]*)`", text))
    assert len(named) > 15 and not [name for name in named if not (ROOT / name).exists()]
    trees = [ROOT / "crates/core/src", ROOT / "crates/py/src", ROOT / "python/rollway"]
    folders = {path for tree in trees for path in tree.iterdir() if path.is_dir() and any(path.rglob("*.[pr][ys]"))}
    words = set(re.findall(r"`([\w/]+)`", text))
    unnamed = [path for path in folders if path.name not in words and f"{path.relative_to(ROOT)}/" not in named]
    assert len(folders) > 25 and not unnamed


def says(folder):
    """What a folder says about itself: the docs of its module."""
    if (folder / "__init__.py").exists():
        return ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    heads = [folder / "mod.rs", folder / "lib.rs", folder.with_suffix(".rs"), folder.parent / "mod.rs"]
    lines = [line for head in heads if head.exists() for line in head.read_text().splitlines()]
    return "\n".join(line for line in lines if line.startswith("//!"))


def test_every_folder_says_what_lies_in_it():
    sources = [*(ROOT / "python/rollway").rglob("*.py"), *(ROOT / "crates").glob("*/src/**/*.rs")]
    paths = [path for path in sources if path.stem not in ("__init__", "__main__", "mod", "lib")]
    paths = [path for path in paths if path.parent != ROOT / "python/rollway"]  # ARCHITECTURE.md says what lies there
    unnamed = [str(path) for path in paths if not re.search(rf"\b{path.stem}\b", says(path.parent))]
    assert len(paths) > 150 and not unnamed


def test_nothing_sends_a_user_to_pypi():
    sources = [path for folder in ("python", "examples") for path in (ROOT / folder).rglob("*.py")]
    found = [str(path) for path in (*sources, *DOCUMENTS) if re.search(r"install\W*rollway\b", path.read_text())]
    assert len(sources) > 100 and not found, "Rollway is installed from the clone"


def test_every_public_name_is_exported_and_documented():
    for name in rollway.__all__:
        value = getattr(rollway, name)
        assert name.startswith("__") or value.__doc__, name


def test_the_error_tree_in_the_docs_is_the_real_one():
    from rollway import errors

    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__))
    real = {c.__name__ for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RollwayError)}
    assert drawn == real - {"RollwayError"}
    parents = {c.__name__ for c in errors.RollwayError.__subclasses__() if c.__subclasses__()}
    assert {"RollwayError", *parents} & real <= set(rollway.__all__)
