//! The kill matrix of the ring: SIGKILL and SIGSTOP at every named crash point, in every role that can reach it.
//!
//! A *victim* is this test binary run once more, told by an environment variable what to do. It sets a trap at the n-th
//! reach of a [`Point`] and falls into it: dead, or stopped. *Bystanders* are producers that go on beside it, each with
//! a handle and a seat of its own; a *collector* is a consumer that sleeps, wakes, and notes what it received.
//!
//! ```text
//! set up ── victim works ── falls ──▶ killed:  bystanders finish, a consumer gets all that was committed, once
//!                             └─────▶ stopped: the same, and nothing is taken from the victim;
//!                                              SIGCONT ── it finishes ──▶ what it had in hand arrives too, once
//! ```
//!
//! What the victim had committed or released is counted in its hook, at the points themselves, and written to a small
//! file before the signal: so the test knows exactly what must arrive and what must never show. Every sample carries
//! its producer, its counter and a checksum. Samples that were aborted are marked: one of them would be a failure.
use rollway_core::Error;
use rollway_core::ring::consumer::{Batch, Consumer};
use rollway_core::ring::producer::{OnFull, Producer, ProducerSpec};
use rollway_core::ring::{Contents, Deadline, IfExists, Ring, RingSpec};
use rollway_core::segment::{arrival, catalog, directory, lease};
use rollway_core::sys::sync::{Ordering, Point, crash_point, fault};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BATCH: usize = 4;
const BUFFERS: usize = 3;
const SLOTS: usize = BATCH * BUFFERS;
/// Words in a sample's first leaf; the second leaf is one word.
const WORDS: usize = 32;
const LEAVES: [usize; 2] = [WORDS * 8, 8];
const SCHEMA: &[u8] = b"words, echo";
/// Nobody may wait longer. A safety net for a busy machine: what the dead left is found within a liveness poll.
const NET: Duration = Duration::from_secs(20);
/// The producer named in a sample that is going to be aborted.
const GHOST: u64 = u64::MAX;
const VICTIM: u64 = 7;
/// The visit of a victim whose death comes from outside.
const NEVER: usize = usize::MAX;
const STORMS: u64 = 20;
/// What tells the binary that it is a victim.
const ORDERS: &str = "ROLLWAY_FAULT_ORDERS";

// ── the matrix ─────────────────────────────────────────────────────────────────────────────────────────────────────

/// What a victim does until it falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A producer that claims one slot at a time.
    Singles,
    /// A producer that claims three at a time.
    Runs,
    /// A producer that aborts before each commit.
    Aborts,
    /// A producer that claims three, aborts them, and commits.
    AbortsRuns,
    /// A producer that commits while the consumer sleeps.
    WakesReader,
    /// A producer that gives the last slot back while the other producers sleep.
    WakesWriters,
    /// A consumer.
    Takes,
    /// A consumer that releases while the producers sleep.
    Releases,
    /// A consumer that closes an unfinished batch with `flush`.
    Flushes,
    /// A consumer that closes an unfinished batch with `at_least`.
    TakesAtLeast,
    /// The last consumer, that shuts the ring down while the producers sleep.
    Closes,
    /// The same, before it comes to that.
    Leaves,
    /// A sleeping consumer that recovers what another dead process left.
    RecoversAsleep,
    /// A blocked producer that recovers what another dead process left.
    RecoversBlocked,
    /// A producer that sits down on the seat of the dead.
    SitsDown,
    /// A consumer that sits down on the seat of the dead.
    SitsDownToRead,
}

const ROLES: [Role; 16] = [
    Role::Singles,
    Role::Runs,
    Role::Aborts,
    Role::AbortsRuns,
    Role::WakesReader,
    Role::WakesWriters,
    Role::Takes,
    Role::Releases,
    Role::Flushes,
    Role::TakesAtLeast,
    Role::Closes,
    Role::Leaves,
    Role::RecoversAsleep,
    Role::RecoversBlocked,
    Role::SitsDown,
    Role::SitsDownToRead,
];

impl Role {
    fn is_consumer(self) -> bool {
        use Role::*;
        matches!(
            self,
            Takes | Releases | Flushes | TakesAtLeast | RecoversAsleep | Closes | Leaves | SitsDownToRead
        )
    }

    /// The points that this role reaches by itself, and at which of its visits it falls.
    fn traps(self) -> &'static [(Point, &'static [usize])] {
        match self {
            Role::Singles => &[
                (Point::RingOpened, &[1, 2]),
                (Point::SlotClaimed, &[1, 4, 6]),
                (Point::SlotHalfWritten, &[1, 4, 6]),
                (Point::SlotWritten, &[1, 4, 6]),
                (Point::SlotReady, &[1, 4, 6]),
            ],
            Role::Runs => &[
                (Point::RingOpened, &[1]),
                (Point::RunPromised, &[1, 2, 5]),
                (Point::SlotClaimed, &[1, 2]),
                (Point::RunPartlyClaimed, &[1, 2, 4]),
                (Point::SlotHalfWritten, &[2]),
                (Point::SlotWritten, &[1, 2]),
                (Point::SlotReady, &[1, 2, 4]),
            ],
            Role::Aborts => &[
                (Point::HoleCounted, &[1, 4]),
                (Point::SlotClaimed, &[2]), // In the hole that it made itself.
                (Point::SlotHalfWritten, &[1]),
                (Point::SlotReady, &[4]),
            ],
            Role::AbortsRuns => &[(Point::HoleCounted, &[1, 2, 3]), (Point::RunPromised, &[2])],
            Role::WakesReader => &[(Point::NotifyCleared, &[1, 2]), (Point::NotifyMoved, &[1, 2])],
            Role::WakesWriters => {
                &[(Point::HoleCounted, &[1]), (Point::NotifyCleared, &[1]), (Point::NotifyMoved, &[1])]
            }
            Role::Takes => &[(Point::BatchTaken, &[1, 3]), (Point::BatchFreed, &[1, 3])],
            Role::Releases => &[
                (Point::BatchTaken, &[2]),
                (Point::BatchFreed, &[1]),
                (Point::NotifyCleared, &[1]),
                (Point::NotifyMoved, &[1]),
            ],
            Role::Flushes => &[(Point::BatchSealed, &[1, 2])],
            Role::TakesAtLeast => &[(Point::BatchSealed, &[1, 2])],
            Role::Closes => &[(Point::NotifyCleared, &[1, 2]), (Point::NotifyMoved, &[1, 2])],
            Role::Leaves => &[(Point::SeatLeaving, &[1]), (Point::NameRemoved, &[1])],
            Role::RecoversAsleep => {
                &[(Point::HoleCounted, &[1]), (Point::NotifyCleared, &[1]), (Point::NotifyMoved, &[1])]
            }
            Role::RecoversBlocked => {
                &[(Point::HoleCounted, &[1]), (Point::NotifyCleared, &[1]), (Point::NotifyMoved, &[1])]
            }
            Role::SitsDown | Role::SitsDownToRead => &[(Point::HoleCounted, &[1])],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    Kill,
    Stop,
}

/// One cell of the matrix.
#[derive(Debug, Clone, Copy)]
struct Case {
    role: Role,
    point: Point,
    nth: usize,
    signal: Signal,
    /// Whether the bystanders work from the start, and not only after the fall.
    busy: bool,
    /// The name on its samples.
    id: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { role, point, nth, signal, busy, id: _ } = self;
        let among = if *busy { "among busy producers" } else { "alone" };
        write!(f, "[{signal:?} of {role:?} at {point:?}, visit {nth}, {among}]")
    }
}

