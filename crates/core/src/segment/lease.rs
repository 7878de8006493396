//! Proof of life, kept by the kernel: a byte-range lock that goes away with the process that holds it.
//!
//! A participant *sits down* on a seat by locking the seat's byte of the segment file with an open-file-description
//! (OFD) lock. A participant lives as long as its lock is held; no timer is asked. This also works between containers that
//! share the file system but not the process ids. A stopped process keeps its lock.
//!
//! A process that writes where another one has claimed holds a [`DelegatedLease`] for it: the other counts as alive until both are gone.
//!
//! What would break it, and what prevents that:
//!
//! * OFD locks belong to the *open file*, which a mapping also keeps alive. So the lease has an open file of its own
//!   that is never mapped; [`Segment`] maps through another.
//! * A forked child inherits the open file, and would keep its parent's lock alive. A fork handler closes every lease
//!   in the child, and moves [`generation`], by which every handle of the child notices that it has to sit down anew.
//! * A descriptor that is open and not yet listed would escape that handler; forks wait while there is one.
//! * `exec` without `fork`'s handlers (`vfork`, `posix_spawn`): the descriptor is close-on-exec.
//!
//! The locks that a seat takes are in the order of [`fork`](crate::sys::fork).

use super::account::Activity;
use super::header::{SeatRecord, seat_state};
use super::mapping::{Segment, unix_ns};
use crate::error::{Error, Result};
use crate::sys::clock::monotonic_ns;
use crate::sys::fork::{ForkSafeLock, LEASES, Rank, RankGuard, generation, without_fork};
use crate::sys::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering, Point, crash_point, fence};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::{Arc, Mutex};

/// The lease bytes lie far behind the end of any segment: a lock needs no byte to exist.
const LEASE_BASE: i64 = 1 << 60;
/// Bits of a seat's life that go into a claim.
const LIFE_BITS: u32 = 12;
/// Bits of an [`Owner`].
pub const OWNER_BITS: u32 = 10 + LIFE_BITS;

/// The owner of a claim: a seat, and which of its holders. Fits into [`OWNER_BITS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// The owner that sits on `seat` for the `life`-th time.
    pub fn new(seat: usize, life: u32) -> Owner {
        debug_assert!(seat < super::header::MAX_SEATS);
        Owner((seat as u32) << LIFE_BITS | (life & ((1 << LIFE_BITS) - 1)))
    }

    /// From the low [`OWNER_BITS`] of a word.
    pub fn from_bits(bits: u64) -> Owner {
        Owner(bits as u32 & ((1 << OWNER_BITS) - 1))
    }

    pub fn bits(self) -> u64 {
        self.0 as u64
    }

    /// An owner or none, in one bit more than [`OWNER_BITS`]. None is 0.
    #[inline]
    pub fn pack_maybe(owner: Option<Owner>) -> u64 {
        owner.map_or(0, |owner| 1 << OWNER_BITS | owner.bits())
    }

    #[inline]
    pub fn unpack_maybe(word: u64) -> Option<Owner> {
        (word >> OWNER_BITS & 1 == 1).then(|| Owner::from_bits(word))
    }

    pub fn seat(self) -> usize {
        (self.0 >> LIFE_BITS) as usize
    }

    fn life(self) -> u32 {
        self.0 & ((1 << LIFE_BITS) - 1)
    }

    /// Whether it is the present, or the last, holder of its seat.
    pub fn is_latest_of(self, record: &SeatRecord) -> bool {
        Owner::new(self.seat(), record.life.load(Ordering::Relaxed)) == self
    }
}

/// What a participant does in the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    Producer = 1,
    Consumer = 2,
    /// A producer of the learner itself: of what it submits, or of the weights that it made. It is a
    /// [`Producer`](Role::Producer), too, and counts as one.
    OwnProducer = 5,
    /// A producer of the learner, too: of what remote workers send. It is a [`Producer`](Role::Producer) as well.
    Network = 9,
    /// What gives weights to remote workers. It is a [`Consumer`](Role::Consumer) as well.
    NetworkReader = 10,
    /// What sends on what the workers of a node write. It is a [`Consumer`](Role::Consumer) as well.
    Forwarder = 18,
}

impl Role {
    /// Whether a record whose role is `word` is of one in this role.
    fn is_in(self, word: u32) -> bool {
        word & self as u32 == self as u32
    }
}

