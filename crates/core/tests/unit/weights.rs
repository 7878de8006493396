//! Weights: what one call does, for the writer and for readers, in one process and in forked ones.
use crate::fixture::{DEADLINE, Name, alone, briefly, ends, eventually, soon};
use rollway_core::Error;
use rollway_core::segment::{Owner, arrival, catalog};
use rollway_core::sys::sync::Ordering;

use crate::weights_fixture::{SCHEMA, Values, create, read, read_since, reader, spec, update, write};
use rollway_core::weights::copy::{BufferCopies, CopyLeaves};
use rollway_core::weights::layout::{LastWriter, Latest};
use rollway_core::weights::{Deadline, Draft, HeldVersion, IfExists, Reader, Weights, WeightsSpec, Writer};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[test]
fn a_reader_gets_the_version_that_was_written_last() {
    let writer = create(&spec(None));
    let reader = reader(&writer);
    assert_eq!(read(&reader), None);
    assert_eq!(write(&writer, 1), 1);
    assert_eq!(write(&writer, 2), 2);
    assert_eq!(read(&reader), Some((2, [2, 2, 2])));
    assert_eq!(writer.weights().version().unwrap(), 2);
}

#[test]
fn an_update_changes_its_leaves_and_keeps_the_others() {
    let writer = create(&spec(None));
    let reader = reader(&writer);
    write(&writer, 10);
    for round in 0..20 {
        update(&writer, 1, 100 + round);
        assert_eq!(read(&reader).unwrap().1, [10, 100 + round, 10]);
    }
    update(&writer, 0, 7);
    assert_eq!(read(&reader).unwrap().1, [7, 119, 10]);
}

/// Copies of a caller's own, which fail after the first leaf if they are told to.
struct OwnCopies {
    fail: bool,
}

impl CopyLeaves for OwnCopies {
    const ON_HOST: bool = false;

    unsafe fn copy(&self, copies: &BufferCopies<'_>) -> rollway_core::Result<()> {
        let (start, bytes) = copies.weights.buffer_memory(copies.buffer);
        for copy in copies.copies {
            let inside = |at: *const u8| (start as usize..start as usize + bytes).contains(&(at as usize));
            assert!(inside(copy.from) != inside(copy.to), "one end is in the buffer");
            // SAFETY: as the caller promises.
            unsafe { copy.to.copy_from_nonoverlapping(copy.from, copy.bytes) };
            if self.fail {
                return Err(Error::Device { what: "the device is gone".to_owned() });
            }
        }
        Ok(())
    }
}

#[test]
fn copies_of_the_callers_own_write_and_read_whole_versions_or_none() {
    for checksum in [false, true] {
        let writer = create(&WeightsSpec { checksum, ..spec(None) });
        let reader = reader(&writer);
        let (right, wrong) = (OwnCopies { fail: false }, OwnCopies { fail: true });
        let values = Values::of([5, 6, 7]);
        // SAFETY: the values live here, and are as large as their leaves.
        unsafe {
            assert_eq!(writer.write_with(&values.sources(), &right).unwrap(), 1);
            let others = Values::of([8, 8, 8]);
            let failed = writer.write_with(&others.sources(), &wrong);
            assert!(matches!(failed, Err(Error::Device { .. })), "{failed:?}");
        }
        assert_eq!(read(&reader), Some((1, [5, 6, 7])), "checksum: {checksum}");
        let mut mine = Values::of([0, 0, 0]);
        // SAFETY: as above.
        unsafe {
            let failed = reader.read_with(&mine.targets(), 0, &wrong);
            assert!(matches!(failed, Err(Error::Device { .. })), "{failed:?}");
            let reading = reader.read_with(&mine.targets(), 0, &right).unwrap().unwrap();
            assert_eq!((reading.version, mine.numbers()), (1, [5, 6, 7]));
        }
        assert_eq!(write(&writer, 9), 2, "nothing is left of the write that failed");
        assert_eq!(reader.weights().totals().recovered, 0);
    }
}

#[test]
fn an_update_before_the_first_version_is_refused() {
    let writer = create(&spec(None));
    let values = Values::of([1, 1, 1]);
    // SAFETY: the values live here.
    let result = unsafe { writer.write(&values.sources()[..1]) };
    assert!(matches!(result, Err(Error::NothingPublished { .. })));
    assert_eq!(writer.weights().version().unwrap(), 0);
}