impl Case {
    /// How many samples a producer victim sends when nothing befalls it. Among others it has to come around often.
    fn samples(&self) -> u64 {
        match self.busy {
            _ if self.nth == NEVER => u64::MAX,
            true => 200,
            false => 24,
        }
    }

    fn for_each(roles: &[Role], busy: bool, run: impl Fn(Case)) {
        for &role in roles {
            for &(point, visits) in role.traps() {
                for &nth in visits {
                    for signal in [Signal::Kill, Signal::Stop] {
                        run(Case { role, point, nth, signal, busy, id: VICTIM });
                    }
                }
            }
        }
    }
}

#[test]
fn every_point_has_a_role_that_falls_there() {
    for &point in Point::RING {
        let reached = ROLES.iter().any(|role| role.traps().iter().any(|(trap, _)| *trap == point));
        assert!(reached, "no role of the kill matrix reaches {point:?}");
    }
}

#[test]
fn a_producer_by_single_claims_may_die_or_stop_at_every_point() {
    Case::for_each(&[Role::Singles], false, a_producer_falls);
}

#[test]
fn a_producer_by_runs_may_die_or_stop_at_every_point() {
    Case::for_each(&[Role::Runs], false, a_producer_falls);
}

#[test]
fn a_producer_may_die_or_stop_among_busy_ones() {
    Case::for_each(&[Role::Singles, Role::Runs, Role::Aborts], true, |case| {
        if case.nth == 1 {
            a_producer_falls(case);
        }
    });
}

#[test]
fn a_producer_that_aborts_may_die_or_stop_at_every_point() {
    Case::for_each(&[Role::Aborts, Role::AbortsRuns], false, a_producer_falls);
}

#[test]
fn a_producer_that_wakes_others_may_die_or_stop_in_the_middle_of_a_notification() {
    Case::for_each(&[Role::WakesReader, Role::WakesWriters], false, a_producer_falls);
}

#[test]
fn a_consumer_may_die_or_stop_at_every_point() {
    Case::for_each(&[Role::Takes, Role::Releases], true, a_consumer_falls);
}

#[test]
fn a_consumer_may_die_or_stop_while_it_closes_a_batch_early() {
    Case::for_each(&[Role::Flushes, Role::TakesAtLeast], true, a_consumer_falls);
}

#[test]
fn one_that_recovers_may_die_or_stop_itself() {
    Case::for_each(&[Role::RecoversAsleep, Role::RecoversBlocked], false, a_recoverer_falls);
}

#[test]
fn one_that_sits_down_on_the_seat_of_the_dead_may_die_or_stop_itself() {
    Case::for_each(&[Role::SitsDown], false, a_recoverer_falls);
}

#[test]
fn a_consumer_that_sits_down_on_the_seat_of_the_dead_may_die_or_stop_itself() {
    Case::for_each(&[Role::SitsDownToRead], false, a_recoverer_falls);
}

#[test]
fn the_last_consumer_may_die_or_stop_while_it_shuts_the_ring_down() {
    Case::for_each(&[Role::Closes], false, |case| {
        let place = Place::new(case);
        let victim = Victim::start(case, &place);
        arrival::wait_for(&place.name, Deadline::after(Some(NET))).unwrap();
        let producer = place.attach();
        let ring = producer.ring().clone();
        let sleeper = std::thread::spawn(move || {
            loop {
                match Producer::reserve(&producer, 1, Deadline::after(Some(NET))) {
                    Ok(slot) => slot.unwrap().commit(0),
                    Err(error) => return error,
                }
            }
        });
        victim.falls();
        let woken = sleeper.join().unwrap();
        assert!(matches!(woken, Error::Closed), "{case} a producer that waited for room got {woken:?}");
        assert!(ring.is_closed(), "{case}");
        place.is_clean();
        if case.signal == Signal::Stop {
            victim.goes_on();
            victim.finishes();
        }
    });
}

#[test]
fn the_last_consumer_may_die_or_stop_before_it_shuts_the_ring_down() {
    Case::for_each(&[Role::Leaves], false, |case| {
        let place = Place::new(case);
        let victim = Victim::start(case, &place);
        arrival::wait_for(&place.name, Deadline::after(Some(NET))).unwrap();
        // Who waits for another learner for ever still ends when none can come.
        let can_come = case.point == Point::SeatLeaving;
        let peer_timeout = can_come.then_some(Duration::ZERO);
        let spec = ProducerSpec { producer_id: None, on_full: None, peer_timeout };
        let producer = Producer::attach(&place.name, SCHEMA, &LEAVES, spec).unwrap();
        let sleeper = std::thread::spawn(move || {
            loop {
                match Producer::reserve(&producer, 1, Deadline::after(Some(NET))) {
                    Ok(slot) => slot.unwrap().commit(0),
                    Err(error) => return error,
                }
            }
        });
        victim.falls();
        if case.signal == Signal::Stop {
            victim.goes_on();
            victim.finishes();
        }
        let woken = sleeper.join().unwrap();
        match case.signal {
            Signal::Kill => {
                let Error::PeersGone(text) = woken else { panic!("{case} {woken:?}") };
                assert_eq!(text.contains("Start a learner with the same name"), can_come, "{case} {text}");
                assert_eq!(text.contains("the name is gone"), !can_come, "{case} {text}");
            }
            Signal::Stop => {
                assert!(matches!(woken, Error::Closed), "{case} one that is stopped lives: {woken:?}")
            }
        }
        if (case.point, case.signal) == (Point::SeatLeaving, Signal::Kill) {
            place.is_collected();
        }
        place.is_clean();
    });
}

