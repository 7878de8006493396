//! Replay tables: steps, stored once; items, each a window of steps; and tables of items, which choose what is sampled and
//! what is removed. Many writers and samplers, in any processes. Any of them may die.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`] | the bytes, and what the words say |
//! | [`lock`] | the lock under which items come and go |
//! | [`index`] | the items of a table and what follows from them, with the invariants |
//! | [`selectors`] | how a table chooses an item |
//! | [`limiter`] | when a table admits an insert or a sample |
//! | [`patterns`] | which steps each column of an item takes |
//! | [`writer`] | steps, and items made of them |
//! | [`sample`] | items, chosen and copied out |
//! | [`recovery`] | what the dead leave behind |
//!
//! A [`Tables`] is one participant's handle. Threads may share it. What a step means is the business of the schema, of
//! which only the sizes are looked at here; a step is bytes, in fields.

pub mod index;
pub mod layout;
pub mod limiter;
pub mod lock;
pub mod patterns;
pub mod recovery;
pub mod sample;
pub mod selectors;
pub mod writer;

use crate::error::{Damage, Error, Result};
use crate::policies::IfExists;
use crate::replay::draw::RandomStream;
use crate::replay::layout::Field;
use crate::schema;
use crate::segment::{Activity, Owner, Role, Seat, Segment, Spec, catalog};
use crate::sys::clock::coarse_ns;
use crate::sys::fork::generation;
use crate::sys::sync::{AtomicBool, AtomicU32, EventCount, Ordering};
use crate::sys::wait::{Deadline, LivenessTicker, wait_for};
pub use index::{Chosen, NewItem};
use index::{Index, Steps};
pub use layout::Config;
use layout::{Control, Geometry, ItemKind, ItemWord, KIND, PATTERN_WORDS, TableHead};
use limiter::{Counts, Wait};
use patterns::{Pattern, Patterns};
use std::sync::Arc;
use std::time::Duration;

/// How long a holder of the lock that lives may keep it. It needs far less, unless it is stopped.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// What new tables should be.
#[derive(Debug, Clone)]
pub struct TablesSpec<'a> {
    /// `None`: in this process (and its forked children) only.
    pub name: Option<&'a str>,
    pub auto_named: bool,
    pub schema: &'a [u8],
    /// Bytes of a step.
    pub row_bytes: usize,
    /// Its fields; what lies between them is never read.
    pub fields: &'a [Field],
    pub chunks: usize,
    /// Steps of a chunk.
    pub chunk_steps: usize,
    pub tables: &'a [Config],
    pub max_peers: usize,
    /// As in [`Spec`].
    pub huge_pages: Option<bool>,
}

/// One participant of replay tables.
#[derive(Debug)]
pub struct Tables {
    segment: Arc<Segment>,
    geometry: Geometry,
    configs: Vec<Config>,
    seat: Seat,
    role: Role,
    resumed: bool,
    /// Whether this handle was closed. Calls that wait in other threads look at it.
    left: AtomicBool,
    sweeps: LivenessTicker,
    /// Of the process that came.
    generation: u32,
}

impl Tables {
    /// A learner's handle: makes the tables, or goes on with those that are there, as `if_exists` says.
    pub fn open(spec: &TablesSpec<'_>, if_exists: IfExists) -> Result<Tables> {
        let there = |name: &str| {
            let mapped = Mapped::open(name, spec.schema, spec.row_bytes, spec.fields)?;
            mapped.fits(spec)
        };
        let sit_down = |mapped, resumed| Self::sit_down(mapped, Role::Consumer, resumed);
        let create = || Mapped::create(spec);
        if_exists.open(spec.name, there, create, |mapped| &mapped.segment, sit_down, holds_data)
    }

    /// A worker's handle, on tables that are there.
    pub fn attach(name: &str, schema: &[u8], row_bytes: usize, fields: &[Field]) -> Result<Tables> {
        let mapped = Mapped::open(name, schema, row_bytes, fields)?;
        let tables = Self::sit_down(mapped, Role::Producer, true)?;
        if tables.is_closed() { Err(tables.segment.not_found()) } else { Ok(tables) }
    }

    /// The schema of tables that are there.
    pub fn schema_of(name: &str) -> Result<Vec<u8>> {
        let segment = Segment::open(name, Some(KIND))?;
        schema::columns(&segment.schema()).map_err(|invalid| segment.bad_schema(invalid))?;
        Ok(segment.schema())
    }