#[test]
fn only_what_changed_since_a_version_is_copied() {
    let writer = create(&spec(None));
    let reader = reader(&writer);
    write(&writer, 1);
    update(&writer, 2, 50);
    update(&writer, 0, 60);
    assert_eq!(read_since(&reader, 1), Some((3, vec![0, 2])));
    assert_eq!(read_since(&reader, 2), Some((3, vec![0])));
    assert_eq!(read_since(&reader, 3), Some((3, vec![])));
    assert_eq!(read_since(&reader, 99), Some((3, vec![0, 1, 2])), "a version that never was");
}

#[test]
fn an_update_of_the_same_leaf_copies_nothing_else() {
    let writer = create(&spec(None));
    write(&writer, 1);
    update(&writer, 1, 2);
    update(&writer, 1, 3);
    // From here on both buffers in turn have the other leaves: spoil one in the buffer that comes next, and it stays so.
    let weights = writer.weights().clone();
    let latest = weights.protocol().latest().unwrap().unwrap();
    let next = 1 - latest.buffer;
    let spoiled = leaf_address(&weights, next, 2);
    // SAFETY: the buffer exists, nobody reads it, and the writer does not write now.
    unsafe { spoiled.write(0xEE) };
    update(&writer, 1, 4);
    assert_eq!(weights.protocol().latest().unwrap().unwrap().buffer, next);
    // SAFETY: as above.
    assert_eq!(unsafe { spoiled.read() }, 0xEE, "leaf 2 was copied again");
}

fn leaf_address(weights: &Weights, buffer: usize, leaf: usize) -> *mut u8 {
    let geometry = weights.geometry();
    // SAFETY: inside the body, by the way the geometry was derived.
    unsafe {
        weights.segment().body().0.as_ptr().add(geometry.buffer_offset(buffer) + geometry.leaf_offsets[leaf])
    }
}

#[test]
fn a_checksum_that_does_not_fit_is_an_error_that_names_the_leaf() {
    let writer = create(&WeightsSpec { checksum: true, ..spec(None) });
    let reader = reader(&writer);
    write(&writer, 3);
    update(&writer, 0, 4);
    assert_eq!(read(&reader), Some((2, [4, 3, 3])));
    let latest = writer.weights().protocol().latest().unwrap().unwrap();
    // SAFETY: the buffer exists, and nobody else looks at it now.
    unsafe { leaf_address(writer.weights(), latest.buffer, 1).write(0xEE) };
    let mut values = Values::of([0; 3]);
    // SAFETY: the values live here.
    let result = unsafe { reader.read(&values.targets(), 0) };
    assert!(matches!(result, Err(Error::Checksum { leaf: 1, version: 2, .. })), "{result:?}");
    write(&writer, 5);
    assert_eq!(read(&reader), Some((3, [5, 5, 5])), "the next version is whole");
}

#[test]
fn a_pinned_buffer_is_not_written_and_the_segment_grows() {
    let writer = create(&spec(None));
    let weights = writer.weights().clone();
    let readers: Vec<Reader> = (0..2).map(|_| reader(&writer)).collect();
    let protocol = weights.protocol();
    let mut held = Vec::new();
    for (version, _) in readers.iter().enumerate() {
        write(&writer, version as u64);
        // As a reader that is slow: its pin stays.
        let pin = &protocol.pins[version + 1].pins[0];
        let owner = Owner::new(version + 1, 1);
        held.push(protocol.pin(pin, owner).unwrap().unwrap());
    }
    assert_eq!(weights.totals().buffers, 3);
    for value in 10..20 {
        write(&writer, value);
    }
    assert_eq!(weights.totals().buffers, 4, "the latest, the next, and two that are read");
    assert!(held.iter().all(|&latest| protocol.is_whole(latest)));
    assert_eq!(weights.totals().overtaken, 0);
}

