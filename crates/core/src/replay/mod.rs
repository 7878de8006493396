//! The table: rows of one size, written by any number of adders and sampled by any number of readers; when it is full the
//! oldest are overwritten. Any of them may die.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`] | the bytes, and what the words say |
//! | [`protocol`] | the state machine and its invariants |
//! | [`recovery`] | what the dead leave behind |
//! | [`add`] | rows from arrays into the table |
//! | [`gather`] | rows, drawn at random, out of it into arrays |
//! | [`draw`] | the random numbers for that |
//!
//! A [`Table`] is one participant's handle: it holds a seat, adds, samples and counts. Threads may share it. What a row
//! means is the business of the schema, of which only the sizes are looked at here; a row is bytes, in fields.

pub mod add;
pub mod draw;
pub mod gather;
pub mod layout;
pub mod protocol;
pub mod recovery;

use crate::error::{Damage, Error, Result};
use crate::policies::IfExists;
use crate::schema;
use crate::segment::{Activity, Owner, Role, Seat, Segment, Spec, catalog};
use crate::sys::fork::generation;
use crate::sys::sync::{AtomicBool, AtomicU64, Ordering};
use crate::sys::wait::{Deadline, wait_for};
pub use add::{Patch, Source};
pub use gather::{Piece, Sampler};
pub use layout::Field;
use layout::{Geometry, KIND, RowKind, RowWord, Tally};
use protocol::Protocol;
use std::sync::Arc;
use std::time::Duration;

/// What a new table should be.
#[derive(Debug, Clone)]
pub struct TableSpec<'a> {
    /// `None`: in this process (and its forked children) only.
    pub name: Option<&'a str>,
    pub auto_named: bool,
    pub schema: &'a [u8],
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Its fields; what lies between them is never read.
    pub fields: &'a [Field],
    pub capacity: usize,
    pub max_peers: usize,
    /// As in [`Spec`].
    pub huge_pages: Option<bool>,
}

/// One participant of a table.
#[derive(Debug)]
pub struct Table {
    mapped: MappedTable,
    seat: Seat,
    role: Role,
    resumed: bool,
    /// Whether this handle was closed. Calls that wait in other threads look at it.
    left: AtomicBool,
    /// Of the process that came.
    generation: u32,
}

impl Table {
    /// A learner's handle: makes the table, or goes on with the one that is there, as `if_exists` says.
    pub fn open(spec: &TableSpec<'_>, if_exists: IfExists) -> Result<Table> {
        let there = |name: &str| {
            MappedTable::open(name, spec.schema, spec.row_bytes, spec.fields)
                .and_then(|table| table.fits(spec))
        };
        let sit_down = |mapped, resumed| Self::sit_down(mapped, Role::Consumer, resumed);
        let create = || MappedTable::create(spec);
        let holds_data = MappedTable::holds_data;
        if_exists.open(spec.name, there, create, |mapped| &mapped.segment, sit_down, holds_data)
    }

    /// A worker's handle, on a table that is there.
    pub fn attach(name: &str, schema: &[u8], row_bytes: usize, fields: &[Field]) -> Result<Table> {
        let mapped = MappedTable::open(name, schema, row_bytes, fields)?;
        let table = Self::sit_down(mapped, Role::Producer, true)?;
        if table.is_closed() { Err(table.segment().not_found()) } else { Ok(table) }
    }

    /// The schema of a table that is there: one that [`schema::columns`] reads.
    pub fn schema_of(name: &str) -> Result<Vec<u8>> {
        let segment = Segment::open(name, Some(KIND))?;
        schema::columns(&segment.schema()).map_err(|invalid| segment.bad_schema(invalid))?;
        Ok(segment.schema())
    }

    fn sit_down(mapped: MappedTable, role: Role, resumed: bool) -> Result<Table> {
        let segment = mapped.segment.clone();
        let seat = match role {
            // The last learner to leave takes the name away; no other comes in between.
            Role::Consumer => Seat::take_with_join_lock(segment, role)?,
            _ => Seat::take(segment, role, |seat| mapped.sweep(seat))?,
        };
        let (left, generation) = (AtomicBool::new(false), generation());
        let table = Table { mapped, seat, role, resumed, left, generation };
        if resumed && role == Role::Consumer {
            table.recover();
        }
        Ok(table)
    }

