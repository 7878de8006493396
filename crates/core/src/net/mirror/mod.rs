//! A worker's copy of a learner's weights on another host, kept up to date by a thread of its own.
//!
//! ```text
//! socket ── one vectored read ──▶ the next buffer of a local segment ── verdict: whole ──▶ published, under the learner's number
//!                                                                    └─ void, or cut ────▶ it was never there
//! ```
//!
//! Whoever attaches to the local segment by its name reads the same copy. While there is no connection, readers keep the last
//! whole version.
//!
//! M1  A local segment holds versions of one *lineage*: the history in which a number means the same bytes. When a learner
//!     comes back with another one (it was restarted, and its numbers begin anew), a second segment receives its first version
//!     and then takes the place of the first.
//! M2  A version number that a caller got before that may name another version now. So `since` counts only if it is above every
//!     number of the lineages before, and a wait for a number of a lineage that is over ends with the first version of the new
//!     one.
//! M3  What a learner says about its weights is checked before memory is reserved or a name given: the schema parses, the
//!     sizes are those of the schema, the leaves are those that the callers have room for, and they fit into `max_bytes`.

use crate::error::{Error, Result};
use crate::net::client::dial::{
    ATTEMPT, Caller, FIRST_PAUSE, Failure, LONGEST_PAUSE, PARTING, SHORT_PAUSE, dial,
};
use crate::net::client::link::{Link, watch};
use crate::net::wire::frame::{
    Cargo, Farewell, HEADER_BYTES, Header, Hello, Inventory, Kind, LeafList, MAX_SCHEMA_BYTES, Verdict,
    goodbye,
};
use crate::net::wire::limits::SILENCES;
use crate::net::wire::limits::within_reason;
use crate::net::wire::stats::{MirrorCounters, MirrorStats, add};
use crate::net::wire::tls::ClientTls;
use crate::net::wire::token::random;
use crate::ring::Patience;
use crate::schema;
use crate::segment::memory;
use crate::sys::sync::{Bell, Woken};
use crate::weights::layout::{FIRST_BUFFERS, Geometry};
use crate::weights::reader::Reading;
use crate::weights::{Draft, Reader, Target, Weights, WeightsSpec, Writer, mirror};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that may wait for the learner to read: all that we say are small frames, one at a time.
const MOST_UNSENT: usize = 16 * 1024;

/// Rooms of one read.
const ROOMS: usize = 64;

/// Where the learner is, and what the copy should be. `..WeightMirrorSpec::default()` fills in the rest.
#[derive(Debug, Clone)]
pub struct WeightMirrorSpec {
    pub host: String,
    pub port: u16,
    pub token: Option<Vec<u8>>,
    pub tls: Option<ClientTls>,
    /// Of the local segment, for others on this host to attach to. `None`: in this process only.
    pub name: Option<String>,
    /// The schema text of the weights that the callers make room for: other leaves are refused. `None`: any weights.
    pub wanted: Option<Vec<u8>>,
    /// How much memory the copy may take at first; `None`: half of what is there.
    pub max_bytes: Option<u64>,
    pub max_buffers: usize,
    pub max_peers: usize,
    /// How many copy, where a version leaves leaves as they were, and for readers.
    pub threads: usize,
    /// For the first connection; the learner may start later than we.
    pub connect_timeout: Duration,
    /// How long to try again after a connection was lost.
    pub reconnect_timeout: Duration,
    pub keepalive: Duration,
}

impl Default for WeightMirrorSpec {
    fn default() -> WeightMirrorSpec {
        WeightMirrorSpec {
            host: "127.0.0.1".to_owned(),
            port: 0,
            token: None,
            tls: None,
            name: None,
            wanted: None,
            max_bytes: None,
            max_buffers: 8,
            max_peers: 67,
            threads: 1,
            connect_timeout: Duration::from_secs(10),
            reconnect_timeout: Duration::from_secs(60),
            keepalive: Duration::from_secs(5),
        }
    }
}

