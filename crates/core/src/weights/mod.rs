//! Weights: whole versions of many leaves, from one writer at a time to any number of readers, never torn. A writer does not wait for
//! readers.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`] | the bytes, and what the words say |
//! | [`protocol`] | the state machine and its invariants |
//! | [`recovery`] | what the dead leave behind |
//! | [`copy`] | bytes from here to there, by several threads |
//! | [`writer`], [`reader`] | the two handles |
//! | [`draft`], [`held_version`] | a version written, and one read, in place: for the network |
//! | [`mirror`] | weights whose versions come from elsewhere |
//!
//! A version lies in one of several buffers. The writer fills one that no reader reads, then points all readers to it with one
//! store. A reader pins the buffer it reads. Not done here: what a leaf means, and waking event loops.

pub mod copy;
pub mod draft;
pub mod held_version;
pub mod layout;
pub mod mirror;
pub mod protocol;
pub mod reader;
pub mod recovery;
pub mod writer;

pub use crate::error::Damage;
use crate::error::{Error, Result};
pub use crate::policies::IfExists;
use crate::schema;
use crate::segment::header::SeatRecord;
use crate::segment::{Activity, Owner, Segment, Spec, catalog};
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::Ordering;
pub use crate::sys::wait::Deadline;
pub use draft::Draft;
pub use held_version::{ChangedLeaf, HeldVersion};
use layout::{Control, FIRST_BUFFERS, Geometry, KIND};
use protocol::Protocol;
pub use reader::{Reader, Target};
use std::sync::Arc;
use std::time::Duration;
pub use writer::{Source, Writer};

/// What new weights should be.
#[derive(Debug, Clone)]
pub struct WeightsSpec<'a> {
    /// `None`: in this process (and its forked children) only.
    pub name: Option<&'a str>,
    pub auto_named: bool,
    pub schema: &'a [u8],
    /// Bytes of each leaf.
    pub leaf_bytes: &'a [usize],
    /// How many copies of the weights there may be, for readers that take long. Three exist from the start.
    pub max_buffers: usize,
    /// How many readers and writers may be attached at once.
    pub max_peers: usize,
    /// Keep a checksum of each leaf, which readers compare.
    pub checksum: bool,
}

const CHECKSUM_WORD: usize = 3;
/// The lineage of the origin, in weights that mirror others; otherwise 0.
const LINEAGE_WORD: usize = 4;

/// Mapped weights, shared by the handles on them.
#[derive(Debug)]
pub struct Weights {
    segment: Arc<Segment>,
    geometry: Geometry,
    checksum: bool,
}

impl Weights {
    /// Makes weights without a name: sit down, then publish their segment.
    fn create(spec: &WeightsSpec<'_>, lineage: u64) -> Result<Weights> {
        let bad = |what: String| Error::BadSchema { what };
        let schema = schema::weights(spec.schema).map_err(|invalid| bad(invalid.to_string()))?;
        if !schema.fits(spec.leaf_bytes) {
            return Err(bad("its leaves do not have the sizes of the weights".to_owned()));
        }
        let geometry = Geometry::new(spec.max_peers, spec.max_buffers, spec.leaf_bytes.to_vec())?;
        let mut words = geometry.words();
        words[CHECKSUM_WORD] = spec.checksum as u64;
        words[LINEAGE_WORD] = lineage;
        let existing = geometry.buffer_offset(FIRST_BUFFERS);
        let segment = Segment::create(&Spec {
            name: spec.name,
            kind: KIND,
            schema: spec.schema,
            geometry: words,
            body_bytes: geometry.body_bytes,
            reserved_bytes: existing,
            seats: spec.max_peers,
            huge_pages: Some(false), // They would make all of a sparse file exist.
            auto_named: spec.auto_named,
        })?;
        segment.populate_body(0, existing);
        for (leaf, &bytes) in geometry.leaf_bytes.iter().enumerate() {
            // SAFETY: the table lies inside the body, by the way `Geometry` was derived, and the segment has no name yet.
            unsafe {
                let table = segment.body().0.add(geometry.sizes_offset).cast::<u64>();
                table.add(leaf).write(bytes as u64);
            }
        }
        let weights = Weights { segment: Arc::new(segment), geometry, checksum: spec.checksum };
        weights.protocol().note_grown(FIRST_BUFFERS);
        Ok(weights)
    }

    /// Opens named weights. `schema`: refuse any other; `None`: take any.
    pub fn open(name: &str, schema: Option<&[u8]>) -> Result<Weights> {
        let weights = Weights::over(Segment::open(name, Some(KIND))?, schema)?;
        let grown = weights.protocol().grown();
        weights.segment.populate_body(0, weights.geometry.buffer_offset(grown));
        Ok(weights)
    }

