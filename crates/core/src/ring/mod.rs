//! The ring: many producers write samples in place, consumers take whole batches, and any of them may die.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`] | the bytes, and what the words say |
//! | [`protocol`] | the state machine and its invariants |
//! | [`recovery`] | what the dead leave behind |
//! | [`producer`], [`consumer`] | the two handles, and the guards that commit, abort and release |
//! | [`forwarding`] | a consumer that sends its batches on: their numbers, which outlive it |
//! | [`sessions`] | what each remote client has delivered, which outlives the learner |
//!
//! A [`Producer`] and a [`Consumer`] each hold a seat in the segment. A [`Slot`] dropped without commit is aborted; a
//! [`Batch`] dropped is released. Both keep the mapping alive.

pub mod consumer;
pub mod forwarding;
pub mod layout;
pub mod producer;
pub mod protocol;
pub mod recovery;
pub mod sessions;

use crate::error::{Error, Result};
pub use crate::policies::{IfExists, OnFull};
use crate::segment::sessions::SESSIONS;
use crate::segment::{Owner, Seat, Segment, Spec};
use crate::sys::sync::{AtomicU64, Ordering};
pub use crate::sys::wait::{self, Deadline};
pub use consumer::{Batch, Consumer};
use layout::{BufferKind, BufferWord, Geometry, KIND, ON_FULL_WORD, SlotKind, SlotWord, Stamp};
pub use producer::{Producer, Slot};
use protocol::{Damage, Protocol};
use recovery::Repairs;
use std::sync::Arc;

/// What a new ring should be.
#[derive(Debug, Clone)]
pub struct RingSpec<'a> {
    /// `None`: in this process (and its forked children) only.
    pub name: Option<&'a str>,
    pub auto_named: bool,
    pub schema: &'a [u8],
    pub leaf_bytes: &'a [usize],
    pub batch_size: usize,
    pub num_buffers: usize,
    pub max_peers: usize,
    pub on_full: OnFull,
    /// As in [`Spec`].
    pub huge_pages: Option<bool>,
}

/// A mapped ring, shared by the handles on it.
#[derive(Debug)]
pub struct Ring {
    segment: Arc<Segment>,
    geometry: Geometry,
    on_full: OnFull,
}

impl Ring {
    /// Makes a ring without a name: sit down, then publish its segment.
    fn create(spec: &RingSpec<'_>) -> Result<Ring> {
        let geometry = Geometry::new(spec.batch_size, spec.num_buffers, spec.leaf_bytes)?;
        let segment = Segment::create(&Spec {
            name: spec.name,
            kind: KIND,
            schema: spec.schema,
            geometry: geometry.words(spec.on_full),
            body_bytes: geometry.body_bytes,
            reserved_bytes: geometry.body_bytes,
            seats: spec.max_peers,
            huge_pages: spec.huge_pages,
            auto_named: spec.auto_named,
        })?;
        segment.populate();
        let ring = Ring { segment: Arc::new(segment), geometry, on_full: spec.on_full };
        ring.protocol().initialise();
        Ok(ring)
    }

    /// Opens a named ring, and checks that it holds the same schema.
    fn open(name: &str, schema: &[u8], leaf_bytes: &[usize]) -> Result<Ring> {
        let segment = Segment::open(name, Some(KIND))?;
        segment.check_schema(Some(schema))?;
        let ring = Ring::over(segment, leaf_bytes)?;
        ring.segment.populate();
        Ok(ring)
    }

    /// What lies in a segment, checked against its header. It changes nothing.
    pub(crate) fn over(segment: Segment, leaf_bytes: &[usize]) -> Result<Ring> {
        let [batch_size, num_buffers, ..] = segment.header().geometry.map(|word| word as usize);
        let geometry = Geometry::new(batch_size, num_buffers, leaf_bytes)
            .map_err(|error| segment.bad_geometry(error))?;
        let on_full = segment.policy(ON_FULL_WORD)?;
        segment.check_geometry(&geometry.words(on_full), geometry.body_bytes)?;
        Ok(Ring { segment: Arc::new(segment), geometry, on_full })
    }