#[test]
fn with_every_buffer_pinned_the_oldest_is_taken_and_its_reader_notices() {
    let writer = create(&WeightsSpec { max_buffers: 3, ..spec(None) });
    let weights = writer.weights().clone();
    let readers: Vec<Reader> = (0..2).map(|_| reader(&writer)).collect();
    let protocol = weights.protocol();
    let mut held = Vec::new();
    for (version, _) in readers.iter().enumerate() {
        write(&writer, version as u64);
        let pin = &protocol.pins[version + 1].pins[0];
        held.push(protocol.pin(pin, Owner::new(version + 1, 1)).unwrap().unwrap());
    }
    write(&writer, 7); // The third buffer.
    write(&writer, 8); // The first again: it is the oldest.
    assert!(!protocol.is_whole(held[0]) && protocol.is_whole(held[1]));
    assert_eq!(weights.totals().overtaken, 1);
    assert_eq!(read(&readers[0]), Some((4, [8, 8, 8])));
}

#[test]
fn the_pin_of_a_dead_reader_is_cleared_before_the_segment_grows() {
    let writer = create(&spec(None));
    let weights = writer.weights().clone();
    let protocol = weights.protocol();
    for seat in 1..3 {
        write(&writer, seat as u64);
        // Nobody ever sat there: as dead as can be.
        protocol.pin(&protocol.pins[seat].pins[3], Owner::new(seat, 1)).unwrap();
    }
    for value in 0..5 {
        write(&writer, value);
    }
    let totals = weights.totals();
    assert_eq!((totals.buffers, totals.recovered, totals.overtaken), (3, 2, 0));
}

#[test]
fn weights_are_created_once_while_their_creator_lives_and_again_when_it_left() {
    let name = Name::unique();
    let first = create(&spec(Some(&name)));
    write(&first, 1);
    let second = Writer::open(&spec(Some(&name)), IfExists::Resume, 1);
    let pid = std::process::id();
    assert!(matches!(second, Err(Error::WriterLives { pid: there, .. }) if there == pid), "{second:?}");
    let beside = Writer::attach_to(Arc::new(Weights::open(&name, Some(SCHEMA)).unwrap()), 1).unwrap();
    assert_eq!(write(&beside, 2), 2);
    drop(first);
    let third = create(&spec(Some(&name)));
    assert_eq!((write(&third, 3), write(&beside, 4)), (3, 4), "a writer beside it keeps no creator away");
    drop((third, beside));
    assert!(Weights::collect(&name).unwrap());
}

#[test]
fn writers_take_turns_and_each_goes_on_with_what_the_last_one_published() {
    let first = create(&spec(None));
    let reader = reader(&first);
    write(&first, 10);
    let second = Writer::attach_to(first.weights().clone(), 1).unwrap();
    let mut expected = [10, 10, 10];
    for round in 0..20 {
        let (writer, leaf) = if round % 3 == 0 { (&first, 0) } else { (&second, 1 + round as usize % 2) };
        expected[leaf] = 100 + round;
        assert_eq!(update(writer, leaf, 100 + round), round + 2);
        assert_eq!(read(&reader), Some((round + 2, expected)));
    }
}

#[test]
fn a_write_in_the_middle_of_another_is_refused_and_can_be_waited_for() {
    let first = create(&spec(None));
    let reader = reader(&first);
    let second = Writer::attach_to(first.weights().clone(), 1).unwrap();
    write(&first, 1);
    let draft = first.draft(2, &[0, 1, 2]).unwrap();
    let values = Values::of([9; 3]);
    let pid = std::process::id();
    // SAFETY: the values live here.
    let refused = unsafe { second.write(&values.sources()) };
    assert!(matches!(refused, Err(Error::Writing { pid: there, .. }) if there == pid), "{refused:?}");
    second.wait_idle(briefly()).unwrap();
    assert!(first.weights().protocol().last_writer().unwrap().is_writing);
    assert_eq!(read(&reader), Some((1, [1, 1, 1])));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| second.wait_idle(soon()).map(|()| write(&second, 9)));
        assert!(eventually(|| first.weights().protocol().control.published.has_waiter()));
        drop(draft);
        assert_eq!(waiting.join().unwrap().unwrap(), 2);
    });
    assert_eq!(read(&reader), Some((2, [9, 9, 9])));
    assert_eq!(write(&first, 3), 3);
}

