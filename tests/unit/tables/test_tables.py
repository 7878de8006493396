"""Does one call on replay tables do what it says."""

import multiprocessing
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from rollway.errors import ConnectionClosedError, InvalidArgument, SchemaMismatch, WaitTimeout
from rollway.tables import (
    Fifo,
    Lifo,
    Limiter,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritised,
    Queue,
    ReplayTables,
    SamplesPerInsert,
    Table,
    Uniform,
    Versions,
)

STEP = {"obs": {"image": np.zeros((2, 2), np.uint8), "speed": np.float32(0)}, "reward": 0.0, "done": False}


def step(number: int) -> dict:
    image = np.full((2, 2), number % 256, np.uint8)
    return {"obs": {"image": image, "speed": float(number)}, "reward": number, "done": number % 5 == 0}


def filled(*tables: Table, items: int = 10, **options) -> ReplayTables:
    made = ReplayTables(STEP, tables, seed=1, **options)
    with made.writer() as writer:
        for number in range(items):
            writer.append(step(number))
            for table in tables:
                writer.insert(table.name, priority=float(number))
    return made


def rewards(batch) -> list[float]:
    return batch.data["reward"][:, 0].tolist()


def test_a_step_comes_back_in_its_structure_with_its_dtypes():
    with filled(Table("main", 100)) as tables:
        batch = tables["main"].sample(5)
        image = batch.data["obs"]["image"]
        assert image.shape == (5, 1, 2, 2) and image.dtype == np.uint8
        assert batch.data["obs"]["speed"].dtype == np.float32 and batch.data["done"].dtype == bool
        assert (image[:, 0, 0, 0] == batch.data["reward"][:, 0]).all()
        assert (batch.probabilities == 0.1).all() and batch.lengths is None and batch.size == 10


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [(Fifo(), [0.0] * 3), (Lifo(), [9.0] * 3), (MinHeap(), [0.0] * 3), (MaxHeap(), [9.0] * 3)],
)
def test_selectors_that_leave_no_choice(sampler, expected):
    with filled(Table("main", 100, sampler)) as tables:
        assert rewards(tables["main"].sample(3)) == expected


def test_priorities_decide_how_often_an_item_is_drawn():
    with filled(Table("main", 100, Prioritised(2.0))) as tables:
        drawn = np.array(rewards(tables["main"].sample(40_000)))
        chances = np.arange(10) ** 2 / (np.arange(10) ** 2).sum()
        counts = np.bincount(drawn.astype(int), minlength=10)
        expected = 40_000 * chances[1:]
        assert counts[0] == 0 and (((counts[1:] - expected) ** 2) / expected).sum() < 30
        batch = tables["main"].sample(8)
        assert np.allclose(batch.probabilities, chances[[int(reward) for reward in rewards(batch)]])
        weights = batch.weights(0.5)
        assert weights.max() == 1 and np.allclose(weights, (batch.probabilities / batch.probabilities.min()) ** -0.5)


def test_an_update_of_an_item_that_was_replaced_does_nothing():
    with filled(Table("main", 10, Prioritised())) as tables, tables.writer() as writer:
        old = tables["main"].sample(50).keys
        for number in range(100, 110):
            writer.append(step(number))
            writer.insert("main", priority=1.0)
        assert tables["main"].update_priorities(old, np.full(50, 1e9)) == 0
        assert (tables["main"].sample(50).priorities == 1).all()


@pytest.mark.parametrize("remover", [Fifo(), Lifo(), MinHeap(), MaxHeap(), Uniform(), Prioritised()])
def test_a_full_table_removes_what_its_remover_chooses(remover):
    with filled(Table("main", 5, Uniform(), remover)) as tables:
        left = set(rewards(tables["main"].sample(200)))
        expected = {Fifo(): {5, 6, 7, 8, 9}, Lifo(): {0, 1, 2, 3, 9}, MinHeap(): {5, 6, 7, 8, 9}}
        assert len(tables["main"]) == 5 and left == expected.get(remover, left)
        assert tables["main"].info()["deletes"] == 5 and tables.audit() == []


def test_columns_make_n_step_transitions_that_share_their_steps():
    columns = {
        "obs": ("obs/speed", 0),
        "reward": ("reward", slice(0, 3)),
        "next_obs": ("obs/speed", -1),
        "stack": ("obs/image", slice(-2, None)),
    }
    with ReplayTables(STEP, [Table("main", 100)], max_steps=128, seed=0) as tables, tables.writer(4) as writer:
        for number in range(50):
            writer.append(step(number))
            if number >= 3:
                writer.insert("main", 4, columns=columns)
        data = tables["main"].sample(20).data
        assert list(data) == list(columns) and data["obs"].shape == (20,) and data["stack"].shape == (20, 2, 2, 2)
        assert (data["next_obs"] == data["obs"] + 3).all()
        assert (data["reward"] == data["obs"][:, None] + np.arange(3)).all()
        assert tables.info()["free_steps"] == 64, "fifty steps need one chunk of 64"


