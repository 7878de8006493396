//! Any sequence of calls on the ring does what a plain model of it says.
//!
//! The model is a map from batch numbers to rows; it knows nothing of words, cursors, hints or buffers' states. The
//! protocol chooses which slot a claim gets, and the model checks that it was there to be had; everything else (whether
//! there is room, which batch comes next, what is in it, what a recovery takes back) the model predicts.
//!
//! Deaths are between calls here. Those in the middle of one are in `loom/ring.rs` and `fault/ring.rs`.
use proptest::collection::vec;
use proptest::prelude::*;
use rollway_core::Error;
use rollway_core::ring::layout::{BatchNo, Buffer, BufferWord, Control, Place, Slot, SlotWord};
use rollway_core::ring::producer::ProducerSpec;
use rollway_core::ring::protocol::{Claim, Claimant, Protocol, Taken};
use rollway_core::ring::recovery::{Repairs, recover};
use rollway_core::ring::{Batch, Consumer, Contents, Deadline, IfExists, OnFull, Producer, RingSpec};
use rollway_core::segment::Owner;
use rollway_core::sys::sync::{AtomicU64, Ordering};
use std::collections::BTreeMap;

// ── the model ──────────────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Empty,
    Claimed(Owner),
    Ready(u64),
    /// The batch was closed early.
    Skipped,
}

#[derive(Debug, Clone)]
struct Rows {
    buffer: usize,
    rows: Vec<Row>,
    sealed: bool,
    holder: Option<Owner>,
}

impl Rows {
    fn count(&self, which: impl Fn(&Row) -> bool) -> usize {
        self.rows.iter().filter(|row| which(row)).count()
    }

    fn ready(&self) -> usize {
        self.count(|row| matches!(row, Row::Ready(_)))
    }

    fn claimed(&self) -> usize {
        self.count(|row| matches!(row, Row::Claimed(_)))
    }

    /// What a look at the batch does: in a sealed one, empty rows behind the last writer are closed. True when nobody
    /// writes to it any more.
    fn look(&mut self) -> bool {
        for row in self.rows.iter_mut().rev() {
            match row {
                Row::Empty if self.sealed => *row = Row::Skipped,
                Row::Empty | Row::Claimed(_) => return false,
                Row::Ready(_) | Row::Skipped => {}
            }
        }
        true
    }

    /// The samples in it, each with its row.
    fn samples(&self) -> Vec<(usize, u64)> {
        let sample = |(row, state): (usize, &Row)| match state {
            Row::Ready(value) => Some((row, *value)),
            _ => None,
        };
        self.rows.iter().enumerate().filter_map(sample).collect()
    }
}

#[derive(Debug)]
struct Model {
    batch_size: usize,
    num_buffers: usize,
    /// What the ring calls its first batch. The model calls it 1, and its numbers do not wrap.
    first: u64,
    /// Every batch that was opened and not yet released, by number.
    batches: BTreeMap<u64, Rows>,
    last_opened: u64,
    committed: Vec<u64>,
    released: Vec<u64>,
    dropped: Vec<u64>,
}

/// A batch that the model expects to be handed out.
#[derive(Debug, PartialEq, Eq)]
struct Expected {
    batch: u64,
    buffer: usize,
    samples: Vec<(usize, u64)>,
    overtook: bool,
}

impl Model {
    fn new(batch_size: usize, num_buffers: usize, first: u64) -> Model {
        let open = Rows { buffer: 0, rows: vec![Row::Empty; batch_size], sealed: false, holder: None };
        Model {
            batch_size,
            num_buffers,
            first,
            batches: BTreeMap::from([(1, open)]),
            last_opened: 1,
            committed: Vec::new(),
            released: Vec::new(),
            dropped: Vec::new(),
        }
    }

    fn number(&self, batch: BatchNo) -> u64 {
        BatchNo::new(batch.value().wrapping_sub(self.first)).value() + 1
    }

    fn has_empty_row(&self) -> bool {
        self.batches.values().any(|batch| batch.rows.contains(&Row::Empty))
    }

    fn has_room(&self) -> bool {
        self.has_empty_row() || self.batches.len() < self.num_buffers
    }