    fn fits(mut self, spec: &RingSpec<'_>) -> Result<Ring> {
        let (batch_size, num_buffers) = (self.geometry.batch_size, self.geometry.num_buffers);
        self.segment.check_sizes(&[
            ("batch_size", batch_size, spec.batch_size),
            ("num_buffers", num_buffers, spec.num_buffers),
        ])?;
        self.segment.check_open(self.is_closed())?;
        self.segment.change_policy(ON_FULL_WORD, self.on_full, spec.on_full)?;
        self.on_full = spec.on_full;
        Ok(self)
    }

    /// The words of the ring.
    #[inline]
    pub fn protocol(&self) -> Protocol<'_> {
        // SAFETY: the geometry was checked against the body.
        unsafe { Self::protocol_in(&self.segment, &self.geometry) }
    }

    /// # Safety
    /// The body of the segment holds a ring, and is as long as the geometry says.
    #[inline]
    unsafe fn protocol_in<'a>(segment: &'a Segment, geometry: &Geometry) -> Protocol<'a> {
        // SAFETY: the offsets were derived from checked counts, and the body is at least `body_bytes` long, page-aligned
        // and mapped as long as `segment`. What lies there is atomics, and stamps guarded by claims (I1, I2).
        unsafe {
            Protocol {
                control: segment.control(),
                buffers: segment.words(geometry.buffers_offset, geometry.num_buffers),
                sessions: segment.words(geometry.sessions_offset, SESSIONS),
                slots: segment.words(geometry.slots_offset, geometry.num_buffers * geometry.batch_size),
                batch_size: geometry.batch_size,
                block: geometry.block,
            }
        }
    }

    /// Whether a stale segment has something that no learner may throw away unasked: committed samples, or another structure.
    fn holds_data(segment: &Segment) -> bool {
        let [batch_size, num_buffers, ..] = segment.header().geometry.map(|word| word as usize);
        // The leaves lie behind all that is looked at here.
        match Geometry::new(batch_size, num_buffers, &[0]) {
            Ok(geometry) if segment.header().kind == KIND && geometry.body_bytes <= segment.body().1 => {
                // SAFETY: as just checked.
                let protocol = unsafe { Self::protocol_in(segment, &geometry) };
                !protocol.control.closed.is_set() && Contents::of(&protocol).committed() > 0
            }
            _ => true,
        }
    }

    /// Where one leaf of one row of a buffer lies. The caller has a claim on the row, or has taken the buffer.
    #[inline]
    pub fn leaf(&self, buffer: usize, leaf: usize, row: usize) -> *mut u8 {
        let geometry = &self.geometry;
        assert!(buffer < geometry.num_buffers && row < geometry.batch_size);
        let offset = geometry.payload_offset
            + buffer * geometry.buffer_stride
            + geometry.leaf_offsets[leaf]
            + row * geometry.leaf_bytes[leaf];
        // SAFETY: the offset is inside the body, by the assertion and the way `Geometry` was derived.
        unsafe { self.segment.body().0.as_ptr().add(offset) }
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub fn on_full(&self) -> OnFull {
        self.on_full
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub fn is_closed(&self) -> bool {
        self.protocol().control.closed.is_set()
    }

    /// Shuts the ring down: producers get an error, consumers what is complete, sleepers wake.
    pub fn shut_down(&self) {
        let control = self.protocol().control;
        control.closed.set();
        control.readable.notify();
        control.writable.notify();
    }

    /// Undoes [`shut_down`](Self::shut_down), for a consumer that leaves what is in the ring to the next one.
    pub fn reopen(&self) {
        self.protocol().control.closed.clear();
    }

    /// A number for a producer that brought none.
    fn next_producer_id(&self) -> u32 {
        self.protocol().control.next_producer_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes back what the dead hold, as far as `seat` can tell.
    fn recover(&self, seat: &Seat) -> Result<Repairs> {
        recovery::recover(&self.protocol(), |owner| !seat.is_alive(owner)).map_err(|d| self.damaged(d))
    }

    /// Takes back what the last holder of a seat left; we hold its lock.
    fn sweep(&self, seat: usize) {
        // Damage will be reported by the first call that meets it.
        let _ = recovery::recover(&self.protocol(), |owner: Owner| owner.seat() == seat);
    }

    fn damaged(&self, damage: Damage) -> Error {
        self.segment.damaged(damage)
    }

    /// Whether a producer would find a slot now.
    fn has_room(&self) -> bool {
        let protocol = self.protocol();
        let write = &protocol.control.write;
        let open = protocol.open();
        let claimable = |slot: &layout::Slot| {
            SlotWord::unpack(slot.word.load(Ordering::Relaxed)).is_claimable_for(open.batch)
        };
        // Relaxed: a hint, as in `may_have_room`. The claim that follows looks for itself.
        write.holes.load(Ordering::Relaxed) != 0
            || protocol.slots_of(open.index).is_ok_and(|slots| slots.iter().rev().any(claimable))
            || protocol.has_free_buffer()
    }

    /// Counts what is in the ring now.
    pub fn census(&self) -> Contents {
        Contents::of(&self.protocol())
    }

    /// Reads the counters.
    pub fn totals(&self) -> Totals {
        let counters = &self.protocol().control.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let retries = self.segment.seats().iter().map(|seat| read(&seat.retries));
        Totals {
            samples_released: read(&counters.samples_released),
            batches_released: read(&counters.batches_released),
            blocked: read(&counters.blocked),
            dropped_oldest: read(&counters.dropped_oldest),
            dropped_newest: read(&counters.dropped_newest),
            recovered_slots: read(&counters.recovered_slots),
            reoffered_batches: read(&counters.reoffered_batches),
            aborted: read(&counters.aborted),
            claim_retries: retries.fold(0, u64::wrapping_add),
        }
    }

    /// The producers that keep unfinished batches from completing: their pids, and how many slots each has claimed.
    pub fn writers(&self) -> Vec<(u32, usize)> {
        let slots = self.protocol().slots.iter();
        let words = slots.map(|slot| SlotWord::unpack(slot.word.load(Ordering::Relaxed)));
        let claimed = words.filter(|word| word.kind == SlotKind::Claimed);
        self.segment.count_by_pid(claimed.map(|word| word.owner))
    }
}

/// What is in the ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Committed, and not in a consumer's hands.
    pub ready_samples: usize,
    pub claimed_slots: usize,
    /// Full batches that wait for a consumer.
    pub ready_batches: usize,
    pub held_batches: usize,
    /// In the consumers' hands.
    pub held_samples: usize,
    pub free_buffers: usize,
}

impl Contents {
    fn of(protocol: &Protocol<'_>) -> Contents {
        let mut contents = Contents::default();
        for (index, line) in protocol.buffers.iter().enumerate() {
            let word = BufferWord::unpack(line.word.load(Ordering::Relaxed)); // For people: a moment ago, or now.
            match word.kind {
                BufferKind::Free => contents.free_buffers += 1,
                BufferKind::Taken => {
                    contents.held_batches += 1;
                    contents.held_samples += protocol.count(index, word.batch).map_or(0, |(ready, _)| ready);
                }
                BufferKind::Filling => {
                    let (ready, claimed) = protocol.count(index, word.batch).unwrap_or((0, 0));
                    contents.ready_samples += ready;
                    contents.claimed_slots += claimed;
                    contents.ready_batches += (ready == protocol.batch_size) as usize;
                }
            }
        }
        contents
    }

    /// Samples that were committed and not released.
    pub fn committed(&self) -> usize {
        self.ready_samples + self.held_samples
    }
}

/// What happened since the ring was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub samples_released: u64,
    pub batches_released: u64,
    /// How often a producer had to wait for room.
    pub blocked: u64,
    pub dropped_oldest: u64,
    pub dropped_newest: u64,
    /// Slots taken back from dead producers.
    pub recovered_slots: u64,
    /// Batches taken back from dead consumers.
    pub reoffered_batches: u64,
    /// Slots given back.
    pub aborted: u64,
    /// Claims that another producer won first, of the attached producers.
    pub claim_retries: u64,
}

/// The stamp of a row. The caller has taken the buffer.
fn stamp_of(slot: &layout::Slot) -> Stamp {
    // SAFETY: the row is Ready and its batch is ours: its writer is done (I2), and none writes before release (I6).
    unsafe { slot.stamp.get().read() }
}
