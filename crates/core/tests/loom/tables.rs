//! Every interleaving of two threads over the shipped protocol of replay tables, up to a number of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rollway-core --profile loom --test loom tables::`
//!
//! The words lie on loom's heap. A step is two relaxed atomics, since readers may look while it is written: what they keep
//! must have equal halves. One who dies panics at a crash point: that gives the lock free and leaves the rest as it is.

use crate::mortal::{explore, owner, spawn};
use rollway_core::replay::draw::RandomStream;
use rollway_core::sys::sync::{AtomicU32, AtomicU64, Ordering, Point, fault, fence};
use rollway_core::sys::wait::Deadline;
use rollway_core::tables::index::{Index, NewItem, Steps};
use rollway_core::tables::layout::{Chunk, Config, Control, Item, TableHead};
use rollway_core::tables::limiter::Limiter;
use rollway_core::tables::recovery::{audit, rebuild};
use rollway_core::tables::selectors::Kind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One table on loom's heap, with chunks of one step.
struct Heap {
    config: Config,
    control: Control,
    head: TableHead,
    items: Vec<Item>,
    ranks: Vec<AtomicU32>,
    chunks: Vec<Chunk>,
    steps: Vec<[AtomicU64; 2]>,
}

impl Heap {
    fn new(items: usize, chunks: usize) -> Arc<Heap> {
        let config = Config {
            name: "main".to_owned(),
            max_items: items,
            sampler: Kind::Uniform,
            remover: Kind::Fifo,
            max_times_sampled: 0,
            limiter: Limiter::min_size(1),
            max_age_ms: 0,
            max_later_items: 0,
            max_staleness: 0,
        };
        let heap = Heap {
            config,
            control: Control::default(),
            head: TableHead::default(),
            items: (0..items).map(|_| Item::default()).collect(),
            ranks: (0..items).map(|_| AtomicU32::new(0)).collect(),
            chunks: (0..chunks).map(|_| Chunk::default()).collect(),
            steps: (0..chunks).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
        };
        rebuild(&[heap.index()], |_| false);
        Arc::new(heap)
    }

    fn index(&self) -> Index<'_> {
        Index {
            config: &self.config,
            head: &self.head,
            items: &self.items,
            ranks: Some(&self.ranks),
            heaps: [None; 2],
            trees: [None; 2],
            steps: Steps { store: &self.control.store, chunks: &self.chunks, chunk_steps: 1 },
        }
    }

    /// With the lock, as `Tables::locked` does it.
    fn locked<T>(&self, seat: usize, work: impl FnOnce(&Index<'_>) -> T) -> T {
        let held = self.control.lock.acquire(owner(seat), Deadline::Never, |_| false).unwrap();
        if held.must_rebuild {
            rebuild(&[self.index()], |_| true);
        }
        let done = work(&self.index());
        held.release();
        done
    }

    /// Writes a step and inserts it, after it has removed the oldest item if there is no place or no chunk.
    fn replace(&self, seat: usize, value: u64) {
        let chunk = self.locked(seat, |index| {
            index.steps.take(owner(seat)).unwrap_or_else(|| {
                index.remove(index.order().oldest().unwrap());
                index.steps.take(owner(seat)).unwrap()
            })
        });
        fence(Ordering::Release);
        self.steps[chunk].iter().for_each(|half| half.store(value, Ordering::Relaxed));
        self.locked(seat, |index| {
            let item = NewItem { first: chunk as u64, span: 1, pattern: 0, priority: 1.0, version: 0 };
            if index.insert(&item, 0).is_none() {
                index.remove(index.order().oldest().unwrap());
                index.insert(&item, 0).unwrap();
            }
            index.steps.let_go(chunk);
        });
    }

    /// An item, drawn without the lock, if it is there and stays.
    fn read(&self, counter: u64) -> Option<u64> {
        let index = self.index();
        let (item, _) = index.choose_uniformly(RandomStream::of(0), counter)?;
        let chosen = index.look(item)?;
        let [one, two] = [0, 1].map(|half| self.steps[chosen.first as usize][half].load(Ordering::Relaxed));
        index.is_unchanged(item, chosen.word).then(|| {
            assert!(one == two && one != 0, "a torn step was kept: {one} {two}");
            one
        })
    }

    fn check(&self) {
        assert_eq!(self.locked(9, |index| audit(&[*index])), Vec::<String>::new());
    }
}

#[test]
fn a_reader_never_keeps_steps_of_a_later_item() {
    explore(2, || {
        let heap = Heap::new(1, 1);
        heap.replace(1, 1);
        let writer = spawn(&heap, |heap: &Heap| heap.replace(1, 2));
        assert!(heap.read(0).is_none_or(|value| value == 1 || value == 2));
        writer.join().unwrap();
        assert_eq!(heap.read(1), Some(2));
    });
}

#[test]
fn two_writers_lose_no_item() {
    explore(1, || {
        let heap = Heap::new(2, 4);
        let writer = spawn(&heap, |heap: &Heap| heap.replace(1, 1));
        heap.replace(2, 2);
        writer.join().unwrap();
        assert_eq!(heap.head.size.load(Ordering::Relaxed), 2);
        heap.check();
    });
}

#[test]
fn what_a_dying_writer_leaves_is_put_right_by_the_next() {
    const POINTS: [Point; 7] = [
        Point::ItemDelisted,
        Point::ItemFreed,
        Point::ChunkTaken,
        Point::ItemWritten,
        Point::ItemLive,
        Point::ChunkLetGo,
        Point::TablesChanged,
    ];
    for at in POINTS {
        explore(1, move || {
            let heap = Heap::new(1, 2);
            heap.replace(1, 1);
            let dying = spawn(&heap, move |heap: &Heap| {
                fault::on_point(move |point| {
                    if point == at {
                        std::panic::resume_unwind(Box::new("killed")); // Without a message.
                    }
                });
                let died = catch_unwind(AssertUnwindSafe(|| heap.replace(2, 2))).is_err();
                fault::on_point(|_| {});
                died
            });
            heap.read(0);
            assert!(dying.join().unwrap(), "{at:?} was not reached");
            heap.replace(3, 3);
            assert_eq!(heap.read(1), Some(3), "{at:?}");
            heap.check();
        });
    }
}