    fn sit_down(mapped: Mapped, role: Role, resumed: bool) -> Result<Tables> {
        let Mapped { segment, geometry, configs } = mapped;
        let seat = match role {
            // The last learner to leave takes the name away; no other comes in between.
            Role::Consumer => Seat::take_with_join_lock(segment.clone(), role)?,
            _ => Seat::take(segment.clone(), role, |_| {})?,
        };
        let (left, generation) = (AtomicBool::new(false), generation());
        let sweeps = LivenessTicker::default();
        let tables = Tables { segment, geometry, configs, seat, role, resumed, left, sweeps, generation };
        if resumed {
            tables.sweep()?;
        }
        Ok(tables)
    }

    /// Leaves, and ends the calls that wait with this handle, in whichever thread. The last learner takes the name away, and
    /// closes the tables for all others.
    pub fn leave(&self) -> Result<()> {
        if generation() != self.generation || self.left.swap(true, Ordering::Relaxed) {
            return Ok(()); // A forked child does not leave in its parent's name.
        }
        let last = match self.role {
            Role::Consumer => self.seat.leave_and_unlink(|| self.shut_down()),
            _ => Ok(false),
        };
        if !matches!(last, Ok(true)) {
            self.wake_all();
        }
        last.map(drop)
    }

    /// Ends as if this process had been killed: what is in the tables stays for the next learner.
    pub fn abandon(this: Arc<Tables>) -> Result<()> {
        if this.role != Role::Consumer || !this.segment.can_be_resumed() {
            return this.leave();
        }
        if generation() != this.generation || this.left.swap(true, Ordering::Relaxed) {
            return Ok(()); // As in `leave`.
        }
        let name = this.name().to_owned();
        this.seat.abandon();
        this.wake_all();
        drop(this);
        catalog::collect_unless(&name, holds_data).map(drop)
    }

    fn shut_down(&self) {
        self.control().store.closed.set();
        self.wake_all();
    }

    fn wake_all(&self) {
        self.control().room.notify();
        self.heads().iter().for_each(|head| head.changed.notify());
    }

    /// Whether the last learner has left.
    pub fn is_closed(&self) -> bool {
        self.control().store.closed.is_set()
    }

    /// Whether the tables were there already.
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    pub fn name(&self) -> &str {
        self.segment.name()
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub fn configs(&self) -> &[Config] {
        &self.configs
    }

    #[inline]
    fn control(&self) -> &Control {
        // SAFETY: the body was checked to hold tables; what lies there is atomics.
        unsafe { self.segment.control() }
    }

    fn heads(&self) -> &[TableHead] {
        // SAFETY: as above, at an offset derived from checked counts, aligned to 64.
        unsafe { self.segment.words(self.geometry.heads, self.configs.len()) }
    }

    #[inline]
    pub(crate) fn steps(&self) -> Steps<'_> {
        // SAFETY: as above.
        let chunks = unsafe { self.segment.words(self.geometry.chunks_offset, self.geometry.chunks) };
        Steps { store: &self.control().store, chunks, chunk_steps: self.geometry.chunk_steps }
    }

