//! The kill matrix of records: SIGKILL and SIGSTOP at every named crash point, in a role that reaches it.
//!
//! A *victim* is this test binary run once more, told by environment variables what to do. It sets a trap at the n-th reach
//! of a [`Point`] and falls into it: dead, or stopped. A *bystander* is a producer with a lane of its own, which goes on
//! beside it; a *newcomer* comes after the fall.
//!
//! ```text
//! set up ── victim works ── falls ──▶ killed:  a newcomer takes its lane; all that was committed is received, once
//!                             └─────▶ stopped: the bystander goes on, nothing is taken from the victim;
//!                                              SIGCONT ── it finishes ──▶ what it had in hand arrives too, once
//! ```
//!
//! What the victim had committed or released it notes in a file, at the points themselves and before the signal: so the
//! test knows exactly what must arrive and what must never show. Every record says whose it is and which, and its bytes
//! follow from that.
use crate::fixture::{Name, Process, eventually, matrix, say, soon, stay, told};
use rollway_core::Error;
use rollway_core::records::{
    Consumer, IfExists, Label, OnFull, Outgoing, Producer, ProducerSpec, Record, RecordsSpec,
};
use rollway_core::segment::arrival;
use rollway_core::sys::sync::{Point, crash_point};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const SCHEMA: &[u8] = b"whose, which, and bytes that follow";
const ANYONE: ProducerSpec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
/// Records that a producer victim sends when nothing befalls it: all fit into its lane, which grows twice on the way.
const RECORDS: u64 = 24;
const LONG: usize = 100_000;
const DEPTH: usize = 32;
const VICTIM: u64 = 7;
const BYSTANDER: u64 = 1;
const NEWCOMER: u64 = 2;

// ── the matrix ─────────────────────────────────────────────────────────────────────────────────────────────────────

/// What a victim does until it falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A producer.
    Sends,
    /// A producer that takes the lane of a dead one.
    TakesOver,
    /// A producer that commits while the consumer sleeps.
    WakesReader,
    /// A producer that sends runs of records while the consumer sleeps.
    SendsRuns,
    /// A producer that drops its oldest records.
    Drops,
    /// A consumer.
    Takes,
    /// A consumer that releases while the producer sleeps.
    WakesWriter,
    /// A consumer that gives back what a dead one had taken.
    Recovers,
    /// The last consumer, before it shuts the records down.
    Leaves,
}

impl matrix::Role for Role {
    const ROLES: &'static [Role] = &[
        Role::Sends,
        Role::TakesOver,
        Role::WakesReader,
        Role::SendsRuns,
        Role::Drops,
        Role::Takes,
        Role::WakesWriter,
        Role::Recovers,
        Role::Leaves,
    ];
    const POINTS: &'static [Point] = Point::RECORDS;

    fn traps(self) -> &'static [(Point, &'static [usize])] {
        match self {
            Role::Sends => &[
                (Point::LaneTaken, &[1]),
                (Point::LaneGrown, &[1, 2, 3]),
                (Point::RecordReserved, &[1, 5]),
                (Point::RecordNumbered, &[1, 5]),
                (Point::RecordHalfWritten, &[1, 5]),
                (Point::RecordWritten, &[1, 5]),
                (Point::RecordReady, &[1, 5]),
            ],
            Role::TakesOver => &[(Point::LaneTaken, &[1]), (Point::RecordReserved, &[1])],
            Role::WakesReader => &[(Point::NotifyCleared, &[1]), (Point::NotifyMoved, &[1])],
            // A run has three of these records.
            Role::SendsRuns => &[
                (Point::RecordReserved, &[1, 2, 3]),
                (Point::RecordNumbered, &[3]),
                (Point::RecordHalfWritten, &[1, 2]),
                (Point::RecordWritten, &[2]),
                (Point::RecordReady, &[1, 2, 3, 5]),
                (Point::NotifyCleared, &[1]),
                (Point::NotifyMoved, &[1]),
            ],
            Role::Drops => &[(Point::RecordDropped, &[1, 3])],
            Role::Takes => &[(Point::RecordTaken, &[1, 3]), (Point::RecordFreed, &[1, 3])],
            Role::WakesWriter => &[(Point::NotifyCleared, &[1]), (Point::NotifyMoved, &[1])],
            Role::Recovers => &[(Point::RecordReturned, &[1, 2])],
            Role::Leaves => &[(Point::SeatLeaving, &[1]), (Point::NameRemoved, &[1])],
        }
    }
}

type Case = matrix::Case<Role>;

#[test]
fn every_point_has_a_role_that_falls_there() {
    matrix::check_points::<Role>();
}