def test_sequences_of_different_lengths_are_padded():
    with ReplayTables(STEP, [Table("main", 100)], seed=0) as tables, tables.writer(10) as writer:
        for number in range(1, 11):
            writer.append(step(number))
            writer.insert("main", number)
        batch = tables["main"].sample(50)
        lengths = batch.lengths["reward"]
        for row, length in zip(batch.data["reward"], lengths, strict=True):
            assert row.tolist() == [*range(1, length + 1)] + [0] * (10 - length)


def test_a_queue_gives_each_item_once_in_order_and_writers_wait():
    with ReplayTables(STEP, [Table.queue("q", 4)]) as tables, tables.writer() as writer:
        for number in range(4):
            writer.append(step(number))
            writer.insert("q")
        with pytest.raises(
            WaitTimeout, match=r"'q'.*4 items, 4 inserted and 0 sampled.*diff = 4.0 between 0.0 and 4.0"
        ):
            writer.insert("q", timeout=0.05)
        with pytest.raises(InvalidArgument, match="never give more than 4 items at once"):
            tables["q"].sample(5)
        got = []
        reader = threading.Thread(target=lambda: [got.extend(rewards(tables["q"].sample(2))) for _ in range(6)])
        reader.start()
        for number in range(4, 12):
            writer.append(step(number))
            writer.insert("q", timeout=30)
        reader.join(30)
        assert got == list(range(12))


def test_waiting_for_items_says_how_many_there_are():
    with filled(Table("main", 100, limiter=MinSize(50))) as tables:
        with pytest.raises(WaitTimeout, match=r"10 items.*waits for 50"):
            tables["main"].sample(1, timeout=0.05)


def test_samples_per_insert_hold_both_sides_back():
    limiter = SamplesPerInsert(2.0, min_size=2, error_buffer=4.0)
    with ReplayTables(STEP, [Table("main", 100, limiter=limiter)]) as tables, tables.writer() as writer:
        writer.append(step(0))
        inserted = 0
        with pytest.raises(WaitTimeout):
            while True:
                writer.insert("main", timeout=0.05)
                inserted += 1
        assert inserted == 4  # diff = 8 = 2 x 2 + 4
        tables["main"].sample(8)
        with pytest.raises(WaitTimeout, match="diff"):
            tables["main"].sample(1, timeout=0.05)


def test_writers_wait_for_new_weights():
    with ReplayTables(STEP, [Table("main", 100, limiter=Versions(3))]) as tables, tables.writer() as writer:
        writer.append(step(0))
        [writer.insert("main") for _ in range(3)]
        with pytest.raises(WaitTimeout, match="weights have version 0"):
            writer.insert("main", timeout=0.05)
        tables.note_version(1)
        writer.insert("main", timeout=10)


def test_stale_items_are_not_sampled():
    with ReplayTables(STEP, [Table("main", 100, max_staleness=1)]) as tables, tables.writer() as writer:
        for version in range(4):
            writer.append(step(version))
            writer.insert("main", version=version)
        tables.note_version(3)
        assert set(rewards(tables["main"].sample(100))) == {2, 3}


def test_the_same_seed_draws_the_same_batches():
    def draw() -> list[float]:
        with filled(Table("main", 100, Prioritised(0.5))) as tables:
            return rewards(tables["main"].sample(50))

    assert draw() == draw()


def test_items_can_be_deleted_and_all_cleared():
    with filled(Table("main", 100), Table("other", 100)) as tables:
        keys = tables["main"].sample(100).keys
        assert tables["main"].delete(keys) == len(set(keys.tolist()))
        tables["other"].clear()
        assert len(tables["other"]) == 0 and tables["other"].info()["inserts"] == 0
        assert tables.audit() == []


@dataclass
class Pair:
    left: float
    right: np.ndarray


def test_steps_may_be_of_any_class():
    with ReplayTables(Pair(0.0, np.zeros(3)), [Table("main", 10)]) as tables, tables.writer() as writer:
        writer.append(Pair(1, [1, 2, 3]))
        writer.insert("main")
        batch = tables["main"].sample(2)
        assert isinstance(batch.data, Pair) and batch.data.right.tolist() == [[[1, 2, 3]]] * 2


