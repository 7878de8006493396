//! Threads of the library, which handle no signals.

use crate::error::{Error, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Starts a thread of ours. Signals are for the threads of the program, whose waits they interrupt; all but those
/// that a thread raises itself, by a fault.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    const FAULTS: [i32; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];
    // SAFETY: the sets are initialised before use, and belong to this thread. The new thread inherits the mask; ours
    // is put back.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        for fault in FAULTS {
            libc::sigdelset(&mut set, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, &mut before);
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started.map_err(|error| Error::io(format!("cannot start thread {name}"), error))
    }
}

/// A thread that belongs to a handle. A forked child has a copy of the handle, but not the thread.
#[derive(Debug)]
pub struct OwnedThread {
    thread: Mutex<Option<JoinHandle<()>>>,
    pid: u32,
}

impl OwnedThread {
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<OwnedThread> {
        Ok(OwnedThread { thread: Mutex::new(Some(spawn(name, work)?)), pid: std::process::id() })
    }

    /// False in a forked child.
    pub fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }

    /// An error in a forked child. `what`: the handle.
    pub fn check_process(&self, what: &'static str) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked { what, owner: self.pid }) }
    }

    /// Waits until it ends. Idempotent.
    pub fn join(&self) {
        // In a forked child a thread that is not there may hold the lock.
        if self.is_here()
            && let Some(thread) = lock(&self.thread).take()
        {
            let _ = thread.join();
        }
    }
}

/// Locks a mutex, also one whose holder panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