#[test]
fn a_wait_for_another_write_ends_when_the_handle_is_closed() {
    let first = create(&spec(None));
    let second = Writer::attach_to(first.weights().clone(), 1).unwrap();
    let _draft = first.draft(1, &[0, 1, 2]).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| second.wait_idle(Deadline::Never));
        assert!(eventually(|| first.weights().protocol().control.published.has_waiter()));
        second.close();
        assert!(matches!(waiting.join().unwrap(), Err(Error::Closed)));
    });
}

#[test]
fn writers_that_never_stop_lose_no_version_and_tear_none() {
    let first = create(&spec(None));
    write(&first, 1);
    let (writers, rounds) = (3, 300);
    let reader = reader(&first);
    std::thread::scope(|scope| {
        for _ in 0..writers {
            let writer = Writer::attach_to(first.weights().clone(), 1).unwrap();
            scope.spawn(move || {
                let mut written = 0;
                while written < rounds {
                    let values = Values::of([written; 3]);
                    // SAFETY: the values live here.
                    match unsafe { writer.write(&values.sources()) } {
                        Ok(_) => written += 1,
                        Err(Error::Writing { .. }) => writer.wait_idle(soon()).unwrap(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let mut last = 0;
        while last <= writers * rounds {
            let (version, values) = read(&reader).unwrap();
            assert!(values == [values[0]; 3] && version >= last, "{values:?} in version {version}");
            last = version;
        }
    });
    assert_eq!(first.weights().version().unwrap(), 1 + writers * rounds);
}

#[test]
fn the_last_writer_to_go_decides_whether_the_name_stays() {
    let name = Name::unique();
    let first = create(&spec(Some(&name)));
    write(&first, 1);
    let weights = first.weights().clone();
    let second = Writer::attach_to(weights.clone(), 1).unwrap();
    write(&second, 2);
    let named = || weights.protocol().last_writer().map(|last| last.owner.seat());
    assert_eq!(named(), Some(1));
    drop(second);
    assert_eq!(named(), Some(0), "the one that lives, and would come back after a death");
    // One that died, as far as the words say: nobody ever sat there.
    let dead = LastWriter { owner: Owner::new(5, 1), is_writing: true };
    weights.protocol().control.write.writer.store(dead.pack(), Ordering::Relaxed);
    drop(first);
    assert_eq!(named(), None, "the last one to go left properly, after the dead one");
    drop(weights);
    assert!(Weights::collect(&name).unwrap());
}

#[test]
fn whoever_creates_the_same_weights_again_goes_on_with_their_version() {
    let name = Name::unique();
    let first = create(&spec(Some(&name)));
    write(&first, 1);
    write(&first, 2);
    drop(first);
    let again = create(&spec(Some(&name)));
    let reader = reader(&again);
    assert_eq!(read(&reader), Some((2, [2, 2, 2])));
    assert_eq!(write(&again, 3), 3);
    drop((again, reader));
    assert!(catalog::collect(&name).unwrap());
}

/// The same leaves in another structure.
const OTHER: &[u8] =
    br#"{"leaves":[["a","uint64",[200]],["b","uint64",[5000]],["c","uint64",[]]],"tree":{"tuple":[0,1,2]}}"#;

#[test]
fn other_weights_of_that_name_are_refused_while_somebody_lives_in_them() {
    let name = Name::unique();
    let first = create(&spec(Some(&name)));
    let other = WeightsSpec { schema: OTHER, ..spec(Some(&name)) };
    assert!(matches!(Writer::open(&other, IfExists::Resume, 1), Err(Error::Schema { .. })));
    let larger = WeightsSpec { max_buffers: 9, ..spec(Some(&name)) };
    assert!(matches!(
        Writer::open(&larger, IfExists::Resume, 1),
        Err(Error::Geometry { what: "max_buffers", theirs: 8, ours: 9, .. })
    ));
    drop(first);
    let replaced = Writer::open(&larger, IfExists::Resume, 1).unwrap();
    assert_eq!(replaced.weights().geometry().max_buffers, 9);
    drop(replaced);
    assert!(catalog::collect(&name).unwrap());
}

#[test]
fn the_last_one_to_leave_takes_the_name_away() {
    let name = Name::unique();
    let writer = create(&spec(Some(&name)));
    write(&writer, 1);
    let reader = Reader::attach_to(Arc::new(Weights::open(&name, None).unwrap()), 1).unwrap();
    drop(writer);
    assert!(!Weights::collect(&name).unwrap(), "a reader lives there");
    assert_eq!(read(&reader), Some((1, [1, 1, 1])), "what was published stays");
    drop(reader);
    assert!(Weights::collect(&name).unwrap());
}

#[test]
fn a_waiting_reader_is_woken_by_the_version_it_waits_for() {
    let writer = create(&spec(None));
    let reader = reader(&writer);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| reader.wait_for(3, soon(), None));
        for value in 1..=3 {
            write(&writer, value);
        }
        assert_eq!(waiting.join().unwrap().unwrap(), 3);
    });
    assert_eq!(reader.wait_for(2, Deadline::Now, None).unwrap(), 3);
    assert!(matches!(reader.wait_for(4, briefly(), None), Err(Error::Timeout)));
}

#[test]
fn a_wait_ends_when_the_weights_are_shut_down_or_nobody_writes() {
    let name = Name::unique();
    let writer = create(&spec(Some(&name)));
    let reader = reader(&writer);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| reader.wait_for(1, soon(), None));
        writer.weights().shut_down().unwrap();
        assert!(matches!(waiting.join().unwrap(), Err(Error::Closed)));
    });
    let other = create(&spec(None));
    let left = crate::weights_fixture::reader(&other);
    drop(other);
    let gone = left.wait_for(1, soon(), Some(Duration::ZERO));
    assert!(matches!(&gone, Err(Error::PeersGone(text)) if text.contains("there is no writer")), "{gone:?}");
}