/// Tests, takes or gives back the locks of `seats` seats.
fn fcntl(fd: RawFd, command: i32, kind: i32, seat: usize, seats: usize) -> Result<i16> {
    // SAFETY: all-zero is a valid flock; l_pid must be 0 for OFD locks.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = LEASE_BASE + seat as i64;
    lock.l_len = seats as i64;
    // SAFETY: a descriptor that is not open gives an error, and the pointer is to a live flock.
    let rc = unsafe { libc::fcntl(fd, command, &mut lock) };
    if rc == 0 {
        Ok(lock.l_type)
    } else {
        Err(Error::io("fcntl on a lease", std::io::Error::last_os_error()))
    }
}

/// Whether any lock of the file is held. Ask through an open file that holds none. Doubt counts as life.
pub(super) fn is_held_by_anybody(file: &impl AsRawFd) -> bool {
    fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, libc::F_WRLCK, 0, STALE_OWNER + 1)
        .map_or(true, |kind| kind != libc::F_UNLCK as i16)
}

/// One open lease: a descriptor of its own, noted for the fork handler.
#[derive(Debug)]
struct Lease {
    fd: RawFd,
    entry: usize,
    generation: u32,
}

impl Lease {
    fn open(segment: &Segment) -> Result<Lease> {
        without_fork(|| Self::open_and_list(segment))
    }

    fn open_and_list(segment: &Segment) -> Result<Lease> {
        let fd = segment.reopen()?.into_raw_fd();
        match LEASES.list(fd) {
            Some(entry) => Ok(Lease { fd, entry, generation: generation() }),
            None => {
                // SAFETY: we just opened it.
                unsafe { libc::close(fd) };
                let most = LEASES.capacity();
                Err(Error::out_of_range("handles in this process", most + 1, format!("at most {most}")))
            }
        }
    }

    fn fcntl(&self, command: i32, kind: i32, seat: usize, seats: usize) -> Result<i16> {
        // The descriptor is open: same generation, checked by the callers.
        fcntl(self.fd, command, kind, seat, seats)
    }

    /// Takes the locks of `seats` seats at once; false when one of them is held.
    fn try_lock(&self, seat: usize, seats: usize) -> bool {
        self.fcntl(libc::F_OFD_SETLK, libc::F_WRLCK, seat, seats).is_ok()
    }

    /// Gives back every lock.
    fn unlock(&self) {
        let _ = self.fcntl(libc::F_OFD_SETLK, libc::F_UNLCK, 0, DELEGATED + (1 << OWNER_BITS));
    }

    /// Takes a seat's lock, unless a delegated lease is held for the holder that died there. From then on none can be: that
    /// lock is ours, too, until a later life has begun and beyond.
    fn try_seat(&self, seat: usize, record: &SeatRecord) -> bool {
        if !self.try_lock(seat, 1) {
            return false;
        }
        // SYNC seat.life: Acquire here, AcqRel in `lock_seat`. The seat is locked, so it does not move.
        let last = Owner::new(seat, record.life.load(Ordering::Acquire));
        let free = record.is_left() || self.try_lock(delegated_lock_of(last), 1);
        if !free {
            let _ = self.fcntl(libc::F_OFD_SETLK, libc::F_UNLCK, seat, 1);
        }
        free
    }

    /// Whether another sits there, or holds a delegated lease for this holder.
    fn is_held(&self, owner: Owner) -> bool {
        self.is_locked(owner.seat(), 1) || self.is_locked(delegated_lock_of(owner), 1)
    }

    /// Whether another lease holds one of the locks. Doubt counts as life.
    fn is_locked(&self, seat: usize, seats: usize) -> bool {
        self.fcntl(libc::F_OFD_GETLK, libc::F_WRLCK, seat, seats)
            .map_or(true, |kind| kind != libc::F_UNLCK as i16)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a forked child the handler has closed the descriptor, and its number may mean another file by now.
        if self.generation == generation() {
            self.unlock(); // Not left to `close`: a child between vfork and exec has a copy of the descriptor.
            without_fork(|| {
                LEASES.unlist(self.entry);
                // SAFETY: opened by us, closed once.
                unsafe { libc::close(self.fd) };
            });
        }
    }
}

/// The byte behind the last seat, which only a stale owner locks. It tells the others that the seats are not taken.
const STALE_OWNER: usize = super::header::MAX_SEATS;

