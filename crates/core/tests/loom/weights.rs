//! Every interleaving of two or three threads over the shipped protocol of weights, up to a number of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rollway-core --profile loom --test loom weights::`
//!
//! The words lie on loom's heap, and so do the leaves: relaxed atomics, for a reader may copy what is being overwritten. Two
//! leaves of one version must be read together, or the copy thrown away. A death is a panic at a crash point, caught in
//! its thread.

use crate::mortal::{explore, owner, spawn, wait_until};
use rollway_core::segment::Owner;
use rollway_core::sys::sync::{AtomicU64, Ordering, Point, crash_point, fault};
use rollway_core::weights::layout::{BufferHead, Control, Latest, LeafEntry, PinLine};
use rollway_core::weights::protocol::Protocol;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

const LEAVES: usize = 2;

/// Weights on loom's heap.
struct Heap {
    control: Box<Control>,
    pins: Vec<PinLine>,
    heads: Vec<BufferHead>,
    entries: Vec<LeafEntry>,
    /// The bytes: those of buffer 0, then those of buffer 1, …
    bytes: Vec<AtomicU64>,
}

impl Heap {
    /// `buffers` buffers, and as many readers.
    fn new(buffers: usize, readers: usize) -> Arc<Heap> {
        let heap = Heap {
            control: Box::default(),
            pins: (0..readers).map(|_| PinLine::default()).collect(),
            heads: (0..buffers).map(|_| BufferHead::default()).collect(),
            entries: (0..buffers * LEAVES).map(|_| LeafEntry::default()).collect(),
            bytes: (0..buffers * LEAVES).map(|_| AtomicU64::new(0)).collect(),
        };
        heap.weights().note_grown(buffers);
        Arc::new(heap)
    }

    fn weights(&self) -> Protocol<'_> {
        Protocol { control: &self.control, pins: &self.pins, heads: &self.heads, entries: &self.entries }
    }

    /// As the writer does it: the leaves given are new, the others are copied where they are not there yet.
    fn write(&self, given: [bool; LEAVES], value: u64, is_dead: impl Fn(Owner) -> bool) -> Latest {
        let weights = self.weights();
        let latest = weights.latest().unwrap();
        let buffer = weights.select(is_dead, |_| false).unwrap();
        let next = Latest { version: latest.map_or(0, |latest| latest.version) + 1, buffer };
        let reliable = weights.open(buffer);
        for leaf in 0..LEAVES {
            let entry = &weights.entries_of(buffer)[leaf];
            let to = &self.bytes[buffer * LEAVES + leaf];
            if given[leaf] {
                entry.version.store(next.version, Ordering::Relaxed);
                to.store(value, Ordering::Relaxed);
            } else {
                let from = latest.expect("the first version has every leaf").buffer;
                let version = weights.entries_of(from)[leaf].version.load(Ordering::Relaxed);
                if !reliable || entry.version.load(Ordering::Relaxed) != version {
                    entry.version.store(version, Ordering::Relaxed);
                    let value = self.bytes[from * LEAVES + leaf].load(Ordering::Relaxed);
                    to.store(value, Ordering::Relaxed);
                }
            }
            crash_point(Point::LeafHalfCopied);
        }
        weights.publish(next);
        next
    }

    /// One attempt of a reader: the version, what it copied, and whether that is whole.
    fn attempt(&self, seat: usize) -> Option<(u64, [u64; LEAVES], bool)> {
        let weights = self.weights();
        let pin = &self.pins[seat].pins[0];
        let latest = weights.pin(pin, owner(seat)).unwrap()?;
        let copy =
            std::array::from_fn(|leaf| self.bytes[latest.buffer * LEAVES + leaf].load(Ordering::Relaxed));
        let whole = weights.is_whole(latest);
        if !whole {
            // Nobody has damaged anything, so there must be a newer version to read instead.
            weights.check_overtaken(latest).unwrap();
        }
        weights.unpin(pin);
        Some((latest.version, copy, whole))
    }
}

fn nobody_is_dead(_: Owner) -> bool {
    false
}

const ALL: [bool; LEAVES] = [true; LEAVES];

