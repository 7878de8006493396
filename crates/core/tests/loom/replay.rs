//! Every interleaving of two or three threads over the shipped protocol of the table, up to a number of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rollway-core --profile loom --test loom replay::`
//!
//! The words lie on loom's heap. A row is two relaxed atomics, since its readers may look while it is written: what they
//! keep must have equal halves. A death is a panic at a crash point, caught in its thread.

use crate::mortal::{explore, wait_until};
use loom::thread;
use rollway_core::replay::layout::{Control, RowKind, RowWord};
use rollway_core::replay::protocol::{Claim, Protocol};
use rollway_core::replay::recovery::recover;
use rollway_core::segment::Owner;
use rollway_core::sys::sync::{AtomicU32, AtomicU64, Ordering, Point, crash_point, fault};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One table on loom's heap, whose rows hold a number twice.
struct Heap {
    control: Control,
    words: Vec<AtomicU64>,
    rows: Vec<[AtomicU64; 2]>,
    /// The seat of the one who died, plus one.
    dead: AtomicU32,
}

impl Heap {
    fn new(capacity: usize) -> Arc<Heap> {
        Arc::new(Heap {
            control: Control::default(),
            words: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            rows: (0..capacity).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
            dead: AtomicU32::new(0),
        })
    }

    fn table(&self) -> Protocol<'_> {
        Protocol { control: &self.control, words: &self.words }
    }

    /// As the kernel says it: whoever hears of a death sees what the dead did.
    fn is_dead(&self, owner: Owner) -> bool {
        self.dead.load(Ordering::Acquire) == owner.seat() as u32 + 1
    }

    fn write(&self, claim: &Claim, value: u64) {
        for row in claim.rows() {
            self.rows[row][0].store(value, Ordering::Relaxed);
            crash_point(Point::RowHalfWritten);
            self.rows[row][1].store(value, Ordering::Relaxed);
        }
        crash_point(Point::RowsWritten);
    }

    /// Adds rows of one value. False when it was late, or passed over all of them.
    fn try_add(&self, seat: usize, value: u64, want: usize) -> usize {
        let table = self.table();
        let mut positions = table.promise(want);
        let mut added = 0;
        while let Some(claim) = table.claim(owner(seat), positions.clone(), |other| self.is_dead(other)) {
            positions.start = claim.positions().end;
            self.write(&claim, value);
            added += claim.len;
            table.commit(claim);
        }
        added
    }

    /// The row, if it is whole and stays so.
    fn read(&self, row: usize) -> Option<u64> {
        let word = self.table().begin_read(row)?;
        let [one, two] = [0, 1].map(|half| self.rows[row][half].load(Ordering::Relaxed));
        self.table().is_unchanged(row, word).then(|| {
            assert_eq!(one, two, "a torn row was kept");
            one
        })
    }

    fn ready(&self) -> usize {
        self.words.iter().filter(|word| RowWord::is_ready(word.load(Ordering::Relaxed))).count()
    }
}

fn owner(seat: usize) -> Owner {
    Owner::new(seat, 1)
}

fn spawn<T: 'static>(heap: &Arc<Heap>, run: impl FnOnce(&Heap) -> T + 'static) -> thread::JoinHandle<T> {
    let heap = heap.clone();
    thread::spawn(move || run(&heap))
}

/// Runs until the n-th visit of a point, and dies there. True when it got that far.
fn dying(heap: &Heap, seat: usize, at: Point, nth: usize, run: impl FnOnce()) -> bool {
    let mut visits = 0;
    fault::on_point(move |point| {
        visits += (point == at) as usize;
        if point == at && visits == nth {
            std::panic::resume_unwind(Box::new("killed")); // Without a message.
        }
    });
    let died = catch_unwind(AssertUnwindSafe(run)).is_err();
    fault::on_point(|_| {});
    if died {
        heap.dead.store(seat as u32 + 1, Ordering::Release);
    }
    died
}

#[test]
fn a_reader_never_keeps_a_torn_row() {
    explore(3, || {
        let heap = Heap::new(1);
        let adder = spawn(&heap, |heap| {
            assert_eq!(heap.try_add(1, 1, 1), 1);
            assert_eq!(heap.try_add(1, 2, 1), 1);
        });
        for _ in 0..2 {
            assert!(heap.read(0).is_none_or(|value| value == 1 || value == 2));
        }
        adder.join().unwrap();
        assert_eq!(heap.read(0), Some(2));
    });
}

