//! The lock of replay tables: one holder at a time, in any process, that may die.
//!
//! L1  The word names the holder. It goes from nobody to a holder by a CAS, and back by the holder's store; from a dead
//!     holder it goes to the next one by a CAS. The kernel says who is dead.
//! L2  `changing` is set by the holder before it changes anything, and cleared after its last change. So a process that
//!     gets the lock and finds it set knows that the last holder died in between, and puts everything right before it
//!     goes on.
//! L3  What the holder stored is seen by the next one: the store that releases the word is a Release, and every CAS that
//!     takes it an Acquire. A dead holder released nothing: its stores are seen because it is dead, and the kernel, which
//!     said so, saw its last instruction.

use crate::error::{Error, Result};
use crate::segment::Owner;
use crate::sys::sync::{AtomicU32, AtomicU64, EventCount, Ordering, Point, crash_point};
use crate::sys::wait::{Deadline, spin_gently, wait_for};
use std::cell::Cell;

/// Looks before a thread goes to sleep: the lock is held for a short time. Under loom no time passes.
const SPINS: u32 = if cfg!(loom) { 1 } else { 64 };

#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Lock {
    /// The holder: an [`Owner`] or none.
    word: AtomicU64,
    changing: AtomicU32,
    released: EventCount,
}

/// The lock in our hands.
#[derive(Debug)]
pub struct Held<'a> {
    lock: &'a Lock,
    /// The last holder died in the middle of a change (L2).
    pub must_rebuild: bool,
}

impl Lock {
    /// Takes the lock. [`Error::Timeout`] when its holder lives and keeps it for so long: it was stopped.
    #[inline]
    pub fn acquire(
        &self,
        owner: Owner,
        deadline: Deadline,
        is_dead: impl Fn(Owner) -> bool,
    ) -> Result<Held<'_>> {
        for _ in 0..SPINS {
            if self.try_take(0, owner) {
                return Ok(self.begin());
            }
            spin_gently();
        }
        self.wait(owner, deadline, is_dead)
    }

    #[cold]
    fn wait(&self, owner: Owner, deadline: Deadline, is_dead: impl Fn(Owner) -> bool) -> Result<Held<'_>> {
        let inherited = Cell::new(false);
        let look = || Ok((inherited.get() || self.try_take(0, owner)).then_some(()));
        let check = || {
            let word = self.word.load(Ordering::Relaxed);
            if Owner::unpack_maybe(word).is_some_and(&is_dead) {
                inherited.set(self.try_take(word, owner));
            }
            Ok(())
        };
        let taken = wait_for(&self.released, || self.released.announce(), deadline, look, check)?;
        taken.map(|()| self.begin()).ok_or(Error::Timeout)
    }

    /// Says, of tables that nobody else has seen, that nothing is listed yet: the first holder does that.
    pub fn begin_unbuilt(&self) {
        self.changing.store(1, Ordering::Relaxed);
    }

    /// Who has it.
    pub fn holder(&self) -> Option<Owner> {
        Owner::unpack_maybe(self.word.load(Ordering::Relaxed))
    }

    #[inline]
    fn try_take(&self, from: u64, owner: Owner) -> bool {
        // SYNC tables.lock: Acquire here, Release in `drop` (L3).
        let taken = self.word.compare_exchange(
            from,
            Owner::pack_maybe(Some(owner)),
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        taken.is_ok()
    }

    #[inline]
    fn begin(&self) -> Held<'_> {
        crash_point(Point::TablesLocked);
        let must_rebuild = self.changing.swap(1, Ordering::Relaxed) != 0;
        Held { lock: self, must_rebuild }
    }
}

impl Held<'_> {
    /// Everything is as it should be.
    #[inline]
    pub fn release(self) {
        self.lock.changing.store(0, Ordering::Relaxed);
        crash_point(Point::TablesChanged);
    }
}

impl Drop for Held<'_> {
    /// For the next one. Without [`release`](Self::release), that one puts everything right.
    #[inline]
    fn drop(&mut self) {
        // SYNC tables.lock: Release here, Acquire in `try_take` (L3).
        self.lock.word.store(0, Ordering::Release);
        self.lock.released.notify_if_waiting();
    }
}