    /// What lies in a segment, checked against its header. It changes nothing.
    pub(crate) fn over(segment: Segment, schema: Option<&[u8]>) -> Result<Weights> {
        let header = segment.header();
        let parsed = schema::weights(&segment.schema()).map_err(|invalid| segment.bad_schema(invalid))?;
        if schema.is_some_and(|schema| segment.schema() != schema) {
            return Err(segment.schema_differs());
        }
        let damaged = |what| segment.damaged(Damage(what));
        let [leaves, _, max_buffers, ..] = header.geometry.map(|word| word as usize);
        let seats = segment.seats().len();
        if leaves != parsed.leaves.len() {
            return Err(damaged("its number of leaves is not the one that its schema says"));
        }
        let (start, end) = Geometry::sizes_of(seats, leaves)
            .filter(|&(_, end)| end <= segment.body().1)
            .ok_or(damaged("its number of leaves does not fit its size"))?;
        let leaf_bytes = (start..end).step_by(size_of::<u64>()).map(|offset| {
            // SAFETY: `end` lies inside the body, which is page-aligned; the table does not change after publication.
            unsafe { segment.body().0.add(offset).cast::<u64>().read() as usize }
        });
        let geometry = Geometry::new(seats, max_buffers, leaf_bytes.collect())
            .map_err(|error| segment.bad_geometry(error))?;
        segment.check_geometry(&geometry.words()[..CHECKSUM_WORD], geometry.body_bytes)?;
        // A reader makes room for what the schema says, and copies what the geometry says.
        if !parsed.fits(&geometry.leaf_bytes) {
            return Err(damaged("its leaves do not have the sizes that its schema says"));
        }
        let checksum = header.geometry[CHECKSUM_WORD] != 0;
        Ok(Weights { segment: Arc::new(segment), geometry, checksum })
    }

    /// Opens or makes weights, as [`IfExists`] says, and attaches to them.
    fn open_or_create<H>(
        spec: &WeightsSpec<'_>,
        if_exists: IfExists,
        attach_to: impl Fn(Arc<Weights>) -> Result<H>,
    ) -> Result<H> {
        let open = |name: &str| Weights::open(name, Some(spec.schema)).and_then(|weights| weights.fits(spec));
        let attach = |weights, _resumed| attach_to(Arc::new(weights));
        // A learner with other leaves has no use for the last version.
        let holds_data = |segment: &Segment| segment.header().kind != KIND;
        if_exists.open(spec.name, open, || Weights::create(spec, 0), Weights::segment, attach, holds_data)
    }

    fn fits(self, spec: &WeightsSpec<'_>) -> Result<Weights> {
        let theirs = &self.geometry;
        self.segment.check_sizes(&[
            ("leaves", theirs.leaves(), spec.leaf_bytes.len()),
            ("bytes", theirs.leaf_bytes.iter().sum(), spec.leaf_bytes.iter().sum()),
            ("max_buffers", theirs.max_buffers, spec.max_buffers),
            ("seats", theirs.seats, spec.max_peers),
            ("checksum", self.checksum as usize, spec.checksum as usize),
        ])?;
        Ok(self)
    }

