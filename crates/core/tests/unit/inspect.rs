//! A look from outside: what it says, and that it changes nothing.

use crate::fixture::{Name, SCHEMA, attach, eventually, open, spec};
use rollway_core::Error;
use rollway_core::inspect::{Inspection, Look, Participant, State};
use rollway_core::records::{self, Label, RecordsSpec};
use rollway_core::ring::{Consumer, Deadline, IfExists, OnFull, Producer};
use rollway_core::segment::Activity;
use rollway_core::segment::lease::seats_alive;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

fn number(look: &Look, name: &str) -> u64 {
    look.numbers.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no {name}")).1
}

fn one<'a>(look: &'a Look, role: &str) -> &'a Participant {
    look.participants.iter().find(|one| one.role == role).unwrap_or_else(|| panic!("no {role}"))
}

/// Claims, fills and commits `count` samples.
fn send(producer: &Producer, count: usize) {
    for value in 0..count {
        let slot = Producer::reserve(producer, 1, Deadline::Now).unwrap().unwrap();
        // SAFETY: the leaves have 8 and 40 bytes, and the slot is ours.
        unsafe {
            slot.leaf(0).cast::<u64>().write_unaligned(value as u64);
            slot.leaf(1).write_bytes(value as u8, 40);
        }
        slot.commit(7);
    }
}

#[test]
fn a_look_takes_no_seat_and_changes_no_byte() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 2, 3));
    let producer = attach(&name).unwrap();
    send(&producer, 3);
    let batch = Consumer::take(&consumer, Deadline::Now, None).unwrap().unwrap();
    let before = std::fs::read(name.path()).unwrap();
    let inspection = Inspection::open(&name).unwrap();
    for _ in 0..3 {
        let look = inspection.look().unwrap();
        assert_eq!(look.participants.len(), 2);
        assert_eq!(inspection.newest(2).unwrap().len(), 2);
    }
    assert_eq!(seats_alive(consumer.ring().segment()).unwrap().len(), 2, "it took a seat");
    assert!(std::fs::read(name.path()).unwrap() == before, "a byte has changed");
    drop(batch);
}

#[test]
fn what_is_looked_at_is_mapped_read_only() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 2, 3));
    let inspection = Inspection::open(&name).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // The consumer has mapped the file before it had a name.
    let named: Vec<&str> = maps.lines().filter(|line| line.ends_with(&*name)).collect();
    assert!(named.len() == 1 && named[0].contains(" r--s "), "{named:?}");
    drop(inspection);
    drop(consumer);
}

#[test]
fn a_look_says_what_each_participant_holds_and_does() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 2, 2));
    let producer = Arc::new(attach(&name).unwrap());
    send(&producer, 4);
    let batch = Consumer::take(&consumer, Deadline::Now, None).unwrap().unwrap();
    let inspection = Inspection::open(&name).unwrap();
    let waiter = {
        let producer = producer.clone();
        std::thread::spawn(move || Producer::reserve(&*producer, 1, Deadline::Never).map(drop))
    };
    assert!(eventually(|| one(&inspection.look().unwrap(), "producer").times.activity == Activity::WaitRoom));
    let look = inspection.look().unwrap();
    let (learner, worker) = (one(&look, "learner"), one(&look, "producer"));
    assert_eq!((learner.state, learner.holding, learner.times.activity), (State::Alive, 1, Activity::Hold));
    assert!(learner.oldest_held_ns.is_some_and(|held| held <= learner.times.wall_ns));
    assert_eq!((worker.times.committed, worker.times.version, worker.writing), (4, 7, 0));
    assert_eq!((number(&look, "held_batches"), number(&look, "ready_samples")), (1, 2));
    assert_eq!(number(&look, "samples_committed"), 4);
    drop(batch);
    waiter.join().unwrap().unwrap();
    for _ in 0..2 {
        let look = inspection.look().unwrap();
        for times in look.participants.iter().map(|one| one.times) {
            let sum = times.wait_data_ns + times.wait_room_ns + times.hold_ns + times.work_ns;
            assert_eq!(sum, times.wall_ns);
        }
        assert!(one(&look, "producer").times.wait_room_ns > 0);
    }
    assert_eq!(one(&inspection.look().unwrap(), "learner").times.activity, Activity::Work);
    drop(producer);
    assert!(inspection.look().unwrap().participants.iter().all(|one| one.role == "learner"), "it has left");
    consumer.close().unwrap();
    let look = inspection.look().unwrap();
    assert!(look.is_closed && look.is_unlinked);
}

