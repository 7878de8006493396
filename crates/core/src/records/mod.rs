//! Records: any number of bytes each, from many producers to one or several consumers, and any of them may die.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`] | the bytes, and what the words say |
//! | [`protocol`] | the state machine and its invariants |
//! | [`recovery`] | what the dead leave behind |
//! | [`allocator`], [`ledger`] | room in a lane, and what its producer knows about it |
//! | [`producer`], [`consumer`] | the two handles, and the guards that commit, abort and release; `producer::run`: several records in one go; `producer::delivery`: those of a remote client |
//! | [`forwarding`] | a consumer that sends its records on: what it leaves in the segment |
//! | [`sessions`] | what each remote client has delivered, which outlives the learner |
//! | [`format`](mod@format) | what lies in the bytes of one record: leaves, ragged and fixed |
//! | [`assemble`] | many records into one padded or packed batch |
//! | [`groups`] | records that belong together, and what becomes of those that stay incomplete |
//!
//! Each producer has a lane of its own; a consumer takes single records, fairly from all lanes. A [`Reservation`] dropped
//! without commit is aborted; a [`Record`] dropped is released. Both keep the mapping alive. A record that is held costs its
//! own bytes only: those behind it pass.

pub mod allocator;
pub mod assemble;
pub mod consumer;
pub mod format;
pub mod forwarding;
pub mod groups;
pub mod layout;
pub mod ledger;
pub mod producer;
pub mod protocol;
pub mod recovery;
pub mod sessions;

pub use crate::error::Damage;
use crate::error::{Error, Result};
pub use crate::policies::{IfExists, OnFull, ProducerSpec};
use crate::segment::sessions::SESSIONS;
use crate::segment::{Owner, Seat, Segment, Spec};
use crate::sys::sync::{AtomicU64, Ordering};
pub use crate::sys::wait::Deadline;
pub use consumer::{Consumer, Record, RecordInfo};
use layout::{Geometry, KIND, Lane, LaneOwner, ON_FULL_WORD, State, Word};
pub use producer::run::Outgoing;
pub use producer::{Label, Producer, Reservation};
use protocol::Protocol;
pub use protocol::Stamp;
use recovery::RecoveredSeats;
use std::sync::{Arc, Mutex};

/// What new records should be.
#[derive(Debug, Clone)]
pub struct RecordsSpec<'a> {
    /// `None`: in this process (and its forked children) only.
    pub name: Option<&'a str>,
    pub auto_named: bool,
    pub schema: &'a [u8],
    /// How many producers there may be at once.
    pub lanes: usize,
    /// How much data each of them may have in flight; rounded up to whole pages. Only what is used takes up memory.
    pub lane_bytes: usize,
    /// How many records each of them may have in flight; rounded up to a power of two.
    pub descriptors: usize,
    pub max_peers: usize,
    pub on_full: OnFull,
    /// Reserve all memory now, not as the data needs it.
    pub preallocate: bool,
}

/// Mapped records, shared by the handles on them.
#[derive(Debug)]
pub struct Records {
    segment: Arc<Segment>,
    geometry: Geometry,
    on_full: OnFull,
}

impl Records {
    /// Makes records without a name: sit down, then publish their segment.
    fn create(spec: &RecordsSpec<'_>) -> Result<Records> {
        let geometry = Geometry::new(spec.lanes, spec.descriptors, spec.lane_bytes)?;
        let segment = Segment::create(&Spec {
            name: spec.name,
            kind: KIND,
            schema: spec.schema,
            geometry: geometry.words(spec.on_full),
            body_bytes: geometry.body_bytes,
            reserved_bytes: if spec.preallocate { geometry.body_bytes } else { geometry.descriptors_offset },
            seats: spec.max_peers,
            huge_pages: Some(false), // They would make all of a sparse file exist.
            auto_named: spec.auto_named,
        })?;
        let records = Records { segment: Arc::new(segment), geometry, on_full: spec.on_full };
        if spec.preallocate {
            for lane in records.protocol().lanes {
                lane.write.grown.store(geometry.lane_bytes as u64, Ordering::Relaxed);
                lane.write.tabled.store(1, Ordering::Relaxed);
            }
        }
        Ok(records)
    }

    /// Opens named records. `schema`: refuse any other; `None`: take any.
    pub(crate) fn open(name: &str, schema: Option<&[u8]>) -> Result<Records> {
        let segment = Segment::open(name, Some(KIND))?;
        segment.check_schema(schema)?;
        Records::over(segment)
    }