#[test]
fn a_segment_that_another_process_spoiled_is_damage_and_not_a_crash() {
    let writer = create(&spec(None));
    let reader = reader(&writer);
    write(&writer, 1);
    let latest = &writer.weights().protocol().control.publish.latest;
    latest.store(1 << 8 | 200, Ordering::Relaxed); // A buffer that does not exist.
    let mut values = Values::of([0; 3]);
    // SAFETY: the values live here.
    let result = unsafe { reader.read(&values.targets(), 0) };
    assert!(matches!(result, Err(Error::Corrupt { .. })));
    // SAFETY: as above.
    assert!(matches!(unsafe { writer.write(&values.sources()) }, Err(Error::Corrupt { .. })));
}

/// Reads all leaves, in a thread of its own.
fn read_all(reader: &Arc<Reader>) -> Result<u64, Error> {
    let reader = reader.clone();
    ends(move || {
        let mut values = Values::of([0; 3]);
        // SAFETY: the values live here.
        let reading = unsafe { reader.read(&values.targets(), 0) };
        reading.map(|reading| reading.map_or(0, |reading| reading.version))
    })
}

#[test]
fn a_latest_version_whose_buffer_holds_another_is_damage_and_no_endless_read() {
    let writer = create(&spec(None));
    let reader = Arc::new(reader(&writer));
    write(&writer, 1);
    let (protocol, latest) =
        (writer.weights().protocol(), writer.weights().protocol().latest().unwrap().unwrap());
    for wrong in [0, 7, u64::MAX] {
        protocol.heads[latest.buffer].sequence.store(wrong, Ordering::Relaxed);
        let result = read_all(&reader);
        assert!(matches!(result, Err(Error::Corrupt { .. })), "{wrong}: {result:?}");
    }
    protocol.heads[latest.buffer].sequence.store(latest.version, Ordering::Relaxed);
    for wrong in [Latest { version: 1 << 40, ..latest }, Latest { buffer: 1 - latest.buffer, ..latest }] {
        protocol.control.publish.latest.store(wrong.pack(), Ordering::Relaxed);
        let result = read_all(&reader);
        assert!(matches!(result, Err(Error::Corrupt { .. })), "{wrong:?}: {result:?}");
    }
    let pins = protocol.pins.iter().flat_map(|line| &line.pins);
    assert!(pins.into_iter().all(|pin| pin.load(Ordering::Relaxed) == 0), "and nothing stays pinned");
    protocol.control.publish.latest.store(latest.pack(), Ordering::Relaxed);
    assert_eq!(read_all(&reader).unwrap(), 1, "a word that is right again is read again");
}

