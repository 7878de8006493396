//! What a forked child inherits and must not keep: descriptors, and locks that threads of its parent hold.
//!
//! A child closes its copies of listed descriptors at once, in a fork handler. A lease would keep its parent's lock alive; a
//! socket would keep the port of a dead learner taken and its clients connected. The child has none of the threads that own
//! them. Handles notice by [`generation`] that they are in a child.
//!
//! **Lock order.** A thread takes these locks in the order of their [`Rank`], and never one of a lower or the same rank. Debug
//! builds check it ([`RankGuard`]).
//!
//! | rank | lock | held while | a fork meanwhile |
//! |---|---|---|---|
//! | [`Rank::ProcessLane`] | `records::Producer::joining` | a forked child takes a seat and a lane | [`ForkSafeLock`]: free in the child |
//! | [`Rank::Rejoining`] | `segment::Seat::rejoining` | a forked child takes a seat, and sweeps it | [`ForkSafeLock`]: free in the child |
//! | [`Rank::Listing`] | [`LISTING`] | a descriptor is opened and listed, or a mutex below is held | waits |
//! | [`Rank::Lease`] | `segment::Seat::lease` | a lock of the kernel is tested, or the lease is replaced | waits for the listing |
//!
//! The other locks of the core never meet these the wrong way round: `records::{Producer, Consumer}::recovered` and
//! `ring::Producer::spin` are only ever *tried*; `ProcessLane::ledger`, `weights::Writer::turn`, `vector_env::Worker::spin` and
//! those of `net` are taken by threads that hold none of the above, and a forked child does not take them: it has a lane or
//! a writer of its own, or is refused. In `net::WeightSource`, `held` is taken before `reader`.

use rustix::thread::futex;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering}; // Not loom's: statics, and a futex.

/// How many forks lie between this process and the first one that loaded the library.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

static GENERATION: AtomicU32 = AtomicU32::new(0);
static FORK_HANDLER: Once = Once::new();
/// Held while a descriptor is open and not yet listed, or listed no more and still open: no fork comes in between.
static LISTING: AtomicBool = AtomicBool::new(false);

/// The order in which a thread takes the locks that it holds together; see the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    ProcessLane = 1,
    Rejoining = 2,
    Listing = 3,
    Lease = 4,
}

/// Held together with a lock of that rank. A debug build panics where a thread takes one out of order.
#[must_use]
pub(crate) struct RankGuard(#[cfg(debug_assertions)] u32);

#[cfg(debug_assertions)]
thread_local! {
    /// One bit for each rank of which this thread holds a lock.
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl RankGuard {
    /// To be called before the lock is waited for, so that an inversion is found without its partner.
    pub(crate) fn take(rank: Rank) -> RankGuard {
        #[cfg(debug_assertions)]
        {
            let (held, bit) = (HELD.get(), 1 << rank as u32);
            assert!(held < bit, "lock of rank {rank:?} taken while locks {held:#b} are held: out of order");
            HELD.set(held | bit);
            RankGuard(bit)
        }
        #[cfg(not(debug_assertions))]
        {
            let _ = rank;
            RankGuard()
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for RankGuard {
    fn drop(&mut self) {
        HELD.set(HELD.get() & !self.0);
    }
}

/// A lock for what a forked child does once. A child does not inherit it: the thread that holds it is not in the child.
#[derive(Debug, Default)]
pub(crate) struct ForkSafeLock {
    /// The [`generation`] of the holder's process, plus one; 0 when it is free.
    holder: AtomicU32,
}

/// Gives the [`ForkSafeLock`] back when it is dropped.
pub(crate) struct ForkSafeGuard<'a> {
    lock: &'a ForkSafeLock,
    _rank: RankGuard,
}

impl ForkSafeLock {
    pub(crate) fn take(&self, rank: Rank) -> ForkSafeGuard<'_> {
        let rank = RankGuard::take(rank);
        let me = generation() + 1;
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            if holder == me {
                // Comes back when the word has changed; a signal or a spurious wake-up only makes us look again.
                let _ = futex::wait(&self.holder, futex::Flags::PRIVATE, me, None);
                continue;
            }
            // SYNC fork.fork_safe: Acquire here, Release in `ForkSafeGuard::drop`. What the last holder did is seen.
            if self.holder.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return ForkSafeGuard { lock: self, _rank: rank };
            }
        }
    }
}

impl Drop for ForkSafeGuard<'_> {
    fn drop(&mut self) {
        // SYNC fork.fork_safe: Release here, Acquire in `ForkSafeLock::take`.
        self.lock.holder.store(0, Ordering::Release);
        // A failure could only mean that the address is not mapped, which it is.
        let _ = futex::wake(&self.lock.holder, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

extern "C" fn before_fork() {
    // SYNC fork.listing: Acquire here, Release in `after_fork_in_parent` and `after_fork_in_child`. What was listed before is seen.
    while LISTING.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        std::thread::yield_now();
    }
}

extern "C" fn after_fork_in_parent() {
    // SYNC fork.listing: Release here, Acquire in `before_fork`.
    LISTING.store(false, Ordering::Release);
}

/// Runs `change` with no fork in between.
pub(crate) fn without_fork<T>(change: impl FnOnce() -> T) -> T {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            after_fork_in_parent();
        }
    }
    install_handlers();
    let _rank = RankGuard::take(Rank::Listing);
    before_fork();
    let _done = Done;
    change()
}

