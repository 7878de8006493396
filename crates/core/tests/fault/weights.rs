//! The kill matrix of weights: SIGKILL and SIGSTOP at every named crash point, in a role that reaches it.
//!
//! A *victim* is this test binary run once more, told by environment variables what to do. It sets a trap at the n-th reach
//! of a [`Point`] and falls into it: dead, or stopped.
//!
//! ```text
//! a writer falls ──▶ killed:  readers have the last whole version; a newcomer, or one that waited, goes on with the next
//!                └─▶ stopped: readers have it too; in the middle of a write a second writer is refused, or waits; after it, the
//!                             second one writes; SIGCONT ── it finishes
//! a reader falls ──▶ killed:  the writer goes on, and takes its buffer back
//!                └─▶ stopped: the writer goes on beside it; SIGCONT ── what it read is whole
//! ```
//!
//! Every leaf is filled with its version, so a torn one shows.
use crate::fixture::{Name, Process, ends, eventually, matrix, soon, told};
use crate::weights_fixture::{Values, create, read, reader, spec, update, write};
use rollway_core::Error;
use rollway_core::segment::Owner;
use rollway_core::sys::sync::{Ordering, Point, fault};
use rollway_core::weights::layout::Latest;
use rollway_core::weights::{IfExists, Reader, Weights, Writer};
use std::sync::Arc;

/// What a writer victim publishes when nothing befalls it, after the two versions that are there when it comes.
const VERSIONS: u64 = 6;
const BEFORE: u64 = 2;

/// What a victim does until it falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Writes,
    /// A writer that publishes while a reader sleeps.
    Wakes,
    Reads,
}

impl matrix::Role for Role {
    const ROLES: &'static [Role] = &[Role::Writes, Role::Wakes, Role::Reads];
    const POINTS: &'static [Point] = Point::WEIGHTS;

    fn traps(self) -> &'static [(Point, &'static [usize])] {
        match self {
            Role::Writes => &[
                (Point::WriterTaken, &[1, 2, 4]),
                (Point::BufferGrown, &[1]),
                (Point::BufferOpened, &[1, 4]),
                (Point::LeafHalfCopied, &[1, 2, 8]),
                (Point::BufferWritten, &[1, 4]),
                (Point::VersionPublished, &[1, 4]),
                (Point::WriteEnded, &[1, 2, 4]),
            ],
            Role::Wakes => &[(Point::NotifyCleared, &[1]), (Point::NotifyMoved, &[1])],
            Role::Reads => &[(Point::ReaderPinned, &[1, 3]), (Point::LeafHalfCopied, &[1, 2])],
        }
    }
}

type Case = matrix::Case<Role>;

fn start(case: Case, name: &str) -> Process {
    Process::start("weights::a_victim", &[("NAME", name), ("ORDERS", &case.orders())])
}

#[test]
fn every_point_has_a_role_that_falls_there() {
    matrix::check_points::<Role>();
}

#[test]
fn a_writer_may_die_or_stop_at_every_point() {
    Case::for_each(Role::Writes, a_writer_falls);
}

#[test]
fn a_writer_may_die_or_stop_in_the_middle_of_a_notification() {
    Case::for_each(Role::Wakes, a_writer_falls);
}