/// The local segment of one lineage.
#[derive(Debug)]
struct Local {
    writer: Writer,
    reader: Reader,
    schema: Vec<u8>,
    lineage: u64,
    /// The highest number that a lineage before this one had (M2).
    floor: u64,
}

impl Local {
    fn weights(&self) -> &Weights {
        self.writer.weights()
    }

    fn version(&self) -> Result<u64> {
        self.weights().version()
    }
}

/// What the thread and the callers share.
#[derive(Debug)]
struct Shared {
    spec: WeightMirrorSpec,
    caller: Caller,
    state: Mutex<State>,
    /// Rung when there is a new version, and at the end.
    progress: Bell,
    counters: MirrorCounters,
}

#[derive(Debug, Default)]
struct State {
    local: Option<Arc<Local>>,
    connected: bool,
    /// Why there is no connection, or was none the last time.
    last_error: Option<String>,
    over: Option<Over>,
    /// The lineage of the number that a caller got last (M2).
    seen: u64,
}

/// Why nothing more comes.
#[derive(Debug)]
struct Over {
    /// For the one who waits for the first connection.
    error: Option<Error>,
    why: String,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error for a caller that comes after the end.
    fn error(&self, over: &mut Over) -> Error {
        let lost = || Error::WeightsLost { address: self.caller.address(), why: over.why.clone() };
        over.error.take().unwrap_or_else(lost)
    }
}

/// A copy of a learner's weights. Threads may share it; it belongs to the process that made it.
#[derive(Debug)]
pub struct WeightMirror {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl WeightMirror {
    /// Begins to connect, and returns at once; [`ready`](Self::ready) says how it went.
    pub fn start(mut spec: WeightMirrorSpec) -> Result<WeightMirror> {
        for time in [&mut spec.connect_timeout, &mut spec.reconnect_timeout, &mut spec.keepalive] {
            *time = within_reason(*time);
        }
        let (token, tls) = (spec.token.as_deref(), spec.tls.as_ref());
        let shared = Arc::new(Shared {
            caller: Caller::new((&spec.host, spec.port), token, tls, spec.keepalive)?,
            spec,
            state: Mutex::default(),
            progress: Bell::default(),
            counters: MirrorCounters::default(),
        });
        let thread = crate::sys::thread::spawn("rollway-mirror", {
            let shared = shared.clone();
            move || Postman::new(&shared).run()
        })?;
        Ok(WeightMirror { shared, thread: Mutex::new(Some(thread)), pid: std::process::id() })
    }

    /// Waits until the learner has let us in, for the first time; not for a version. Ends by itself after `connect_timeout`.
    pub fn ready(&self, patience: Patience) -> Result<()> {
        self.wait_until(patience, |state| Ok(state.local.is_some().then_some(())))
    }

    /// The schema of the weights.
    pub fn schema(&self) -> Result<Vec<u8>> {
        Ok(self.local()?.schema.clone())
    }

    /// Bytes of each leaf. They stay the same as long as the mirror.
    pub fn leaf_bytes(&self) -> Result<Vec<usize>> {
        Ok(self.local()?.weights().geometry().leaf_bytes.clone())
    }

    /// The latest version that is here, whole; 0 before the first.
    pub fn version(&self) -> Result<u64> {
        self.local()?.version()
    }

    /// Copies the leaves that changed after version `since` (0: all of them) into their targets. `None`: nothing came yet.
    ///
    /// # Safety
    /// As for [`Reader::read`].
    pub unsafe fn read(&self, targets: &[Target], since: u64) -> Result<Option<Reading>> {
        let (local, since) = self.local_since(since)?;
        // SAFETY: as the caller promises.
        unsafe { local.reader.read(targets, since) }
    }

    /// As [`Reader::try_read`].
    ///
    /// # Safety
    /// As for [`Reader::read`].
    pub unsafe fn try_read(&self, targets: &[Target], since: u64) -> Result<Option<Reading>> {
        let (local, since) = self.local_since(since)?;
        // SAFETY: as the caller promises.
        unsafe { local.reader.try_read(targets, since) }
    }