#[test]
fn a_consumer_may_die_or_stop_beside_another_one() {
    Case::for_each(&[Role::Takes], true, |case| {
        let case = Case { nth: 1, ..case };
        let place = Place::new(case);
        let consumer = Arc::new(Consumer::open(&place.spec(), IfExists::Fail, None).unwrap());
        let collector = Collector::of(case, &consumer);
        let victim = Victim::start(case, &place);
        let bystanders = [Bystander::attach(case, &place, 1), Bystander::attach(case, &place, 2)];
        bystanders.iter().for_each(|b| b.send_up_to(40));
        victim.falls();
        collector.start();
        bystanders.iter().for_each(Bystander::is_done);
        consumer.flush().unwrap();
        let mut expected = Tally::default();
        expected.add(1, 40);
        expected.add(2, 40);
        let is_holding = case.point == Point::BatchTaken;
        let counters = || consumer.ring().protocol().counters();
        let by_the_victim = victim.ledger().released.len();
        if case.signal == Signal::Stop {
            collector.has(expected.len() - by_the_victim - BATCH * is_holding as usize);
            collector.poll_liveness();
            assert_eq!(consumer.ring().census().held_batches, is_holding as usize, "{case}");
            assert_eq!(counters(), Counted::default(), "{case} a stopped consumer was taken for dead");
            victim.goes_on();
            let is_released = || consumer.ring().census().held_batches == 0;
            until(case, "the victim releases its batch", is_released, String::new);
            consumer.ring().shut_down();
            victim.finishes();
        } else {
            collector.has(expected.len() - by_the_victim);
            assert_eq!(
                counters(),
                Counted { recovered_slots: 0, reoffered_batches: is_holding as u64 },
                "{case}"
            );
        }
        drop(bystanders);
        let mut received = collector.stop();
        received.extend(victim.ledger().released);
        expected.is(&received, case);
        is_empty(case, &consumer.ring().census());
        consumer.close().unwrap();
        place.is_clean();
    });
}

#[test]
fn several_may_die_and_stop_in_one_ring() {
    for seed in 1..=STORMS {
        a_storm(seed);
    }
}

#[test]
fn a_producer_may_be_killed_at_any_moment() {
    for (round, role) in [Role::Singles, Role::Runs, Role::Aborts].into_iter().cycle().take(24).enumerate() {
        let (point, nth, signal) = (Point::SlotReady, NEVER, Signal::Kill);
        let case = Case { role, point, nth, signal, busy: true, id: VICTIM };
        let place = Place::new(case);
        let consumer = Arc::new(Consumer::open(&place.spec(), IfExists::Fail, None).unwrap());
        let collector = Collector::of(case, &consumer);
        collector.start();
        let bystander = Bystander::attach(case, &place, 1);
        let victim = Victim::start(case, &place);
        until(case, "the victim sits down", || consumer.producers().alive == 2, String::new);
        bystander.send_up_to(7 * round as u64);
        bystander.is_done();
        victim.kill();
        bystander.send_up_to(7 * round as u64 + 20);
        bystander.is_done();
        consumer.flush().unwrap();
        let is_over = || consumer.ring().census().ready_samples + consumer.ring().census().claimed_slots == 0;
        until(case, "everything is taken", is_over, || format!("{:?}", consumer.ring().census()));
        drop(bystander);
        let received = collector.stop();
        // Between the commit and the note of it lies one run: it may have arrived, from its beginning.
        let noted = victim.ledger().committed;
        let doubtful: Vec<Sample> = vec![Sample { producer: VICTIM, counter: noted }];
        let mut expected = Tally::default();
        expected.add(1, 7 * round as u64 + 20);
        expected.add(VICTIM, noted);
        expected.is_but_for(&doubtful, &received, case);
        consumer.close().unwrap();
        place.is_clean();
    }
}

#[test]
fn a_segment_in_which_only_a_stopped_process_lives_is_not_collected() {
    let (role, point) = (Role::Takes, Point::BatchTaken);
    let case = Case { role, point, nth: 1, signal: Signal::Stop, busy: true, id: VICTIM };
    let place = Place::new(case);
    let victim = Victim::start(case, &place);
    arrival::wait_for(&place.name, Deadline::after(Some(NET))).unwrap();
    let bystander = Bystander::attach(case, &place, 1);
    bystander.send_up_to(BATCH as u64);
    bystander.is_done();
    drop(bystander);
    victim.falls();
    assert!(!catalog::collect(&place.name).unwrap(), "{case} a segment with a stopped process was collected");
    assert!(place.file().exists(), "{case} the name of a stopped process is gone");
    victim.kill();
    place.is_collected();
    place.is_clean();
}

// ── the three courses ──────────────────────────────────────────────────────────────────────────────────────────────

/// A producer is the victim; the consumer and two other producers are not.
fn a_producer_falls(case: Case) {
    let place = Place::new(case);
    let consumer = Arc::new(Consumer::open(&place.spec(), IfExists::Fail, None).unwrap());
    let collector = Collector::of(case, &consumer);
    let bystanders = [Bystander::attach(case, &place, 1), Bystander::attach(case, &place, 2)];
    let ring = consumer.ring().clone();
    // Those who wait for room must find none: then the collector starts later.
    let is_full = case.role == Role::WakesWriters;
    if !is_full {
        collector.start();
    }
    if case.busy {
        bystanders.iter().for_each(|b| b.send_up_to(30));
    }
    let victim = Victim::start(case, &place);
    if is_full {
        let has_claimed = || ring.census().claimed_slots == 1;
        until(case, "the victim has a slot", has_claimed, || format!("{:?}", ring.census()));
        bystanders.iter().for_each(|b| b.send_up_to(30));
    }
    victim.falls();
    let Ledger { committed, claimed, .. } = victim.ledger();
    if is_full {
        // One of the sleepers finds the slot that was given back, although nobody wakes him.
        let all = if case.signal == Signal::Stop { SLOTS - claimed } else { SLOTS };
        until(
            case,
            "the sleeping producers fill the ring",
            || ring.census().ready_samples == all,
            || format!("{:?}", ring.census()),
        );
        collector.start();
    } else if !case.busy {
        // What was complete at the fall arrives, although nobody comes after the victim to wake the consumer.
        collector.has(committed as usize / BATCH * BATCH);
    }
    bystanders.iter().for_each(|b| b.send_up_to(50));
    bystanders.iter().for_each(Bystander::is_done);
    let mut expected = Tally::default();
    expected.add(1, 50);
    expected.add(2, 50);
    consumer.flush().unwrap();
    match case.signal {
        Signal::Kill => {
            expected.add(VICTIM, committed);
            collector.has(expected.len());
            // And every slot it had is taken back, no more and no less.
            let counted = || ring.protocol().counters();
            let recovered = Counted { recovered_slots: claimed as u64, reoffered_batches: 0 };
            until(case, "its claims are recovered", || counted() == recovered, || format!("{:?}", counted()));
            assert_eq!(consumer.producers().died, [victim.pid as u32], "{case}");
        }
        Signal::Stop => {
            let so_far = expected.len() + committed as usize;
            untouched_while_stopped(case, &consumer, &collector, so_far, claimed);
            assert_eq!(consumer.producers().alive, 3, "{case} a stopped producer is alive");
            victim.goes_on();
            victim.finishes();
            expected.add(VICTIM, case.samples());
            assert_eq!(victim.ledger().committed, case.samples(), "{case} the victim did not finish");
            consumer.flush().unwrap();
            collector.has(expected.len());
            assert_eq!(ring.protocol().counters(), Counted::default(), "{case} somebody was taken for dead");
        }
    }
    drop(bystanders);
    let received = collector.stop();
    expected.is(&received, case);
    is_empty(case, &ring.census());
    consumer.close().unwrap();
    place.is_clean();
}