#[test]
fn a_producer_may_die_or_stop_at_every_point() {
    Case::for_each(Role::Sends, a_producer_falls);
}

#[test]
fn a_producer_may_die_or_stop_while_it_takes_over_the_lane_of_the_dead() {
    Case::for_each(Role::TakesOver, a_producer_falls);
}

#[test]
fn a_producer_may_die_or_stop_in_the_middle_of_a_notification() {
    Case::for_each(Role::WakesReader, a_producer_falls);
}

#[test]
fn a_producer_may_die_or_stop_in_a_run() {
    Case::for_each(Role::SendsRuns, a_producer_falls);
}

/// A producer is the victim. There are two lanes: the bystander has one.
fn a_producer_falls(case: Case) {
    let scene = Scene::of(case);
    let consumer = Arc::new(Consumer::open(&scene.spec(), IfExists::Fail, None).unwrap());
    let bystander = Producer::attach(&scene.name, SCHEMA, ANYONE).unwrap();
    let mut expected = Tally::default();
    if case.role == Role::TakesOver {
        let mut dead = Process::start("records::child_that_begins", &[("NAME", &scene.name)]);
        dead.hear().expect("it has begun a record");
        dead.kill();
        expected.add(NEWCOMER, 100..103);
    }
    // A sleeping reader where the victim is to wake it; otherwise nobody reads before the fall.
    let sleeps = matches!(case.role, Role::WakesReader | Role::SendsRuns);
    let reader = sleeps.then(|| Reader::start(&consumer));
    let is_asleep = || consumer.records().protocol().control.readable.has_waiter();
    assert!(reader.is_none() || eventually(is_asleep), "{case}");
    let victim = scene.start();
    scene.falls(&victim);
    send(&bystander, BYSTANDER, 0..10);
    expected.add(BYSTANDER, 0..10);
    let reader = reader.unwrap_or_else(|| Reader::start(&consumer));
    let totals = || consumer.records().totals();
    let mut victim = victim;
    if case.is_kill() {
        victim.kill();
        let newcomer = Producer::attach(&scene.name, SCHEMA, ANYONE).unwrap_or_else(|e| panic!("{case} {e}"));
        assert_ne!(newcomer.lane(), bystander.lane(), "{case}");
        send(&newcomer, NEWCOMER, 0..5);
        expected.add(NEWCOMER, 0..5);
        expected.add(VICTIM, 0..scene.noted("committed").len() as u64);
    } else {
        let refused = Producer::attach(&scene.name, SCHEMA, ANYONE);
        assert!(
            matches!(refused, Err(Error::NoLane { .. })),
            "{case} a stopped producer was taken for dead: {refused:?}"
        );
        let recovered = totals().recovered;
        reader.has(10);
        assert_eq!(totals().recovered, recovered, "{case}");
        victim.signal(libc::SIGCONT);
        assert!(victim.wait(), "{case} after SIGCONT the victim failed");
        expected.add(VICTIM, 0..RECORDS);
    }
    expected.is(reader.stop(expected.len()), case);
    let census = consumer.records().census();
    assert_eq!((census.ready_records, census.held_records, census.reserved_records), (0, 0, 0), "{case}");
}

#[test]
fn a_producer_may_die_or_stop_while_it_drops() {
    Case::for_each(Role::Drops, |case| {
        let scene = Scene::of(case);
        let consumer = Arc::new(Consumer::open(&scene.spec(), IfExists::Fail, None).unwrap());
        let mut victim = scene.start();
        scene.falls(&victim);
        let committed = if case.is_kill() {
            victim.kill();
            scene.noted("committed").len() as u64
        } else {
            victim.signal(libc::SIGCONT);
            assert!(victim.wait(), "{case} after SIGCONT the victim failed");
            3 * DEPTH as u64
        };
        let uncounted = case.is_kill() as u64;
        let dropped = consumer.records().totals().dropped_oldest + uncounted;
        let mut expected = Tally::default();
        expected.add(VICTIM, dropped..committed);
        expected.is(Reader::start(&consumer).stop(expected.len()), case);
    });
}

#[test]
fn a_consumer_may_die_or_stop_at_every_point() {
    Case::for_each(Role::Takes, a_consumer_falls);
}

#[test]
fn a_consumer_may_die_or_stop_in_the_middle_of_a_notification() {
    Case::for_each(Role::WakesWriter, a_consumer_falls);
}