    /// The copy, and `since` as a number of its lineage (M2); 0 when it may be a number of a lineage that is over.
    fn local_since(&self, since: u64) -> Result<(Arc<Local>, u64)> {
        let local = self.local()?;
        let since = if since > local.floor { since } else { 0 };
        Ok((local, since))
    }

    /// Sleeps until a version of at least `version` is here, or the first one of a learner that began anew (M2); says which is.
    pub fn wait_for(&self, version: u64, patience: Patience) -> Result<u64> {
        let known = self.look()?.seen;
        self.wait_until(patience, |state| {
            let Some(local) = &state.local else { return Ok(None) };
            let there = local.version()?;
            let enough = there >= version || (there > 0 && local.lineage != known);
            Ok(enough.then(|| {
                state.seen = local.lineage;
                there
            }))
        })
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.look().is_ok_and(|state| state.connected)
    }

    /// Whether nothing more will come.
    pub fn is_over(&self) -> bool {
        self.look().is_ok_and(|state| state.over.is_some())
    }

    /// Why there is no connection; `None` while there is one.
    pub fn last_error(&self) -> Option<String> {
        let state = self.look().ok()?;
        state.last_error.clone().filter(|_| !state.connected)
    }

    pub fn stats(&self) -> MirrorStats {
        self.shared.counters.snapshot()
    }

    /// Ends the thread, and lets go of the copy. The last one to leave takes its name away. Idempotent.
    pub fn close(&self) {
        if self.pid != std::process::id() {
            return; // A forked child: the thread is not in it.
        }
        self.shared.caller.hang_up();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
        let local = self.shared.lock().local.take();
        self.shared.progress.ring();
        drop(local);
        if let Some(name) = &self.shared.spec.name {
            // A name that stays behind is collected by whoever looks next.
            let _ = Weights::collect(name);
        }
    }

    fn look(&self) -> Result<MutexGuard<'_, State>> {
        // In a forked child the lock may be held by a thread that is not there.
        if self.pid != std::process::id() {
            return Err(Error::Forked { what: "copy of weights", owner: self.pid });
        }
        Ok(self.shared.lock())
    }

    /// The copy, whose numbers the caller knows from now on.
    fn local(&self) -> Result<Arc<Local>> {
        let mut state = self.look()?;
        let Some(local) = state.local.clone() else { return Err(Error::Closed) };
        state.seen = local.lineage;
        Ok(local)
    }

    /// Looks again whenever the thread has news.
    fn wait_until<T>(
        &self,
        patience: Patience,
        mut done: impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            let ticket = self.shared.progress.announce();
            let mut state = self.look()?;
            if let Some(done) = done(&mut state)? {
                return Ok(done);
            }
            if let Some(over) = &mut state.over {
                return Err(self.shared.error(over));
            }
            drop(state);
            let Some(left) = patience.left() else { return Err(Error::Timeout) };
            if self.shared.progress.wait(ticket, left) == Woken::Interrupted {
                return Err(Error::Interrupted);
            }
        }
    }
}

impl Drop for WeightMirror {
    fn drop(&mut self) {
        self.close();
    }
}

/// Why a connection ends.
enum Parted {
    /// May be better with the next.
    Broken(String),
    /// As [`Failure::Late`].
    Late(String),
    /// Nothing more will come.
    Final(Error),
}

impl From<std::io::Error> for Parted {
    fn from(error: std::io::Error) -> Parted {
        Parted::Broken(error.to_string())
    }
}

impl From<crate::net::wire::frame::Damage> for Parted {
    fn from(damage: crate::net::wire::frame::Damage) -> Parted {
        Parted::Broken(format!("the learner does not speak our protocol: {damage}"))
    }
}

/// The mirror's thread: connects, fetches, and connects again.
struct Postman<'a> {
    shared: &'a Shared,
    session: [u8; 16],
    attempt: u32,
    /// When the learner was last heard, or the connection was lost.
    contact: Instant,
    /// What the next version goes into: that of the callers, or its successor (M1).
    local: Option<Arc<Local>>,
}