#[test]
fn a_learner_that_waits_with_a_batch_in_hand_waits() {
    let name = Name::unique();
    let consumer = Arc::new(open(&spec(Some(&name), 1, 3)));
    let producer = attach(&name).unwrap();
    send(&producer, 1);
    let inspection = Inspection::open(&name).unwrap();
    let waiter = {
        let consumer = consumer.clone();
        std::thread::spawn(move || {
            let _first = Consumer::take(&*consumer, Deadline::Now, None).unwrap().unwrap();
            Consumer::take(&*consumer, Deadline::Never, None).map(drop)
        })
    };
    assert!(eventually(|| {
        let look = inspection.look().unwrap();
        let learner = one(&look, "learner");
        learner.times.activity == Activity::WaitData && learner.holding == 1
    }));
    send(&producer, 1);
    waiter.join().unwrap().unwrap();
    assert!(eventually(|| one(&inspection.look().unwrap(), "learner").times.activity == Activity::Work));
}

#[test]
fn the_newest_samples_are_copied_and_stay() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 4, 2));
    let producer = attach(&name).unwrap();
    send(&producer, 6);
    let inspection = Inspection::open(&name).unwrap();
    let newest = inspection.newest(3).unwrap();
    let seen: Vec<_> =
        newest.iter().map(|one| (one.parts[0][0], one.parts[1][39], one.sequence, one.version)).collect();
    assert_eq!(seen, [(5, 5, 5, 7), (4, 4, 4, 7), (3, 3, 3, 7)]);
    assert_eq!(inspection.newest(100).unwrap().len(), 6);
    assert_eq!(consumer.ring().census().ready_samples, 6, "nothing was consumed");
    drop(Consumer::take(&consumer, Deadline::Now, None).unwrap().unwrap());
    assert_eq!(inspection.newest(100).unwrap().len(), 6, "also those that were released");
}

#[test]
fn records_can_be_seen_until_they_are_released() {
    let name = Name::unique();
    let spec = RecordsSpec {
        name: Some(&name),
        auto_named: false,
        schema: SCHEMA,
        lanes: 2,
        lane_bytes: 4096,
        descriptors: 8,
        max_peers: 8,
        on_full: OnFull::Block,
        preallocate: false,
    };
    let consumer = records::Consumer::open(&spec, IfExists::Fail, None).unwrap();
    let producer = records::Producer::attach_to(consumer.records().clone(), crate::fixture::ANYONE).unwrap();
    for value in 1..=3 {
        let mut room = records::Producer::reserve(&producer, 10, Deadline::Now).unwrap().unwrap();
        room.bytes_mut().fill(value);
        room.commit(10, Label { version: 5, ..Label::default() }).unwrap();
    }
    let used = std::fs::metadata(name.path()).unwrap();
    let inspection = Inspection::open(&name).unwrap();
    let values = || -> Vec<u8> { inspection.newest(9).unwrap().iter().map(|one| one.parts[0][9]).collect() };
    assert_eq!(values(), [3, 2, 1]);
    let held = records::Consumer::take(&consumer, Deadline::Now).unwrap().unwrap();
    assert_eq!(values(), [3, 2, 1]);
    let look = inspection.look().unwrap();
    assert_eq!((one(&look, "learner").holding, one(&look, "producer").unread), (1, 2));
    assert_eq!(number(&look, "records_committed"), 3);
    drop(held);
    assert_eq!(values(), [3, 2]);
    let blocks = |file: &std::fs::Metadata| std::os::unix::fs::MetadataExt::blocks(file);
    assert_eq!(blocks(&std::fs::metadata(name.path()).unwrap()), blocks(&used), "a look made pages exist");
}

#[test]
fn a_damaged_segment_is_an_error() {
    let name = Name::unique();
    let consumer = open(&spec(Some(&name), 2, 2));
    assert!(matches!(Inspection::open("test-nowhere"), Err(Error::NotFound { .. })));
    let file = std::fs::OpenOptions::new().write(true).open(name.path()).unwrap();
    let geometry = std::mem::offset_of!(rollway_core::segment::header::Header, geometry) as u64;
    file.write_all_at(&u64::MAX.to_ne_bytes(), geometry).unwrap();
    assert!(matches!(Inspection::open(&name), Err(Error::Corrupt { .. })));
    consumer.ring().segment().unlink().unwrap();
}
