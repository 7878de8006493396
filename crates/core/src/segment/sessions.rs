//! Sessions of remote clients: what each of them has delivered. They lie in the segment, so the next learner knows them, too.
//!
//! A server gives what a client sends to the ring, or to a lane of records, in the order of its numbers. It *logs* each run of slots or
//! records before it commits it. A logged run is whole, so any process can finish the commit of a server that died.
//! [`crate::ring::sessions`] and [`crate::records::sessions`] say what a run is.
//!
//! ```text
//! payload, stamps ──▶ place, run ──▶ target ──▶ run Ready ──▶ next moves to target
//! died here  the run is given back ┘     └─ logged: the run becomes Ready, and next moves to target
//! ```
//!
//! S1  Only the holder of an entry writes to it. It becomes the holder by one CAS: from none, or from a dead holder. Before that
//!     it makes the dead holder's logged run Ready; after it, it moves `next` to `target`.
//! S2  `target` is stored after the payload and the stamps of a run, `place` and `run` (release). From then on the run is never given
//!     back.
//! S3  `next` moves to `target` when all of the run is Ready. So if `target` is not above `next`, everything below `next` is
//!     settled and nothing else. Otherwise all but the logged run is settled, and the log says what that is.
//! S4  A log names what it commits so that it applies to no later claim: what was committed is never claimed again under the same
//!     name.
//! S5  Recovery gives back what a dead owner has claimed after it has looked at the logs of all entries that this owner holds. An entry
//!     of a dead holder changes hands after its logged run is Ready. A process that reads a log reads the holder again afterwards.
//!     So a log is read whole, or it is over.
//! S6  An entry without a holder may be given to another session: its client is then unknown, as it is to a new segment. An entry
//!     whose holder lives is never taken from it.

use super::{Owner, Seat};
use crate::error::{Damage, Result};
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{AtomicU64, Ordering, Point, crash_point};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// How many sessions a segment remembers.
pub const SESSIONS: usize = 1024;

/// The name of a session: 16 random bytes.
pub type SessionId = [u8; 16];

/// The bit of [`left_ns`](SessionEntry::left_ns) that says that the client will not come back.
const FINISHED: u64 = 1;

/// What one remote client has delivered.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SessionEntry {
    /// The 16 bytes that name the session. The first word is 0 while no session is here.
    pub id: [AtomicU64; 2],
    /// Everything below is committed, or was dropped as the policy says.
    pub next: AtomicU64,
    /// Where `next` will be when the logged run is committed. Not above `next`: nothing is logged.
    pub target: AtomicU64,
    /// The logged run: two words that say where it lies.
    pub place: AtomicU64,
    pub run: AtomicU64,
    /// Which server has it, if any ([`Owner::pack_maybe`]).
    pub holder: AtomicU64,
    /// CLOCK_MONOTONIC when it was given back. The lowest bit: its client said goodbye.
    pub left_ns: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SessionEntry>() == 64);

/// What a look for a session gives.
#[derive(Debug)]
pub enum Lookup<T> {
    /// It is ours now.
    Taken(T),
    /// A living server has it.
    Held,
    Unknown,
}

impl<T> Lookup<T> {
    fn map<U>(self, convert: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Lookup::Taken(found) => Lookup::Taken(convert(found)),
            Lookup::Held => Lookup::Held,
            Lookup::Unknown => Lookup::Unknown,
        }
    }
}

/// A run that was logged and that may not be committed. Its words are not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    pub place: u64,
    pub run: u64,
    /// By how much `next` will move.
    pub count: u64,
}

/// The two words of a name.
fn words(id: SessionId) -> [u64; 2] {
    let (halves, _) = id.as_chunks::<8>();
    [u64::from_ne_bytes(halves[0]), u64::from_ne_bytes(halves[1])]
}

impl SessionEntry {
    fn is(&self, id: [u64; 2]) -> bool {
        // SYNC session.id: Acquire here, Release in `assign`. Then the rest is this session's.
        id[0] != 0
            && self.id[0].load(Ordering::Acquire) == id[0]
            && self.id[1].load(Ordering::Relaxed) == id[1]
    }

    fn is_empty(&self) -> bool {
        self.id[0].load(Ordering::Relaxed) == 0
    }

    fn holder(&self) -> Option<Owner> {
        // SYNC session.holder: Acquire here, AcqRel in `change_hands`, Release in `give_back`.
        Owner::unpack_maybe(self.holder.load(Ordering::Acquire))
    }