impl<'a> Postman<'a> {
    fn new(shared: &'a Shared) -> Postman<'a> {
        let session = random().unwrap_or_default(); // Nothing hangs on it.
        Postman { shared, session, attempt: 0, contact: Instant::now(), local: None }
    }

    /// The whole life of the thread. Whatever ends it, the callers are told.
    fn run(mut self) {
        let work = std::panic::AssertUnwindSafe(|| self.work());
        let error = std::panic::catch_unwind(work).unwrap_or_else(|_| {
            self.lost("the thread that receives them failed; this is a bug in Rollway".to_owned())
        });
        let why = match &error {
            Error::WeightsLost { why, .. } => why.clone(),
            Error::Closed => "this copy was closed".to_owned(),
            other => other.to_string(),
        };
        let mut state = self.shared.lock();
        // Who comes later is told why nothing comes; the kind of the error is for who waits for the first connection.
        let error = state.local.is_none().then_some(error);
        (state.connected, state.last_error) = (false, Some(why.clone()));
        state.over = Some(Over { error, why });
        drop(state);
        self.shared.progress.ring();
    }

    fn lost(&self, why: String) -> Error {
        Error::WeightsLost { address: self.shared.caller.address(), why }
    }

    /// Dials and fetches, again and again, until something ends it.
    fn work(&mut self) -> Error {
        let caller = &self.shared.caller;
        let mut pause = Duration::ZERO;
        let mut reason = None;
        loop {
            let parted = match self.connect() {
                Ok(link) => {
                    let before = self.shared.counters.versions.load(Ordering::Relaxed);
                    let parted = Line::new(self, link).serve();
                    self.contact = Instant::now(); // From here on it counts how long the learner is away.
                    // Somebody is there. Unless nothing gets through, there is no reason to keep away.
                    let none = self.shared.counters.versions.load(Ordering::Relaxed) == before;
                    pause = if none { pause.min(SHORT_PAUSE) } else { Duration::ZERO };
                    parted
                }
                Err(Parted::Final(error)) => return error,
                Err(parted) => {
                    add(&self.shared.counters.failed_connects, 1);
                    parted
                }
            };
            match parted {
                Parted::Broken(why) => reason = Some(why),
                Parted::Late(why) => _ = reason.get_or_insert(why),
                Parted::Final(error) => return error,
            }
            let why = reason.clone().unwrap_or_default();
            {
                let mut state = self.shared.lock();
                (state.connected, state.last_error) = (false, Some(why.clone()));
            }
            if self.contact.elapsed() >= self.limit() {
                return match self.local {
                    None => Error::Unreachable { address: caller.address(), why },
                    Some(_) => self.lost(format!(
                        "the learner has been away for {:.1?} ({why})",
                        self.contact.elapsed()
                    )),
                };
            }
            pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            caller.rest(pause, self.contact + self.limit());
            if caller.is_closing() {
                return Error::Closed;
            }
        }
    }

    fn limit(&self) -> Duration {
        let spec = &self.shared.spec;
        if self.local.is_some() { spec.reconnect_timeout } else { spec.connect_timeout }
    }

    /// Comes in, and has a local segment ready for what the learner has.
    fn connect(&mut self) -> Result<Link, Parted> {
        let shared = self.shared;
        self.attempt += 1;
        // Once it is known, the learner can say what differs; before, it tells us.
        let known = self.local.as_ref().map(|local| local.schema.clone());
        let schema = known.filter(|schema| schema.len() <= MAX_SCHEMA_BYTES).unwrap_or_default();
        let (session, attempt) = (self.session, self.attempt);
        let cargo = Cargo::Weights;
        let hello = Hello { cargo, session, producer_id: None, attempt, next: 0, oldest: 0, schema };
        let deadline = (Instant::now() + ATTEMPT).min(self.contact + self.limit());
        let (link, _, payload) = dial(&shared.caller, &hello, Kind::Inventory, deadline)
            .map_err(|failure| self.understand(failure))?;
        let inventory = Inventory::parse(&payload)
            .map_err(|damage| self.understand(Failure::Protocol(damage.to_string())))?;
        self.prepare(&inventory).map_err(Parted::Final)?;
        add(&shared.counters.connects, 1);
        self.contact = Instant::now();
        let mut state = shared.lock();
        state.connected = true;
        if state.local.is_none() {
            state.local = self.local.clone();
            state.seen = inventory.lineage;
        }
        drop(state);
        shared.progress.ring_if_waiting();
        Ok(link)
    }

    /// What a failure means: before the first welcome the caller is told its kind, afterwards that nothing more comes.
    fn understand(&self, failure: Failure) -> Parted {
        let address = self.shared.caller.address();
        Parted::Final(match (self.local.is_some(), failure) {
            (_, Failure::Passing(why)) => return Parted::Broken(why),
            (_, Failure::Late(why)) => return Parted::Late(why),
            (_, Failure::Cancelled) => Error::Closed,
            (false, Failure::Token(why)) => Error::Token { address, why },
            (false, Failure::Cargo(why)) => Error::WrongCargo { address, why },
            (false, Failure::Protocol(what)) => Error::Protocol { address, what },
            (false, Failure::Tls(what)) => Error::Tls { what: format!("{address}: {what}") },
            (_, Failure::Schema(_)) => self.lost("the learner came back with other weights".to_owned()),
            (
                _,
                Failure::Token(why)
                | Failure::Cargo(why)
                | Failure::Protocol(why)
                | Failure::Tls(why)
                | Failure::Final(why),
            ) => self.lost(why),
        })
    }

    /// Refuses an inventory that does not hold together, other leaves than the callers have room for, and more than there is
    /// memory for (M3).
    fn examine(&self, inventory: &Inventory, leaf_bytes: &[usize]) -> Result<()> {
        let spec = &self.shared.spec;
        let address = self.shared.caller.address();
        let protocol = |what: String| Error::Protocol { address: address.clone(), what };
        let theirs = schema::weights(&inventory.schema)
            .map_err(|invalid| protocol(format!("the schema of its weights cannot be read: {invalid}")))?;
        if !theirs.fits(leaf_bytes) {
            return Err(protocol("the sizes of its leaves do not fit their shapes".to_owned()));
        }
        if let Some(wanted) = &spec.wanted {
            let ours = schema::weights(wanted).map_err(|bad| Error::BadSchema { what: bad.to_string() })?;
            if ours.leaves != theirs.leaves {
                let (ours, theirs) = (wanted.clone(), inventory.schema.clone());
                return Err(Error::ForeignSchema { address, ours, theirs });
            }
        }
        let geometry = Geometry::new(spec.max_peers, spec.max_buffers, leaf_bytes.to_vec())?;
        let need = geometry.buffer_offset(FIRST_BUFFERS) as u64;
        let limit = spec.max_bytes.or_else(|| memory::left(Path::new("/")).map(|left| left / 2));
        match limit.filter(|&limit| need > limit) {
            Some(limit) => Err(Error::TooLarge { address, need, copies: FIRST_BUFFERS, limit }),
            None => Ok(()),
        }
    }

    /// Makes the local segment, or its successor (M1).
    fn prepare(&mut self, inventory: &Inventory) -> Result<()> {
        let spec = &self.shared.spec;
        let sizes = inventory.leaf_bytes.iter().map(|&bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let leaf_bytes: Vec<usize> = sizes.collect();
        if let Some(local) = &self.local {
            // Who reads has made room for these leaves.
            if local.schema != inventory.schema || local.weights().geometry().leaf_bytes != leaf_bytes {
                return Err(self.lost("the learner came back with other weights".to_owned()));
            }
            if local.lineage == inventory.lineage {
                return Ok(());
            }
        } else {
            self.examine(inventory, &leaf_bytes)?; // Before there is a segment, or a name.
        }
        let segment = WeightsSpec {
            name: spec.name.as_deref(),
            auto_named: false,
            schema: &inventory.schema,
            leaf_bytes: &leaf_bytes,
            max_buffers: spec.max_buffers,
            max_peers: spec.max_peers,
            checksum: inventory.checksums,
        };
        // The callers' is the one before; what was prepared for a learner that went away again is not.
        let before = self.shared.lock().local.clone();
        let writer = match &before {
            None => mirror::open(&segment, inventory.lineage, spec.threads)?,
            Some(before) if before.lineage == inventory.lineage => {
                self.local = Some(before.clone());
                return Ok(());
            }
            Some(_) => mirror::successor(&segment, inventory.lineage, spec.threads)?,
        };
        let floor = match &before {
            Some(before) => before.version()?.max(before.floor),
            None => 0,
        };
        let reader = Reader::on(writer.weights().clone(), spec.threads)?;
        let (schema, lineage) = (inventory.schema.clone(), inventory.lineage);
        self.local = Some(Arc::new(Local { writer, reader, schema, lineage, floor }));
        Ok(())
    }
}

/// One connection of the mirror.
struct Line<'a> {
    shared: &'a Shared,
    local: Arc<Local>,
    contact: &'a mut Instant,
    pinged: Instant,
    link: Link,
    outbox: Vec<u8>,
    /// The next header, as far as it is here.
    head: [u8; HEADER_BYTES],
    have: usize,
}

impl<'a> Line<'a> {
    fn new(postman: &'a mut Postman<'_>, link: Link) -> Line<'a> {
        let local = postman.local.clone().expect("it is prepared before the link is given out");
        Line {
            shared: postman.shared,
            local,
            contact: &mut postman.contact,
            pinged: Instant::now(),
            link,
            outbox: Vec::new(),
            head: [0; HEADER_BYTES],
            have: 0,
        }
    }