/// A consumer is the victim, beside another one that sleeps.
fn a_consumer_falls(case: Case) {
    let scene = Scene::of(case);
    let consumer = Arc::new(Consumer::open(&scene.spec(), IfExists::Fail, None).unwrap());
    let bystander = Arc::new(Producer::attach(&scene.name, SCHEMA, ANYONE).unwrap());
    let many = if case.role == Role::WakesWriter { DEPTH as u64 + 1 } else { 10 };
    let sender = std::thread::spawn({
        let bystander = bystander.clone();
        move || send(&bystander, BYSTANDER, 0..many)
    });
    let mut victim = scene.start();
    scene.falls(&victim);
    let mut expected = Tally::default();
    expected.add(BYSTANDER, 0..many);
    let holds = case.point == Point::RecordTaken;
    let mut by_the_victim = scene.noted("released");
    if case.is_kill() {
        victim.kill();
        let reader = Reader::start(&consumer);
        sender.join().unwrap(); // One that slept for room goes on, though nobody woke it.
        let received = reader.stop(expected.len() - by_the_victim.len());
        assert_eq!(consumer.records().totals().returned, holds as u64, "{case}");
        by_the_victim.extend(received);
    } else {
        let reader = Reader::start(&consumer);
        sender.join().unwrap();
        reader.has(expected.len() - by_the_victim.len() - holds as usize);
        assert_eq!(consumer.records().census().held_records, holds as usize, "{case}");
        assert_eq!(consumer.records().totals().returned, 0, "{case} a stopped consumer was taken for dead");
        victim.signal(libc::SIGCONT);
        assert!(
            eventually(|| scene.noted("released").len() >= by_the_victim.len() + holds as usize),
            "{case}"
        );
        by_the_victim = scene.noted("released");
        let received = reader.stop(expected.len() - by_the_victim.len());
        by_the_victim.extend(received);
    }
    expected.is(by_the_victim, case);
}

#[test]
fn one_who_recovers_may_die_or_stop_himself() {
    Case::for_each(Role::Recovers, |case| {
        let scene = Scene::of(case);
        let consumer = Arc::new(Consumer::open(&scene.spec(), IfExists::Fail, None).unwrap());
        let bystander = Producer::attach(&scene.name, SCHEMA, ANYONE).unwrap();
        let mut dead = Process::start("records::child_that_holds", &[("NAME", &scene.name)]);
        send(&bystander, BYSTANDER, 0..10);
        dead.hear().expect("it holds three records");
        dead.kill();
        let mut victim = scene.start();
        scene.falls(&victim);
        let mut expected = Tally::default();
        expected.add(BYSTANDER, 0..10);
        let reader = Reader::start(&consumer);
        if case.is_kill() {
            victim.kill();
        }
        expected.is(reader.stop(expected.len()), case);
    });
}

#[test]
fn the_last_consumer_may_die_or_stop_before_it_shuts_the_records_down() {
    Case::for_each(Role::Leaves, |case| {
        let scene = Scene::of(case);
        let mut victim = scene.start();
        arrival::wait_for(&scene.name, soon()).unwrap();
        // Who waits for another learner for ever still ends when none can come.
        let can_come = case.point == Point::SeatLeaving;
        let spec = ProducerSpec { peer_timeout: can_come.then_some(Duration::ZERO), ..ANYONE };
        let bystander = Producer::attach(&scene.name, SCHEMA, spec).unwrap();
        let blocked = std::thread::spawn(move || {
            send(&bystander, BYSTANDER, 0..DEPTH as u64);
            Producer::reserve(&bystander, 16, soon()).unwrap_err()
        });
        scene.falls(&victim);
        if !case.is_kill() {
            victim.signal(libc::SIGCONT);
            assert!(victim.wait(), "{case} after SIGCONT the victim failed");
        }
        let told = blocked.join().unwrap();
        match case.is_kill() {
            true => {
                let Error::PeersGone(text) = told else { panic!("{case} {told:?}") };
                assert_eq!(text.contains("Start a learner with the same name"), can_come, "{case} {text}");
                assert_eq!(text.contains("the name is gone"), !can_come, "{case} {text}");
            }
            false => assert!(matches!(told, Error::Closed), "{case} one that is stopped lives: {told:?}"),
        }
        if case.is_kill() && can_come {
            let next = Arc::new(Consumer::open(&scene.spec(), IfExists::Resume, None).unwrap());
            assert!(next.resumed(), "{case}");
            let mut expected = Tally::default();
            expected.add(BYSTANDER, 0..DEPTH as u64);
            let received: Vec<_> = (0..DEPTH).map(|_| read(take(&next).bytes())).collect();
            expected.is(received, case);
            next.close().unwrap();
        }
        assert!(!scene.name.path().exists(), "{case} left its name");
    });
}

