//! Any sequence of calls on records does what a plain model of them says.
//!
//! The model is a list of records for each lane; it knows nothing of words, cursors, hints or free extents. The protocol
//! chooses where a record lies, and the model checks that nobody has that place; which record comes next, what a recovery
//! gives back, and what is left at the end, the model predicts.
//!
//! Deaths are between calls here. Those in the middle of one are in `loom/records.rs` and `fault/records.rs`.
use proptest::collection::vec;
use proptest::prelude::*;
use rollway_core::records::layout::{Control, Descriptor, Lane};
use rollway_core::records::ledger::{Attempt, Ledger, Room};
use rollway_core::records::protocol::{Entry, LaneWords, Protocol, Stamp, Taken};
use rollway_core::records::recovery::recover;
use rollway_core::segment::Owner;
use rollway_core::sys::sync::Ordering;

const LANES: usize = 2;
const DEPTH: usize = 4;
const LANE_BYTES: usize = 512;

// ── the model ──────────────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Reserved(Owner),
    Ready,
    /// Ready, after somebody had taken it.
    Returned,
    Taken(Owner),
}

#[derive(Debug, Clone, Copy)]
struct Rec {
    number: u64,
    value: u64,
    start: usize,
    room: usize,
    bytes: usize,
    fate: Fate,
}

/// By lane, what is in it and not over.
#[derive(Debug, Default)]
struct Model {
    lanes: [Vec<Rec>; LANES],
    committed: usize,
    /// Released or dropped.
    over: usize,
}

impl Model {
    /// What comes next in a lane: what was given back, otherwise the oldest.
    fn next(&self, lane: usize) -> Option<&Rec> {
        let oldest = |fate| {
            let of_fate = move |rec: &&Rec| rec.fate == fate;
            self.lanes[lane].iter().filter(of_fate).min_by_key(|rec| rec.number)
        };
        oldest(Fate::Returned).or_else(|| oldest(Fate::Ready))
    }

    fn rec(&mut self, lane: usize, number: u64) -> &mut Rec {
        self.lanes[lane].iter_mut().find(|rec| rec.number == number).expect("the model knows the record")
    }

    fn remove(&mut self, lane: usize, number: u64) {
        self.lanes[lane].retain(|rec| rec.number != number);
    }

    /// What a death changes, once somebody has noticed.
    fn recover(&mut self, dead: &[Owner]) {
        for lane in &mut self.lanes {
            lane.retain(|rec| !matches!(rec.fate, Fate::Reserved(owner) if dead.contains(&owner)));
            for rec in lane.iter_mut() {
                if matches!(rec.fate, Fate::Taken(owner) if dead.contains(&owner)) {
                    rec.fate = Fate::Returned;
                }
            }
        }
    }

    fn has_ready(&self) -> bool {
        (0..LANES).any(|lane| self.next(lane).is_some())
    }
}

// ── the calls ──────────────────────────────────────────────────────────────────────────────────────────────────────

/// `usize`s choose among what there is, modulo how many there are.
#[derive(Debug, Clone, Copy)]
enum Call {
    Join,
    Leave(usize),
    Reserve(usize, usize),
    Commit(usize, usize),
    CommitRun(usize),
    Abort(usize),
    DropOldest(usize),
    Take(usize, usize),
    Release(usize),
    GiveBack(usize),
    KillProducer(usize),
    KillConsumer(usize),
    Recover,
    Look,
}

fn calls() -> impl Strategy<Value = Call> {
    let any = 0usize..64;
    prop_oneof![
        2 => Just(Call::Join),
        1 => any.clone().prop_map(Call::Leave),
        10 => (any.clone(), 0usize..=LANE_BYTES).prop_map(|(who, bytes)| Call::Reserve(who, bytes / 2)),
        10 => (any.clone(), any.clone()).prop_map(|(which, less)| Call::Commit(which, less)),
        3 => any.clone().prop_map(Call::CommitRun),
        2 => any.clone().prop_map(Call::Abort),
        2 => any.clone().prop_map(Call::DropOldest),
        12 => (any.clone(), any.clone()).prop_map(|(who, first)| Call::Take(who, first)),
        8 => any.clone().prop_map(Call::Release),
        3 => any.clone().prop_map(Call::GiveBack),
        1 => any.clone().prop_map(Call::KillProducer),
        1 => any.prop_map(Call::KillConsumer),
        2 => Just(Call::Recover),
        2 => Just(Call::Look),
    ]
}