fn a_writer_falls(case: Case) {
    let name = Name::unique();
    let first = create(&spec(Some(&name)));
    let weights = first.weights().clone();
    let reader = Arc::new(reader(&first));
    let protocol = weights.protocol();
    // Two slow readers hold what comes before the victim, so that it has to grow.
    let slow: Vec<Reader> = (0..2).map(|_| crate::weights_fixture::reader(&first)).collect();
    for version in 1..=BEFORE {
        assert_eq!(write(&first, version), version);
        let seat = version as usize + 1;
        protocol.pin(&protocol.pins[seat].pins[0], Owner::new(seat, 1)).unwrap();
    }
    drop(first);
    // A later visit of a point falls beside a second writer; so does a notification, which is then that of a version, and not
    // the one that the first of all writers has joined.
    let beside =
        (case.nth > 1 || case.role == Role::Wakes).then(|| Writer::attach_to(weights.clone(), 1).unwrap());
    let sleeper = (case.role == Role::Wakes).then(|| {
        let reader = reader.clone();
        std::thread::spawn(move || reader.wait_for(BEFORE + 1, soon(), None))
    });
    assert!(sleeper.is_none() || eventually(|| protocol.control.published.has_waiter()), "{case}");

    let mut victim = start(case, &name);
    case.falls(&victim);
    let (version, values) = read(&reader).expect("a version is there");
    assert_eq!(values, [version; 3], "{case}");
    let last = if case.is_kill() {
        assert!(!victim.wait(), "{case} the victim ended before its point");
        // From here on nobody but us writes: what is there now was published, and stays.
        let (version, _) = read(&reader).unwrap();
        let newcomer = match beside {
            Some(beside) => beside.wait_idle(soon()).map(|()| beside),
            None => Writer::open(&spec(Some(&name)), IfExists::Resume, 1),
        };
        let newcomer = newcomer.unwrap_or_else(|e| panic!("{case} {e}"));
        // One leaf at a time first: nothing that the dead one left half-done may be taken for the rest.
        assert_eq!(update(&newcomer, 0, 100), version + 1, "{case}");
        assert_eq!(read(&reader), Some((version + 1, [100, version, version])), "{case}");
        update(&newcomer, 2, 101);
        assert_eq!(read(&reader), Some((version + 2, [100, version, 101])), "{case}");
        assert_eq!(write(&newcomer, version + 3), version + 3);
        version + 3
    } else {
        let second = beside.unwrap_or_else(|| Writer::attach_to(weights.clone(), 1).unwrap());
        let pid = victim.pid() as u32;
        let between = if case.point == Point::WriteEnded {
            assert_eq!(write(&second, version + 1), version + 1, "{case}");
            1
        } else {
            // SAFETY: the values live as long as the statement.
            let refused = unsafe { second.write(&Values::of([7; 3]).sources()) };
            assert!(
                matches!(refused, Err(Error::Writing { pid: there, .. }) if there == pid),
                "{case} a stopped writer was taken for dead: {refused:?}"
            );
            0
        };
        victim.signal(libc::SIGCONT);
        assert!(victim.wait(), "{case} after SIGCONT the victim failed");
        BEFORE + VERSIONS + between
    };
    assert_eq!(read(&reader), Some((last, [last; 3])), "{case}");
    if let Some(sleeper) = sleeper {
        assert!(sleeper.join().unwrap().unwrap() > BEFORE, "{case}");
    }
    drop((slow, reader));
    assert!(Weights::collect(&name).unwrap(), "{case}");
}

#[test]
fn a_reader_may_die_or_stop_at_every_point() {
    Case::for_each(Role::Reads, |case| {
        let name = Name::unique();
        let writer = create(&spec(Some(&name)));
        let reader = reader(&writer);
        write(&writer, 1);
        let mut victim = start(case, &name);
        case.falls(&victim);
        if case.is_kill() {
            assert!(!victim.wait(), "{case} the victim ended before its point");
        }
        for version in 2..50 {
            assert_eq!(write(&writer, version), version, "{case}");
            assert_eq!(read(&reader), Some((version, [version; 3])), "{case}");
        }
        let totals = writer.weights().totals();
        assert_eq!(totals.overtaken, 0, "{case}");
        assert_eq!(totals.buffers, 3, "{case}");
        if !case.is_kill() {
            victim.signal(libc::SIGCONT);
            assert!(victim.wait(), "{case} after SIGCONT the victim failed");
        }
        drop((writer, reader));
        assert!(Weights::collect(&name).unwrap(), "{case}");
    });
}

#[test]
#[ignore = "a process of other tests: does as it was told, and falls"]
fn a_victim() {
    let case = Case::told();
    case.set_trap(|_, _| {});
    let weights = Arc::new(Weights::open(&told("NAME"), None).unwrap());
    match case.role {
        Role::Writes | Role::Wakes => {
            let writer = Writer::attach_to(weights, 1).unwrap();
            for _ in 0..VERSIONS {
                let next = writer.weights().version().unwrap() + 1;
                write(&writer, next);
            }
        }
        Role::Reads => {
            let reader = Reader::attach_to(weights, 1).unwrap();
            for _ in 0..5 {
                let (version, values) = read(&reader).unwrap();
                assert_eq!(values, [version; 3]);
            }
        }
    }
}

#[test]
fn a_latest_word_that_swings_is_damage_and_pins_nobody_for_ever() {
    let writer = create(&spec(None));
    for value in 1..=2 {
        write(&writer, value);
    }
    let reader = reader(&writer);
    let result = ends(move || {
        let weights = reader.weights().clone();
        let newest = weights.protocol().latest().unwrap().unwrap();
        let mut turn = 0;
        // Whenever the reader has pinned a buffer, another one is the latest: first with a later version, then with an earlier.
        fault::on_point(move |at| {
            if at == Point::ReaderPinned {
                turn += 1;
                let other = Latest {
                    version: newest.version + turn % 2,
                    buffer: (newest.buffer + turn as usize % 2) % 3,
                };
                weights.protocol().control.publish.latest.store(other.pack(), Ordering::Relaxed);
            }
        });
        // SAFETY: nothing is copied.
        unsafe { reader.read(&[], 0) }.map(drop)
    });
    assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
}