def test_steps_can_be_appended_stacked():
    with ReplayTables({"x": 0}, [Table("main", 200)]) as tables, tables.writer(150) as writer:
        writer.append_many({"x": np.arange(150)})
        writer.insert("main", 150)
        assert tables["main"].sample(1).data["x"][0].tolist() == list(range(150))


def write_in_another_process(name: str) -> None:
    with ReplayTables.attach(name) as tables, tables.writer(2) as writer:
        for number in range(20):
            writer.append(step(number))
            writer.insert("main", timeout=10)


def test_another_process_writes_what_this_one_samples():
    with ReplayTables(STEP, [Table.queue("main", 100)]) as tables:
        child = multiprocessing.get_context("spawn").Process(target=write_in_another_process, args=(tables.name,))
        child.start()
        assert rewards(tables["main"].sample(20, timeout=60)) == list(range(20))
        child.join(60)
        assert child.exitcode == 0
        assert set(ReplayTables.attach(tables.name)) == {"main"}


def test_a_learner_that_leaves_ends_the_writers():
    tables = ReplayTables(STEP, [Table("main", 100)])
    other = ReplayTables.attach(tables.name)
    writer = other.writer()
    writer.append(step(0))
    tables.close()
    with pytest.raises(ConnectionClosedError, match="last learner has left"):
        writer.insert("main")
    with pytest.raises(ConnectionClosedError, match="is closed"):
        tables["main"].sample(1)
    other.close()


def test_a_learner_that_fails_leaves_its_items_to_the_next(tmp_path):
    name = f"test-{tmp_path.name}"
    with pytest.raises(RuntimeError), filled(Table("main", 100), name=name):
        raise RuntimeError("the learner fails")
    with ReplayTables(STEP, [Table("main", 100)], name=name) as tables:
        assert len(tables["main"]) == 10 and set(rewards(tables["main"].sample(200))) == set(range(10))


WRONG = {
    "min_size is more than max_size": lambda: Table("t", 5, limiter=MinSize(6)),
    "for ever. It must be at least 4.0": lambda: Limiter(1, 4.0, 0.0, 2.0),
    "for ever. It must be at least 2.5": lambda: Limiter(1, 1.5, 0.0, 1.5),
    "min_size must be": lambda: MinSize(0),
    "error_buffer": lambda: SamplesPerInsert(4.0, 10, 1.0),
    "exponent": lambda: Prioritised(float("nan")),
    "1 to 64 bytes": lambda: Table("", 5),
    "max_size = 0": lambda: Table("t", 0),
    "must be a Selector": lambda: Table("t", 5, "uniform"),
    "different names": lambda: ReplayTables(STEP, [Table("t", 5), Table("t", 5)]),
    "max_steps = 0": lambda: ReplayTables(STEP, [Table("t", 5)], max_steps=0),
    "items_per_version": lambda: Versions(0),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_work_is_refused_when_it_is_made(text):
    with pytest.raises(InvalidArgument) as refused:
        WRONG[text]()
    assert text in str(refused.value) or "could never be sampled" in str(refused.value)


def test_wrong_calls_say_what_is_wrong():
    with filled(Table("main", 100)) as tables, tables.writer(2) as writer:
        writer.append(step(1))
        calls = {
            "there is no table 'other'": lambda: writer.insert("other"),
            "the writer has the last 1": lambda: writer.insert("main", 2),
            "priority is nan": lambda: writer.insert("main", priority=float("nan")),
            "column 'x' is 3": lambda: writer.insert("main", columns={"x": 3}),
            "step 1 of an item of 1": lambda: writer.insert("main", columns={"x": ("reward", 1)}),
            "2 keys and 1 priorities": lambda: tables["main"].update_priorities([1, 2], [1.0]),
            "at least 0": lambda: tables["main"].update_priorities([1], [-1.0]),
            "batch_size = 0": lambda: tables["main"].sample(0),
        }
        for text, call in calls.items():
            with pytest.raises(InvalidArgument) as refused:
                call()
            assert text in str(refused.value)
        with pytest.raises(SchemaMismatch, match="reward"):
            writer.append({"obs": STEP["obs"], "reward": "much", "done": False})
        with pytest.raises(SchemaMismatch):
            ReplayTables.attach(tables.name, {"other": 0.0})


def test_a_queue_holds_as_many_as_its_limiter_says():
    assert Table.queue("q", 7).limiter == Queue(7) and Table.stack("s", 7).sampler == Lifo()