    /// Fetches version after version, until the end.
    fn serve(mut self) -> Parted {
        let parted = loop {
            if let Err(parted) = self.fetch() {
                break parted;
            }
        };
        if self.shared.caller.is_closing() {
            self.part();
        }
        parted
    }

    /// Asks for a version that is newer than ours, waits for it and publishes it. One that is void is asked for again.
    fn fetch(&mut self) -> Result<(), Parted> {
        let have = self.local.version().map_err(Parted::Final)?;
        self.say(&Header { sequence: have, ..Header::new(Kind::Fetch) }.bytes());
        let header = self.expect(&[Kind::Version])?;
        let list = self.list(&header)?;
        let version = header.sequence;
        if version <= have {
            return Err(crate::net::wire::frame::Damage("a version is not newer than ours").into());
        }
        let local = self.local.clone();
        if have == 0 && list.leaves.len() != local.weights().geometry().leaves() {
            return Err(crate::net::wire::frame::Damage("the first version is not whole").into());
        }
        let draft = local.writer.draft(version, &list.leaves).map_err(Parted::Final)?;
        let whole = self.receive(&draft, &list, version)?;
        if !whole {
            add(&self.shared.counters.voids, 1);
            return Ok(());
        }
        match draft.publish(local.weights().has_checksums().then_some(&list.checksums)) {
            Ok(_) => self.publish().map_err(Parted::Final),
            Err(error @ Error::Checksum { .. }) => {
                Err(Parted::Broken(format!("damaged on the way: {error}")))
            }
            Err(error) => Err(Parted::Final(error)),
        }
    }