    fn patterns(&self) -> Patterns<'_> {
        // SAFETY: as above.
        let words: &[AtomicU32] = unsafe { self.segment.words(self.geometry.patterns_offset, PATTERN_WORDS) };
        Patterns { store: &self.control().store, words, fields: self.geometry.fields.len() }
    }

    /// The words of one table.
    #[inline]
    pub(crate) fn index(&self, table: usize) -> Index<'_> {
        let (place, segment) = (&self.geometry.tables[table], &self.segment);
        let count = place.max_items;
        // SAFETY: as above; every offset is aligned to 64.
        unsafe {
            Index {
                config: &self.configs[table],
                head: &self.heads()[table],
                items: segment.words(place.items, count),
                ranks: place.ranks.map(|at| segment.words(at, count)),
                heaps: place.heaps.map(|heap| {
                    heap.map(|(heap, places)| (segment.words(heap, count), segment.words(places, count)))
                }),
                trees: place
                    .trees
                    .map(|tree| tree.map(|at| segment.words(at, selectors::tree::nodes(count)))),
                steps: self.steps(),
            }
        }
    }

    fn indexes(&self) -> Vec<Index<'_>> {
        (0..self.configs.len()).map(|table| self.index(table)).collect()
    }

    /// Where a step lies.
    #[inline]
    pub(crate) fn step(&self, step: u64) -> *mut u8 {
        assert!(step < self.geometry.steps() as u64);
        // SAFETY: the offset is inside the body, by the assertion and the way `Geometry` was derived.
        unsafe {
            self.segment
                .body()
                .0
                .as_ptr()
                .add(self.geometry.steps_offset + step as usize * self.geometry.stride)
        }
    }

    #[inline]
    fn owner(&self) -> Result<Owner> {
        match self.seat.owner() {
            Some(owner) => Ok(owner),
            // This is a forked child: a worker, whatever its parent is.
            None => self.seat.rejoin_as(Role::Producer, |_| {}),
        }
    }

    /// Does something with the lock held. If its last holder died in the middle of a change, everything is put right first.
    #[inline]
    pub(crate) fn locked<T>(&self, deadline: Deadline, work: impl FnOnce(Owner) -> T) -> Result<T> {
        let owner = self.owner()?;
        let is_dead = |owner| !self.seat.is_alive(owner);
        let lock = &self.control().lock;
        let held = match lock.acquire(owner, deadline.min(Deadline::after(Some(LOCK_PATIENCE))), is_dead) {
            Err(Error::Timeout) if deadline.remaining().is_some() => Err(self.is_locked()),
            held => held,
        }?;
        if held.must_rebuild {
            recovery::rebuild(&self.indexes(), is_dead);
        }
        let done = work(owner);
        held.release();
        Ok(done)
    }

    #[cold]
    fn is_locked(&self) -> Error {
        let holder = self.control().lock.holder().map(|owner| &self.segment.seats()[owner.seat()]);
        let pid = holder.map_or(0, |seat| seat.pid.load(Ordering::Relaxed));
        Error::Locked { name: self.name().to_owned(), pid }
    }

    /// Takes back what dead processes held.
    pub fn sweep(&self) -> Result<usize> {
        self.locked(Deadline::Never, |_| recovery::sweep(&self.indexes(), |owner| !self.seat.is_alive(owner)))
    }

    /// Counts everything anew, and says what does not fit.
    pub fn audit(&self) -> Result<Vec<String>> {
        self.locked(Deadline::Never, |_| recovery::audit(&self.indexes()))
    }

    /// The number of a pattern, which is added if it is new.
    pub fn pattern_number(&self, pattern: &Pattern) -> Result<u32> {
        let fits = pattern.columns.iter().all(|column| column.field < self.geometry.fields.len());
        assert!(fits, "a column has a field of the schema");
        if let Some(number) = self.patterns().find(pattern) {
            return Ok(number);
        }
        let added = self.locked(Deadline::Never, |_| self.patterns().add(pattern))?;
        added.ok_or_else(|| {
            Error::out_of_range("patterns", PATTERN_WORDS, "so many words at most, of all items")
        })
    }

    /// The pattern with a number.
    pub fn pattern(&self, number: u32) -> Result<Pattern> {
        let damage = Damage("an item has a pattern that nobody made");
        self.patterns().get(number).ok_or_else(|| self.segment.damaged(damage))
    }

    /// Tells the tables that there are new weights: versions only grow.
    pub fn note_version(&self, version: u64) {
        self.control().store.version.fetch_max(version, Ordering::Relaxed);
        self.heads().iter().for_each(|head| head.changed.notify_if_waiting());
    }

    /// Puts items into a table, from `done` on, and moves `done` as they are in, also when it fails half-way. Waits until the
    /// limiter admits each. The keys are appended.
    pub fn insert(
        &self,
        table: usize,
        items: &[NewItem],
        done: &mut usize,
        keys: &mut Vec<u64>,
        deadline: Deadline,
    ) -> Result<()> {
        let index = self.index(table);
        while *done < items.len() {
            self.check_open()?;
            let waits = self.locked(deadline, |_| self.insert_some(&index, items, done, keys))?;
            index.head.changed.notify_if_waiting();
            if waits.is_none() {
                continue;
            }
            let admitted =
                || has_place(&index) && index.config.limiter.admits_insert(&index.counts()).is_ok();
            self.wait(table, Activity::WaitRoom, deadline, admitted)?;
        }
        self.seat.record().account.note_commit(items.len(), coarse_ns(), 0);
        Ok(())
    }

    fn insert_some(
        &self,
        index: &Index<'_>,
        items: &[NewItem],
        done: &mut usize,
        keys: &mut Vec<u64>,
    ) -> Option<Wait> {
        let now_ms = now_ms();
        while *done < items.len() {
            if index.config.has_limits_of_age() {
                index.expire(now_ms);
            }
            if let Err(wait) = index.config.limiter.admits_insert(&index.counts()) {
                return Some(wait);
            }
            if !has_place(index) {
                return Some(Wait::ForSamples);
            }
            let key = loop {
                let is_full = index.counts().size >= index.items.len() as u64;
                match if is_full { None } else { index.insert(&items[*done], now_ms) } {
                    Some(key) => break key,
                    None => match index.choose(1, self.removal_stream(), index.counts().inserts) {
                        Some((item, _)) => index.remove(item),
                        None => return Some(Wait::ForSamples),
                    },
                }
            };
            keys.push(key.0);
            *done += 1;
        }
        None
    }

    /// What is removed at random is drawn from one stream: with one writer, always the same.
    fn removal_stream(&self) -> RandomStream {
        RandomStream::of(0)
    }

    /// Gives items new priorities. Those that were removed, or replaced, are passed over; says how many were there.
    pub fn update_priorities(&self, table: usize, keys: &[u64], priorities: &[f64]) -> Result<usize> {
        let index = self.index(table);
        self.locked(Deadline::Never, |_| index.update(keys, priorities))
    }

    /// Removes items; says how many were there.
    pub fn delete(&self, table: usize, keys: &[u64]) -> Result<usize> {
        let index = self.index(table);
        let deleted = self.locked(Deadline::Never, |_| {
            let named = keys.iter().map(|&key| layout::Key(key));
            let there = named.filter(|key| {
                let word = index.items.get(key.item()).map(|item| item.word.load(Ordering::Relaxed));
                word.is_some_and(|word| key.names(word) && ItemWord::unpack(word).kind == ItemKind::Live)
            });
            there.map(|key| index.remove(key.item())).count()
        })?;
        index.head.changed.notify_if_waiting();
        self.control().room.notify_if_waiting();
        Ok(deleted)
    }

    /// Removes all items, and begins to count anew.
    pub fn clear(&self, table: usize) -> Result<()> {
        let index = self.index(table);
        self.locked(Deadline::Never, |_| {
            while let Some(item) = index.order().oldest() {
                index.remove(item);
            }
            for count in [&index.head.inserts, &index.head.deletes, &index.head.samples] {
                count.store(0, Ordering::Relaxed);
            }
        })?;
        index.head.changed.notify_if_waiting();
        self.control().room.notify_if_waiting();
        Ok(())
    }

    /// The counts of a table, and the items that were removed.
    pub fn counts(&self, table: usize) -> (Counts, u64) {
        let index = self.index(table);
        (index.counts(), index.head.deletes.load(Ordering::Relaxed))
    }

    /// Steps that there is room for, besides those that items need or writers hold.
    pub fn free_steps(&self) -> usize {
        self.control().store.free_count.load(Ordering::Relaxed) as usize * self.geometry.chunk_steps
    }

    /// How often everything was counted anew after a death.
    pub fn rebuilt(&self) -> u64 {
        self.control().store.rebuilt.load(Ordering::Relaxed)
    }

    fn check_open(&self) -> Result<()> {
        let closed = self.is_closed() || self.left.load(Ordering::Relaxed);
        if closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// Notified when items of a table come, go, or are sampled.
    pub fn changed(&self, table: usize) -> &EventCount {
        &self.heads()[table].changed
    }

    /// Sleeps until a table has changed as `is_so` says.
    fn wait(
        &self,
        table: usize,
        activity: Activity,
        deadline: Deadline,
        is_so: impl Fn() -> bool,
    ) -> Result<()> {
        self.wait_on(self.changed(table), activity, deadline, is_so)
    }

    fn wait_on(
        &self,
        event: &EventCount,
        activity: Activity,
        deadline: Deadline,
        is_so: impl Fn() -> bool,
    ) -> Result<()> {
        let look = || match is_so() {
            true => Ok(Some(())),
            false => self.check_open().map(|()| None),
        };
        let _waiting = self.seat.waits(activity);
        // What the dead hold is taken back: it may be what we wait for.
        let check = || if self.sweeps.is_due() { self.sweep().map(drop) } else { Ok(()) };
        wait_for(event, || event.announce(), deadline, look, check)?.ok_or(Error::Timeout)
    }
}