/// Records on the heap, those who use them, and the model.
struct World {
    control: Box<Control>,
    lanes: Vec<Lane>,
    descriptors: Vec<Descriptor>,
    model: Model,
    producers: Vec<Ledger>,
    consumers: [Owner; 2],
    rooms: Vec<Room>,
    held: Vec<Taken>,
    dead: Vec<Owner>,
    next_life: u32,
    next_value: u64,
}

fn records<'a>(control: &'a Control, lanes: &'a [Lane], descriptors: &'a [Descriptor]) -> Protocol<'a> {
    Protocol { control, lanes, sessions: &[], descriptors, lane_bytes: LANE_BYTES }
}

macro_rules! records {
    ($world:expr) => {
        records(&$world.control, &$world.lanes, &$world.descriptors)
    };
}

impl World {
    /// `first`: the number that every lane begins with.
    fn new(first: u64) -> World {
        let lanes: Vec<Lane> = (0..LANES).map(|_| Lane::default()).collect();
        for lane in &lanes {
            lane.write.head.store(first, Ordering::Relaxed);
            lane.read.cursor.store(first, Ordering::Relaxed);
        }
        World {
            control: Box::default(),
            lanes,
            descriptors: (0..LANES * DEPTH).map(|_| Descriptor::default()).collect(),
            model: Model::default(),
            producers: Vec::new(),
            consumers: [Owner::new(100, 1), Owner::new(101, 1)],
            rooms: Vec::new(),
            held: Vec::new(),
            dead: Vec::new(),
            next_life: 2,
            next_value: 0,
        }
    }