// ── the scene ──────────────────────────────────────────────────────────────────────────────────────────────────────

/// The records in which it happens, and the victim's diary.
struct Scene {
    case: Case,
    name: Name,
    diary: PathBuf,
}

impl Scene {
    fn of(case: Case) -> Scene {
        let name = Name::unique();
        let diary = std::env::temp_dir().join(format!("rollway-{}.diary", &*name));
        Scene { case, name, diary }
    }

    fn spec(&self) -> RecordsSpec<'_> {
        spec(&self.name)
    }

    fn start(&self) -> Process {
        let orders = self.case.orders();
        let diary = self.diary.display().to_string();
        Process::start("records::a_victim", &[("NAME", &self.name), ("ORDERS", &orders), ("DIARY", &diary)])
    }

    /// Waits until the victim is dead or stopped, by its own signal.
    fn falls(&self, victim: &Process) {
        self.case.falls(victim);
        assert!(!self.noted("fell").is_empty(), "{} the victim ended before its point", self.case);
    }

    /// What the victim has noted.
    fn noted(&self, what: &str) -> Vec<(u64, u64)> {
        let diary = std::fs::read_to_string(&self.diary).unwrap_or_default();
        let lines = diary.lines().filter_map(|line| line.strip_prefix(what)?.trim().split_once(' '));
        lines.map(|(whose, which)| (whose.parse().unwrap(), which.parse().unwrap())).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.diary);
        // A victim that was the last to leave has left its name.
        let _ = rollway_core::segment::catalog::collect(&self.name);
    }
}

fn spec(name: &str) -> RecordsSpec<'_> {
    RecordsSpec {
        name: Some(name),
        auto_named: false,
        schema: SCHEMA,
        lanes: 2,
        lane_bytes: 4 << 20,
        descriptors: DEPTH,
        max_peers: 8,
        on_full: OnFull::Block,
        preallocate: false,
    }
}

fn take(consumer: &Consumer) -> Record<&Consumer> {
    Consumer::take(consumer, soon()).unwrap().expect("there is a record when the wait succeeds")
}

/// A thread that takes, checks and releases whatever comes.
struct Reader {
    consumer: Arc<Consumer>,
    thread: std::thread::JoinHandle<Vec<(u64, u64)>>,
    count: Arc<std::sync::atomic::AtomicUsize>,
}

impl Reader {
    fn start(consumer: &Arc<Consumer>) -> Reader {
        let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let thread = std::thread::spawn({
            let (consumer, count) = (consumer.clone(), count.clone());
            move || {
                let mut received = Vec::new();
                while let Ok(Some(record)) = Consumer::take(&*consumer, soon()) {
                    received.push(read(record.bytes()));
                    drop(record);
                    count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                received
            }
        });
        Reader { consumer: consumer.clone(), thread, count }
    }

    /// Waits until it has received so many.
    fn has(&self, many: usize) {
        let got = || self.count.load(std::sync::atomic::Ordering::Relaxed);
        assert!(eventually(|| got() >= many), "{} of {many} records came", got());
    }

    /// Waits for `many`, ends the records, and gives back all that came.
    fn stop(self, many: usize) -> Vec<(u64, u64)> {
        self.has(many);
        self.consumer.records().shut_down();
        self.thread.join().unwrap()
    }
}

/// What must arrive, each once.
#[derive(Default)]
struct Tally(BTreeMap<(u64, u64), usize>);

impl Tally {
    fn add(&mut self, whose: u64, which: impl IntoIterator<Item = u64>) {
        self.0.extend(which.into_iter().map(|which| ((whose, which), 1)));
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn is(&self, received: Vec<(u64, u64)>, case: Case) {
        let mut counts = BTreeMap::new();
        received.into_iter().for_each(|record| *counts.entry(record).or_insert(0) += 1);
        assert_eq!(counts, self.0, "{case} lost, or seen twice, or never committed");
    }
}

fn bytes_of(whose: u64, which: u64) -> usize {
    if whose == VICTIM { LONG + which as usize } else { 16 + which as usize * 13 }
}

fn byte_at(whose: u64, which: u64, index: usize) -> u8 {
    (whose * 31 + which * 7 + index as u64 * 13) as u8
}

fn write(room: &mut [u8], whose: u64, which: u64) {
    room[..8].copy_from_slice(&whose.to_ne_bytes());
    room[8..16].copy_from_slice(&which.to_ne_bytes());
    let middle = room.len() / 2;
    for (index, byte) in room.iter_mut().enumerate().skip(16) {
        if index == middle {
            crash_point(Point::RecordHalfWritten);
        }
        *byte = byte_at(whose, which, index);
    }
}

/// Whose record, and which. It must be whole.
fn read(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let (whose, which) = (word(0), word(8));
    assert_eq!(bytes.len(), bytes_of(whose, which), "record {which} of {whose} has another length");
    let whole = (16..bytes.len()).all(|index| bytes[index] == byte_at(whose, which, index));
    assert!(whole, "record {which} of {whose} is torn");
    (whose, which)
}

fn send(producer: &Producer, whose: u64, which: std::ops::Range<u64>) {
    for which in which {
        let bytes = bytes_of(whose, which);
        let mut room = Producer::reserve(producer, bytes, soon()).unwrap().expect("nothing is dropped here");
        write(room.bytes_mut(), whose, which);
        room.commit(bytes, Label::default()).unwrap();
    }
}

/// Whose record, and which.
struct Numbered(u64, u64);

impl Outgoing for Numbered {
    fn bytes(&self) -> usize {
        bytes_of(self.0, self.1)
    }