/// Whether an item has a place, or may have that of another. While items are copied for the last time, a table that is not
/// full may have none; one that holds its writers back loses nothing then.
fn has_place(index: &Index<'_>) -> bool {
    let size = index.counts().size;
    let may_remove = size >= index.items.len() as u64 || (index.config.limiter.is_free() && size > 0);
    index.head.free.load(Ordering::Relaxed) != layout::NONE || may_remove
}

/// Milliseconds of the monotonic clock, modulo 2³².
fn now_ms() -> u32 {
    (coarse_ns() / 1_000_000) as u32
}

/// Whether a stale segment has something that no learner may throw away unasked.
fn holds_data(segment: &Segment) -> bool {
    let header = segment.header();
    if header.kind != KIND || segment.body().1 < size_of::<Control>() {
        return true;
    }
    // SAFETY: the body is long enough, and what lies there is atomics.
    let control: &Control = unsafe { segment.control() };
    let tables = header.geometry[3] as usize;
    let heads = size_of::<Control>().next_multiple_of(64);
    if tables > layout::MAX_TABLES || heads + tables * size_of::<TableHead>() > segment.body().1 {
        return true;
    }
    // SAFETY: as just checked.
    let heads: &[TableHead] = unsafe { segment.words(heads, tables) };
    !control.store.closed.is_set() && heads.iter().any(|head| head.size.load(Ordering::Relaxed) > 0)
}