    /// What lies in a segment, checked against its header. It changes nothing.
    pub(crate) fn over(segment: Segment) -> Result<Records> {
        let [lanes, descriptors, lane_bytes, ..] = segment.header().geometry.map(|word| word as usize);
        let geometry =
            Geometry::new(lanes, descriptors, lane_bytes).map_err(|error| segment.bad_geometry(error))?;
        let on_full = segment.policy(ON_FULL_WORD)?;
        segment.check_geometry(&geometry.words(on_full), geometry.body_bytes)?;
        Ok(Records { segment: Arc::new(segment), geometry, on_full })
    }

    fn fits(mut self, spec: &RecordsSpec<'_>) -> Result<Records> {
        let wanted = Geometry::new(spec.lanes, spec.descriptors, spec.lane_bytes)?;
        let there = &self.geometry;
        self.segment.check_sizes(&[
            ("lanes", there.lanes, wanted.lanes),
            ("max_records", there.descriptors, wanted.descriptors),
            ("lane_bytes", there.lane_bytes, wanted.lane_bytes),
        ])?;
        self.segment.check_open(self.is_closed())?;
        self.segment.change_policy(ON_FULL_WORD, self.on_full, spec.on_full)?;
        self.on_full = spec.on_full;
        Ok(self)
    }

    /// The words of the records.
    #[inline]
    pub fn protocol(&self) -> Protocol<'_> {
        // SAFETY: the geometry was checked against the body.
        unsafe { Self::protocol_in(&self.segment, &self.geometry) }
    }

    /// # Safety
    /// The body of the segment holds records, and is as long as the geometry says.
    #[inline]
    unsafe fn protocol_in<'a>(segment: &'a Segment, geometry: &Geometry) -> Protocol<'a> {
        // SAFETY: the offsets were derived from checked counts, and the body is at least `body_bytes` long, page-aligned
        // and mapped as long as `segment`. What lies there is atomics. Tables that do not exist yet are mapped, too, and
        // no process looks into them (`Protocol::existing_lane`).
        unsafe {
            Protocol {
                control: segment.control(),
                lanes: segment.words(geometry.lanes_offset, geometry.lanes),
                sessions: segment.words(geometry.sessions_offset, SESSIONS),
                descriptors: segment
                    .words(geometry.descriptors_offset, geometry.lanes * geometry.descriptors),
                lane_bytes: geometry.lane_bytes,
            }
        }
    }

    /// Whether a stale segment has something that no learner may throw away unasked: committed records, or another structure.
    fn holds_data(segment: &Segment) -> bool {
        let [lanes, descriptors, lane_bytes, ..] = segment.header().geometry.map(|word| word as usize);
        match Geometry::new(lanes, descriptors, lane_bytes) {
            Ok(geometry) if segment.header().kind == KIND && geometry.body_bytes <= segment.body().1 => {
                // SAFETY: as just checked.
                let protocol = unsafe { Self::protocol_in(segment, &geometry) };
                !protocol.control.closed.is_set() && Contents::of(&protocol).committed() > 0
            }
            _ => true,
        }
    }

    /// Where a record lies. The caller has reserved or taken it; the lane exists that far.
    #[inline]
    fn data(&self, lane: usize, start: usize, bytes: usize) -> *mut u8 {
        let geometry = &self.geometry;
        assert!(
            lane < geometry.lanes && start <= geometry.lane_bytes && bytes <= geometry.lane_bytes - start
        );
        // SAFETY: the offset is inside the body, by the assertion and the way `Geometry` was derived.
        unsafe { self.segment.body().0.as_ptr().add(geometry.lane_offset(lane) + start) }
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

    /// Shuts the records down: producers get an error, consumers what was committed, sleepers wake.
    pub fn shut_down(&self) {
        let protocol = self.protocol();
        protocol.control.closed.set();
        protocol.control.readable.notify();
        protocol.lanes.iter().for_each(|lane| lane.room.notify());
    }

    /// Undoes [`shut_down`](Self::shut_down), for a consumer that leaves what is there to the next one.
    pub fn reopen(&self) {
        self.protocol().control.closed.clear();
    }

    /// The error that attaching to records of that name and schema would meet.
    pub fn check(name: &str, schema: &[u8]) -> Result<()> {
        let records = Records::open(name, Some(schema))?;
        records.segment.check_open(records.is_closed())
    }

    /// Tells all processes which weights are the newest.
    pub fn publish(&self, version: u64) {
        // SYNC records.published: Release here, Acquire in `published`. Weights that lie in shared memory are written by then.
        self.protocol().control.published.store(version, Ordering::Release);
    }

    /// The newest weights that a process told of; 0 until then.
    pub fn published(&self) -> u64 {
        // SYNC records.published: Acquire here, Release in `publish`.
        self.protocol().control.published.load(Ordering::Acquire)
    }

    /// A number for a producer that brought none.
    fn next_producer_id(&self) -> u32 {
        self.protocol().control.next_producer_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes back what the last holder of a seat left; we hold its lock.
    fn sweep(&self, seat: usize) {
        recovery::recover(&self.protocol(), |owner: Owner| owner.seat() == seat);
    }

    fn damaged(&self, damage: Damage) -> Error {
        self.segment.damaged(damage)
    }

    /// Counts what is in the records now. It looks at every descriptor.
    pub fn census(&self) -> Contents {
        Contents::of(&self.protocol())
    }

    /// Reads the counters.
    pub fn totals(&self) -> Totals {
        let protocol = self.protocol();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sum = |which: fn(&Lane) -> &AtomicU64| {
            protocol.lanes.iter().map(|lane| read(which(lane))).fold(0, u64::wrapping_add)
        };
        Totals {
            committed: sum(|lane| &lane.write.sent),
            taken: sum(|lane| &lane.read.taken),
            released: sum(|lane| &lane.free.released),
            blocked: sum(|lane| &lane.write.blocked),
            dropped_oldest: sum(|lane| &lane.write.dropped_oldest),
            dropped_newest: sum(|lane| &lane.write.dropped_newest),
            aborted: sum(|lane| &lane.free.aborted),
            returned: read(&protocol.control.counters.returned),
            recovered: read(&protocol.control.counters.recovered),
        }
    }
}

/// What is in the records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Lanes that have an owner.
    pub lanes: usize,
    /// Committed, and not in a consumer's hands.
    pub ready_records: usize,
    pub ready_bytes: usize,
    /// In the consumers' hands.
    pub held_records: usize,
    pub held_bytes: usize,
    /// Being written.
    pub reserved_records: usize,
    /// How much of the lanes exists.
    pub grown_bytes: usize,
}