    /// True when the entry went from one to the other.
    fn change_hands(&self, from: Option<Owner>, to: Option<Owner>) -> bool {
        let (from, to) = (Owner::pack_maybe(from), Owner::pack_maybe(to));
        // SYNC session.holder: AcqRel here, Acquire in `holder` (S1).
        self.holder.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Gives the entry, which is ours, to a session.
    fn assign(&self, id: [u64; 2], next: u64) {
        self.empty();
        self.target.store(0, Ordering::Relaxed);
        // SYNC session.next: Release here, Acquire in `log_of`. A process that sees it does not see the target of an earlier session.
        self.next.store(next, Ordering::Release);
        self.id[1].store(id[1], Ordering::Relaxed);
        // SYNC session.id: Release here, Acquire in `is`.
        self.id[0].store(id[0], Ordering::Release);
    }

    fn empty(&self) {
        self.id[0].store(0, Ordering::Relaxed);
        crash_point(Point::SessionEmptied);
    }

    /// The entry, which is ours, is free for others.
    fn give_back(&self, left_ns: u64) {
        self.left_ns.store(left_ns, Ordering::Relaxed);
        // SYNC session.holder: Release here, Acquire in `holder` and `change_hands`.
        self.holder.store(Owner::pack_maybe(None), Ordering::Release);
    }

    /// Everything below is settled.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Logs a run, makes it Ready by `commit`, and moves `next` to `target`. The payload and the stamps are written, and the entry is ours.
    #[inline]
    pub(crate) fn commit_logged(&self, place: u64, run: u64, target: u64, commit: impl FnOnce()) {
        // SYNC session.log: Release here, Acquire in `log_of`. A process that sees them sees who holds the entry (S5).
        self.place.store(place, Ordering::Release);
        self.run.store(run, Ordering::Release);
        crash_point(Point::RunPlaced);
        // SYNC session.log: Release here, Acquire in `log_of`. Publishes the payload, the stamps and the place (S2).
        self.target.store(target, Ordering::Release);
        crash_point(Point::RunLogged);
        commit();
        crash_point(Point::RunCommitted);
        // SYNC session.next: Release here, Acquire in `log_of`. After the run (S3).
        self.next.store(target, Ordering::Release);
        crash_point(Point::SessionMoved);
    }

    /// What `holder`, which is dead, had logged. `None`: nothing, or the entry is another's by now (S5).
    fn log_of(&self, holder: Owner) -> Option<Log> {
        // SYNC session.next: Acquire here, Release in `commit_logged`, `take_entry`, `assign` and `skip_to`.
        let next = self.next.load(Ordering::Acquire);
        // SYNC session.log: Acquire here, Release in `commit_logged`.
        let target = self.target.load(Ordering::Acquire);
        let place = self.place.load(Ordering::Acquire);
        let run = self.run.load(Ordering::Acquire);
        (target > next && self.holder() == Some(holder)).then(|| Log { place, run, count: target - next })
    }
}

/// What `owner`, which is dead, had logged and may not have committed.
pub fn logs_of(entries: &[SessionEntry], owner: Owner) -> impl Iterator<Item = Log> + '_ {
    let held = entries.iter().filter(move |entry| entry.holder() == Some(owner));
    held.filter_map(move |entry| entry.log_of(owner))
}

/// A structure with sessions.
pub trait SessionTable {
    fn entries(&self) -> &[SessionEntry];

    /// Makes what is not committed of a log Ready. `holder`, which is dead, claimed it.
    fn finish(&self, log: Log, holder: Owner) -> Result<(), Damage>;

    /// Takes an entry from a holder that is dead, or from none. False when another process was faster.
    fn take_entry(&self, entry: &SessionEntry, from: Option<Owner>, me: Owner) -> Result<bool, Damage> {
        if let Some(dead) = from
            && let Some(log) = entry.log_of(dead)
        {
            self.finish(log, dead)?;
            crash_point(Point::RunFinished);
        }
        let is_ours = entry.change_hands(from, Some(me));
        if is_ours && from.is_some() {
            crash_point(Point::SessionInherited);
            let target = entry.target.load(Ordering::Relaxed);
            // SYNC session.next: Release here, Acquire in `log_of`. The run is Ready (S3).
            entry.next.store(entry.next().max(target), Ordering::Release);
        }
        Ok(is_ours)
    }

    /// Takes the entry of a session, unless it was given back before `since_ns`: then it is forgotten.
    fn take_session(
        &self,
        id: SessionId,
        me: Owner,
        since_ns: u64,
        is_dead: &dyn Fn(Owner) -> bool,
    ) -> Result<Lookup<usize>, Damage> {
        let id = words(id);
        for (index, entry) in self.entries().iter().enumerate().filter(|(_, entry)| entry.is(id)) {
            let holder = entry.holder();
            match holder {
                Some(owner) if owner == me => return Ok(Lookup::Taken(index)),
                Some(owner) if !is_dead(owner) => return Ok(Lookup::Held),
                _ => {}
            }
            if !self.take_entry(entry, holder, me)? {
                return Ok(Lookup::Held);
            }
            let is_forgotten = holder.is_none() && entry.left_ns.load(Ordering::Relaxed) < since_ns;
            if entry.is(id) && !is_forgotten {
                return Ok(Lookup::Taken(index));
            }
            if is_forgotten {
                entry.empty();
            }
            entry.give_back(entry.left_ns.load(Ordering::Relaxed)); // Another session's, by now.
        }
        Ok(Lookup::Unknown)
    }