/// Mapped tables, before a participant sits down at them.
#[derive(Debug)]
struct Mapped {
    segment: Arc<Segment>,
    geometry: Geometry,
    configs: Vec<Config>,
}

impl Mapped {
    fn create(spec: &TablesSpec<'_>) -> Result<Mapped> {
        let bad = |what: String| Error::BadSchema { what };
        let leaves = schema::columns(spec.schema).map_err(|invalid| bad(invalid.to_string()))?;
        if !leaves.iter().map(|leaf| leaf.bytes).eq(spec.fields.iter().map(|field| field.bytes)) {
            return Err(bad("its leaves do not have the sizes of the fields".to_owned()));
        }
        let geometry =
            Geometry::new(spec.chunks, spec.chunk_steps, spec.row_bytes, spec.fields, spec.tables)?;
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
        let configs = spec.tables.to_vec();
        // SAFETY: the offset was derived from checked counts; heads are atomics, aligned to 64.
        let heads: &[TableHead] = unsafe { segment.words(geometry.heads, configs.len()) };
        heads.iter().zip(&configs).for_each(|(head, config)| head.configure(config));
        // SAFETY: as above.
        let control: &Control = unsafe { segment.control() };
        control.lock.begin_unbuilt();
        Ok(Mapped { segment: Arc::new(segment), geometry, configs })
    }

    fn open(name: &str, schema: &[u8], row_bytes: usize, fields: &[Field]) -> Result<Mapped> {
        let segment = Segment::open(name, Some(KIND))?;
        segment.check_schema(Some(schema))?;
        let [chunks, chunk_steps, _, tables, ..] = segment.header().geometry.map(|word| word as usize);
        let heads = size_of::<Control>().next_multiple_of(64);
        let damaged = || segment.damaged(Damage("the geometry in its header is out of range"));
        if tables > layout::MAX_TABLES || heads + tables * size_of::<TableHead>() > segment.body().1 {
            return Err(damaged());
        }
        // SAFETY: as just checked; heads are atomics, aligned to 64.
        let heads: &[TableHead] = unsafe { segment.words(heads, tables) };
        let configs = heads.iter().map(TableHead::config).collect::<Option<Vec<_>>>().ok_or_else(damaged)?;
        let geometry = Geometry::new(chunks, chunk_steps, row_bytes, fields, &configs)
            .map_err(|error| segment.bad_geometry(error))?;
        segment.check_geometry(&geometry.words(), geometry.body_bytes)?;
        Ok(Mapped { segment: Arc::new(segment), geometry, configs })
    }

    /// Refuses tables that are not those asked for, or that are shut down.
    fn fits(self, spec: &TablesSpec<'_>) -> Result<Mapped> {
        self.segment.check_sizes(&[
            ("tables", self.configs.len(), spec.tables.len()),
            ("max_steps", self.geometry.steps(), spec.chunks * spec.chunk_steps),
        ])?;
        for (theirs, ours) in self.configs.iter().zip(spec.tables) {
            self.segment.check_sizes(&[("max_size", theirs.max_items, ours.max_items)])?;
        }
        // SAFETY: the body was checked to hold tables; what lies there is atomics.
        let control: &Control = unsafe { self.segment.control() };
        self.segment.check_open(control.store.closed.is_set())?;
        Ok(self)
    }
}