impl Contents {
    fn of(protocol: &Protocol<'_>) -> Contents {
        let mut contents = Contents::default();
        for lane in protocol.existing_lanes() {
            let lane_owner = LaneOwner::unpack(lane.line.write.owner.load(Ordering::Relaxed));
            contents.lanes += lane_owner.owner.is_some() as usize;
            contents.grown_bytes += lane.grown().unwrap_or(0);
            for descriptor in lane.table {
                let bytes = descriptor.bytes.load(Ordering::Relaxed) as usize;
                match Word::unpack(descriptor.word.load(Ordering::Relaxed)).state {
                    State::Free => {}
                    State::Reserved => contents.reserved_records += 1,
                    State::Ready => {
                        contents.ready_records += 1;
                        contents.ready_bytes = contents.ready_bytes.wrapping_add(bytes);
                    }
                    State::Taken => {
                        contents.held_records += 1;
                        contents.held_bytes = contents.held_bytes.wrapping_add(bytes);
                    }
                }
            }
        }
        contents
    }

    /// Records that were committed and not released.
    pub fn committed(&self) -> usize {
        self.ready_records + self.held_records
    }
}

/// What happened since the records were made. A death can cost a count of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub committed: u64,
    pub taken: u64,
    pub released: u64,
    /// How often a producer had to wait for room.
    pub blocked: u64,
    pub dropped_oldest: u64,
    pub dropped_newest: u64,
    /// Reservations given back.
    pub aborted: u64,
    /// Records given back by consumers, or taken back from dead ones.
    pub returned: u64,
    /// Reservations taken back from dead producers.
    pub recovered: u64,
}

/// Checks for dead peers, and recovers what they left. A thread that finds the lock held recovers everything on its own: the
/// holder may be a thread of the parent, whose lock a forked child inherited.
fn poll_liveness(recovered: &Mutex<RecoveredSeats>, records: &Records, seat: &Seat) {
    let protocol = records.protocol();
    match recovered.try_lock() {
        Ok(mut recovered) => recovered.poll_liveness(&protocol, seat),
        Err(_) => recovery::recover(&protocol, |owner| !seat.is_alive(owner)),
    };
}