/// While a producer is stopped: all that is not in the one batch it writes to has arrived, and its claim is its own.
fn untouched_while_stopped(
    case: Case,
    consumer: &Arc<Consumer>,
    collector: &Collector,
    so_far: usize,
    claimed: usize,
) {
    let ring = consumer.ring();
    until(
        case,
        "all but the stopped producer's batch arrives",
        || collector.count() + ring.census().ready_samples == so_far && ring.census().ready_samples < BATCH,
        || format!("{} of {so_far} received, {:?}", collector.count(), ring.census()),
    );
    // A liveness poll of ours, that asks the kernel about everybody.
    collector.poll_liveness();
    let contents = ring.census();
    assert_eq!(contents.claimed_slots, claimed, "{case} {contents:?}");
    if claimed == 0 {
        assert_eq!(contents.ready_samples, 0, "{case} a batch waits for nobody: {contents:?}");
    }
    assert_eq!(
        ring.protocol().counters(),
        Counted::default(),
        "{case} a stopped producer was taken for dead"
    );
}

/// A consumer is the victim, and the only one; another one attaches after its fall.
fn a_consumer_falls(case: Case) {
    let place = Place::new(case);
    let victim = Victim::start(case, &place);
    arrival::wait_for(&place.name, Deadline::after(Some(NET))).unwrap();
    let bystanders = [Bystander::attach(case, &place, 1), Bystander::attach(case, &place, 2)];
    let ring = bystanders[0].ring.clone();
    let closes_early = matches!(case.role, Role::Flushes | Role::TakesAtLeast);
    let first_leg = if closes_early { PARTIAL as u64 / 2 } else { 40 };
    bystanders.iter().for_each(|b| b.send_up_to(first_leg));
    victim.falls();
    if matches!(case.point, Point::BatchFreed | Point::NotifyCleared | Point::NotifyMoved) {
        // The sleeping producers find the buffer that was freed, although nobody wakes them.
        let is_full = || ring.census().ready_samples == SLOTS;
        until(case, "the sleeping producers fill the ring", is_full, || format!("{:?}", ring.census()));
    }
    let consumer = Arc::new(Consumer::open(&place.spec(), IfExists::Resume, None).unwrap());
    assert!(consumer.resumed(), "{case} the ring of a fallen consumer is gone");
    let collector = Collector::of(case, &consumer);
    collector.start();
    bystanders.iter().for_each(|b| b.send_up_to(40));
    bystanders.iter().for_each(Bystander::is_done);
    consumer.flush().unwrap();
    let mut expected = Tally::default();
    expected.add(1, 40);
    expected.add(2, 40);
    let is_holding_a_batch = case.point == Point::BatchTaken;
    match case.signal {
        Signal::Kill => {
            let released = victim.ledger().released;
            collector.has(expected.len() - released.len());
            let reoffered = Counted { recovered_slots: 0, reoffered_batches: is_holding_a_batch as u64 };
            assert_eq!(ring.protocol().counters(), reoffered, "{case}");
        }
        Signal::Stop => {
            let held = BATCH * is_holding_a_batch as usize;
            collector.has(expected.len() - victim.ledger().released.len() - held);
            collector.poll_liveness();
            let contents = ring.census();
            assert_eq!(contents.held_batches, is_holding_a_batch as usize, "{case} {contents:?}");
            assert_eq!(
                ring.protocol().counters(),
                Counted::default(),
                "{case} a stopped one was taken for dead"
            );
            victim.goes_on();
            let none_held = || ring.census().held_batches == 0;
            until(case, "the victim releases its batch", none_held, || format!("{:?}", ring.census()));
            ring.shut_down();
            victim.finishes();
        }
    }
    drop(bystanders);
    let mut received = collector.stop();
    received.extend(victim.ledger().released);
    expected.is(&received, case);
    is_empty(case, &ring.census());
    match case.signal {
        Signal::Stop => consumer.close().unwrap(),
        Signal::Kill => {
            drop(consumer); // Dropped, and not closed: it has left all the same.
        }
    }
    place.is_clean();
}

/// A producer has died with a claim; the victim falls while it takes that claim back.
fn a_recoverer_falls(case: Case) {
    let place = Place::new(case);
    let (role, point, signal) = (Role::Singles, Point::SlotWritten, Signal::Kill);
    let first = Case { role, point, nth: 2, signal, busy: false, id: VICTIM };
    let case = Case { id: VICTIM + 1, ..case };
    // A consumer that recovers asleep makes the ring itself; otherwise ours is there, and takes nothing until later.
    let mut consumer = None;
    let mut victim = None;
    if case.role == Role::RecoversAsleep {
        victim = Some(Victim::start(case, &place));
        arrival::wait_for(&place.name, Deadline::after(Some(NET))).unwrap();
    } else {
        consumer = Some(Consumer::open(&place.spec(), IfExists::Fail, None).unwrap());
    }
    if case.role == Role::RecoversBlocked {
        let blocked = Victim::start(case, &place);
        let is_seated = || consumer.as_ref().is_some_and(|c| c.producers().alive == 1);
        until(case, "the recoverer sits down", is_seated, String::new);
        victim = Some(blocked);
    }
    let dead = Victim::start(first, &place);
    dead.falls();
    let victim = victim.unwrap_or_else(|| Victim::start(case, &place));
    victim.falls();

    if case.role == Role::SitsDownToRead {
        another_consumer_comes_and_goes(case, &place);
    }
    let consumer =
        Arc::new(consumer.unwrap_or_else(|| Consumer::open(&place.spec(), IfExists::Resume, None).unwrap()));
    let ring = consumer.ring().clone();
    let collector = Collector::of(case, &consumer);
    collector.start();
    let bystander = Bystander::attach(case, &place, 1);
    bystander.send_up_to(30);
    bystander.is_done();
    consumer.flush().unwrap();
    let mut expected = Tally::default();
    expected.add(1, 30);
    expected.add(VICTIM, dead.ledger().committed);
    let by_the_victim = victim.ledger().committed as usize;
    collector.has(expected.len() + by_the_victim - victim.ledger().released.len());
    let counted = ring.protocol().counters();
    assert_eq!(counted, Counted { recovered_slots: 1, reoffered_batches: 0 }, "{case}");
    if case.signal == Signal::Stop {
        victim.goes_on();
        if case.role.is_consumer() {
            ring.shut_down();
        }
        victim.finishes();
        let counted = ring.protocol().counters();
        assert_eq!(counted, Counted { recovered_slots: 1, reoffered_batches: 0 }, "{case} recovered twice");
    }
    expected.add(VICTIM + 1, victim.ledger().committed);
    if !case.role.is_consumer() || case.signal == Signal::Kill {
        consumer.flush().unwrap();
        collector.has(expected.len() - victim.ledger().released.len());
    }
    drop(bystander);
    let mut received = collector.stop();
    received.extend(victim.ledger().released);
    expected.is(&received, case);
    consumer.close().unwrap();
    place.is_clean();
}