    /// Leaves, and ends the calls that wait with this handle, in whichever thread. The last learner takes the name away, and
    /// closes the table for the adders.
    pub fn leave(&self) -> Result<()> {
        if generation() != self.generation || self.left.swap(true, Ordering::Relaxed) {
            return Ok(()); // A forked child does not leave in its parent's name.
        }
        let last = match self.role {
            Role::Consumer => self.seat.leave_and_unlink(|| self.shut_down()),
            _ => Ok(false),
        };
        if !matches!(last, Ok(true)) {
            // A thread that announced itself before this wakes; one that does so later sees the flag (SYNC event.ticket).
            self.protocol().control.changed.notify();
        }
        last.map(drop)
    }

    /// Ends as if this process had been killed: the rows stay for the next learner. Without rows or workers, the name goes;
    /// without a name that can be found again, this is [`leave`](Self::leave).
    pub fn abandon(this: Arc<Table>) -> Result<()> {
        if this.role != Role::Consumer || !this.segment().can_be_resumed() {
            return this.leave();
        }
        if generation() != this.generation || this.left.swap(true, Ordering::Relaxed) {
            return Ok(()); // As in `leave`.
        }
        let name = this.name().to_owned();
        this.seat.abandon();
        this.protocol().control.changed.notify();
        drop(this);
        catalog::collect_unless(&name, MappedTable::holds_data).map(drop)
    }

    /// Takes the name away and closes the table, also while others are attached.
    pub fn unlink(&self) -> Result<()> {
        self.segment().unlink()?;
        self.shut_down();
        Ok(())
    }

    fn shut_down(&self) {
        let control = self.protocol().control;
        control.read.closed.set();
        control.changed.notify();
    }

    /// Whether the last learner has left.
    pub fn is_closed(&self) -> bool {
        self.protocol().control.read.closed.is_set()
    }

    /// Whether the table was there already.
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    /// How many rows earlier learners left here, and how old the segment is. `None` if there are none, or another learner lives.
    pub fn found(&self) -> Option<(usize, Duration)> {
        let rows = if self.resumed { self.rows() } else { 0 };
        (rows > 0 && self.seat.is_only_one()).then(|| (rows, self.segment().age()))
    }

    pub fn name(&self) -> &str {
        self.segment().name()
    }

    pub fn geometry(&self) -> &Geometry {
        &self.mapped.geometry
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.mapped.segment
    }