    /// Checks a claim against what there was to be had, and notes it.
    fn claimed(&mut self, claim: &Claim, want: usize) {
        assert!((1..=want).contains(&claim.len()), "asked for {want}, got {claim:?}");
        let number = self.number(claim.batch);
        if number > self.last_opened {
            assert_eq!(number, self.last_opened + 1, "batches are numbered one after the other");
            assert!(!self.has_empty_row(), "a batch was opened while an older one had a slot left");
            assert!(self.batches.len() < self.num_buffers, "a batch was opened without a free buffer");
            assert!(
                self.batches.values().all(|batch| batch.buffer != claim.buffer),
                "a buffer in use was opened"
            );
            let rows = vec![Row::Empty; self.batch_size];
            self.batches.insert(number, Rows { buffer: claim.buffer, rows, sealed: false, holder: None });
            self.last_opened = number;
        }
        let batch = self.batches.get_mut(&number).expect("claims are made in batches that are not released");
        assert_eq!(batch.buffer, claim.buffer);
        for row in &mut batch.rows[claim.slot..claim.slot + claim.len()] {
            assert_eq!(*row, Row::Empty, "a slot was claimed that was not free");
            *row = Row::Claimed(claim.owner);
        }
    }

    fn committed(&mut self, claim: &Claim, first: u64) {
        let number = self.number(claim.batch);
        let batch = self.batches.get_mut(&number).unwrap();
        for (value, row) in (first..).zip(&mut batch.rows[claim.slot..claim.slot + claim.len()]) {
            assert_eq!(*row, Row::Claimed(claim.owner));
            *row = Row::Ready(value);
            self.committed.push(value);
        }
    }

    fn aborted(&mut self, claim: &Claim) {
        let number = self.number(claim.batch);
        let batch = self.batches.get_mut(&number).unwrap();
        batch.rows[claim.slot..claim.slot + claim.len()].fill(Row::Empty);
    }

    /// The next complete batch that nobody holds.
    fn oldest_complete(&mut self) -> Option<u64> {
        self.batches
            .iter_mut()
            .find_map(|(number, batch)| (batch.holder.is_none() && batch.look()).then_some(*number))
    }

    /// What a consumer gets now.
    fn taken(&mut self, owner: Owner) -> Option<Expected> {
        loop {
            let number = self.oldest_complete()?;
            if self.batches[&number].ready() == 0 {
                self.batches.remove(&number); // Nothing in it to hand out.
                continue;
            }
            let overtook = self.batches.range(..number).any(|(_, batch)| batch.holder.is_none());
            let batch = self.batches.get_mut(&number).unwrap();
            batch.holder = Some(owner);
            return Some(Expected {
                batch: number,
                buffer: batch.buffer,
                samples: batch.samples(),
                overtook,
            });
        }
    }

    fn released(&mut self, batch: BatchNo) {
        let number = self.number(batch);
        let batch = self.batches.remove(&number).unwrap();
        self.released.extend(batch.samples().iter().map(|(_, value)| value));
    }

    fn given_back(&mut self, batch: BatchNo) {
        let number = self.number(batch);
        self.batches.get_mut(&number).unwrap().holder = None;
    }

    /// How many samples a producer without room throws away.
    fn dropped_oldest(&mut self) -> Option<usize> {
        let number = self.oldest_complete()?;
        let samples = self.batches.remove(&number).unwrap().samples();
        self.dropped.extend(samples.iter().map(|(_, value)| value));
        Some(samples.len())
    }

    fn flushed(&mut self) {
        for batch in self.batches.values_mut().filter(|batch| batch.holder.is_none()) {
            batch.sealed |= batch.ready() + batch.claimed() > 0;
        }
    }

    /// The oldest batch that is not sealed yet and has enough; one that nobody is writing to comes first.
    fn sealed_at_least(&mut self, at_least: usize) -> bool {
        for idle_only in [true, false] {
            let mut waiting =
                self.batches.values_mut().filter(|batch| batch.holder.is_none() && !batch.sealed);
            let fits = |batch: &&mut Rows| {
                batch.ready() >= at_least.max(1)
                    && batch.ready() < batch.rows.len()
                    && !(idle_only && batch.claimed() > 0)
            };
            if let Some(batch) = waiting.find(fits) {
                batch.sealed = true;
                return true;
            }
        }
        false
    }

    fn recovered(&mut self, dead: Owner) -> Repairs {
        let mut repairs = Repairs::default();
        for batch in self.batches.values_mut() {
            if batch.holder == Some(dead) {
                batch.holder = None;
                repairs.batches += 1;
            }
            for row in batch.rows.iter_mut().filter(|row| **row == Row::Claimed(dead)) {
                *row = Row::Empty;
                repairs.slots += 1;
            }
        }
        repairs
    }