    /// Finds an entry for a new session, which begins at `next`. If all are in use, one whose client is away makes room:
    /// one that said goodbye, or the one that has been away for longest. `None`: all have a living holder (S6).
    fn add_session(&self, id: SessionId, next: u64, me: Owner) -> Option<usize> {
        let id = words(id);
        if id[0] == 0 {
            return None;
        }
        let preference = |(_, entry): &(usize, &SessionEntry)| {
            let left = entry.left_ns.load(Ordering::Relaxed);
            (!entry.is_empty(), left & FINISHED == 0, left)
        };
        loop {
            let free = self.entries().iter().enumerate().filter(|(_, entry)| entry.holder().is_none());
            let (index, entry) = match free.clone().find(|(_, entry)| entry.is_empty()) {
                Some(empty) => empty,
                None => free.min_by_key(preference)?,
            };
            if entry.change_hands(None, Some(me)) {
                entry.assign(id, next);
                return Some(index);
            }
        }
    }

    /// Finishes what dead servers had logged, and gives their entries back.
    fn release_dead_sessions(
        &self,
        me: Owner,
        now_ns: u64,
        is_dead: &dyn Fn(Owner) -> bool,
    ) -> Result<(), Damage> {
        for entry in self.entries() {
            if let Some(owner) = entry.holder()
                && owner != me
                && is_dead(owner)
                && self.take_entry(entry, Some(owner), me)?
            {
                entry.give_back(now_ns & !FINISHED);
            }
        }
        Ok(())
    }
}

/// A producer that commits what remote clients send.
pub trait SessionStore: SessionTable + Debug + Send + Sync {
    /// The owner of its claims. A forked child sits down anew.
    fn owner(&self) -> Result<Owner>;

    fn seat(&self) -> &Seat;
}

/// A session in a server's hands. Dropping it gives it back: the next server, or this one, goes on with it.
#[derive(Debug)]
pub struct HeldSession {
    store: Arc<dyn SessionStore>,
    entry: usize,
    holder: Owner,
    is_finished: bool,
}

impl HeldSession {
    fn of(store: &Arc<dyn SessionStore>, entry: usize, holder: Owner) -> HeldSession {
        HeldSession { store: store.clone(), entry, holder, is_finished: false }
    }

    /// Takes over what an earlier server of the segment, or this one, knew of a session. One that has been without a holder for longer
    /// than `keep` is forgotten.
    pub fn take(store: &Arc<dyn SessionStore>, id: SessionId, keep: Duration) -> Result<Lookup<HeldSession>> {
        let (me, seat) = (store.owner()?, store.seat());
        let since_ns = monotonic_ns().saturating_sub(keep.as_nanos().min(u128::from(u64::MAX)) as u64);
        let found = store.take_session(id, me, since_ns, &|owner| !seat.is_alive(owner));
        let found = found.map_err(|damage| seat.segment().damaged(damage))?;
        Ok(found.map(|entry| HeldSession::of(store, entry, me)))
    }

    /// Begins a session. `None`: the segment remembers as many as it can, and all have a connection.
    pub fn add(store: &Arc<dyn SessionStore>, id: SessionId, next: u64) -> Result<Option<HeldSession>> {
        let me = store.owner()?;
        Ok(store.add_session(id, next, me).map(|entry| HeldSession::of(store, entry, me)))
    }

    /// Finishes what dead servers of the segment had begun to commit.
    pub fn release_dead(store: &dyn SessionStore) -> Result<()> {
        let (me, seat) = (store.owner()?, store.seat());
        let released = store.release_dead_sessions(me, monotonic_ns(), &|owner| !seat.is_alive(owner));
        released.map_err(|damage| seat.segment().damaged(damage))
    }

    /// Its words, which are ours to write.
    pub(crate) fn entry(&self) -> &SessionEntry {
        &self.store.entries()[self.entry]
    }

    /// Everything below is committed, or was dropped.
    pub fn next(&self) -> u64 {
        self.entry().next()
    }

    /// Steps over what was dropped. Nothing is logged.
    pub fn skip_to(&self, next: u64) {
        // SYNC session.next: Release here, Acquire in `log_of`.
        self.entry().next.store(next, Ordering::Release);
    }

    /// Notes that the client will not come back: its entry is the first to be given to another one.
    pub fn finish(&mut self) {
        self.is_finished = true;
    }

    /// Forgets the session.
    pub fn forget(self) {
        if self.is_ours() {
            self.entry().empty();
        }
    }

    /// False in a forked child, and after the producer has left: then it is released as that of a dead server.
    fn is_ours(&self) -> bool {
        self.store.seat().owner() == Some(self.holder)
    }
}

impl Drop for HeldSession {
    fn drop(&mut self) {
        if self.is_ours() {
            self.entry().give_back(monotonic_ns() & !FINISHED | if self.is_finished { FINISHED } else { 0 });
        }
    }
}