    /// The words of the table.
    #[inline]
    pub fn protocol(&self) -> Protocol<'_> {
        self.mapped.protocol()
    }

    #[inline]
    fn owner(&self) -> Result<Owner> {
        match self.seat.owner() {
            Some(owner) => Ok(owner),
            // This is a forked child: a worker, whatever its parent is.
            None => self.seat.rejoin_as(Role::Producer, |seat| self.mapped.sweep(seat)),
        }
    }

    /// What we count.
    fn tally(&self, owner: Owner) -> &Tally {
        &self.tallies()[owner.seat()]
    }

    fn tallies(&self) -> &[Tally] {
        self.mapped.tallies()
    }

    /// Where a row lies.
    #[inline]
    fn row(&self, row: usize) -> *mut u8 {
        let MappedTable { segment, geometry } = &self.mapped;
        assert!(row < geometry.capacity);
        // SAFETY: the offset is inside the body, by the assertion and the way `Geometry` was derived.
        unsafe { segment.body().0.as_ptr().add(geometry.rows_offset + row * geometry.stride) }
    }

    /// Counts the rows that are whole, or are just being replaced by a whole one.
    pub fn rows(&self) -> usize {
        self.protocol().count()
    }

    /// How many rows were promised to adders so far. It grows for ever.
    pub fn head(&self) -> u64 {
        self.protocol().control.write.head.load(Ordering::Relaxed)
    }

    /// Empties the rows that the dead were writing, sooner than adders would.
    pub fn recover(&self) -> usize {
        recovery::recover(&self.protocol(), |owner| !self.seat.is_alive(owner))
    }

    /// Waits until there are `rows` rows. False when the time is over; [`Error::Closed`] when no learner is left.
    pub fn wait_for_rows(&self, rows: usize, deadline: Deadline) -> Result<bool> {
        let look = || Ok((self.rows() >= rows).then_some(()));
        self.wait(Activity::WaitData, deadline, look).map(|there| there.is_some())
    }

    /// Sleeps until `look` finds something.
    fn wait<T>(
        &self,
        activity: Activity,
        deadline: Deadline,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let changed = &self.protocol().control.changed;
        let look = || match look()? {
            None if self.is_closed() || self.left.load(Ordering::Relaxed) => Err(Error::Closed),
            found => Ok(found),
        };
        let _waiting = self.seat.waits(activity);
        wait_for(changed, || changed.announce(), deadline, look, || Ok(()))
    }

    fn damaged(&self, damage: Damage) -> Error {
        self.segment().damaged(damage)
    }

    /// Looks at every row, and takes back what the dead were writing.
    pub fn census(&self) -> Contents {
        let recovered = self.recover();
        if let (true, Ok(owner)) = (recovered > 0, self.owner()) {
            self.tally(owner).recovered.fetch_add(recovered as u64, Ordering::Relaxed);
        }
        let mut contents = Contents::default();
        for word in self.protocol().words {
            match RowWord::unpack(word.load(Ordering::Relaxed)).kind {
                RowKind::Empty => contents.empty += 1,
                RowKind::Writing => contents.writing += 1,
                RowKind::Ready => contents.ready += 1,
            }
        }
        contents
    }

    /// How many rows each process is writing, by pid.
    pub fn writers(&self) -> Vec<(u32, usize)> {
        let words = self.protocol().words.iter().map(|word| RowWord::unpack(word.load(Ordering::Relaxed)));
        let writing = words.filter(|word| word.kind == RowKind::Writing);
        self.segment().count_by_pid(writing.map(|word| word.owner))
    }

    /// Adds up the tallies.
    pub fn totals(&self) -> Totals {
        self.mapped.totals()
    }
}

/// A mapped table, before a participant sits down in it.
#[derive(Debug)]
pub(crate) struct MappedTable {
    pub(crate) segment: Arc<Segment>,
    pub(crate) geometry: Geometry,
}

impl MappedTable {
    pub(crate) fn tallies(&self) -> &[Tally] {
        // SAFETY: the offset was derived from checked counts; tallies are atomics inside the mapping, aligned to 64.
        unsafe { self.segment.words(self.geometry.tallies_offset, self.geometry.seats) }
    }

