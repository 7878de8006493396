//! A sentry: a thread that waits in the stead of an event loop, and says on a file descriptor when to look.
//!
//! A futex cannot be waited for together with sockets; an eventfd can. The thread sleeps in whatever wait it was given, takes
//! nothing, and makes the eventfd readable once per [`post`](Sentry::post). No interpreter runs between the one who rings
//! and the loop that wakes. It looks around as any sleeper does, so it also notices what the dead cannot tell.
//!
//! ```text
//! Off ──post──▶ On ──the wait is over──▶ Off, and the descriptor readable
//!  └────────────┴───dropped──▶ Relieved: the thread ends, at the latest after a slice of its wait
//! ```
//!
//! A forked child has no such thread: its copy of a sentry tells nobody anything.

use crate::error::{Error, Result};
use crate::sys::wait::Deadline;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

/// How long the thread waits before it looks whether it is still wanted.
const SLICE: Duration = Duration::from_secs(1);

const OFF: u8 = 0;
const ON: u8 = 1;
const RELIEVED: u8 = 2;

/// A thread that waits for its owner. It ends when this is dropped.
#[derive(Debug)]
pub struct Sentry {
    desk: Arc<Desk>,
    thread: Thread,
}

/// What the thread and its owner share.
#[derive(Debug)]
struct Desk {
    duty: AtomicU8,
    signal: OwnedFd,
}

impl Sentry {
    /// `wait` sleeps until there is something to do for the owner; false when the time was over first. An error counts as
    /// something to do: the owner meets it when it looks.
    pub fn new(wait: impl Fn(Deadline) -> Result<bool> + Send + 'static) -> Result<Sentry> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("making an eventfd", error))?;
        let desk = Arc::new(Desk { duty: AtomicU8::new(OFF), signal });
        let theirs = desk.clone();
        let stand = move || theirs.stand(wait);
        let thread = thread::Builder::new().name("rollway-sentry".to_owned()).spawn(stand);
        let thread = thread.map_err(|error| Error::io("starting a thread", error))?.thread().clone();
        Ok(Sentry { desk, thread })
    }

    /// Asks it to wait, once. Does nothing while it does.
    pub fn post(&self) {
        // SYNC sentry.duty: Release here, Acquire in `stand`.
        if self.desk.duty.compare_exchange(OFF, ON, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.thread.unpark();
        }
    }

    /// Makes the descriptor readable now.
    pub fn signal(&self) {
        self.desk.signal();
    }

    /// Takes note of the signal: the descriptor is not readable until the next.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.desk.signal, &mut [0u8; 8]); // It fails when there was none.
    }
}

impl AsRawFd for Sentry {
    fn as_raw_fd(&self) -> RawFd {
        self.desk.signal.as_raw_fd()
    }
}

impl Drop for Sentry {
    fn drop(&mut self) {
        // SYNC sentry.duty: Release here, Acquire in `stand`.
        self.desk.duty.store(RELIEVED, Ordering::Release);
        self.thread.unpark();
    }
}

impl Desk {
    fn stand(&self, wait: impl Fn(Deadline) -> Result<bool>) {
        loop {
            // SYNC sentry.duty: Acquire here, Release in `post` and `drop`.
            match self.duty.load(Ordering::Acquire) {
                OFF => thread::park(),
                ON => match wait(Deadline::after(Some(SLICE))) {
                    Ok(false) | Err(Error::Interrupted) => {}
                    Ok(true) | Err(_) => {
                        // SYNC sentry.duty: Release here, Acquire in `post`. Before the signal: whoever hears it may post us
                        // again. It fails when we are relieved.
                        let _ = self.duty.compare_exchange(ON, OFF, Ordering::AcqRel, Ordering::Relaxed);
                        self.signal();
                    }
                },
                _ => return,
            }
        }
    }

    fn signal(&self) {
        let _ = rustix::io::write(&self.signal, &1u64.to_ne_bytes()); // It fails when it says so 2⁶⁴ times over.
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::mpsc;

    fn is_readable(sentry: &Sentry, within: Duration) -> bool {
        let limit = Timespec { tv_sec: within.as_secs() as _, tv_nsec: within.subsec_nanos() as _ };
        poll(&mut [PollFd::new(&sentry.desk.signal, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }

    #[test]
    fn each_post_waits_once_and_signals_once() {
        let (tell, told) = mpsc::channel::<Result<bool>>();
        let sentry = Sentry::new(move |_| told.recv().unwrap_or(Err(Error::Closed))).unwrap();
        for end in [Ok(true), Err(Error::Closed)] {
            sentry.post();
            sentry.post();
            tell.send(Err(Error::Interrupted)).unwrap();
            tell.send(Ok(false)).unwrap();
            tell.send(end).unwrap();
            assert!(is_readable(&sentry, Duration::from_secs(10)));
            sentry.clear();
            assert!(!is_readable(&sentry, Duration::ZERO));
        }
    }

    #[test]
    fn a_sentry_that_is_dropped_lets_go_of_what_it_waited_for() {
        let held = Arc::new(());
        let theirs = held.clone();
        let (tell, told) = mpsc::channel::<()>();
        let sentry = Sentry::new(move |_| {
            let _ = &theirs;
            told.recv().map_err(|_| Error::Closed).map(|()| false)
        })
        .unwrap();
        sentry.post();
        drop(sentry);
        tell.send(()).ok();
        drop(tell);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&held) > 1 {
            assert!(std::time::Instant::now() < deadline, "the thread did not end");
            thread::yield_now();
        }
    }
}