    /// The leaves that will come.
    fn list(&mut self, header: &Header) -> Result<LeafList, Parted> {
        let leaves = self.local.weights().geometry().leaves();
        if header.rows as usize > leaves {
            return Err(crate::net::wire::frame::Damage("a version has too many leaves").into());
        }
        let mut payload = vec![0; header.length as usize]; // Bounded by the kind.
        self.read_exact(&mut payload)?;
        Ok(LeafList::parse(header.rows, leaves, &payload)?)
    }

    /// Reads the pieces into the draft; false when they are void.
    fn receive(&mut self, draft: &Draft<'_>, list: &LeafList, version: u64) -> Result<bool, Parted> {
        let mut places = Places::new(list.leaves.iter().map(|&leaf| draft.place(leaf)));
        loop {
            let header = self.expect(&[Kind::Piece, Kind::Verdict])?;
            if header.sequence != version {
                return Err(crate::net::wire::frame::Damage("a piece is of another version").into());
            }
            if header.kind == Kind::Piece {
                let mut left = header.length as usize;
                if left > places.left {
                    return Err(crate::net::wire::frame::Damage("a version is longer than its leaves").into());
                }
                while left > 0 {
                    left -= self.fill(&mut places, left)?;
                }
                continue;
            }
            return match Verdict::from_code(header.code) {
                Some(Verdict::Whole) if places.left == 0 => Ok(true),
                Some(Verdict::Void) => Ok(false),
                _ => Err(crate::net::wire::frame::Damage("a version is shorter than its leaves").into()),
            };
        }
    }