    /// Adds up the tallies.
    pub(crate) fn totals(&self) -> Totals {
        let sum = |which: fn(&Tally) -> &AtomicU64| {
            self.tallies().iter().map(|tally| which(tally).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
        };
        Totals {
            added: sum(|tally| &tally.added),
            overwritten: sum(|tally| &tally.overwritten),
            skipped: sum(|tally| &tally.skipped),
            recovered: sum(|tally| &tally.recovered),
            sampled: sum(|tally| &tally.sampled),
            redrawn: sum(|tally| &tally.redrawn),
        }
    }

    fn create(spec: &TableSpec<'_>) -> Result<MappedTable> {
        let bad = |what: String| Error::BadSchema { what };
        let leaves = schema::columns(spec.schema).map_err(|invalid| bad(invalid.to_string()))?;
        if !leaves.iter().map(|leaf| leaf.bytes).eq(spec.fields.iter().map(|field| field.bytes)) {
            return Err(bad("its leaves do not have the sizes of the fields".to_owned()));
        }
        let geometry = Geometry::new(spec.capacity, spec.row_bytes, spec.fields, spec.max_peers)?;
        let segment = Segment::create(&Spec {
            name: spec.name,
            kind: KIND,
            schema: spec.schema,
            geometry: geometry.words(),
            body_bytes: geometry.body_bytes,
            reserved_bytes: geometry.body_bytes,
            seats: spec.max_peers,
            huge_pages: spec.huge_pages,
            auto_named: spec.auto_named,
        })?;
        segment.populate();
        Ok(MappedTable { segment: Arc::new(segment), geometry })
    }

    fn open(name: &str, schema: &[u8], row_bytes: usize, fields: &[Field]) -> Result<MappedTable> {
        let segment = Segment::open(name, Some(KIND))?;
        segment.check_schema(Some(schema))?;
        let leaves = schema::columns(schema).map_err(|invalid| segment.bad_schema(invalid))?;
        if !leaves.iter().map(|leaf| leaf.bytes).eq(fields.iter().map(|field| field.bytes)) {
            return Err(segment.damaged(Damage("its fields do not have the sizes that its schema says")));
        }
        let table = Self::over(segment, row_bytes, fields)?;
        table.segment.check_geometry(&table.geometry.words(), table.geometry.body_bytes)?;
        table.segment.populate();
        Ok(table)
    }

    /// What lies in a segment, checked against its size. It changes nothing.
    pub(crate) fn over(segment: Segment, row_bytes: usize, fields: &[Field]) -> Result<MappedTable> {
        let capacity = segment.header().geometry[0] as usize;
        let geometry = Geometry::new(capacity, row_bytes, fields, segment.seats().len())
            .map_err(|error| segment.bad_geometry(error))?;
        if geometry.body_bytes as u64 != segment.header().body_bytes {
            return Err(
                segment.damaged(Damage("the geometry in its header does not fit its schema or its size"))
            );
        }
        Ok(MappedTable { segment: Arc::new(segment), geometry })
    }

    /// Refuses a table of another capacity than the one asked for, or one that is shut down.
    fn fits(self, spec: &TableSpec<'_>) -> Result<MappedTable> {
        self.segment.check_sizes(&[("capacity", self.geometry.capacity, spec.capacity)])?;
        self.segment.check_open(self.protocol().control.read.closed.is_set())?;
        Ok(self)
    }

    #[inline]
    pub(crate) fn protocol(&self) -> Protocol<'_> {
        // SAFETY: the geometry was checked against the body.
        unsafe { Self::protocol_in(&self.segment, &self.geometry) }
    }

    /// # Safety
    /// The body of the segment holds a table, and is as long as the geometry says.
    #[inline]
    unsafe fn protocol_in<'a>(segment: &'a Segment, geometry: &Geometry) -> Protocol<'a> {
        // SAFETY: the offsets were derived from checked counts, and the body is at least `body_bytes` long, page-aligned and
        // mapped as long as `segment`. What lies there is atomics.
        unsafe {
            let words = segment.words(geometry.words_offset, geometry.capacity);
            Protocol { control: segment.control(), words }
        }
    }

    /// Whether a stale segment has something that no learner may throw away unasked: whole rows, or another structure.
    fn holds_data(segment: &Segment) -> bool {
        let [capacity, _, row_bytes, ..] = segment.header().geometry.map(|word| word as usize);
        let row = [Field { offset: 0, bytes: row_bytes }]; // How it is divided does not matter here.
        match Geometry::new(capacity, row_bytes, &row, segment.seats().len()) {
            Ok(geometry) if segment.header().kind == KIND && geometry.body_bytes <= segment.body().1 => {
                // SAFETY: as just checked.
                let protocol = unsafe { Self::protocol_in(segment, &geometry) };
                !protocol.control.read.closed.is_set() && protocol.count() > 0
            }
            _ => true,
        }
    }

    /// Takes back what the last holder of a seat left; we hold its lock.
    fn sweep(&self, seat: usize) {
        recovery::recover(&self.protocol(), |owner: Owner| owner.seat() == seat);
    }
}

/// What is in the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    pub ready: usize,
    pub writing: usize,
    pub empty: usize,
}

/// What happened since the table was made.
pub type Totals = Tally<u64>;