#[test]
fn a_hold_on_a_buffer_that_holds_another_version_is_damage() {
    let writer = create(&spec(None));
    let reader = Arc::new(reader(&writer));
    write(&writer, 1);
    let hold = HeldVersion::latest(&reader).unwrap().unwrap();
    assert!(hold.check_whole().unwrap());
    let latest = writer.weights().protocol().latest().unwrap().unwrap();
    writer.weights().protocol().heads[latest.buffer].sequence.store(7, Ordering::Relaxed);
    assert!(matches!(hold.check_whole(), Err(Error::Corrupt { .. })));
}

#[test]
fn a_leaf_that_is_not_there_is_refused() {
    let writer = create(&spec(None));
    let reader = reader(&writer);
    let mut values = Values::of([0; 3]);
    let (mut sources, mut targets) = (values.sources(), values.targets());
    (sources[0].leaf, targets[0].leaf) = (3, 3);
    // SAFETY: nothing is copied.
    unsafe {
        assert!(matches!(writer.write(&sources), Err(Error::OutOfRange { what: "leaf", .. })));
        assert!(matches!(reader.read(&targets, 0), Err(Error::OutOfRange { what: "leaf", .. })));
    }
}

#[test]
fn what_arrives_later_can_be_waited_for() {
    let name = Name::unique();
    std::thread::scope(|scope| {
        let arriving = scope.spawn(|| arrival::wait_for(&name, Deadline::after(Some(DEADLINE))));
        let writer = create(&spec(Some(&name)));
        arriving.join().unwrap().unwrap();
        drop(writer);
    });
    assert!(catalog::collect(&name).unwrap());
}

#[test]
fn readers_never_see_two_versions_at_once_while_the_writer_never_stops() {
    let writer = create(&spec(None));
    write(&writer, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 1;
            while !stop.load(Ordering::Relaxed) {
                value += 1;
                write(&writer, value);
            }
        });
        let reads: Vec<_> = (0..3)
            .map(|_| {
                let reader = reader(&writer);
                scope.spawn(move || {
                    let mut last = 0;
                    for _ in 0..3000 {
                        let (version, values) = read(&reader).expect("a version is there");
                        assert!(
                            values.iter().all(|&value| value == version),
                            "{values:?} in version {version}"
                        );
                        assert!(version >= last, "{version} after {last}");
                        last = version;
                    }
                })
            })
            .collect();
        let ended: Vec<_> = reads.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
}