/// The byte that consumers lock while they sit down, and while they leave and look whether they were the last.
const JOIN_LOCK: usize = STALE_OWNER + 1;

/// The first of the bytes, one for each life on each seat, that a delegated lease for it locks for reading.
const DELEGATED: usize = JOIN_LOCK + 1;

fn delegated_lock_of(owner: Owner) -> usize {
    DELEGATED + owner.bits() as usize
}

/// Held by a process that writes where another one has claimed: as long as it is, the other one's claims are not taken back,
/// even if it is dead. If the other one has left properly, it means nothing.
#[derive(Debug)]
pub struct DelegatedLease(#[allow(dead_code)] Lease);

impl DelegatedLease {
    /// For the holder of a seat. It must be alive: then nothing was taken back before.
    pub fn hold_for(segment: &Segment, owner: Owner) -> Result<DelegatedLease> {
        let gone = || Error::PeersGone(format!("the one to write for in '{}' has died", segment.name()));
        let record = segment.seats().get(owner.seat()).ok_or_else(gone)?;
        let lease = Lease::open(segment)?;
        lease.fcntl(libc::F_OFD_SETLK, libc::F_RDLCK, delegated_lock_of(owner), 1).map_err(|_| gone())?;
        // SYNC seat.life: Acquire here, AcqRel in `lock_seat`. After our lock: a later holder of the seat meets it, and one that
        // took the seat before has kept us from it, or has begun another life.
        let life = record.life.load(Ordering::Acquire) & ((1 << LIFE_BITS) - 1);
        if life == owner.life() && lease.is_locked(owner.seat(), 1) {
            Ok(DelegatedLease(lease))
        } else {
            Err(gone())
        }
    }
}

/// Held by a consumer that comes or goes, so that none sits down in a ring that is being shut down.
#[derive(Debug)]
pub struct JoinLock(#[allow(dead_code)] Lease);

impl JoinLock {
    /// Waits for its holder, a matter of microseconds. A holder that was stopped must not stop us: after a second we go on
    /// without, and risk only that a consumer comes in the instant in which the last one leaves.
    pub fn acquire(segment: &Segment) -> Result<Option<JoinLock>> {
        let lease = Lease::open(segment)?;
        for _ in 0..1000 {
            if lease.try_lock(JOIN_LOCK, 1) {
                return Ok(Some(JoinLock(lease)));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(None)
    }
}

/// Holds a whole stale segment, so that its name can be removed.
#[derive(Debug)]
pub struct StaleOwner(#[allow(dead_code)] Lease);

impl StaleOwner {
    /// `None` when a participant lives in it.
    pub fn of(segment: &Segment) -> Result<Option<StaleOwner>> {
        let lease = Lease::open(segment)?;
        Ok(lease.try_lock(0, STALE_OWNER + 1).then_some(StaleOwner(lease)))
    }
}

/// Counts the living participants of a segment, without sitting down.
pub fn count_alive(segment: &Segment) -> Result<usize> {
    Ok(seats_alive(segment)?.len())
}

/// The seats of the living participants of a segment, without sitting down. The anchor holds no lock, so it sees them all.
pub fn seats_alive(segment: &Segment) -> Result<Vec<usize>> {
    if !is_locked(segment, 0, super::header::MAX_SEATS)? || is_locked(segment, STALE_OWNER, 1)? {
        return Ok(Vec::new()); // A stale owner has all locks, and is no participant.
    }
    let mut alive = Vec::new();
    for seat in 0..segment.seats().len() {
        if is_locked(segment, seat, 1)? {
            alive.push(seat);
        }
    }
    Ok(alive)
}

/// Whether a participant lives on a seat, without sitting down. A stale owner, which has all locks, is none.
pub(crate) fn is_seated(segment: &Segment, seat: usize) -> Result<bool> {
    Ok(is_locked(segment, seat, 1)? && !is_locked(segment, STALE_OWNER, 1)?)
}

/// Whether one of the locks is held.
fn is_locked(segment: &Segment, first: usize, seats: usize) -> Result<bool> {
    let anchor = segment.anchor.as_raw_fd();
    fcntl(anchor, libc::F_OFD_GETLK, libc::F_WRLCK, first, seats).map(|kind| kind != libc::F_UNLCK as i16)
}

/// The records of the attached participants in a role: those that have not left, and whose lock is held.
pub(super) fn attached(segment: &Segment, role: Role) -> Vec<&SeatRecord> {
    let is_attached = |(seat, record): &(usize, &SeatRecord)| {
        role.is_in(record.role.load(Ordering::Relaxed))
            // SYNC seat.state: Acquire here, Release in `lock_seat`, `leave`, `leave_and_unlink` and `abandon`.
            && record.state.load(Ordering::Acquire) == seat_state::JOINED
            && is_seated(segment, *seat).unwrap_or(true)
    };
    segment.seats().iter().enumerate().filter(is_attached).map(|(_, record)| record).collect()
}

impl SeatRecord {
    /// Whether no holder was here yet, or the last one left properly.
    fn is_left(&self) -> bool {
        // SYNC seat.state: Acquire here, Release in `lock_seat`, `leave`, `leave_and_unlink` and `abandon`: what a holder did
        // before it left, and its role, pid and life before it joined.
        is_left(self.state.load(Ordering::Acquire))
    }
}

fn is_left(state: u32) -> bool {
    matches!(state, seat_state::NEVER | seat_state::LEFT)
}

/// One that has not left.
struct Member {
    owner: Owner,
    /// One of [`seat_state`].
    state: u32,
    pid: u32,
}

/// A participant's place, for as long as it lives.
#[derive(Debug)]
pub struct Seat {
    segment: Arc<Segment>,
    role: Role,
    /// `generation << 32 | owner`: one load on the hot path tells our owner, or that we were forked.
    badge: AtomicU64,
    /// Locked with no fork in between ([`without_fork`]): a child would inherit a mutex that no thread unlocks.
    lease: Mutex<Lease>,
    /// For the one thread of a forked child that sits down anew.
    rejoining: ForkSafeLock,
    abandoned: AtomicBool,
    busy: Busy,
}

/// What the threads of this process do with a seat.
#[derive(Debug, Default)]
struct Busy {
    waiting_for_data: AtomicUsize,
    waiting_for_room: AtomicUsize,
    /// How many batches or records they hold.
    held: AtomicUsize,
}

impl Busy {
    fn counter(&self, activity: Activity) -> Option<&AtomicUsize> {
        match activity {
            Activity::Work => None,
            Activity::WaitData => Some(&self.waiting_for_data),
            Activity::WaitRoom => Some(&self.waiting_for_room),
            Activity::Hold => Some(&self.held),
        }
    }

    /// What counts, of all that they do (A2 of [`account`](super::account)).
    fn activity(&self) -> Activity {
        let is_busy = |&activity: &Activity| {
            self.counter(activity).is_some_and(|counter| counter.load(Ordering::Relaxed) > 0)
        };
        let order = [Activity::WaitData, Activity::WaitRoom, Activity::Hold];
        order.into_iter().find(is_busy).unwrap_or(Activity::Work)
    }

    /// For a forked child, which has none of its parent's threads.
    fn reset(&self) {
        for counter in [&self.waiting_for_data, &self.waiting_for_room, &self.held] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// As long as it lives, its thread waits.
#[derive(Debug)]
pub struct Waiting<'a> {
    seat: &'a Seat,
    activity: Activity,
    owner: Option<Owner>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // A forked child has begun anew.
        if self.owner.is_some() && self.seat.owner() == self.owner {
            self.seat.end(self.activity, 1);
        }
    }
}

impl Seat {
    /// Takes a free seat. `sweep(seat)` is called first when its last holder died there, with its lock in our hands.
    pub fn take(segment: Arc<Segment>, role: Role, sweep: impl Fn(usize)) -> Result<Seat> {
        let (lease, owner) = Self::lock_seat(&segment, role, sweep)?;
        let badge = AtomicU64::new((lease.generation as u64) << 32 | owner.bits());
        let (lease, rejoining, abandoned) =
            (Mutex::new(lease), ForkSafeLock::default(), AtomicBool::new(false));
        Ok(Seat { segment, role, badge, lease, rejoining, abandoned, busy: Busy::default() })
    }

    fn lock_seat(segment: &Segment, role: Role, sweep: impl Fn(usize)) -> Result<(Lease, Owner)> {
        let lease = Lease::open(segment)?;
        let seats = segment.seats();
        let Some(index) = (0..seats.len()).find(|&seat| lease.try_seat(seat, &seats[seat])) else {
            // A stale owner has them all: the segment was stale, and is as good as gone.
            if lease.is_locked(STALE_OWNER, 1) || segment.is_unlinked()? {
                return Err(segment.not_found());
            }
            return Err(Error::NoSeat { name: segment.name().to_owned(), seats: seats.len() });
        };
        // A collector may have held every lock a moment ago, and removed the name.
        if segment.is_unlinked()? {
            return Err(segment.not_found());
        }
        let record = &seats[index];
        let left_cleanly = record.is_left();
        // First: from here on, claims of the last holder name a life that is over, and any process may take them back, should
        // we die or be stopped before we have done so.
        // SYNC seat.life: AcqRel here, Acquire in `is_alive`, `try_seat` and `members`. The lock changed hands before.
        let life = record.life.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        if !left_cleanly {
            sweep(index);
        }
        record.role.store(role as u32, Ordering::Relaxed);
        record.pid.store(std::process::id(), Ordering::Relaxed);
        record.joined_unix_ns.store(unix_ns(), Ordering::Relaxed);
        record.retries.store(0, Ordering::Relaxed);
        let now = monotonic_ns();
        record.joined_ns.store(now, Ordering::Relaxed);
        record.account.begin(now);
        record.remotes.begin();
        // SYNC seat.state: Release here, Acquire in `is_left` and `members`.
        record.state.store(seat_state::JOINED, Ordering::Release);
        Ok((lease, Owner::new(index, life)))
    }

    /// Our owner, if this process is the one that sat down.
    #[inline]
    pub fn owner(&self) -> Option<Owner> {
        let badge = self.badge.load(Ordering::Relaxed);
        ((badge >> 32) as u32 == generation()).then(|| Owner::from_bits(badge))
    }

    /// Our owner. A forked child sits down anew; `sweep` is as for [`take`](Self::take).
    #[inline]
    pub fn owner_or_rejoin(&self, sweep: impl Fn(usize)) -> Result<Owner> {
        match self.owner() {
            Some(owner) => Ok(owner),
            None => self.rejoin(sweep),
        }
    }

    /// After a fork: sits down again, in the child.
    #[cold]
    pub fn rejoin(&self, sweep: impl Fn(usize)) -> Result<Owner> {
        self.rejoin_as(self.role, sweep)
    }

    /// After a fork: sits down again, in the child, in another role than its parent's.
    pub fn rejoin_as(&self, role: Role, sweep: impl Fn(usize)) -> Result<Owner> {
        let _turn = self.rejoining.take(Rank::Rejoining);
        if let Some(owner) = self.owner() {
            return Ok(owner);
        }
        crash_point(Point::SeatRejoining);
        let (fresh, owner) = Self::lock_seat(&self.segment, role, sweep)?;
        let badge = (fresh.generation as u64) << 32 | owner.bits();
        // What it replaces is a lease of the parent, which the fork handler has closed: to drop it takes no lock.
        self.busy.reset();
        self.with_lease(|lease| {
            self.badge.store(badge, Ordering::Relaxed);
            *lease = fresh;
        });
        Ok(owner)
    }

    /// A remote worker has connected to what sits here.
    pub fn note_connected(&self) {
        if self.owner().is_some() {
            self.record().remotes.connected.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Its connection has ended. `lost`: without a goodbye, and from where it came.
    pub fn note_disconnected(&self, lost: Option<SocketAddr>) {
        if self.owner().is_some() {
            self.record().remotes.note_disconnected(lost, monotonic_ns());
        }
    }

    /// This thread waits, for data or for room, until what this gives is dropped.
    pub fn waits(&self, activity: Activity) -> Waiting<'_> {
        let owner = self.owner();
        if owner.is_some() {
            self.begin(activity, 1);
        }
        Waiting { seat: self, activity, owner }
    }

    /// Counts what this process has taken. The caller owns it.
    #[inline]
    pub fn holds(&self, count: usize) {
        if count > 0 {
            self.begin(Activity::Hold, count);
        }
    }

    /// Something was taken while something else is held: what it holds now, it holds since now.
    #[inline]
    pub fn holds_anew(&self, now_ns: u64) {
        let account = &self.record().account;
        if account.activity() == Activity::Hold {
            account.switch(Activity::Hold, now_ns);
            self.account_for(); // Another thread may have begun to wait meanwhile (A2).
        }
    }

    /// Counts what it has given back. The caller owned it.
    #[inline]
    pub fn let_go(&self, count: usize) {
        self.end(Activity::Hold, count);
    }

    /// For callers that cannot keep a [`Waiting`].
    #[inline]
    pub(crate) fn begin(&self, activity: Activity, count: usize) {
        let Some(counter) = self.busy.counter(activity) else { return };
        if counter.fetch_add(count, Ordering::Relaxed) == 0 {
            self.account_for();
        }
    }

    #[inline]
    pub(crate) fn end(&self, activity: Activity, count: usize) {
        let Some(counter) = self.busy.counter(activity) else { return };
        if counter.fetch_sub(count, Ordering::Relaxed) == count {
            self.account_for();
        }
    }

    /// Brings our account up to date with what our threads do. Another thread may change that meanwhile: then we look again.
    fn account_for(&self) {
        let account = &self.record().account;
        loop {
            let activity = self.busy.activity();
            if account.activity() == activity {
                return;
            }
            account.switch(activity, monotonic_ns());
        }
    }

    fn with_lease<T>(&self, look: impl FnOnce(&mut Lease) -> T) -> T {
        without_fork(|| {
            let _rank = RankGuard::take(Rank::Lease);
            look(&mut self.lease.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
        })
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Our record in the segment.
    pub fn record(&self) -> &SeatRecord {
        let badge = self.badge.load(Ordering::Relaxed);
        &self.segment.seats()[Owner::from_bits(badge).seat()]
    }

    /// Counts what was committed through this seat. Several threads of a server share the seat of remote workers.
    #[inline(always)]
    pub fn note_commit(&self, count: usize, now_ns: u64, version: u32) {
        let account = &self.record().account;
        if self.role == Role::Network {
            account.note_commit_by_many(count, now_ns, version);
        } else {
            account.note_commit(count, now_ns, version);
        }
    }

    /// Asks the kernel whether the holder of a claim still lives. A stopped process does.
    pub fn is_alive(&self, owner: Owner) -> bool {
        let seats = self.segment.seats();
        let Some(record) = seats.get(owner.seat()) else { return false };
        // SYNC seat.life: Acquire here, AcqRel in `lock_seat`.
        if record.life.load(Ordering::Acquire) & ((1 << LIFE_BITS) - 1) != owner.life() {
            return false; // A later holder sits there, and swept the seat first.
        }
        if self.owner() == Some(owner) {
            return true;
        }
        let alive = self.with_lease(|lease| {
            // The lock does not test our own: another thread may have sat down since we looked.
            lease.generation != generation() || self.owner() == Some(owner) || lease.is_held(owner)
        });
        if !alive {
            self.note_death(owner.seat());
        }
        alive
    }

    /// A note for people: a slow one may hit the next holder. Decisions ask the lock.
    fn note_death(&self, seat: usize) {
        let state = &self.segment.seats()[seat].state;
        let (joined, died) = (seat_state::JOINED, seat_state::DIED);
        let _ = state.compare_exchange(joined, died, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Takes a seat while no other in this role comes or goes. It does not sweep, which could take long: the caller recovers
    /// what the last holder left.
    pub fn take_with_join_lock(segment: Arc<Segment>, role: Role) -> Result<Seat> {
        let _join_lock = JoinLock::acquire(&segment)?;
        Seat::take(segment, role, |_| {})
    }

    /// Leaves (the lock stays until we are dropped). The last in our role takes the name away, so that newcomers find none, and
    /// then shuts down what is in the segment, also when the name could not be removed. True when we were the last.
    pub fn leave_and_unlink(&self, shut_down: impl FnOnce()) -> Result<bool> {
        // Without it when no descriptor is left, or its holder was stopped.
        let join_lock = JoinLock::acquire(&self.segment).ok().flatten();
        // SYNC seat.state: Release here, Acquire in `is_left` and `members`.
        self.record().state.store(seat_state::LEAVING, Ordering::Release);
        // Of two that leave without the join lock at least one sees the other leave: this fence pairs with itself.
        fence(Ordering::SeqCst);
        let last = self.census(self.role).alive == 0;
        crash_point(Point::SeatLeaving);
        let unlinked = if last { self.segment.unlink() } else { Ok(false) };
        crash_point(Point::NameRemoved);
        drop(join_lock);
        if last {
            shut_down();
        }
        self.leave();
        unlinked.map(|_| last)
    }

    /// Says that we have left; the lock stays until we are dropped.
    pub fn leave(&self) {
        // SYNC seat.state: Release here, Acquire in `is_left` and `members`.
        self.record().state.store(seat_state::LEFT, Ordering::Release);
    }

    /// Leaves, and gives the lock back at once and not when we are dropped. We have claimed nothing. Later use takes another seat.
    pub fn vacate(&self) {
        let Some(owner) = self.owner() else { return };
        self.leave();
        // A badge of another generation: `owner` gives `None` from now on, as it does in a forked child.
        self.badge.store((generation().wrapping_sub(1) as u64) << 32 | owner.bits(), Ordering::Relaxed);
        self.with_lease(|lease| lease.unlock());
    }

    /// Ends as if this process had been killed: it counts as dead from now on, and the next holder of the seat recovers what it left.
    /// The lock stays until we are dropped.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        // SYNC seat.state: Release here, Acquire in `is_left` and `members`.
        self.record().state.store(seat_state::ABANDONED, Ordering::Release);
    }

    /// Whether we have ended like that.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Whether no other in our role lives.
    pub fn is_only_one(&self) -> bool {
        self.census(self.role).alive <= 1
    }

    /// Whether no participant in a role lives, and at least one died instead of leaving.
    pub fn all_died(&self, role: Role) -> bool {
        let mut members = self.members(role).peekable();
        members.peek().is_some() && members.all(|member| self.is_dead(&member))
    }

    fn is_dead(&self, member: &Member) -> bool {
        member.state == seat_state::ABANDONED || !self.is_alive(member.owner)
    }

    /// Those in a role that have not left: alive, leaving or dead.
    fn members(&self, role: Role) -> impl Iterator<Item = Member> {
        let seats = self.segment.seats().iter().enumerate();
        let in_role = seats.filter(move |(_, record)| role.is_in(record.role.load(Ordering::Relaxed)));
        in_role.filter_map(|(index, record)| {
            // SYNC seat.state: Acquire here, Release in `lock_seat`, `leave`, `leave_and_unlink` and `abandon`. One look: a
            // holder that is leaving may have left at a second one.
            let state = record.state.load(Ordering::Acquire);
            // SYNC seat.life: Acquire here, AcqRel in `lock_seat`.
            let owner = Owner::new(index, record.life.load(Ordering::Acquire));
            (!is_left(state)).then(|| Member { owner, state, pid: record.pid.load(Ordering::Relaxed) })
        })
    }

    /// Another participant in a role, which lives and is not about to leave.
    pub fn another(&self, role: Role) -> Option<Owner> {
        let me = self.owner();
        let mut others = self.members(role).filter(|member| Some(member.owner) != me);
        let stays = |member: &Member| member.state != seat_state::LEAVING && !self.is_dead(member);
        others.find(stays).map(|member| member.owner)
    }

    /// Whether that is so for good: the last one died when it had taken the name away, so that none can come.
    pub fn all_died_for_good(&self, role: Role) -> bool {
        self.segment.is_unlinked().unwrap_or(false) && self.all_died(role)
    }

    /// How many in a role live, and the pids of those that died without leaving.
    pub fn census(&self, role: Role) -> Census {
        let mut census = Census::default();
        for member in self.members(role) {
            match self.is_dead(&member) {
                true => census.died.push(member.pid),
                false => census.alive += (member.state != seat_state::LEAVING) as usize,
            }
        }
        census
    }
}

/// Remembers the last answer about an owner: its claims lie side by side, and asking is a system call.
pub(crate) struct LivenessMemo<F> {
    ask: F,
    last: Option<(Owner, bool)>,
}

impl<F: Fn(Owner) -> bool> LivenessMemo<F> {
    pub(crate) fn of(is_dead: F) -> LivenessMemo<F> {
        LivenessMemo { ask: is_dead, last: None }
    }

    pub(crate) fn is_dead(&mut self, owner: Owner) -> bool {
        match self.last {
            Some((known, dead)) if known == owner => dead,
            _ => {
                let dead = (self.ask)(owner);
                self.last = Some((owner, dead));
                dead
            }
        }
    }
}

/// How many participants live, and the pids of the dead.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Census {
    pub alive: usize,
    pub died: Vec<u32>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.owner().is_some() && !self.is_abandoned() {
            self.leave();
        }
    }
}