    fn contents(&self) -> Contents {
        let waiting = || self.batches.values().filter(|batch| batch.holder.is_none());
        Contents {
            ready_samples: waiting().map(Rows::ready).sum(),
            claimed_slots: waiting().map(Rows::claimed).sum(),
            ready_batches: waiting().filter(|batch| batch.ready() == self.batch_size).count(),
            held_batches: self.batches.len() - waiting().count(),
            held_samples: self.batches.values().filter(|batch| batch.holder.is_some()).map(Rows::ready).sum(),
            free_buffers: self.num_buffers - self.batches.len(),
        }
    }

    /// Everything that was committed was handed out and released once, or was dropped.
    fn assert_nothing_is_lost_or_seen_twice(&self, received: &[u64]) {
        let sorted = |values: &[u64]| {
            let mut values = values.to_vec();
            values.sort_unstable();
            values
        };
        assert_eq!(sorted(received), sorted(&self.released));
        assert_eq!(sorted(&[received, &self.dropped[..]].concat()), sorted(&self.committed));
    }
}

// ── the protocol, over words on the heap ───────────────────────────────────────────────────────────────────────────

/// The words of a ring, and one number as the payload of each slot.
struct Heap {
    control: Box<Control>,
    buffers: Vec<Buffer>,
    slots: Vec<Slot>,
    payload: Vec<u64>,
    batch_size: usize,
    block: usize,
    /// One per seat.
    lanes: Vec<AtomicU64>,
    retries: AtomicU64,
}

impl Heap {
    /// An empty ring in which `first` is open: 1 in a new one, any number in one that has run for long.
    fn new(batch_size: usize, num_buffers: usize, block: usize, first: u64) -> Heap {
        let heap = Heap {
            control: Box::default(),
            buffers: (0..num_buffers).map(|_| Buffer::default()).collect(),
            slots: (0..num_buffers * batch_size).map(|_| Slot::default()).collect(),
            payload: vec![0; num_buffers * batch_size],
            batch_size,
            block,
            lanes: (0..=PRODUCERS).map(|_| AtomicU64::new(0)).collect(),
            retries: AtomicU64::new(0),
        };
        let (first, earlier) = (BatchNo::new(first), BatchNo::new(first.wrapping_sub(1)));
        for buffer in &heap.buffers {
            buffer.word.store(BufferWord::free(earlier).pack(), Ordering::Relaxed);
            buffer.sealed.store(earlier.value(), Ordering::Relaxed);
        }
        for slot in &heap.slots {
            slot.word.store(SlotWord::skipped(earlier).pack(), Ordering::Relaxed);
        }
        let open = Place { batch: first, index: 0 }.pack();
        heap.control.write.open.store(open, Ordering::Relaxed);
        heap.control.write.cursor.store(open, Ordering::Relaxed);
        heap.buffers[0].word.store(BufferWord::filling(first).pack(), Ordering::Relaxed);
        if first == BatchNo::FIRST {
            heap.ring().initialise();
        }
        heap
    }

    fn ring(&self) -> Protocol<'_> {
        let Heap { control, buffers, slots, batch_size, block, .. } = self;
        Protocol { control, buffers, sessions: &[], slots, batch_size: *batch_size, block: *block }
    }

    fn write(&mut self, claim: &Claim, first: u64) {
        let start = claim.buffer * self.batch_size + claim.slot;
        for (value, place) in (first..).zip(&mut self.payload[start..start + claim.len()]) {
            *place = value;
        }
    }

    fn write_row(&mut self, claim: &Claim, row: usize, value: u64) {
        self.payload[claim.buffer * self.batch_size + claim.slot + row] = value;
    }

    /// The samples in the hands of a consumer, each with its row.
    fn read(&self, taken: &Taken) -> Vec<(usize, u64)> {
        let first = taken.buffer * self.batch_size;
        let is_ready = |row: &usize| {
            let word = self.slots[first + row].word.load(Ordering::Acquire);
            SlotWord::unpack(word).is_ready_for(taken.batch)
        };
        (0..self.batch_size).filter(is_ready).map(|row| (row, self.payload[first + row])).collect()
    }
}

/// A number no sample has: what a producer leaves in a slot that it did not finish.
const HALF_WRITTEN: u64 = u64::MAX / 2;

#[derive(Debug, Clone)]
enum Call {
    Claim {
        producer: usize,
        want: usize,
    },
    Commit {
        claim: usize,
    },
    Abort {
        claim: usize,
    },
    ProducerDies {
        producer: usize,
    },
    Take {
        consumer: usize,
    },
    Release {
        held: usize,
    },
    GiveBack {
        held: usize,
    },
    ConsumerDies {
        consumer: usize,
    },
    Flush,
    SealAtLeast {
        samples: usize,
    },
    DropOldest,
    /// Somebody looks for the dead, and there are none.
    PollLiveness,
}