extern "C" fn after_fork_in_child() {
    // SYNC fork.listing: Release here, Acquire in `before_fork`.
    LISTING.store(false, Ordering::Release);
    GENERATION.fetch_add(1, Ordering::Relaxed);
    LEASES.close_all();
    OTHERS.close_all();
}

fn install_handlers() {
    FORK_HANDLER.call_once(|| {
        let (before, parent, child) = (before_fork, after_fork_in_parent, after_fork_in_child);
        // SAFETY: the handlers only touch statics and call close.
        unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    });
}

/// Descriptors of this process that a forked child closes, without taking a lock.
pub(crate) struct DescriptorList([AtomicI32; 4096]);

/// Those of leases, and all others: many connections leave room for leases.
pub(crate) static LEASES: DescriptorList = DescriptorList::new();
static OTHERS: DescriptorList = DescriptorList::new();

impl DescriptorList {
    const fn new() -> DescriptorList {
        DescriptorList([const { AtomicI32::new(-1) }; 4096])
    }

    pub(crate) fn capacity(&self) -> usize {
        self.0.len()
    }

    /// Its entry; `None` when the list is full. Call it with no fork since the descriptor was opened ([`without_fork`]).
    pub(crate) fn list(&self, fd: RawFd) -> Option<usize> {
        let free = |e: &AtomicI32| e.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        self.0.iter().position(free)
    }

    pub(crate) fn unlist(&self, entry: usize) {
        self.0[entry].store(-1, Ordering::Relaxed);
    }

    /// In a forked child.
    fn close_all(&self) {
        for entry in &self.0 {
            let fd = entry.swap(-1, Ordering::Relaxed);
            if fd >= 0 {
                // SAFETY: the child's copy of a descriptor that no code of the child uses: its owner lives on a thread that
                // the child does not have, or compares generations first. close is async-signal-safe.
                unsafe { libc::close(fd) };
            }
        }
    }
}

/// Keeps a descriptor on the list. Drop it before the descriptor is closed: make it an earlier field.
#[derive(Debug)]
pub struct CloseOnFork {
    /// `None` when the list is full: the child keeps its copy.
    entry: Option<usize>,
    /// In a child, the entry may be another's.
    generation: u32,
}

impl CloseOnFork {
    /// Opens a descriptor and lists it, with no fork in between.
    pub fn opened<T: AsRawFd, E>(open: impl FnOnce() -> Result<T, E>) -> Result<(CloseOnFork, T), E> {
        without_fork(|| open().map(|owner| (CloseOnFork::of(&owner), owner)))
    }

    /// Takes a descriptor off the list and closes it, with no fork in between.
    pub fn close<T: AsRawFd>(self, owner: T) {
        without_fork(|| {
            drop(self);
            drop(owner);
        });
    }

    pub fn of(owner: &impl AsRawFd) -> CloseOnFork {
        install_handlers();
        CloseOnFork { entry: OTHERS.list(owner.as_raw_fd()), generation: generation() }
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        if let Some(entry) = self.entry
            && self.generation == generation()
        {
            OTHERS.unlist(entry);
        }
    }
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "out of order")]
    fn a_lock_that_is_taken_out_of_order_is_an_error_in_debug_builds() {
        without_fork(|| ForkSafeLock::default().take(Rank::Rejoining).lock.holder.load(Ordering::Relaxed));
    }

    #[test]
    fn a_lock_that_a_thread_of_the_parent_holds_is_free_in_a_forked_child() {
        let lock = ForkSafeLock { holder: AtomicU32::new(generation() + 2) }; // Not of this generation.
        drop(lock.take(Rank::Rejoining));
        assert_eq!(lock.holder.load(Ordering::Relaxed), 0);
    }
}
