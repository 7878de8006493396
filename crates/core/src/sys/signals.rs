//! Signals that come just before a thread falls asleep, and so do not end its sleep.
//!
//! An interpreter's handler only leaves a note. A thread that was about to sleep has looked for notes already. So a thread that
//! has to notice them sleeps in naps, and looks again after each. Only a process's first thread runs such handlers.

use crate::sys::clock::monotonic_ns;
use rustix::{process, thread};
use std::cell::Cell;
use std::time::Duration;

/// How late such a signal may be noticed.
pub(crate) const NAP: Duration = Duration::from_millis(100);

thread_local! {
    static LOOK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
    static LOOKED_NS: Cell<u64> = const { Cell::new(0) };
}

/// Does `work`. In the first thread, a sleep in there ends as if a signal had woken it when `look` says that there is a note.
pub fn watched<T>(look: fn() -> bool, work: impl FnOnce() -> T) -> T {
    struct Before(Option<fn() -> bool>);
    impl Drop for Before {
        fn drop(&mut self) {
            LOOK.set(self.0);
        }
    }
    let is_first = thread::gettid() == process::getpid();
    let _before = Before(LOOK.replace(is_first.then_some(look)));
    work()
}

/// How long to sleep at a stretch.
pub fn nap(left: Duration) -> Duration {
    if LOOK.get().is_some() { left.min(NAP) } else { left }
}

/// Whether to come back, after a nap. Looks only so often: it may cost a lock.
pub fn are_noted() -> bool {
    LOOK.get().is_some_and(|look| {
        let now = monotonic_ns();
        let is_due = now.saturating_sub(LOOKED_NS.get()) >= NAP.as_nanos() as u64 / 2;
        if is_due {
            LOOKED_NS.set(now);
        }
        is_due && look()
    })
}

/// As [`watched`], in any thread: tests do not run in the first.
#[cfg(test)]
pub(crate) fn watched_here<T>(look: fn() -> bool, work: impl FnOnce() -> T) -> T {
    LOOK.set(Some(look));
    let done = work();
    LOOK.set(None);
    done
}