    fn lane(&self, index: usize) -> LaneWords<'_> {
        records!(self).lane(index)
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Join => self.join(),
            Call::Leave(who) => self.leave(who),
            Call::Reserve(who, bytes) => self.reserve(who, bytes),
            Call::Commit(which, less) => self.commit(which, less),
            Call::CommitRun(who) => self.commit_run(who),
            Call::Abort(which) => self.abort(which),
            Call::DropOldest(who) => self.drop_oldest(who),
            Call::Take(who, first) => self.take(who, first),
            Call::Release(which) => self.release(which),
            Call::GiveBack(which) => self.give_back(which),
            Call::KillProducer(who) => self.kill_producer(who),
            Call::KillConsumer(who) => self.kill_consumer(who),
            Call::Recover => self.recover(),
            Call::Look => {
                assert_eq!(records!(self).has_ready().unwrap(), self.model.has_ready());
            }
        }
    }

    fn join(&mut self) {
        let me = Owner::new(self.next_life as usize % 90, self.next_life);
        self.next_life += 1;
        let lane = records!(self).take_lane(me, |owner| self.dead.contains(&owner));
        let taken: Vec<usize> = self.producers.iter().map(Ledger::lane).collect();
        let Some(lane) = lane else {
            assert_eq!(taken.len(), LANES, "there was a lane");
            return;
        };
        assert!(!taken.contains(&lane), "lane {lane} belongs to the living");
        records!(self).open_lane(lane);
        let ledger = Ledger::rebuild(&self.lane(lane), me).unwrap();
        self.model.lanes[lane].retain(|rec| !matches!(rec.fate, Fate::Reserved(_)));
        self.producers.push(ledger);
    }

    fn leave(&mut self, who: usize) {
        if self.producers.is_empty() {
            return;
        }
        let who = who % self.producers.len();
        let ledger = &self.producers[who];
        if self.rooms.iter().any(|room| room.claim.owner == ledger.owner()) {
            return; // A handle leaves when its last reservation is over.
        }
        self.lane(ledger.lane()).leave_lane(ledger.owner());
        self.producers.remove(who);
    }

    fn reserve(&mut self, who: usize, bytes: usize) {
        if self.producers.is_empty() {
            return;
        }
        let who = who % self.producers.len();
        let (index, owner) = (self.producers[who].lane(), self.producers[who].owner());
        let words = records(&self.control, &self.lanes, &self.descriptors).lane(index);
        let attempt = self.producers[who].try_reserve(&words, bytes, |_, to| Ok(to)).unwrap();
        let Attempt::Room(room) = attempt else {
            assert!(!self.model.lanes[index].is_empty(), "an empty lane has room for {bytes} bytes");
            return;
        };
        let len = bytes.next_multiple_of(64);
        let (start, end) = (room.start, room.start + len);
        assert!(end <= LANE_BYTES && start % 64 == 0);
        for rec in &self.model.lanes[index] {
            let apart = rec.start + rec.room <= start || end <= rec.start || rec.room == 0 || len == 0;
            assert!(apart, "{start}..{end} is the room of {rec:?}");
            assert_ne!(rec.number % DEPTH as u64, room.claim.number % DEPTH as u64, "two in one descriptor");
        }
        let fate = Fate::Reserved(owner);
        let (number, value) = (room.claim.number, self.next_value);
        self.next_value += 1;
        self.model.lanes[index].push(Rec { number, value, start, room: len, bytes, fate });
        self.rooms.push(room);
    }

    fn commit(&mut self, which: usize, less: usize) {
        let Some(room) = self.pick_room(which) else { return };
        let used = room.bytes - less.min(room.bytes);
        let index = room.claim.lane;
        let words = records(&self.control, &self.lanes, &self.descriptors).lane(index);
        let ledger = self.producers.iter_mut().find(|ledger| ledger.owner() == room.claim.owner).unwrap();
        if Ledger::leaves_room(&room, used) {
            ledger.trim(&words, &room, used);
        }
        let entry = self.note_commit(&room, used);
        self.lane(index).commit(room.claim, &entry);
    }

    /// Commits all that a producer has reserved, and tells of it once.
    fn commit_run(&mut self, who: usize) {
        if self.producers.is_empty() {
            return;
        }
        let ledger = &self.producers[who % self.producers.len()];
        let (index, owner) = (ledger.lane(), ledger.owner());
        let run: Vec<Room> = self.rooms.extract_if(.., |room| room.claim.owner == owner).collect();
        let published = run.len() as u64;
        for room in run {
            let entry = self.note_commit(&room, room.bytes);
            self.lane(index).publish(room.claim, &entry);
        }
        self.lane(index).tell(published);
    }

    /// Makes a record Ready in the model; gives what is written beside it.
    fn note_commit(&mut self, room: &Room, used: usize) -> Entry {
        let rec = self.model.rec(room.claim.lane, room.claim.number);
        (rec.fate, rec.bytes, rec.room) = (Fate::Ready, used, used.next_multiple_of(64));
        let stamp = Stamp { sequence: rec.value, ..Stamp::default() };
        self.model.committed += 1;
        Entry { start: room.start as u64, bytes: used as u64, stamp, committed_ns: 0 }
    }

    fn pick_room(&mut self, which: usize) -> Option<Room> {
        (!self.rooms.is_empty()).then(|| self.rooms.remove(which % self.rooms.len()))
    }

    fn abort(&mut self, which: usize) {
        let Some(room) = self.pick_room(which) else { return };
        let words = records(&self.control, &self.lanes, &self.descriptors).lane(room.claim.lane);
        let ledger = self.producers.iter_mut().find(|ledger| ledger.owner() == room.claim.owner).unwrap();
        self.model.remove(room.claim.lane, room.claim.number);
        ledger.abort(&words, room.claim);
    }

    fn drop_oldest(&mut self, who: usize) {
        if self.producers.is_empty() {
            return;
        }
        let who = who % self.producers.len();
        let index = self.producers[who].lane();
        let words = records(&self.control, &self.lanes, &self.descriptors).lane(index);
        let dropped = self.producers[who].drop_oldest(&words).unwrap();
        let next = self.model.next(index).map(|rec| rec.number);
        assert_eq!(dropped, next.is_some());
        if let Some(number) = next {
            self.model.remove(index, number);
            self.model.over += 1;
        }
    }

    fn take(&mut self, who: usize, first: usize) {
        let me = self.consumers[who % self.consumers.len()];
        let used = records!(self).lanes_used();
        let taken = records!(self).try_take(me, first).unwrap();
        let expected = (0..used).map(|step| (first + step) % used).find_map(|lane| {
            self.model.next(lane).map(|rec| (lane, rec.number, rec.start, rec.bytes, rec.value))
        });
        let found = taken.as_ref().map(|taken| {
            let value = self.lane(taken.lane).entry(taken.number).stamp.sequence;
            // Where a record of no bytes lies is nobody's business.
            (taken.lane, taken.number, taken.start, taken.bytes, value)
        });
        assert_eq!(found, expected);
        if let Some(taken) = taken {
            self.model.rec(taken.lane, taken.number).fate = Fate::Taken(me);
            self.held.push(taken);
        }
    }

    fn pick_held(&mut self, which: usize) -> Option<Taken> {
        (!self.held.is_empty()).then(|| self.held.remove(which % self.held.len()))
    }

    fn release(&mut self, which: usize) {
        let Some(taken) = self.pick_held(which) else { return };
        self.model.remove(taken.lane, taken.number);
        self.lane(taken.lane).release(taken);
        self.model.over += 1;
    }

    fn give_back(&mut self, which: usize) {
        let Some(taken) = self.pick_held(which) else { return };
        self.model.rec(taken.lane, taken.number).fate = Fate::Returned;
        self.lane(taken.lane).give_back(taken);
    }

    fn kill_producer(&mut self, who: usize) {
        if self.producers.is_empty() {
            return;
        }
        let ledger = self.producers.remove(who % self.producers.len());
        self.dead.push(ledger.owner());
        self.rooms.retain(|room| room.claim.owner != ledger.owner());
    }

    fn kill_consumer(&mut self, who: usize) {
        let who = who % self.consumers.len();
        let dead = self.consumers[who];
        self.dead.push(dead);
        self.held.retain(|taken| taken.owner != dead);
        self.consumers[who] = Owner::new(100 + who, self.next_life);
        self.next_life += 1;
    }

    fn recover(&mut self) {
        recover(&records!(self), |owner| self.dead.contains(&owner));
        self.model.recover(&self.dead);
    }

    /// Everybody is done: what was committed is there, once, and then there is room for everything.
    fn end(mut self) {
        while !self.rooms.is_empty() {
            self.abort(0);
        }
        while !self.held.is_empty() {
            self.release(0);
        }
        self.recover();
        while self.model.has_ready() {
            self.take(0, 0);
            self.release(0);
        }
        self.take(0, 0);
        assert_eq!(self.model.over, self.model.committed, "lost, or seen twice");
        for _ in 0..LANES {
            self.join();
        }
        assert_eq!(self.producers.len(), LANES);
        for who in 0..LANES {
            self.reserve(who, LANE_BYTES);
        }
        assert_eq!(self.rooms.len(), LANES);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_does_what_the_model_says(calls in vec(calls(), 0..150)) {
        let mut world = World::new(0);
        calls.into_iter().for_each(|call| world.call(call));
        world.end();
    }

    /// The same where the numbers in the words begin again from zero.
    #[test]
    fn numbers_wrap_and_nobody_notices(calls in vec(calls(), 50..150), before in 0u64..40) {
        let mut world = World::new((1 << 40) - before);
        calls.into_iter().for_each(|call| world.call(call));
        world.end();
    }
}