/// A learner may attach and leave whatever befell the others; not even a stopped one is waited for.
fn another_consumer_comes_and_goes(case: Case, place: &Place) {
    let (say, told) = channel();
    let name = place.name.clone();
    let buffers = place.buffers;
    std::thread::spawn(move || {
        let place = Place { name, case, buffers };
        let opened = Consumer::open(&place.spec(), IfExists::Resume, None).map(drop);
        let _ = say.send(opened.map_err(|error| error.to_string()));
    });
    let opened = told.recv_timeout(NET);
    assert_eq!(opened, Ok(Ok(())), "{case} another consumer could not come and go");
}

/// Several victims of any kind and signal in one ring. The seed says which; some of them may never reach their point.
fn a_storm(seed: u64) {
    let mut dice = Dice(seed);
    let mut expected = Tally::default();
    let cases: Vec<Case> = (0..4)
        .map(|at| {
            let producers = [Role::Singles, Role::Runs, Role::Aborts, Role::AbortsRuns];
            let role = if at == 0 { Role::Takes } else { producers[dice.roll(4)] };
            let (point, _) = role.traps()[dice.roll(role.traps().len())];
            let signal = [Signal::Kill, Signal::Stop][dice.roll(2)];
            Case { role, point, nth: 1 + dice.roll(12), signal, busy: true, id: VICTIM + at }
        })
        .collect();
    let story = cases.iter().map(Case::to_string).collect::<Vec<_>>().join(" ");
    let story = format!("storm {seed}: {story}");
    // Each of the stopped may hold up a batch: one more, and nobody is held up.
    let place = Place { buffers: cases.len() + 2, ..Place::new(cases[0]) };
    let consumer = Arc::new(Consumer::open(&place.spec(), IfExists::Fail, None).unwrap());
    let ring = consumer.ring().clone();
    let collector = Collector::of(cases[0], &consumer);
    collector.start();
    let bystanders = [Bystander::attach(cases[0], &place, 1), Bystander::attach(cases[0], &place, 2)];
    let learner = &Victim::start(cases[0], &place);
    let is_seated = || lease::count_alive(ring.segment()).unwrap() == 4;
    until(cases[0], "the learner sits down", is_seated, String::new);
    let workers: &Vec<Victim> = &cases[1..].iter().map(|&case| Victim::start(case, &place)).collect();
    bystanders.iter().for_each(|b| b.send_up_to(100));
    let first_events: Vec<ExitStatus> = workers.iter().map(Victim::next_event).collect();
    bystanders.iter().for_each(|b| b.send_up_to(130));
    bystanders.iter().for_each(Bystander::is_done);
    assert!(
        ring.protocol().counters().recovered_slots <= killed_claims(workers, &first_events),
        "{story} a stopped producer was taken for dead"
    );
    for (worker, event) in workers.iter().zip(&first_events) {
        assert!(event.code().is_none_or(|code| code == 0), "{story} a worker failed: {event}");
        if event.stopped_signal().is_some() {
            worker.goes_on();
            worker.finishes();
        }
        expected.add(worker.case.id, worker.ledger().committed);
    }
    expected.add(1, 130);
    expected.add(2, 130);
    consumer.flush().unwrap();
    // The learner may fall at any time until here, or not at all.
    let mut gone = false;
    let arrived = Cell::new(0);
    let end = Instant::now() + NET;
    while arrived.get() < expected.len() {
        if let Ok(event) = learner.events.try_recv() {
            gone = event.stopped_signal().is_none();
            learner.gone.set(gone);
            assert!(!gone || event.signal() == Some(libc::SIGKILL), "{story} the learner failed: {event}");
            learner.goes_on();
        }
        arrived.set(collector.count() + learner.ledger().released.len());
        let contents = ring.census();
        assert!(Instant::now() < end, "{story} {} of {} came; {contents:?}", arrived.get(), expected.len());
        std::thread::park_timeout(Duration::from_micros(200));
    }
    let contents = ring.census();
    assert_eq!((contents.ready_samples, contents.claimed_slots), (0, 0), "{story} {contents:?}");
    ring.shut_down();
    while !gone {
        let event = learner.next_event();
        gone = event.stopped_signal().is_none();
        assert!(!gone || event.success() || event.signal().is_some(), "{story} the learner failed: {event}");
        if !gone {
            learner.goes_on();
        }
    }
    drop(bystanders);
    let mut received = collector.stop();
    received.extend(learner.ledger().released);
    expected.is(&received, cases[0]);
    consumer.close().unwrap();
    place.is_clean();
}

/// How many claims the killed ones took with them.
fn killed_claims(victims: &[Victim], events: &[ExitStatus]) -> u64 {
    let killed = victims.iter().zip(events).filter(|(_, event)| event.signal().is_some());
    killed.map(|(victim, _)| victim.ledger().claimed as u64).sum()
}

/// xorshift: the same storm for the same seed, as far as the scheduler allows.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        for shift in [13, -7, 17_i32] {
            self.0 ^= if shift < 0 { self.0 >> -shift } else { self.0 << shift };
        }
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }
}

// ── the victim ─────────────────────────────────────────────────────────────────────────────────────────────────────

/// How many samples lie in the ring when a consumer closes a batch early: a full batch, and a half.
const PARTIAL: usize = BATCH + BATCH / 2;

/// The other side of the matrix: does nothing, unless this process was started as a victim.
#[test]
fn a_victim_does_as_it_was_told() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    // SAFETY: prctl with plain numbers. A victim does not outlive a test that failed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) };
    let words: Vec<&str> = orders.split('\n').collect();
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    let case = Case {
        role: ROLES[number(0)],
        point: Point::RING[number(1)],
        nth: number(2),
        signal: if words[3] == "Kill" { Signal::Kill } else { Signal::Stop },
        busy: words[4] == "true",
        id: words[5].parse().unwrap(),
    };
    let place = Place { name: words[6].to_owned(), case, buffers: number(8) };
    let trap = Trap::set(case, Path::new(words[7]));
    if case.role.is_consumer() {
        consume(case, &place, &trap)
    } else {
        produce(case, &place, &trap)
    }
    trap.note_progress();
}