#[test]
fn a_pinned_reader_is_never_overtaken_while_there_is_another_buffer() {
    explore(3, || {
        let heap = Heap::new(3, 1);
        heap.write(ALL, 1, nobody_is_dead);
        let writer = spawn(&heap, move |heap| {
            for value in 2..=4 {
                heap.write(ALL, value, nobody_is_dead);
            }
        });
        let (version, copy, whole) = heap.attempt(0).unwrap();
        assert!(whole, "the writer took a buffer that was pinned, with a free one beside it");
        assert_eq!(copy, [version; LEAVES]);
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_that_is_overtaken_notices() {
    explore(3, || {
        let heap = Heap::new(2, 1);
        heap.write(ALL, 1, nobody_is_dead);
        let writer = spawn(&heap, move |heap| {
            heap.write(ALL, 2, nobody_is_dead);
            heap.write(ALL, 3, nobody_is_dead);
        });
        let (version, copy, whole) = heap.attempt(0).unwrap();
        assert!(!whole || copy == [version; LEAVES], "{copy:?} was taken for version {version}");
        writer.join().unwrap();
        assert_eq!(heap.attempt(0), Some((3, [3; LEAVES], true)));
    });
}

#[test]
fn versions_do_not_go_back_for_a_reader() {
    explore(2, || {
        let heap = Heap::new(3, 1);
        let writer = spawn(&heap, move |heap| {
            heap.write(ALL, 1, nobody_is_dead);
            heap.write(ALL, 2, nobody_is_dead);
        });
        let first = heap.attempt(0);
        let second = heap.attempt(0);
        assert!(second.map_or(0, |read| read.0) >= first.map_or(0, |read| read.0));
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_that_waits_for_a_version_is_woken() {
    explore(3, || {
        let heap = Heap::new(3, 1);
        let writer = spawn(&heap, move |heap| {
            heap.write(ALL, 1, nobody_is_dead);
        });
        let event = &heap.control.published;
        wait_until(event, || event.announce(), || heap.weights().latest().unwrap());
        assert_eq!(heap.attempt(0), Some((1, [1; LEAVES], true)));
        writer.join().unwrap();
    });
}

impl Heap {
    /// A whole write, or nothing when another one is in the middle of one.
    fn try_write(
        &self,
        me: Owner,
        given: [bool; LEAVES],
        value: u64,
        is_dead: impl Fn(Owner) -> bool,
    ) -> Option<Latest> {
        self.weights().begin_write(me, &is_dead).ok()?;
        let written = self.write(given, value, is_dead);
        self.weights().end_write(me);
        Some(written)
    }
}

/// Two who write, each one leaf, at most once each at a time: what both published is there, and the leaves are those of both.
#[test]
fn of_two_who_write_at_once_one_is_refused_or_they_take_turns() {
    explore(3, || {
        let heap = Heap::new(3, 0);
        heap.write(ALL, 1, nobody_is_dead);
        let other = spawn(&heap, |heap| heap.try_write(owner(1), [true, false], 2, nobody_is_dead));
        let mine = heap.try_write(owner(0), [false, true], 3, nobody_is_dead);
        let theirs = other.join().unwrap();
        let written = mine.is_some() as u64 + theirs.is_some() as u64;
        assert!(written > 0, "both were refused");
        let latest = heap.weights().latest().unwrap().unwrap();
        assert_eq!(latest.version, 1 + written);
        assert!(mine.is_none() || theirs.is_none() || mine != theirs);
        let leaf = |leaf: usize| heap.bytes[latest.buffer * LEAVES + leaf].load(Ordering::Relaxed);
        let expected = [if theirs.is_some() { 2 } else { 1 }, if mine.is_some() { 3 } else { 1 }];
        assert_eq!([leaf(0), leaf(1)], expected);
        assert!(!heap.weights().last_writer().unwrap().is_writing);
    });
}

#[test]
fn a_reader_beside_two_writers_that_take_turns_is_never_torn() {
    explore(2, || {
        let heap = Heap::new(3, 1);
        heap.try_write(owner(1), ALL, 1, nobody_is_dead).unwrap();
        let writers = spawn(&heap, |heap| {
            heap.try_write(owner(2), ALL, 2, nobody_is_dead).unwrap();
            heap.try_write(owner(1), ALL, 3, nobody_is_dead).unwrap();
        });
        let (version, copy, whole) = heap.attempt(0).unwrap();
        assert!(whole && copy == [version; LEAVES], "{copy:?} in version {version}");
        writers.join().unwrap();
    });
}

#[test]
fn a_writer_that_waits_for_the_end_of_another_write_is_woken() {
    explore(2, || {
        let heap = Heap::new(3, 0);
        heap.weights().begin_write(owner(1), nobody_is_dead).unwrap();
        let other = spawn(&heap, |heap| heap.weights().end_write(owner(1)));
        let (weights, event) = (heap.weights(), &heap.control.published);
        wait_until(event, || event.announce(), || weights.begin_write(owner(0), nobody_is_dead).ok());
        other.join().unwrap();
        assert_eq!(weights.last_writer().unwrap().owner, owner(0));
    });
}

#[test]
fn a_writer_that_leaves_beside_one_that_writes_leaves_the_word_to_it() {
    explore(3, || {
        let heap = Heap::new(3, 0);
        heap.try_write(owner(1), ALL, 1, nobody_is_dead).unwrap();
        let other = spawn(&heap, |heap| heap.try_write(owner(0), ALL, 2, nobody_is_dead));
        heap.weights().leave_writers(owner(1), nobody_is_dead, Some(owner(0)));
        let refused = other.join().unwrap().is_none();
        let last = heap.weights().last_writer().unwrap();
        assert!(last.owner == owner(0) && !last.is_writing, "{last:?}");
        assert_eq!(heap.weights().latest().unwrap().unwrap().version, if refused { 1 } else { 2 });
    });
}

/// A writer dies at `point`, beside a reader; another one takes over, changes one leaf at a time, and everything adds up.
fn a_writer_dies_at(point: Point) {
    explore(2, move || {
        let heap = Heap::new(3, 1);
        let is_dead = |dead: Owner| dead == owner(5);
        heap.write(ALL, 1, nobody_is_dead);
        let victim = spawn(&heap, move |heap| {
            fault::on_point(move |at| {
                if at == point {
                    resume_unwind(Box::new(point));
                }
            });
            let death = catch_unwind(AssertUnwindSafe(|| {
                heap.try_write(owner(5), [true, false], 50, nobody_is_dead).unwrap();
            }));
            assert!(death.is_err(), "{point:?} was not reached");
        });
        let (version, copy, whole) = heap.attempt(0).unwrap();
        assert!(whole && copy == [if version == 1 { 1 } else { 50 }, 1], "{copy:?} in version {version}");
        victim.join().unwrap();

        let published = if matches!(point, Point::VersionPublished | Point::WriteEnded) { 2 } else { 1 };
        assert_eq!(heap.weights().latest().unwrap().unwrap().version, published);
        let refused = heap.weights().begin_write(owner(6), nobody_is_dead);
        assert_eq!(refused.is_ok(), point == Point::WriteEnded, "one that lives is not written beside");
        heap.weights().begin_write(owner(6), is_dead).unwrap();
        let first = if published == 2 { 50 } else { 1 };
        // What the dead one wrote and did not publish has a version that comes again: it must not be taken for this one.
        heap.write([false, true], 60, is_dead);
        assert_eq!(heap.attempt(0), Some((published + 1, [first, 60], true)));
        heap.write([false, true], 61, is_dead);
        assert_eq!(heap.attempt(0), Some((published + 2, [first, 61], true)));
        heap.write([true, false], 70, is_dead);
        assert_eq!(heap.attempt(0), Some((published + 3, [70, 61], true)));
    });
}

#[test]
fn a_writer_may_die_when_it_took_over() {
    a_writer_dies_at(Point::WriterTaken);
}

#[test]
fn a_writer_may_die_when_it_opened_a_buffer() {
    a_writer_dies_at(Point::BufferOpened);
}

#[test]
fn a_writer_may_die_between_two_leaves() {
    a_writer_dies_at(Point::LeafHalfCopied);
}

#[test]
fn a_writer_may_die_before_it_publishes() {
    a_writer_dies_at(Point::BufferWritten);
}

#[test]
fn a_writer_may_die_before_it_wakes_anybody() {
    a_writer_dies_at(Point::VersionPublished);
}

#[test]
fn a_writer_may_die_between_two_writes() {
    a_writer_dies_at(Point::WriteEnded);
}