const PRODUCERS: usize = 3;
const CONSUMERS: usize = 2;

fn any_call() -> impl Strategy<Value = Call> {
    prop_oneof![
        12 => (0..PRODUCERS, prop_oneof![4 => Just(1usize), 3 => 2..7usize])
            .prop_map(|(producer, want)| Call::Claim { producer, want }),
        10 => any::<usize>().prop_map(|claim| Call::Commit { claim }),
        3 => any::<usize>().prop_map(|claim| Call::Abort { claim }),
        1 => (0..PRODUCERS).prop_map(|producer| Call::ProducerDies { producer }),
        6 => (0..CONSUMERS).prop_map(|consumer| Call::Take { consumer }),
        5 => any::<usize>().prop_map(|held| Call::Release { held }),
        1 => any::<usize>().prop_map(|held| Call::GiveBack { held }),
        1 => (0..CONSUMERS).prop_map(|consumer| Call::ConsumerDies { consumer }),
        1 => Just(Call::Flush),
        1 => (0..5usize).prop_map(|samples| Call::SealAtLeast { samples }),
        1 => Just(Call::DropOldest),
        1 => Just(Call::PollLiveness),
    ]
}

/// The protocol and its model side by side, with everything the callers hold.
struct Duel {
    heap: Heap,
    model: Model,
    /// Which life each participant is in; producers first.
    lives: [u32; PRODUCERS + CONSUMERS],
    claims: Vec<(Claim, u64)>,
    held: Vec<(Taken, Vec<(usize, u64)>)>,
    /// Everything that was handed out, in that order; what was given back comes twice.
    seen: Vec<u64>,
    received: Vec<u64>,
    next_value: u64,
}

impl Duel {
    fn new(batch_size: usize, num_buffers: usize, block: usize, first: u64) -> Duel {
        Duel {
            heap: Heap::new(batch_size, num_buffers, block, first),
            model: Model::new(batch_size, num_buffers, first),
            lives: [1; PRODUCERS + CONSUMERS],
            claims: Vec::new(),
            held: Vec::new(),
            seen: Vec::new(),
            received: Vec::new(),
            next_value: 1,
        }
    }

    fn owner(&self, participant: usize) -> Owner {
        Owner::new(participant, self.lives[participant])
    }

    fn play(&mut self, call: &Call) {
        match *call {
            Call::Claim { producer, want } => self.claim(producer, want),
            Call::Commit { claim } if !self.claims.is_empty() => self.commit(claim % self.claims.len()),
            Call::Abort { claim } if !self.claims.is_empty() => {
                let (claim, _) = self.claims.swap_remove(claim % self.claims.len());
                self.model.aborted(&claim);
                self.heap.ring().abort(claim);
            }
            Call::ProducerDies { producer } => self.bury(producer),
            Call::Take { consumer } => drop(self.take(PRODUCERS + consumer)),
            Call::Release { held } if !self.held.is_empty() => self.release(held % self.held.len()),
            Call::GiveBack { held } if !self.held.is_empty() => {
                let (taken, _) = self.held.swap_remove(held % self.held.len());
                self.model.given_back(taken.batch);
                self.heap.ring().give_back(taken);
            }
            Call::ConsumerDies { consumer } => self.bury(PRODUCERS + consumer),
            Call::Flush => {
                self.heap.ring().flush().unwrap();
                self.model.flushed();
            }
            Call::SealAtLeast { samples } => {
                if !self.take(PRODUCERS) {
                    let sealed = self.heap.ring().seal_at_least(samples).unwrap();
                    assert_eq!(sealed, self.model.sealed_at_least(samples));
                }
            }
            Call::DropOldest => {
                assert_eq!(self.heap.ring().drop_oldest().unwrap(), self.model.dropped_oldest());
            }
            Call::PollLiveness => assert_eq!(recover(&self.heap.ring(), |_| false), Ok(Repairs::default())),
            Call::Commit { .. } | Call::Abort { .. } | Call::Release { .. } | Call::GiveBack { .. } => {}
        }
        self.compare();
    }

