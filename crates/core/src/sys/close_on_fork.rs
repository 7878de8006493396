//! Descriptors that a forked child closes at once.
//!
//! A forked child inherits every socket. A learner that forked workers and died would leave its port taken and its
//! clients connected to nobody; so a child closes its copies at once, as it does with leases
//! ([`crate::segment::lease`]). The threads that own these sockets are not in the child, so nobody there misses them.

use crate::segment::lease::without_fork;
use std::os::fd::AsRawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering}; // Not loom's: a static.

static LISTED: [AtomicI32; 4096] = [const { AtomicI32::new(-1) }; 4096];
static FORK_HANDLER: Once = Once::new();

extern "C" fn after_fork_in_child() {
    for entry in &LISTED {
        let fd = entry.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the child's copy of a descriptor whose owner lives on a thread that the child does not have.
            // close is async-signal-safe.
            unsafe { libc::close(fd) };
        }
    }
}

/// Keeps a descriptor on the list. To be dropped before the descriptor is closed: list it as an earlier field.
#[derive(Debug)]
pub struct CloseOnFork {
    /// `None` when the list is full: the child keeps its copy.
    entry: Option<usize>,
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
        FORK_HANDLER.call_once(|| {
            // SAFETY: the handler touches a static and calls close.
            unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        });
        let fd = owner.as_raw_fd();
        let free = |e: &AtomicI32| e.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        CloseOnFork { entry: LISTED.iter().position(free) }
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            LISTED[entry].store(-1, Ordering::Relaxed);
        }
    }
}
