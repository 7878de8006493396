"""The command line and the machine's check-up: each command prints what the library says, for people and for programs."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import rollway
from rollway import machine
from rollway.cli import app, console
from rollway.cli.demo import worker_processes
from rollway.cli.demo.trajectory import Tally, trajectory
from rollway.machine import Cgroup, Finding

MB = 1 << 20

LEARNER = """
    import sys, numpy as np, rollway
    server = rollway.Server({"obs": np.zeros(4, np.float32)}, 2, rollway.ShmTransport(sys.argv[1]))
    print("up", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def shm(monkeypatch):
    """A shared-memory directory of this test's own, so that nobody else's segments are listed or collected."""
    directory = Path(tempfile.mkdtemp(prefix="test-cli-", dir="/dev/shm"))
    monkeypatch.setenv("ROLLWAY_SHM_DIR", str(directory))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def stale(shm, child):
    """The name of a segment whose only user was killed."""
    learner = child(LEARNER, "crashed")
    learner.says("up")
    learner.kill()
    return "crashed"


@pytest.fixture
def live(shm):
    """The name of a segment in which this process lives."""
    with rollway.Server({"obs": np.zeros(4, np.float32)}, 2, rollway.ShmTransport("running")) as server:
        yield server.name


def run(*args, code=0):
    result = CliRunner().invoke(app.app, list(args))
    assert result.exit_code == code, result.output
    return result.stdout


def test_version_is_that_of_the_package():
    assert run("--version") == f"rollway {rollway.__version__}\n"


def test_help_names_every_command():
    text = run("--help")
    assert all(command in text for command in ("demo", "ls", "gc", "doctor"))


def test_a_missing_extra_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from rollway.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "pip install '.[cli]' in the clone" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_error_of_the_library_is_a_sentence_and_not_a_traceback(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLWAY_SHM_DIR", str(tmp_path / "nowhere"))
    ended = subprocess.run([sys.executable, "-m", "rollway.cli", "ls"], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr


def test_ls_names_each_living_process_once_and_no_dead_one(live, child):
    code = """
        import sys, numpy as np, rollway
        client = rollway.ShmClient("running", {"obs": np.zeros(4, np.float32)})
        print("up", flush=True)
        sys.stdin.read()
    """
    with rollway.ShmClient("running", {"obs": np.zeros(4, np.float32)}):
        killed, worker = child(code), child(code)
        killed.says("up")
        worker.says("up")
        killed.kill()
        (segment,) = rollway.segments()
        assert (segment.alive, set(segment.pids), len(segment.pids)) == (3, {os.getpid(), worker.pid}, 2)
        assert f"3 handles of 2 processes (pid {os.getpid()}, {worker.pid})" in " ".join(run("ls").split())


def test_ls_says_when_there_are_none(shm):
    assert run("ls") == "No segments.\n"
    assert json.loads(run("ls", "--json")) == []


def test_ls_tells_the_living_from_the_stale(live, stale):
    rows = {line.split()[0]: line for line in run("ls").splitlines() if line.strip()}
    assert " live " in rows[live] and "1 (pid " in rows[live]
    assert " stale " in rows[stale] and "none" in rows[stale]


def test_ls_as_json_gives_every_field(live, stale):
    found = {segment["name"]: segment for segment in json.loads(run("ls", "--json"))}
    assert found[live]["state"] == "live" and found[live]["alive"] == 1
    assert found[stale]["state"] == "stale" and found[stale]["bytes"] > 0


def test_ls_shows_a_file_that_is_no_segment_and_its_name_cannot_steer_the_terminal(shm):
    (shm / "rollway.\x1b[31m[red]odd").write_bytes(b"not a segment")
    text = run("ls")
    assert "unreadable" in text and "?[31m[red]odd" in text
    assert "\x1b" not in text
    assert "1 unreadable segment left alone" in run("gc")


def test_gc_removes_the_stale_and_never_the_living(shm, live, stale):
    held = next(segment.bytes for segment in rollway.segments() if segment.name == stale)
    text = run("gc")
    assert f"removed {stale} (" in text
    assert f"removed 1 segment, {console.size(held)} ({held:,} bytes)" in text
    assert [path.name for path in shm.iterdir()] == [f"rollway.{live}"]


def test_gc_dry_run_removes_nothing(shm, live, stale):
    assert f"would remove {stale} (" in run("gc", "--dry-run")
    assert len(list(shm.iterdir())) == 2


def test_gc_says_when_there_is_nothing_to_do(live):
    assert run("gc") == "Nothing to remove.\n"


def test_doctor_shows_findings_and_advice_and_fails_only_on_problems(monkeypatch):
    findings = [Finding("kernel", "ok", "6.1"), Finding("cpus", "warn", "only one", "Get another.")]
    monkeypatch.setattr(machine, "examine", lambda: findings)
    text = run("doctor")
    assert "only one" in text and "-> Get another." in text and "1 warning" in text
    findings.append(Finding("/proc", "problem", "gone", "Mount it."))
    assert "1 problem" in run("doctor", code=1)
    assert json.loads(run("doctor", "--json", code=1))[2] == {
        "name": "/proc",
        "status": "problem",
        "found": "gone",
        "advice": "Mount it.",
    }


def test_doctor_examines_this_machine(shm):
    findings = {finding["name"]: finding for finding in json.loads(run("doctor", "--json"))}
    assert findings["round trip"]["status"] == "ok"
    assert findings["segments"]["found"] == "none"
    assert list(shm.iterdir()) == []


def test_doctor_finds_the_stale(stale):
    finding = machine.check_segments()
    assert finding.status == "warn" and "1 stale" in finding.found and "rollway gc" in finding.advice


def test_doctor_says_what_the_stale_hold_and_not_what_they_could_have_grown_to(shm, child):
    learner = child(
        """
        import rollway
        server = rollway.RecordServer({"t": "int32[*]"}, rollway.ShmTransport("crashed"), lane_bytes=1 << 30)
        print("up", flush=True)
        input()
        """
    )
    learner.says("up")
    learner.kill()
    (segment,) = rollway.segments()
    assert segment.used_bytes < MB < segment.bytes
    assert "KiB held by the stale" in machine.check_segments().found


def test_doctor_reports_a_missing_directory_everywhere(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLWAY_SHM_DIR", str(tmp_path / "nowhere"))
    status = {finding.name: finding.status for finding in machine.examine()}
    assert {status[name] for name in ("shared memory", "segments", "round trip")} == {"problem"}


@pytest.mark.parametrize(
    ("total", "free", "status", "says"),
    [
        (64 * MB, 64 * MB, "warn", "--shm-size"),
        (64 * MB, 0, "problem", "rollway gc"),
        (8192 * MB, 8000 * MB, "ok", ""),
        (8192 * MB, 20 * MB, "warn", "Large rings"),
        (8192 * MB, 1 * MB, "problem", "rollway gc"),
        (512 * MB, 512 * MB, "warn", "Large rings"),
    ],
)
def test_the_size_of_shared_memory_is_judged(total, free, status, says):
    finding = machine.judge_shared_memory(Path("/dev/shm"), total, free)
    assert finding.status == status
    assert says in finding.advice


def test_a_directory_that_may_not_be_written_is_a_problem():
    assert machine.judge_shared_memory(Path("/dev/shm"), 8192 * MB, 8192 * MB, writable=False).status == "problem"


def fake(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def test_version_2_takes_the_tightest_limit_on_the_way_to_our_group(tmp_path):
    cgroup = Cgroup(
        fake(
            tmp_path,
            {
                "proc/self/mountinfo": V2_MOUNT,
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/pod/memory.max": "max\n",
                "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
                "sys/fs/cgroup/pod/box/memory.max": "1073741824\n",
            },
        )
    )
    assert cgroup.cpu_quota() == 1.5
    assert cgroup.memory_limit() == 1 << 30


@pytest.mark.parametrize("mounted_root", ["/", "/docker/abc"])
def test_version_1_is_read_from_the_host_and_from_inside_a_container(tmp_path, mounted_root):
    here = "docker/abc/" if mounted_root == "/" else ""
    cgroup = Cgroup(
        fake(
            tmp_path,
            {
                "proc/self/mountinfo": (
                    f"32 31 0:29 {mounted_root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                    f"35 31 0:32 {mounted_root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                ),
                "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
                f"sys/fs/cgroup/cpu,cpuacct/{here}cpu.cfs_quota_us": "200000\n",
                f"sys/fs/cgroup/cpu,cpuacct/{here}cpu.cfs_period_us": "100000\n",
                f"sys/fs/cgroup/memory/{here}memory.limit_in_bytes": "536870912\n",
            },
        )
    )
    assert cgroup.cpu_quota() == 2.0
    assert cgroup.memory_limit() == 512 * MB


def test_no_limit_is_none_in_both_versions(tmp_path):
    assert Cgroup(tmp_path).cpu_quota() is None
    unlimited = fake(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT
            + "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
            + "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            "proc/self/cgroup": "4:memory:/\n3:cpu:/\n0::/\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert Cgroup(unlimited).cpu_quota() is None
    assert Cgroup(unlimited).memory_limit() is None


@pytest.mark.parametrize(
    ("installed", "allowed", "quota", "status"),
    [(8, 8, None, "ok"), (64, 64, 4.0, "warn"), (64, 8, None, "warn"), (8, 8, 1.5, "warn"), (8, 8, 8.0, "ok")],
)
def test_cpus_are_what_affinity_and_quota_leave(installed, allowed, quota, status):
    finding = machine.check_cpus(installed, allowed, quota)
    assert finding.status == status
    assert bool(finding.advice) == (status == "warn")


def test_a_memory_limit_below_shared_memory_is_a_warning():
    assert machine.check_memory(None, 8192 * MB).status == "ok"
    assert machine.check_memory(16384 * MB, 8192 * MB).status == "ok"
    assert machine.check_memory(1024 * MB, 8192 * MB).status == "warn"


def test_what_is_used_of_a_memory_limit_is_told_and_counts():
    assert machine.check_memory(16384 * MB, 8192 * MB, used=1024 * MB).status == "ok"
    finding = machine.check_memory(16384 * MB, 8192 * MB, used=10240 * MB)
    assert finding.status == "warn"
    assert "16,384 MiB, 10,240 MiB are used: 6,144 MiB are left" in finding.found


@pytest.mark.parametrize(
    ("release", "status"),
    [("6.18.44-arch", "ok"), ("5.14.0-1.el9", "ok"), ("5.4.0", "warn"), ("3.10.0", "problem"), ("strange", "warn")],
)
def test_the_kernel_is_judged_by_its_version(release, status):
    assert machine.check_kernel(release).status == status


def test_limits_of_the_process_are_judged():
    no_limit = resource.RLIM_INFINITY
    assert machine.check_open_files((256, 4096)).status == "warn"
    assert machine.check_open_files((no_limit, no_limit)).status == "ok"
    assert machine.check_locked_memory((64 << 10, no_limit)).advice
    assert not machine.check_locked_memory((no_limit, no_limit)).advice


def test_files_of_the_kernel_are_read_and_may_be_missing(tmp_path):
    root = fake(tmp_path, {"few": "16\n", "many": "1024\n", "thp": "always within_size advise [never] deny force\n"})
    assert machine.check_watches(root / "few").status == "warn"
    assert machine.check_watches(root / "many").status == "ok"
    assert machine.check_watches(root / "missing").status == "warn"
    assert "'never'" in machine.check_huge_pages(root / "thp").found
    assert "not offered" in machine.check_huge_pages(root / "missing").found
    assert machine.check_proc(root).status == "problem"
    assert machine.check_proc(Path("/proc")).status == "ok"


def batch_of(*keys):
    samples = [trajectory(key) for key in keys]
    return {leaf: np.stack([sample[leaf] for sample in samples]) for leaf in samples[0]}


def test_the_tally_finds_lost_and_repeated_samples():
    tally = Tally(workers=2)
    tally.check(batch_of(0, 1, 2, 3, 3, 6))  # worker 0: counters 0 1 3; worker 1: 0 1 1
    verdict = tally.verdict([4, 2])
    assert (verdict.verified, verdict.lost, verdict.repeated, verdict.torn) == (6, 1, 1, 0)
    assert not verdict.flawless


def test_the_tally_finds_what_nobody_sent():
    tally = Tally(workers=1)
    tally.check(batch_of(0, 1))
    assert tally.verdict([1]).repeated == 1


@pytest.mark.parametrize("leaf", ["tokens", "masks", "logprobs", "score"])
@pytest.mark.parametrize("element", [0, -1])
def test_the_tally_finds_one_wrong_element_in_any_leaf(leaf, element):
    batch = batch_of(0, 1, 2)
    batch[leaf].view(np.int32)[1, element] ^= 1
    tally = Tally(workers=1)
    tally.check(batch)
    verdict = tally.verdict([3])
    assert (verdict.torn, verdict.lost) == (1, 1)
    assert verdict.verified == 2


def test_the_tally_wants_no_gap_from_a_worker_that_died():
    tally = Tally(workers=1)
    tally.check(batch_of(0, 1, 3))
    assert tally.verdict([None]).lost == 1


def test_the_tally_remembers_more_samples_than_it_first_had_room_for():
    tally = Tally(workers=1)
    tally.check(batch_of(0, 1 << 20))
    assert tally.verdict([(1 << 20) + 1]).lost == (1 << 20) - 1
    assert tally.verdict([(1 << 22)]).lost == (1 << 22) - 2


def test_a_worker_s_end_is_put_into_words():
    from rollway.cli.demo.worker_processes import _describe_exit

    assert _describe_exit(-signal.SIGKILL, None) == "was killed by SIGKILL"
    assert _describe_exit(3, None) == "ended early with exit code 3"
    assert _describe_exit(1, "ValueError: no") == "failed: ValueError: no"


def test_ctrl_c_while_the_demo_makes_its_queue_waits_until_that_is_whole(monkeypatch):
    make, made = worker_processes._SPAWN.Queue, []

    def queue(size):
        os.kill(os.getpid(), signal.SIGINT)
        made.append(make(size))
        return made[0]

    monkeypatch.setattr(worker_processes._SPAWN, "Queue", queue)
    with pytest.raises(KeyboardInterrupt):
        worker_processes.WorkerProcesses(1, 10)
    assert made
    made[0].close()