    fn claim(&mut self, producer: usize, want: usize) {
        let owner = self.owner(producer);
        let (lane, retries) = (&self.heap.lanes[owner.seat()], &self.heap.retries);
        let claim = self.heap.ring().try_claim(Claimant { owner, lane, retries }, want).unwrap();
        assert_eq!(claim.is_some(), self.model.has_room(), "full exactly when no slot can be claimed");
        let Some(claim) = claim else { return };
        self.model.claimed(&claim, want);
        let first = self.next_value;
        self.next_value += claim.len() as u64;
        for row in 0..claim.len() {
            self.heap.write_row(&claim, row, HALF_WRITTEN);
        }
        self.claims.push((claim, first));
    }

    fn commit(&mut self, index: usize) {
        let (claim, first) = self.claims.swap_remove(index);
        self.heap.write(&claim, first);
        self.model.committed(&claim, first);
        self.heap.ring().commit(claim);
    }

    /// True when there was a batch.
    fn take(&mut self, consumer: usize) -> bool {
        let owner = self.owner(consumer);
        let taken = self.heap.ring().try_take(owner).unwrap();
        let expected = self.model.taken(owner);
        let Some(taken) = taken else {
            assert_eq!(expected, None, "a complete batch was not handed out");
            return false;
        };
        let samples = self.heap.read(&taken);
        assert_eq!(taken.ready, samples.len());
        let (buffer, overtook) = (taken.buffer, taken.overtook);
        let got =
            Expected { batch: self.model.number(taken.batch), buffer, samples: samples.clone(), overtook };
        assert_eq!(Some(got), expected);
        self.seen.extend(samples.iter().map(|(_, value)| value));
        self.held.push((taken, samples));
        true
    }

    fn release(&mut self, index: usize) {
        let (taken, samples) = self.held.swap_remove(index);
        self.received.extend(samples.iter().map(|(_, value)| value));
        self.model.released(taken.batch);
        self.heap.ring().release(taken);
    }

    /// Somebody died, and somebody noticed; another comes in its place.
    fn bury(&mut self, participant: usize) {
        let dead = self.owner(participant);
        let left: Vec<Taken> = self.held.extract_if(.., |(t, _)| t.owner == dead).map(|(t, _)| t).collect();
        self.claims.retain(|(claim, _)| claim.owner != dead);
        let repairs = recover(&self.heap.ring(), |owner| owner == dead).unwrap();
        assert_eq!(repairs, self.model.recovered(dead));
        assert_eq!(self.heap.ring().held_by(dead), 0);
        self.lives[participant] += 1;
        // A consumer that was only believed dead can no longer take anything away.
        for taken in left {
            // SAFETY: plain numbers, with nothing to drop. No safe code has a token twice: this is somebody who does.
            let twin = unsafe { std::ptr::read(&taken) };
            self.heap.ring().release(taken);
            self.heap.ring().give_back(twin);
        }
    }

    /// What can be seen from outside is what the model says.
    fn compare(&self) {
        let ring = self.heap.ring();
        for (number, batch) in &self.model.batches {
            let word = BufferWord::unpack(ring.buffers[batch.buffer].word.load(Ordering::Acquire));
            assert_eq!(self.model.number(word.batch), *number);
            let counts = ring.count(batch.buffer, word.batch).unwrap();
            assert_eq!(counts, (batch.ready(), batch.claimed()));
        }
        for (taken, samples) in &self.held {
            assert_eq!(&self.heap.read(taken), samples, "a batch changed in its reader's hands");
        }
        for consumer in PRODUCERS..PRODUCERS + CONSUMERS {
            let owner = self.owner(consumer);
            let held = self.held.iter().filter(|(taken, _)| taken.owner == owner).count();
            assert_eq!(ring.held_by(owner), held);
        }
    }

    /// Ends every claim and every hold, and takes what is left.
    fn drain(&mut self) {
        while let Some(last) = self.claims.len().checked_sub(1) {
            if last.is_multiple_of(2) {
                self.play(&Call::Commit { claim: last })
            } else {
                self.play(&Call::Abort { claim: last })
            }
        }
        while !self.held.is_empty() {
            self.play(&Call::Release { held: 0 });
        }
        self.play(&Call::Flush);
        while self.take(PRODUCERS) {
            self.release(0);
        }
        self.compare();
    }
}

// ── the handles, over a ring in this process ───────────────────────────────────────────────────────────────────────