fn produce(case: Case, place: &Place, trap: &Trap) {
    let producer = place.attach();
    let control = producer.ring().protocol().control;
    let mut next = 0;
    if case.role == Role::RecoversBlocked {
        // Its first sample is committed, its second only claimed.
        let claimed = || {
            let contents = producer.ring().census();
            (contents.ready_samples, contents.claimed_slots) == (1, 1)
        };
        until(case, "the other one claims and dies", claimed, String::new);
    }
    if case.role == Role::WakesWriters {
        let slot = Producer::reserve(&producer, 1, Deadline::after(Some(NET))).unwrap().unwrap();
        write(slot.leaf(0), slot.leaf(1), 0, Sample { producer: GHOST, counter: 0 });
        let full = || producer.ring().census().ready_samples == SLOTS - 1 && control.writable.has_waiter();
        until(case, "the others wait for room", full, || format!("{:?}", producer.ring().census()));
        drop(slot);
    }
    while next < case.samples() {
        if matches!(case.role, Role::Aborts | Role::AbortsRuns) {
            let want = if case.role == Role::AbortsRuns { 3 } else { 1 };
            let slot = Producer::reserve(&producer, want, Deadline::after(Some(NET))).unwrap().unwrap();
            for row in 0..slot.len() {
                write(slot.leaf(0), slot.leaf(1), row, Sample { producer: GHOST, counter: next });
            }
            drop(slot);
        }
        if case.role == Role::WakesReader && !trap.sprung.get() {
            until(case, "the consumer sleeps", || control.readable.has_waiter(), String::new);
        }
        let run = if matches!(case.role, Role::Runs | Role::AbortsRuns) { 3 } else { 1 };
        send(&producer, case.id, &mut next, run, case.samples());
    }
}

/// Sends up to `run` samples in one commit.
fn send(producer: &Producer, id: u64, next: &mut u64, run: usize, end: u64) {
    let want = run.min((end - *next) as usize);
    let slot = Producer::reserve(producer, want, Deadline::after(Some(NET))).unwrap().unwrap();
    let len = slot.len();
    for row in 0..len {
        write(slot.leaf(0), slot.leaf(1), row, Sample { producer: id, counter: *next + row as u64 });
    }
    slot.commit(0);
    *next += len as u64;
}

fn consume(case: Case, place: &Place, trap: &Trap) {
    let consumer = Consumer::open(&place.spec(), IfExists::Resume, None).unwrap();
    let ring = consumer.ring().clone();
    let at_least = (case.role == Role::TakesAtLeast).then_some(1);
    if matches!(case.role, Role::Flushes | Role::TakesAtLeast) {
        let written = || ring.census().ready_samples == PARTIAL;
        until(case, "there is an unfinished batch", written, || format!("{:?}", ring.census()));
    }
    if matches!(case.role, Role::Closes | Role::Leaves) {
        let full = || ring.census().ready_samples == SLOTS && ring.protocol().control.writable.has_waiter();
        until(case, "the producers wait for room", full, || format!("{:?}", ring.census()));
        return consumer.close().unwrap();
    }
    loop {
        if case.role == Role::Flushes && !trap.sprung.get() {
            consumer.flush().unwrap();
        }
        let patience = if at_least.is_some() && !trap.sprung.get() { Duration::from_millis(1) } else { NET };
        match Consumer::take(
            &consumer,
            Deadline::after(Some(patience)),
            at_least.filter(|_| !trap.sprung.get()),
        ) {
            Ok(Some(batch)) => {
                *trap.in_hand.borrow_mut() = read(&batch).unwrap();
                if case.role == Role::Releases && !trap.sprung.get() {
                    let asleep = || ring.protocol().control.writable.has_waiter();
                    until(case, "the producers sleep", asleep, || format!("{:?}", ring.census()));
                }
            }
            Err(Error::Closed) => break,
            Err(Error::Timeout) if at_least.is_some() => {}
            other => panic!("{case} the victim's take gave {:?}", other.map(|_| ())),
        }
    }
    consumer.close().unwrap();
}

/// Counts what this process did, and springs at the n-th visit to its point.
struct Trap {
    case: Case,
    visits: Cell<usize>,
    sprung: Cell<bool>,
    committed: Cell<u64>,
    /// Slots that are claimed, and neither committed nor given back.
    claimed: Cell<usize>,
    /// Whether a slot was counted as a hole; it is free by the next point.
    is_aborting: Cell<bool>,
    /// The batch that was taken and read.
    in_hand: RefCell<Vec<Sample>>,
    log: RefCell<std::fs::File>,
}

impl Trap {
    /// Sets a trap in this thread.
    fn set(case: Case, diary: &Path) -> Rc<Trap> {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(diary).unwrap();
        let trap = Rc::new(Trap {
            case,
            visits: Cell::new(0),
            sprung: Cell::new(false),
            committed: Cell::new(0),
            claimed: Cell::new(0),
            is_aborting: Cell::new(false),
            in_hand: RefCell::default(),
            log: RefCell::new(log),
        });
        let hook = trap.clone();
        fault::on_point(move |point| hook.reached(point));
        trap
    }

    fn reached(&self, point: Point) {
        if self.is_aborting.take() {
            self.claimed.set(self.claimed.get() - 1);
        }
        match point {
            Point::SlotClaimed | Point::RunPartlyClaimed => self.claimed.set(self.claimed.get() + 1),
            Point::SlotReady => {
                self.committed.set(self.committed.get() + 1);
                self.claimed.set(self.claimed.get() - 1);
                if self.case.nth == NEVER {
                    self.note_progress();
                }
            }
            // One who holds nothing counts the holes of the dead.
            Point::HoleCounted => self.is_aborting.set(self.claimed.get() > 0),
            Point::BatchFreed => {
                for sample in self.in_hand.take() {
                    self.note(&format!("released {} {}", sample.producer, sample.counter));
                }
            }
            _ => {}
        }
        if point != self.case.point {
            return;
        }
        self.visits.set(self.visits.get() + 1);
        if self.visits.get() == self.case.nth {
            self.sprung.set(true);
            self.note_progress();
            let signal = match self.case.signal {
                Signal::Kill => libc::SIGKILL,
                Signal::Stop => libc::SIGSTOP,
            };
            // SAFETY: raise goes to this very thread, so not one more instruction of it runs.
            unsafe { libc::raise(signal) };
        }
    }

    fn note_progress(&self) {
        self.note(&format!("committed {} {}", self.committed.get(), self.claimed.get()));
    }