#[test]
fn more_threads_than_pins_read_with_one_handle() {
    let writer = create(&spec(None));
    write(&writer, 1);
    let reader = reader(&writer);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let (version, values) = read(&reader).unwrap();
                    assert!(values.iter().all(|&value| value == version));
                }
            });
        }
        for value in 2..500 {
            write(&writer, value);
        }
    });
    let pins = writer.weights().protocol().pins;
    assert!(pins.iter().flat_map(|line| &line.pins).all(|pin| pin.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_forked_child_reads_on_a_seat_of_its_own_and_does_not_write() {
    if !alone("weights::a_forked_child_reads_on_a_seat_of_its_own_and_does_not_write") {
        return;
    }
    let writer = create(&spec(None));
    let reader = reader(&writer);
    write(&writer, 5);
    // SAFETY: this process has no other thread that holds anything.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let values = Values::of([6; 3]);
        // SAFETY: the values live here.
        let refused = matches!(unsafe { writer.write(&values.sources()) }, Err(Error::Forked { .. }));
        let fine = refused && read(&reader) == Some((1, [5, 5, 5]));
        drop((reader, writer));
        // SAFETY: ends the child without the harness.
        unsafe { libc::_exit(!fine as i32) };
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(write(&writer, 6), 2, "the parent still is the writer");
    assert_eq!(read(&reader), Some((2, [6, 6, 6])));
}

// ── in place, for the network ──────────────────────────────────────────────────────────────────────────────────────

/// Fills a leaf of a draft with a number.
fn fill(draft: &Draft<'_>, leaf: usize, number: u64) {
    let (place, bytes) = draft.place(leaf);
    for word in 0..bytes / 8 {
        // SAFETY: the place has that many words, is aligned to 64, and is ours as long as the draft.
        unsafe { place.cast::<u64>().add(word).write(number) };
    }
}

#[test]
fn a_draft_is_published_under_its_own_number_and_keeps_the_other_leaves() {
    let writer = create(&spec(None));
    let reader = reader(&writer);
    for (version, leaves, expected) in
        [(40, &[0, 1, 2][..], [40, 40, 40]), (41, &[2], [40, 40, 41]), (50, &[0], [50, 40, 41])]
    {
        let draft = writer.draft(version, leaves).unwrap();
        leaves.iter().for_each(|&leaf| fill(&draft, leaf, version));
        assert_eq!(draft.publish(None).unwrap(), version);
        assert_eq!(read(&reader), Some((version, expected)));
    }
    assert_eq!(read_since(&reader, 41), Some((50, vec![0])));
    assert_eq!(write(&writer, 1), 51);
}

#[test]
fn a_draft_that_is_dropped_was_never_there() {
    let writer = create(&spec(None));
    let reader = reader(&writer);
    write(&writer, 1);
    for version in 2..8 {
        let draft = writer.draft(version, &[0, 2]).unwrap();
        fill(&draft, 0, 99);
        drop(draft);
        assert_eq!(read(&reader), Some((1, [1, 1, 1])));
    }
    // What it left in its buffer is not taken for a leaf of before.
    for version in 2..8 {
        assert_eq!(update(&writer, 1, version), version);
        assert_eq!(read(&reader), Some((version, [1, version, 1])));
    }
}

#[test]
fn a_draft_needs_a_number_above_the_latest_and_all_leaves_at_first() {
    let writer = create(&spec(None));
    assert!(matches!(writer.draft(1, &[0]), Err(Error::NothingPublished { .. })));
    write(&writer, 1);
    for version in [0, 1, 1 << 56] {
        assert!(matches!(writer.draft(version, &[0]), Err(Error::OutOfRange { what: "version", .. })));
    }
    assert!(matches!(writer.draft(2, &[3]), Err(Error::OutOfRange { what: "leaf", .. })));
    assert_eq!(write(&writer, 2), 2);
}

#[test]
fn a_draft_whose_checksums_do_not_fit_is_not_published() {
    let writer = create(&WeightsSpec { checksum: true, ..spec(None) });
    let reader = reader(&writer);
    write(&writer, 1);
    let draft = writer.draft(2, &[2]).unwrap();
    fill(&draft, 2, 7);
    assert!(matches!(draft.publish(Some(&[1])), Err(Error::Checksum { leaf: 2, version: 2, .. })));
    assert_eq!(read(&reader), Some((1, [1, 1, 1])));
    let draft = writer.draft(2, &[2]).unwrap();
    fill(&draft, 2, 7);
    draft.publish(None).unwrap();
    assert_eq!(read(&reader), Some((2, [1, 1, 7])), "and those of leaves that were kept came with them");
}

#[test]
fn a_hold_keeps_its_version_where_it_is_until_there_is_no_other_buffer() {
    let writer = create(&WeightsSpec { max_buffers: 3, ..spec(None) });
    let reader = Arc::new(reader(&writer));
    assert!(HeldVersion::latest(&reader).unwrap().is_none());
    write(&writer, 1);
    let first = HeldVersion::latest(&reader).unwrap().unwrap();
    (2..=9).for_each(|value| assert_eq!(write(&writer, value), value));
    assert!(first.is_whole() && first.version() == 1);
    let (leaf, _) = first.leaf(0);
    // SAFETY: nobody writes to a buffer that is held, while there is another.
    assert_eq!(unsafe { leaf.cast::<u64>().read() }, 1);
    update(&writer, 1, 10);
    let second = HeldVersion::latest(&reader).unwrap().unwrap();
    let changed = |since| second.changed_since(since).iter().map(|changed| changed.leaf).collect::<Vec<_>>();
    assert_eq!((changed(0), changed(9), changed(10)), (vec![0, 1, 2], vec![1], vec![]));
    write(&writer, 11);
    write(&writer, 12);
    assert!(!first.is_whole(), "the oldest had to go");
    assert!(second.is_whole());
    drop(first);
    (13..30).for_each(|value| assert_eq!(write(&writer, value), value));
    assert!(second.is_whole(), "and what was let go is enough for the writer");
}