#[derive(Debug, Clone)]
enum Step {
    Claim {
        want: usize,
    },
    Commit {
        claim: usize,
    },
    Abort {
        claim: usize,
    },
    ProducerDies,
    Take {
        at_least: Option<usize>,
    },
    Release {
        held: usize,
    },
    GiveBack {
        held: usize,
    },
    /// The consumer dies with everything it holds.
    ConsumerDies,
    Flush,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => prop_oneof![4 => Just(1usize), 3 => 2..7usize].prop_map(|want| Step::Claim { want }),
        10 => any::<usize>().prop_map(|claim| Step::Commit { claim }),
        2 => any::<usize>().prop_map(|claim| Step::Abort { claim }),
        1 => Just(Step::ProducerDies),
        6 => proptest::option::of(0..5usize).prop_map(|at_least| Step::Take { at_least }),
        5 => any::<usize>().prop_map(|held| Step::Release { held }),
        1 => any::<usize>().prop_map(|held| Step::GiveBack { held }),
        1 => Just(Step::ConsumerDies),
        1 => Just(Step::Flush),
    ]
}

fn any_policy() -> impl Strategy<Value = OnFull> {
    prop_oneof![Just(OnFull::Block), Just(OnFull::DropOldest), Just(OnFull::DropNewest), Just(OnFull::Error)]
}

/// What a batch showed: rows, each with the number in it.
type Samples = Vec<(usize, u64)>;

/// Two leaves: a number, and three bytes made from it, so that a row written by two hands is told from a whole one.
const LEAVES: [usize; 2] = [8, 3];

fn write_row(producer: &Producer, claim: &Claim, offset: usize, value: u64) {
    let leaf = |leaf: usize| producer.ring().leaf(claim.buffer, leaf, claim.slot + offset);
    // SAFETY: the row is claimed by this producer, and the leaves are as long as LEAVES says.
    unsafe {
        leaf(0).cast::<u64>().write_unaligned(value);
        leaf(1).cast::<[u8; 3]>().write(small_leaf(value));
    }
}

fn small_leaf(value: u64) -> [u8; 3] {
    [value as u8, (value >> 8) as u8, !(value as u8)]
}

fn read_batch(batch: &Batch<&Consumer>) -> Samples {
    let mut samples = Vec::new();
    let mut end = None;
    for (first, len) in batch.runs() {
        assert!(
            len > 0 && end.is_none_or(|end| end < first),
            "runs are apart from one another, and in order"
        );
        end = Some(first + len);
        for row in first..first + len {
            // SAFETY: the row is Ready and the batch is ours; the leaves are as long as LEAVES says.
            let (value, small) = unsafe {
                let value = batch.leaf(0, row).cast::<u64>().read_unaligned();
                (value, batch.leaf(1, row).cast::<[u8; 3]>().read())
            };
            assert_eq!(small, small_leaf(value), "the leaves of a row belong together");
            samples.push((row, value));
        }
    }
    assert_eq!(batch.len(), samples.len());
    samples
}

/// Who holds a batch, by the words of the ring.
fn holder(batch: &Batch<&Consumer>) -> Owner {
    let word = &batch.consumer().ring().protocol().buffers[batch.number().1].word;
    BufferWord::unpack(word.load(Ordering::Acquire)).owner
}

struct Handles<'a> {
    consumer: &'a Consumer,
    on_full: OnFull,
    producer: Producer,
    model: Model,
    claims: Vec<(Claim, u64)>,
    held: Vec<(Batch<&'a Consumer>, Samples)>,
    received: Vec<u64>,
    /// By value: who sent it, and as which of his samples.
    stamps: BTreeMap<u64, (u32, u64)>,
    next_value: u64,
    dropped_newest: u64,
    aborted: u64,
    repairs: Repairs,
}

impl<'a> Handles<'a> {
    fn new(consumer: &'a Consumer, on_full: OnFull) -> Handles<'a> {
        let geometry = consumer.ring().geometry();
        Handles {
            consumer,
            on_full,
            producer: Self::producer(consumer),
            model: Model::new(geometry.batch_size, geometry.num_buffers, 1),
            claims: Vec::new(),
            held: Vec::new(),
            received: Vec::new(),
            stamps: BTreeMap::new(),
            next_value: 1,
            dropped_newest: 0,
            aborted: 0,
            repairs: Repairs::default(),
        }
    }

    fn producer(consumer: &Consumer) -> Producer {
        let spec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };
        Producer::attach_to(consumer.ring().clone(), spec).unwrap()
    }