    /// A whole version is in the local segment: it is the callers' from now on.
    fn publish(&mut self) -> Result<()> {
        let mut state = self.shared.lock();
        let before = state.local.clone().filter(|before| before.lineage != self.local.lineage);
        if let Some(before) = before {
            mirror::replace(before.weights(), self.local.weights())?;
            state.local = Some(self.local.clone());
            add(&self.shared.counters.lineages, 1);
        }
        add(&self.shared.counters.versions, 1);
        drop(state);
        self.shared.progress.ring_if_waiting();
        Ok(())
    }

    /// The next frame of one of these kinds; others that may come at any time are dealt with.
    fn expect(&mut self, kinds: &[Kind]) -> Result<Header, Parted> {
        loop {
            while self.have < HEADER_BYTES {
                let (mut head, have) = (self.head, self.have);
                let read = self.read(&mut [IoSliceMut::new(&mut head[have..])]);
                self.head = head;
                self.have += read?;
            }
            self.have = 0;
            let header =
                Header::parse(&self.head)?.ok_or(crate::net::wire::frame::Damage("a header is not whole"))?;
            match header.kind {
                kind if kinds.contains(&kind) => return Ok(header),
                Kind::Ping if self.outbox.len() > MOST_UNSENT => {
                    return Err(
                        crate::net::wire::frame::Damage("it asks, and does not read the answers").into()
                    );
                }
                Kind::Ping => self.say(&Header { kind: Kind::Pong, ..header }.bytes()),
                Kind::Pong => {}
                Kind::Goodbye => {
                    let mut text = vec![0; header.length as usize]; // Bounded by the kind.
                    self.read_exact(&mut text)?;
                    let text = String::from_utf8_lossy(&text).into_owned();
                    return Err(match Farewell::from_code(header.code) {
                        // Nothing more will come. A learner that merely stops may be back.
                        Some(Farewell::RingClosed) => Parted::Final(self.lost(text)),
                        _ => Parted::Broken(text),
                    });
                }
                Kind::Extension(_) => self.skip(header.length)?,
                _ => return Err(crate::net::wire::frame::Damage("a frame is out of turn").into()),
            }
        }
    }

    fn lost(&self, why: String) -> Error {
        Error::WeightsLost { address: self.shared.caller.address(), why }
    }

    fn skip(&mut self, length: u64) -> Result<(), Parted> {
        let mut left = length as usize;
        let mut scratch = [0; 1024];
        while left > 0 {
            let part = left.min(scratch.len());
            left -= self.read(&mut [IoSliceMut::new(&mut scratch[..part])])?;
        }
        Ok(())
    }

    fn read_exact(&mut self, room: &mut [u8]) -> Result<(), Parted> {
        let mut have = 0;
        while have < room.len() {
            have += self.read(&mut [IoSliceMut::new(&mut room[have..])])?;
        }
        Ok(())
    }