    /// The words of the weights.
    #[inline]
    pub fn protocol(&self) -> Protocol<'_> {
        let (segment, geometry) = (&self.segment, &self.geometry);
        // SAFETY: the offsets were derived from checked counts, and the body is at least `body_bytes` long, page-aligned
        // and mapped as long as `self.segment`. What lies there is atomics, and exists from the start.
        unsafe {
            Protocol {
                control: segment.control(),
                pins: segment.words(geometry.pins_offset, geometry.seats),
                heads: segment.words(geometry.heads_offset, geometry.max_buffers),
                entries: segment.words(geometry.entries_offset, geometry.max_buffers * geometry.leaves()),
            }
        }
    }

    /// Where a leaf lies in a buffer that exists.
    #[inline]
    fn leaf(&self, buffer: usize, leaf: usize) -> *mut u8 {
        let geometry = &self.geometry;
        assert!(buffer < geometry.max_buffers);
        // SAFETY: the offset is inside the body, by the assertion and the way `Geometry` was derived.
        unsafe {
            self.segment.body().0.as_ptr().add(geometry.buffer_offset(buffer) + geometry.leaf_offsets[leaf])
        }
    }

    /// Where a buffer lies, and how many bytes it has: whole pages.
    pub fn buffer_memory(&self, buffer: usize) -> (*mut u8, usize) {
        let geometry = &self.geometry;
        assert!(buffer < geometry.max_buffers);
        // SAFETY: the offset is inside the body, by the assertion and the way `Geometry` was derived.
        let start = unsafe { self.segment.body().0.as_ptr().add(geometry.buffer_offset(buffer)) };
        (start, geometry.buffer_bytes)
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// A number for the history in which a version number names one set of bytes and no other. Weights that are made anew begin
    /// another one; mirrors have that of their origin.
    pub fn lineage(&self) -> u64 {
        let header = self.segment.header();
        match header.geometry[LINEAGE_WORD] {
            0 => {
                let born = [header.created_unix_ns.to_le_bytes(), (header.creator_pid as u64).to_le_bytes()];
                xxhash_rust::xxh3::xxh3_64(&born.concat()).max(1)
            }
            origin => origin,
        }
    }

    /// Whether their versions come from other weights.
    pub fn is_mirror(&self) -> bool {
        self.segment.header().geometry[LINEAGE_WORD] != 0
    }

    /// Whether readers compare checksums.
    pub fn has_checksums(&self) -> bool {
        self.checksum
    }

    /// The version published last; 0 when nothing was.
    #[inline]
    pub fn version(&self) -> Result<u64> {
        let latest = self.protocol().latest().map_err(|damage| self.damaged(damage))?;
        Ok(latest.map_or(0, |latest| latest.version))
    }

    /// Whether they were shut down.
    pub fn is_closed(&self) -> bool {
        self.protocol().control.write.closed.is_set()
    }

    /// Takes the name away, and tells waiting readers that nothing more will come. Attached readers can still read what was
    /// published.
    pub fn shut_down(&self) -> Result<()> {
        let control = self.protocol().control;
        self.segment.unlink()?;
        control.write.closed.set();
        control.published.notify();
        Ok(())
    }

    /// Takes the name away if no participant lives, and no writer will come back. For a process that has left.
    ///
    /// A writer that died may come back under the name, and go on with its version. So what it published stays if it was the
    /// last writer to go (I7), unless the name is automatic; [`catalog::collect`] takes away that, too.
    pub fn collect(name: &str) -> Result<bool> {
        catalog::collect_unless(name, |segment| {
            let header = segment.header();
            if header.kind != KIND || header.auto_named != 0 || segment.body().1 < size_of::<Control>() {
                return false;
            }
            // SAFETY: the body begins with the control words, which are atomics, and has room for them.
            let control = unsafe { segment.control::<Control>() };
            let died = control.write.writer.load(Ordering::Relaxed) != 0;
            died && control.publish.latest.load(Ordering::Relaxed) != 0
        })
    }

    /// The pid of the holder of a claim, as it saw itself.
    fn pid_of(&self, owner: Owner) -> u32 {
        self.segment.seats().get(owner.seat()).map_or(0, |seat| seat.pid.load(Ordering::Relaxed))
    }

    /// The pid of the last writer, alive or dead; `None` when there is none.
    pub fn writer_pid(&self) -> Option<u32> {
        self.protocol().last_writer().map(|last| self.pid_of(last.owner))
    }

    /// Notes that this process has written a version in so many nanoseconds, for those who look from outside.
    pub fn note_write(&self, version: u64, copy_ns: u64) {
        let last = self.protocol().last_writer();
        let record = last.and_then(|last| self.segment.seats().get(last.owner.seat()));
        if let Some(record) = record.filter(|record| record.pid.load(Ordering::Relaxed) == std::process::id())
        {
            record.account.note_commit(1, monotonic_ns(), 0);
            record.account.note_version(version);
            record.account.note_copy(copy_ns, 1, 0);
        }
    }

    /// Takes back what the last holder of a seat left; we hold its lock.
    fn sweep(&self, seat: usize) {
        let protocol = self.protocol();
        recovery::sweep(protocol.control, protocol.pins, seat);
    }

    fn damaged(&self, damage: Damage) -> Error {
        self.segment.damaged(damage)
    }

    /// Reads the counters.
    pub fn totals(&self) -> Totals {
        let protocol = self.protocol();
        let counters = &protocol.control.counters;
        Totals {
            buffers: protocol.grown(),
            retries: counters.retries.load(Ordering::Relaxed),
            overtaken: counters.overtaken.load(Ordering::Relaxed),
            recovered: counters.recovered.load(Ordering::Relaxed),
        }
    }
}

impl Reader {
    /// Notes that this reader has copied a version in so many nanoseconds, for those who look from outside.
    pub fn note_read(&self, version: u64, copy_ns: u64) {
        if let Some(record) = self.record() {
            record.account.note_version(version);
            record.account.note_copy(copy_ns, 1, 0);
        }
    }

    /// As [`wait_for`](Reader::wait_for), and counted as waiting.
    pub fn wait_for_counted(
        &self,
        version: u64,
        deadline: Deadline,
        peer_timeout: Option<Duration>,
    ) -> Result<u64> {
        let there = || self.weights().version().is_ok_and(|there| there >= version);
        let Some(record) = self.record().filter(|_| !there()) else {
            return self.wait_for(version, deadline, peer_timeout);
        };
        record.account.switch(Activity::WaitData, monotonic_ns());
        let waited = self.wait_for(version, deadline, peer_timeout);
        record.account.switch(Activity::Work, monotonic_ns());
        waited
    }

    fn record(&self) -> Option<&SeatRecord> {
        let owner = self.owner().ok()?;
        self.weights().segment().seats().get(owner.seat())
    }
}

/// What happened since the weights were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many copies of the weights exist.
    pub buffers: usize,
    /// Copies that a reader made again.
    pub retries: u64,
    /// Buffers that the writer took from under a reader.
    pub overtaken: u64,
    /// Pins of dead readers, cleared.
    pub recovered: u64,
}