    fn play(&mut self, step: &Step) {
        match *step {
            Step::Claim { want } => self.claim(want),
            Step::Commit { claim } if !self.claims.is_empty() => self.commit(claim % self.claims.len()),
            Step::Abort { claim } if !self.claims.is_empty() => {
                let (claim, _) = self.claims.swap_remove(claim % self.claims.len());
                self.model.aborted(&claim);
                self.aborted += claim.len() as u64;
                self.producer.abort(claim);
            }
            Step::ProducerDies => {
                if let Some((claim, _)) = self.claims.first() {
                    self.bury(claim.owner);
                }
                self.claims.clear();
                self.producer = Self::producer(self.consumer);
            }
            Step::Take { at_least } => self.take(at_least),
            Step::Release { held } if !self.held.is_empty() => {
                let (batch, samples) = self.held.swap_remove(held % self.held.len());
                self.model.released(BatchNo::new(batch.number().0));
                self.received.extend(samples.iter().map(|(_, value)| value));
                drop(batch);
            }
            Step::GiveBack { held } if !self.held.is_empty() => {
                let (batch, _) = self.held.swap_remove(held % self.held.len());
                self.model.given_back(BatchNo::new(batch.number().0));
                batch.give_back();
            }
            Step::ConsumerDies => {
                if let Some((batch, _)) = self.held.first() {
                    self.bury(holder(batch));
                }
                self.held.drain(..).for_each(std::mem::forget);
            }
            Step::Flush => {
                self.consumer.flush().unwrap();
                self.model.flushed();
            }
            Step::Commit { .. } | Step::Abort { .. } | Step::Release { .. } | Step::GiveBack { .. } => {}
        }
        self.compare();
    }

    fn claim(&mut self, want: usize) {
        let claimed = self.producer.claim(want, Deadline::Now);
        if !self.model.has_room() && self.on_full == OnFull::DropOldest {
            self.model.dropped_oldest();
        }
        match (claimed, self.model.has_room(), self.on_full) {
            (Ok(Some(claim)), true, _) => {
                self.model.claimed(&claim, want);
                (0..claim.len()).for_each(|offset| write_row(&self.producer, &claim, offset, HALF_WRITTEN));
                let first = self.next_value;
                self.next_value += claim.len() as u64;
                self.claims.push((claim, first));
            }
            (Ok(None), false, OnFull::DropNewest | OnFull::DropOldest) => self.dropped_newest += want as u64,
            (Err(Error::Full), false, OnFull::Block | OnFull::Error) => {}
            (claimed, has_room, policy) => {
                panic!("{claimed:?} with {policy:?}, and the model says that there is room: {has_room}")
            }
        }
    }

    fn commit(&mut self, index: usize) {
        let (claim, first) = self.claims.swap_remove(index);
        let sequence = self.producer.sent();
        for offset in 0..claim.len() {
            let value = first + offset as u64;
            write_row(&self.producer, &claim, offset, value);
            self.stamps.insert(value, (self.producer.producer_id(), sequence + offset as u64));
        }
        self.model.committed(&claim, first);
        self.producer.commit(claim, first as u32);
    }

    fn take(&mut self, at_least: Option<usize>) {
        let batch = Consumer::take(self.consumer, Deadline::Now, at_least).unwrap();
        // The model does not care who holds a batch, as long as it is one and the same.
        let owner = batch.as_ref().map_or(Owner::from_bits(0), holder);
        let mut expected = self.model.taken(owner);
        if expected.is_none() && at_least.is_some_and(|samples| self.model.sealed_at_least(samples)) {
            expected = self.model.taken(owner);
        }
        let Some(batch) = batch else {
            assert_eq!(expected, None, "a complete batch was not handed out");
            return;
        };
        let samples = read_batch(&batch);
        for (row, value) in &samples {
            let stamp = batch.stamp(*row);
            assert_eq!((stamp.producer_id, stamp.sequence), self.stamps[value]);
        }
        let (batch_no, buffer) = batch.number();
        let expected = expected.map(|e| (e.batch, e.buffer, e.samples));
        assert_eq!(expected, Some((batch_no, buffer, samples.clone())));
        self.held.push((batch, samples));
    }

    fn bury(&mut self, dead: Owner) {
        let repairs = recover(&self.consumer.ring().protocol(), |owner| owner == dead).unwrap();
        assert_eq!(repairs, self.model.recovered(dead));
        self.repairs.slots += repairs.slots;
        self.repairs.batches += repairs.batches;
    }

    fn compare(&self) {
        assert_eq!(self.consumer.ring().census(), self.model.contents());
        for (batch, samples) in &self.held {
            assert_eq!(&read_batch(batch), samples, "a batch changed in its reader's hands");
        }
        let counters = &self.consumer.ring().protocol().control.counters;
        let counted = [
            (&counters.dropped_oldest, self.model.dropped.len() as u64),
            (&counters.dropped_newest, self.dropped_newest),
            (&counters.aborted, self.aborted),
            (&counters.recovered_slots, self.repairs.slots as u64),
            (&counters.reoffered_batches, self.repairs.batches as u64),
        ];
        for (counter, expected) in counted {
            assert_eq!(counter.load(Ordering::Relaxed), expected);
        }
    }