    /// Reads at most `most` bytes into their places, and what comes of the next header behind them; says how many of the former.
    fn fill(&mut self, places: &mut Places, most: usize) -> Result<usize, Parted> {
        let mut head = self.head;
        let mut rooms: [IoSliceMut<'_>; ROOMS + 1] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let (mut count, bytes) = places.rooms(most, &mut rooms[..ROOMS]);
        if bytes == most {
            rooms[count] = IoSliceMut::new(&mut head);
            count += 1;
        }
        let read = self.read(&mut rooms[..count])?;
        let placed = read.min(bytes);
        places.advance(placed);
        self.head = head;
        self.have = read - placed;
        add(&self.shared.counters.bytes, placed as u64);
        Ok(placed)
    }

    /// Reads some bytes; says what is to be said meanwhile, and breaks silence with pings, of which three are borne.
    fn read(&mut self, rooms: &mut [IoSliceMut<'_>]) -> Result<usize, Parted> {
        let keepalive = self.shared.spec.keepalive;
        loop {
            let blocked = self.flush()?;
            match self.link.read_vectored(rooms) {
                Ok(read) => {
                    *self.contact = Instant::now();
                    return Ok(read);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            if self.shared.caller.is_closing() {
                return Err(Parted::Final(Error::Closed));
            }
            let quiet = self.contact.elapsed();
            if quiet >= keepalive * SILENCES {
                return Err(Parted::Broken(format!("nothing was heard of the learner for {quiet:.1?}")));
            }
            if quiet >= keepalive && self.pinged.elapsed() >= keepalive {
                self.pinged = Instant::now();
                self.say(&Header::new(Kind::Ping).bytes());
                continue;
            }
            let beat = Instant::now() + keepalive / 2;
            watch(Some(&self.link.socket()), &self.shared.caller.bell, blocked, Some(beat))?;
        }
    }

    fn say(&mut self, frame: &[u8]) {
        self.outbox.extend_from_slice(frame);
    }

    /// Writes what the socket takes; true when it does not take all of it.
    fn flush(&mut self) -> Result<bool, Parted> {
        while !self.outbox.is_empty() {
            match self.link.write(&[IoSlice::new(&self.outbox)]) {
                Ok(written) => drop(self.outbox.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        match self.link.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
            done => Ok(done.map(|()| false)?),
        }
    }

    /// Says goodbye, if the socket takes it.
    fn part(&mut self) {
        let until = Instant::now() + PARTING;
        self.say(&goodbye(Farewell::Finished, ""));
        while Instant::now() < until && matches!(self.flush(), Ok(true)) {
            let _ = watch(Some(&self.link.socket()), &self.shared.caller.bell, true, Some(until));
        }
    }
}

/// Where the bytes of a version go, in order.
struct Places {
    places: Vec<(*mut u8, usize)>,
    /// The next byte: in which of them, and where in it.
    at: (usize, usize),
    left: usize,
}

impl Places {
    fn new(places: impl Iterator<Item = (*mut u8, usize)>) -> Places {
        let places: Vec<_> = places.collect();
        let left = places.iter().map(|(_, bytes)| bytes).sum();
        Places { places, at: (0, 0), left }
    }

    /// Puts the next rooms into `rooms`, of at most `most` bytes; says how many rooms, and bytes.
    fn rooms<'a>(&'a mut self, most: usize, rooms: &mut [IoSliceMut<'a>]) -> (usize, usize) {
        let (mut at, mut count, mut bytes) = (self.at, 0, 0);
        while bytes < most && count < rooms.len() {
            let (start, size) = self.places[at.0];
            let length = (size - at.1).min(most - bytes);
            if length > 0 {
                // SAFETY: the place is in the buffer of a draft, which is ours alone to write (I1 of the weights) as long as the
                // draft, and the draft outlives this. The parts do not overlap.
                let room = unsafe { std::slice::from_raw_parts_mut(start.add(at.1), length) };
                rooms[count] = IoSliceMut::new(room);
                count += 1;
                bytes += length;
            }
            at = (at.0 + 1, 0);
        }
        (count, bytes)
    }

    fn advance(&mut self, mut read: usize) {
        self.left -= read;
        while read > 0 {
            let size = self.places[self.at.0].1;
            let length = (size - self.at.1).min(read);
            read -= length;
            self.at.1 += length;
            if self.at.1 == size {
                self.at = (self.at.0 + 1, 0);
            }
        }
    }
}
