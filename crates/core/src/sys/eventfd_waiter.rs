//! A thread that blocks for an event loop, and makes a file descriptor readable when the loop should look.
//!
//! A futex cannot be waited for together with sockets; an eventfd can. The thread sleeps in the wait that it was given, takes
//! nothing, and makes the eventfd readable once per [`arm`](EventfdWaiter::arm). It polls for liveness as any sleeper does.
//!
//! ```text
//! Idle ──arm──▶ Armed ──the wait is over──▶ Idle, and the descriptor readable
//!   └─────────────┴───dropped──▶ Stopped: the thread ends, at the latest after a slice of its wait
//! ```
//!
//! A forked child has no such thread: its copy never signals.

use crate::error::{Error, Result};
use crate::sys::sync::{AtomicU8, Ordering};
use crate::sys::wait::Deadline;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::Duration;

/// How long the thread waits before it checks whether it was stopped.
const SLICE: Duration = Duration::from_secs(1);

const IDLE: u8 = 0;
const ARMED: u8 = 1;
const STOPPED: u8 = 2;

/// A thread that waits for its owner. The thread ends when this is dropped.
#[derive(Debug)]
pub struct EventfdWaiter {
    shared: Arc<Shared>,
    thread: Thread,
}

/// What the thread and its owner share.
#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    signal: OwnedFd,
}

impl EventfdWaiter {
    /// `wait` sleeps until there is something to do for the owner; false when the time was over first. An error counts as
    /// something to do: the owner meets it when it looks.
    pub fn new(wait: impl Fn(Deadline) -> Result<bool> + Send + 'static) -> Result<EventfdWaiter> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("making an eventfd", error))?;
        let shared = Arc::new(Shared { state: AtomicU8::new(IDLE), signal });
        let theirs = shared.clone();
        let run = move || theirs.run(wait);
        let thread = thread::Builder::new().name("rollway-eventfd".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Error::io("starting a thread", error))?.thread().clone();
        Ok(EventfdWaiter { shared, thread })
    }

    /// Starts one wait. Does nothing while a wait is under way.
    pub fn arm(&self) {
        // SYNC eventfd_waiter.state: Release here, Acquire in `run`.
        if self.shared.state.compare_exchange(IDLE, ARMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.thread.unpark();
        }
    }

    /// Makes the descriptor readable now.
    pub fn signal(&self) {
        self.shared.signal();
    }

    /// Takes note of the signal: the descriptor is not readable until the next.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.shared.signal, &mut [0u8; 8]); // It fails when there was none.
    }
}

impl AsRawFd for EventfdWaiter {
    fn as_raw_fd(&self) -> RawFd {
        self.shared.signal.as_raw_fd()
    }
}

impl Drop for EventfdWaiter {
    fn drop(&mut self) {
        // SYNC eventfd_waiter.state: Release here, Acquire in `run`.
        self.shared.state.store(STOPPED, Ordering::Release);
        self.thread.unpark();
    }
}

impl Shared {
    fn run(&self, wait: impl Fn(Deadline) -> Result<bool>) {
        loop {
            // SYNC eventfd_waiter.state: Acquire here, Release in `arm` and `drop`.
            match self.state.load(Ordering::Acquire) {
                IDLE => thread::park(),
                ARMED => match wait(Deadline::after(Some(SLICE))) {
                    Ok(false) | Err(Error::Interrupted) => {}
                    Ok(true) | Err(_) => {
                        // SYNC eventfd_waiter.state: Release here, Acquire in `arm`. Before the signal: the loop may arm us
                        // again. It fails when we were stopped.
                        let _ = self.state.compare_exchange(ARMED, IDLE, Ordering::AcqRel, Ordering::Relaxed);
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

    fn is_readable(waiter: &EventfdWaiter, within: Duration) -> bool {
        let limit = Timespec { tv_sec: within.as_secs() as _, tv_nsec: within.subsec_nanos() as _ };
        poll(&mut [PollFd::new(&waiter.shared.signal, PollFlags::IN)], Some(&limit)).unwrap() == 1
    }

    #[test]
    fn each_arming_waits_once_and_signals_once() {
        let (tell, told) = mpsc::channel::<Result<bool>>();
        let waiter = EventfdWaiter::new(move |_| told.recv().unwrap_or(Err(Error::Closed))).unwrap();
        for end in [Ok(true), Err(Error::Closed)] {
            waiter.arm();
            waiter.arm();
            tell.send(Err(Error::Interrupted)).unwrap();
            tell.send(Ok(false)).unwrap();
            tell.send(end).unwrap();
            assert!(is_readable(&waiter, Duration::from_secs(10)));
            waiter.clear();
            assert!(!is_readable(&waiter, Duration::ZERO));
        }
    }

    #[test]
    fn a_waiter_that_is_dropped_lets_go_of_what_it_waited_for() {
        let held = Arc::new(());
        let theirs = held.clone();
        let (tell, told) = mpsc::channel::<()>();
        let waiter = EventfdWaiter::new(move |_| {
            let _ = &theirs;
            told.recv().map_err(|_| Error::Closed).map(|()| false)
        })
        .unwrap();
        waiter.arm();
        drop(waiter);
        tell.send(()).ok();
        drop(tell);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&held) > 1 {
            assert!(std::time::Instant::now() < deadline, "the thread did not end");
            thread::yield_now();
        }
    }
}