    /// One write: it is in the file, or it is not.
    fn note(&self, line: &str) {
        self.log.borrow_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

// ── a sample ───────────────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Sample {
    producer: u64,
    counter: u64,
}

impl Sample {
    /// Producer, counter, words that depend on both, and a checksum over all of them.
    fn words(self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        let mut mixed = self.producer.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.counter;
        for word in &mut words[2..] {
            mixed = mixed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            *word = mixed;
        }
        (words[0], words[1]) = (self.producer, self.counter);
        words[WORDS - 1] = words[..WORDS - 1].iter().fold(0, |sum, word| sum.rotate_left(7) ^ word);
        words
    }
}

/// Writes a sample into a claimed row, with a crash point in the middle.
fn write(words: *mut u8, echo: *mut u8, row: usize, sample: Sample) {
    let leaf = words.cast::<u64>();
    for (at, word) in sample.words().into_iter().enumerate() {
        if at == WORDS / 2 {
            crash_point(Point::SlotHalfWritten);
        }
        // SAFETY: the row is claimed, and a row of the leaf has WORDS words.
        unsafe { leaf.add(row * WORDS + at).write_volatile(word) };
    }
    // SAFETY: the row is claimed, and a row of the second leaf is one word.
    unsafe { echo.cast::<u64>().add(row).write_volatile(!sample.counter) };
}

/// Reads every sample of a batch; an error when one is torn.
fn read<C: Deref<Target = Consumer>>(batch: &Batch<C>) -> Result<Vec<Sample>, String> {
    let mut samples = Vec::new();
    for row in batch.runs().into_iter().flat_map(|(first, len)| first..first + len) {
        // SAFETY: the batch is taken, and a row of the first leaf has WORDS words, a row of the second one.
        let (words, echo) = unsafe {
            (
                batch.leaf(0, row).cast::<[u64; WORDS]>().read_volatile(),
                batch.leaf(1, row).cast::<u64>().read(),
            )
        };
        let sample = Sample { producer: words[0], counter: words[1] };
        if words != sample.words() || echo != !sample.counter {
            return Err(format!("row {row} of batch {:?} is torn: {sample:?}", batch.number()));
        }
        samples.push(sample);
    }
    if samples.len() != batch.len() {
        return Err(format!(
            "batch {:?} says {} samples and has {}",
            batch.number(),
            batch.len(),
            samples.len()
        ));
    }
    Ok(samples)
}

/// What has to arrive: of each producer the first so many.
#[derive(Debug, Default)]
struct Tally(BTreeMap<u64, u64>);

impl Tally {
    fn add(&mut self, producer: u64, samples: u64) {
        self.0.insert(producer, samples);
    }

    fn len(&self) -> usize {
        self.0.values().sum::<u64>() as usize
    }

    /// Checks that each arrived exactly once, and nothing else.
    fn is(&self, received: &[Sample], case: Case) {
        self.is_but_for(&[], received, case);
    }

    /// As [`is`](Self::is); what is in doubt may have arrived, but not twice.
    fn is_but_for(&self, doubtful: &[Sample], received: &[Sample], case: Case) {
        let mut counts = BTreeMap::new();
        for sample in received {
            *counts.entry(*sample).or_insert(0) += 1;
        }
        for (&producer, &samples) in &self.0 {
            for counter in 0..samples {
                let count = counts.remove(&Sample { producer, counter }).unwrap_or(0);
                let is_right = count == 1 || count == 0 && doubtful.contains(&Sample { producer, counter });
                assert!(is_right, "{case} sample {counter} of producer {producer} came {count} times");
            }
        }
        counts.retain(|sample, count| !(doubtful.contains(sample) && *count == 1));
        assert!(counts.is_empty(), "{case} these were never committed: {counts:?}");
    }
}

// ── those beside it ────────────────────────────────────────────────────────────────────────────────────────────────

/// Waits for a condition, until the safety net.
fn until(case: Case, what: &str, condition: impl Fn() -> bool, describe: impl Fn() -> String) {
    let end = Instant::now() + NET;
    while !condition() {
        assert!(Instant::now() < end, "{case} waited in vain until {what}: {}", describe());
        std::thread::park_timeout(Duration::from_micros(200));
    }
}

/// What must have happened to nobody who lives.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    recovered_slots: u64,
    reoffered_batches: u64,
}

trait ReadsCounters {
    fn counters(&self) -> Counted;
}

impl ReadsCounters for rollway_core::ring::protocol::Protocol<'_> {
    fn counters(&self) -> Counted {
        let counters = &self.control.counters;
        Counted {
            recovered_slots: counters.recovered_slots.load(Ordering::Relaxed),
            reoffered_batches: counters.reoffered_batches.load(Ordering::Relaxed),
        }
    }
}

fn is_empty(case: Case, contents: &Contents) {
    let left = (contents.ready_samples, contents.claimed_slots, contents.held_batches);
    assert_eq!(left, (0, 0, 0), "{case} something is left in the ring: {contents:?}");
}

/// A ring's name.
struct Place {
    name: String,
    case: Case,
    buffers: usize,
}

/// What a victim noted.
#[derive(Debug, Default)]
struct Ledger {
    committed: u64,
    /// Slots it had claimed, and neither committed nor given back.
    claimed: usize,
    released: Vec<Sample>,
}

impl Place {
    fn new(case: Case) -> Place {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("fault-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Place { name, case, buffers: BUFFERS }
    }

    fn spec(&self) -> RingSpec<'_> {
        RingSpec {
            name: Some(&self.name),
            auto_named: false,
            schema: SCHEMA,
            leaf_bytes: &LEAVES,
            batch_size: BATCH,
            num_buffers: self.buffers,
            max_peers: 8,
            on_full: OnFull::Block,
            huge_pages: Some(false),
        }
    }

    fn attach(&self) -> Producer {
        let spec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
        Producer::attach(&self.name, SCHEMA, &LEAVES, spec).unwrap()
    }

    fn file(&self) -> PathBuf {
        directory().join(format!("{}{}", rollway_core::segment::PREFIX, self.name))
    }

    /// Nobody lives here: the name can be taken away. Not always at once: a child that another test is starting holds
    /// a copy of every descriptor of this process, and with it of the leases, until it calls exec.
    fn is_collected(&self) {
        let is_collected = || catalog::collect(&self.name).unwrap();
        until(self.case, "the stale segment is collected", is_collected, String::new);
    }

    /// Nothing is left of the ring, and nobody has to look for it.
    fn is_clean(&self) {
        assert!(!self.file().exists(), "{} left {}", self.case, self.file().display());
    }
}

/// A child process on its way to its trap.
struct Victim {
    case: Case,
    pid: i32,
    events: Receiver<ExitStatus>,
    gone: Cell<bool>,
    /// The file in which it notes what it did.
    diary: PathBuf,
}