    fn version(&self) -> u32 {
        0
    }

    fn kind(&self) -> u32 {
        0
    }

    fn write(&self, room: &mut [u8]) {
        write(room, self.0, self.1);
    }
}

// ── the processes ──────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
#[ignore = "a process of other tests: a producer that sends three records, begins a fourth, and stays"]
fn child_that_begins() {
    let producer = Producer::attach(&told("NAME"), SCHEMA, ANYONE).unwrap();
    send(&producer, NEWCOMER, 100..103);
    let _begun = Producer::reserve(&producer, 1000, soon()).unwrap().unwrap();
    say("begun");
    stay();
}

#[test]
#[ignore = "a process of other tests: a consumer that takes three records, and stays"]
fn child_that_holds() {
    let consumer = Consumer::attach(&told("NAME"), None, None).unwrap();
    let _held = [0; 3].map(|_| take(&consumer));
    say("holds");
    stay();
}

#[test]
#[ignore = "a process of other tests: does as it was told, and falls"]
fn a_victim() {
    let case = Case::told();
    let diary = std::fs::OpenOptions::new().create(true).append(true).open(told("DIARY")).unwrap();
    let diary = Rc::new(RefCell::new(diary));
    let in_hand = Rc::new(Cell::new((VICTIM, 0)));
    let (noting, hand) = (diary.clone(), in_hand.clone());
    case.set_trap(move |at, falls| {
        let note = |what: &str| {
            let (whose, which) = hand.get();
            writeln!(noting.borrow_mut(), "{what} {whose} {which}").unwrap();
        };
        match at {
            Point::RecordReady => note("committed"),
            Point::RecordFreed => note("released"),
            _ => {}
        }
        if falls {
            note("fell");
        }
    });
    let name = told("NAME");
    match case.role {
        Role::Sends | Role::TakesOver | Role::WakesReader => {
            let producer = Producer::attach(&name, SCHEMA, ANYONE).unwrap();
            for which in 0..RECORDS {
                in_hand.set((VICTIM, which));
                send(&producer, VICTIM, which..which + 1);
            }
        }
        Role::SendsRuns => {
            let producer = Producer::attach(&name, SCHEMA, ANYONE).unwrap();
            let records: Vec<Numbered> = (0..RECORDS).map(|which| Numbered(VICTIM, which)).collect();
            let mut sent = 0;
            while sent < records.len() {
                sent += producer.try_send_many(&records[sent..]);
            }
        }
        Role::Drops => {
            let spec = ProducerSpec { on_full: Some(OnFull::DropOldest), ..ANYONE };
            let producer = Producer::attach(&name, SCHEMA, spec).unwrap();
            for which in 0..3 * DEPTH as u64 {
                in_hand.set((VICTIM, which));
                send(&producer, VICTIM, which..which + 1);
            }
        }
        Role::Takes | Role::WakesWriter => {
            let consumer = Consumer::attach(&name, None, None).unwrap();
            if case.role == Role::WakesWriter {
                assert!(eventually(|| consumer.records().totals().blocked == 1));
            }
            while let Ok(Some(record)) = Consumer::take(&consumer, soon()) {
                in_hand.set(read(record.bytes()));
            }
        }
        Role::Leaves => {
            let consumer = Consumer::open(&spec(&name), IfExists::Fail, None).unwrap();
            assert!(eventually(|| consumer.records().protocol().lanes[0].room.has_waiter()));
            consumer.close().unwrap();
        }
        Role::Recovers => drop(Consumer::attach(&name, None, Some(std::time::Duration::ZERO)).unwrap()),
    }
}