#[test]
fn two_adders_and_a_reader_on_one_row() {
    explore(2, || {
        let heap = Heap::new(1);
        let adders: Vec<_> = (1..3).map(|n| spawn(&heap, move |heap| heap.try_add(n, n as u64, 1))).collect();
        heap.read(0);
        let added: usize = adders.into_iter().map(|adder| adder.join().unwrap()).sum();
        assert!(added >= 1, "one of them has the row");
        assert!(heap.read(0).is_some_and(|value| value == 1 || value == 2), "and it is whole in the end");
        assert_eq!(heap.table().count(), 1);
    });
}

#[test]
fn two_adders_of_two_rows_each_lose_none_of_them() {
    explore(2, || {
        let heap = Heap::new(4);
        let other = spawn(&heap, |heap| heap.try_add(1, 1, 2));
        let mine = heap.try_add(2, 2, 2);
        assert_eq!(mine + other.join().unwrap(), 4);
        let mut values: Vec<_> = (0..4).map(|row| heap.read(row).unwrap()).collect();
        values.sort_unstable();
        assert_eq!(values, [1, 1, 2, 2]);
    });
}

#[test]
fn a_row_of_the_dead_is_taken_over_and_never_shown() {
    for point in [
        Point::RowsPromised,
        Point::RowsPartlyClaimed,
        Point::RowHalfWritten,
        Point::RowsWritten,
        Point::RowsPartlyCommitted,
    ] {
        explore(2, move || {
            let heap = Heap::new(2);
            heap.try_add(3, 7, 2); // Both rows are whole before.
            let dead = spawn(&heap, move |heap| {
                assert!(dying(heap, 1, point, 1, || _ = heap.try_add(1, 8, 2)));
            });
            let reader = spawn(&heap, |heap| {
                for row in 0..2 {
                    assert!(heap.read(row).is_none_or(|value| matches!(value, 7..=9)));
                }
            });
            dead.join().unwrap();
            reader.join().unwrap();
            // The next one goes round until it has written both rows.
            let mut added = 0;
            while added < 2 {
                added += heap.try_add(2, 9, 1);
            }
            assert_eq!((heap.read(0), heap.read(1)), (Some(9), Some(9)));
            assert_eq!(heap.table().count(), 2);
        });
    }
}

#[test]
fn a_live_writer_is_passed_over_by_those_who_lap_it() {
    explore(2, || {
        let heap = Heap::new(2);
        let table = heap.table();
        let held = table.claim(owner(1), table.promise(1), |_| false).unwrap();
        let lapper = spawn(&heap, |heap| (0..4).map(|_| heap.try_add(2, 9, 1)).sum::<usize>());
        heap.write(&held, 5);
        assert_eq!(RowWord::unpack(heap.words[0].load(Ordering::Relaxed)).kind, RowKind::Writing);
        assert_eq!(lapper.join().unwrap(), 2, "every other position is the row that somebody is writing");
        table.commit(held);
        assert_eq!((heap.read(0), heap.read(1)), (Some(5), Some(9)));
    });
}

#[test]
fn a_count_beside_a_repair_never_counts_what_was_given_up() {
    explore(2, || {
        let heap = Heap::new(2);
        heap.try_add(3, 7, 2);
        // The dead one had the first row again in hand.
        assert!(dying(&heap, 1, Point::RowHalfWritten, 1, || _ = heap.try_add(1, 8, 1)));
        let counter = spawn(&heap, |heap| heap.table().count());
        let recoverer = spawn(&heap, |heap| recover(&heap.table(), |other| heap.is_dead(other)));
        assert_eq!(heap.try_add(2, 9, 1), 1);
        assert!(counter.join().unwrap() <= 2, "rows that are being replaced count once they were counted");
        recoverer.join().unwrap();
        assert_eq!(heap.table().count(), heap.ready());
    });
}

#[test]
fn one_who_waits_for_rows_hears_of_them() {
    explore(2, || {
        let heap = Heap::new(2);
        let adders: Vec<_> = (1..3).map(|n| spawn(&heap, move |heap| heap.try_add(n, 1, 1))).collect();
        let changed = &heap.control.changed;
        wait_until(changed, || changed.announce(), || (heap.table().count() == 2).then_some(()));
        adders.into_iter().for_each(|adder| assert_eq!(adder.join().unwrap(), 1));
    });
}