impl Victim {
    #[allow(clippy::zombie_processes)] // The thread in it waits.
    fn start(case: Case, place: &Place) -> Victim {
        let role = ROLES.iter().position(|role| *role == case.role).unwrap();
        let point = Point::RING.iter().position(|point| *point == case.point).unwrap();
        let Case { nth, signal, busy, id, .. } = case;
        let diary = std::env::temp_dir().join(format!("rollway-{}-{id}.diary", place.name));
        let (name, path) = (&place.name, diary.display());
        let orders =
            format!("{role}\n{point}\n{nth}\n{signal:?}\n{busy}\n{id}\n{name}\n{path}\n{}", place.buffers);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ring::a_victim_does_as_it_was_told", "--nocapture", "--test-threads=1"])
            .env(ORDERS, orders)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let (say, events) = channel();
        // Waits for what `Child::wait` does not tell: that it stopped.
        std::thread::spawn(move || {
            loop {
                let mut status = 0;
                // SAFETY: waits for a child of this process that nobody else waits for.
                if unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) } != pid {
                    return;
                }
                let status = ExitStatus::from_raw(status);
                if say.send(status).is_err() && status.stopped_signal().is_none() {
                    return;
                }
                if status.stopped_signal().is_none() {
                    return;
                }
            }
        });
        Victim { case, pid, events, gone: Cell::new(false), diary }
    }

    fn next_event(&self) -> ExitStatus {
        let status = self.events.recv_timeout(NET);
        let status =
            status.unwrap_or_else(|_| panic!("{} nothing befell the victim: did it hang?", self.case));
        self.gone.set(status.stopped_signal().is_none());
        status
    }

    fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        for line in std::fs::read_to_string(&self.diary).unwrap_or_default().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words[0] {
                "committed" => (ledger.committed, ledger.claimed) = (number(1), number(2) as usize),
                "released" => ledger.released.push(Sample { producer: number(1), counter: number(2) }),
                _ => panic!("{} noted {line:?}", self.case),
            }
        }
        ledger
    }

    /// Waits until it is dead or stopped, by its own signal.
    fn falls(&self) {
        let status = self.next_event();
        let fallen = match self.case.signal {
            Signal::Kill => status.signal() == Some(libc::SIGKILL),
            Signal::Stop => status.stopped_signal() == Some(libc::SIGSTOP),
        };
        assert!(fallen, "{} the point was never reached: {status}", self.case);
    }

    fn goes_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn kill(&self) {
        self.signal(libc::SIGKILL);
        assert_eq!(self.next_event().signal(), Some(libc::SIGKILL), "{}", self.case);
    }

    fn finishes(&self) {
        let status = self.next_event();
        assert!(status.success(), "{} after SIGCONT the victim failed: {status}", self.case);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.pid, signal) };
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        if !self.gone.get() {
            self.signal(libc::SIGKILL);
        }
        let _ = std::fs::remove_file(&self.diary);
    }
}

/// A producer in a thread: sends when told, and says when it is done.
struct Bystander {
    case: Case,
    id: u64,
    ring: Arc<Ring>,
    orders: Option<Sender<u64>>,
    done: Receiver<u64>,
    last_order: Cell<u64>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    fn attach(case: Case, place: &Place, id: u64) -> Bystander {
        let producer = place.attach();
        let ring = producer.ring().clone();
        let (orders, to_do) = channel();
        let (say_done, done) = channel();
        let thread = std::thread::spawn(move || {
            let mut next = 0;
            for end in to_do {
                while next < end {
                    send(&producer, id, &mut next, id as usize, end);
                }
                let _ = say_done.send(end);
            }
        });
        let (orders, last_order, thread) = (Some(orders), Cell::new(0), Some(thread));
        Bystander { case, id, ring, orders, done, last_order, thread }
    }

    /// Sends on, until so many are sent since the beginning.
    fn send_up_to(&self, end: u64) {
        self.last_order.set(end);
        self.orders.as_ref().unwrap().send(end).unwrap();
    }

    /// Waits until everything it was told to send is sent.
    fn is_done(&self) {
        loop {
            match self.done.recv_timeout(NET) {
                Ok(end) if end == self.last_order.get() => return,
                Ok(_) => {}
                Err(_) => {
                    let (case, id, contents) = (self.case, self.id, self.ring.census());
                    panic!("{case} producer {id} did not finish: {contents:?}");
                }
            }
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        drop(self.orders.take());
        if !std::thread::panicking() {
            self.thread.take().unwrap().join().unwrap();
        }
    }
}

/// A consumer in a thread: sleeps until there is a batch, notes it, releases it.
struct Collector {
    case: Case,
    consumer: Arc<Consumer>,
    notes: Arc<Notes>,
    thread: RefCell<Option<JoinHandle<()>>>,
}

struct Notes {
    received: Mutex<Result<Vec<Sample>, String>>,
    changed: Condvar,
}

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Result<Vec<Sample>, String>> {
        self.received.lock().unwrap()
    }

    /// Notes what came. False when there is no more to come.
    fn add<C: Deref<Target = Consumer>>(&self, taken: Result<Option<Batch<C>>, Error>) -> bool {
        let read = match taken {
            Ok(Some(batch)) => read(&batch),
            Ok(None) | Err(Error::Timeout) => Ok(Vec::new()),
            Err(Error::Closed) => return false,
            Err(error) => Err(error.to_string()),
        };
        let mut received = self.lock();
        match (received.as_mut(), read) {
            (Ok(samples), Ok(more)) => samples.extend(more),
            (Ok(_), Err(torn)) => *received = Err(torn),
            (Err(_), _) => {}
        }
        self.changed.notify_all();
        received.is_ok()
    }
}

impl Collector {
    fn of(case: Case, consumer: &Arc<Consumer>) -> Collector {
        let notes = Arc::new(Notes { received: Mutex::new(Ok(Vec::new())), changed: Condvar::new() });
        Collector { case, consumer: consumer.clone(), notes, thread: RefCell::new(None) }
    }

    fn start(&self) {
        let (consumer, notes) = (self.consumer.clone(), self.notes.clone());
        let thread = std::thread::spawn(move || {
            while notes.add(Consumer::take(&*consumer, Deadline::after(Some(NET)), None)) {}
        });
        *self.thread.borrow_mut() = Some(thread);
    }

    fn count(&self) -> usize {
        match &*self.notes.lock() {
            Ok(samples) => samples.len(),
            Err(error) => panic!("{} the consumer got: {error}", self.case),
        }
    }

    /// Waits until so many samples have come.
    fn has(&self, count: usize) {
        let end = Instant::now() + NET;
        let mut received = self.notes.lock();
        loop {
            let so_far = match &*received {
                Ok(samples) => samples.len(),
                Err(error) => panic!("{} the consumer got: {error}", self.case),
            };
            if so_far >= count {
                return;
            }
            let left = end.saturating_duration_since(Instant::now());
            let contents = self.consumer.ring().census();
            assert!(!left.is_zero(), "{} {so_far} of {count} samples came; {contents:?}", self.case);
            received = self.notes.changed.wait_timeout(received, left).unwrap().0;
        }
    }

    /// Waits in vain for a moment, at the end of which the kernel is asked about everybody.
    fn poll_liveness(&self) {
        self.notes.add(Consumer::take(
            &*self.consumer,
            Deadline::after(Some(Duration::from_millis(6))),
            None,
        ));
    }

    /// Closes the ring, and gives back all that came.
    fn stop(self) -> Vec<Sample> {
        self.consumer.ring().shut_down();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        match &*self.notes.lock() {
            Ok(samples) => samples.clone(),
            Err(error) => panic!("{} the consumer got: {error}", self.case),
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.consumer.ring().shut_down(); // Whoever still waits, of a test that has failed, goes home.
    }
}