    fn drain(&mut self) {
        while !self.claims.is_empty() {
            self.play(&Step::Commit { claim: 0 });
        }
        self.play(&Step::Flush);
        loop {
            while !self.held.is_empty() {
                self.play(&Step::Release { held: 0 });
            }
            self.play(&Step::Take { at_least: None });
            if self.held.is_empty() {
                return;
            }
        }
    }
}

fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases * 4, failure_persistence: None, ..default }
}

#[test]
fn slots_that_were_given_back_are_filled_first_also_after_a_patrol() {
    for block in [1, 4] {
        let mut duel = Duel::new(8, 2, block, 1);
        duel.claim(0, 4);
        duel.play(&Call::Abort { claim: 0 });
        duel.play(&Call::PollLiveness);
        let rows: Vec<usize> = (0..8)
            .map(|_| {
                duel.claim(0, 1);
                duel.claims.last().unwrap().0.slot
            })
            .collect();
        assert_eq!(rows, [0, 1, 2, 3, 4, 5, 6, 7], "one producer's samples keep their order");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_sequence_of_calls_loses_nothing_and_shows_nothing_twice(
        batch_size in 1..=5usize,
        num_buffers in 2..=5usize,
        block_bits in 0..=2u32,
        // A new ring, or one whose batch numbers are about to start again, or to pass the middle.
        first in prop_oneof![4 => Just(1u64), 1 => (1u64 << 40) - 9..1 << 40, 1 => (1u64 << 39) - 9..1 << 39],
        calls in vec(any_call(), 1..150),
    ) {
        let mut duel = Duel::new(batch_size, num_buffers, 1 << block_bits, first);
        for call in &calls {
            duel.play(call);
        }
        duel.drain();
        duel.model.assert_nothing_is_lost_or_seen_twice(&duel.received);
        // The ring is as large as it was: nothing has leaked.
        let mut room = 0;
        while duel.model.has_room() {
            duel.claim(0, 1);
            room += 1;
        }
        prop_assert_eq!(room, batch_size * num_buffers);
    }

    #[test]
    fn samples_of_one_producer_arrive_in_the_order_they_were_sent(
        batch_size in 1..=5usize,
        num_buffers in 2..=5usize,
        block_bits in 0..=2u32,
        calls in vec(any_call(), 1..150),
    ) {
        let mut duel = Duel::new(batch_size, num_buffers, 1 << block_bits, 1);
        for call in &calls {
            match call {
                Call::Claim { want, .. } => {
                    duel.play(&Call::Claim { producer: 0, want: *want });
                    if let Some((claim, _)) = duel.claims.first() {
                        let room = (1..=batch_size - claim.slot).rev();
                        let block_end = |len: &usize| (claim.slot + len).is_multiple_of(1 << block_bits);
                        let whole = room.clone().filter(block_end).chain(room.take(1)).any(|len| claim.len() == len.min(*want));
                        prop_assert!(whole, "a run is as long as asked, or as the batch, or as the block it goes on in: {claim:?}, {want}");
                        duel.play(&Call::Commit { claim: 0 });
                    }
                }
                Call::Take { .. } | Call::SealAtLeast { .. } | Call::Release { .. } | Call::Flush | Call::PollLiveness => {
                    duel.play(call);
                }
                _ => {}
            }
        }
        duel.drain();
        prop_assert_eq!(duel.seen, duel.model.committed);
    }

    #[test]
    fn the_handles_do_what_the_model_says_with_any_policy(
        batch_size in 1..=5usize,
        num_buffers in 2..=5usize,
        on_full in any_policy(),
        steps in vec(any_step(), 1..100),
    ) {
        let spec = RingSpec {
            name: None,
            auto_named: false,
            schema: b"a number and three bytes",
            leaf_bytes: &LEAVES,
            batch_size,
            num_buffers,
            max_peers: 4,
            on_full,
            huge_pages: Some(false),
        };
        let consumer = Consumer::open(&spec, IfExists::Fail, None).unwrap();
        let mut handles = Handles::new(&consumer, on_full);
        for step in &steps {
            handles.play(step);
        }
        handles.drain();
        handles.model.assert_nothing_is_lost_or_seen_twice(&handles.received);
    }
}
