//! Threads of the library, which handle no signals.

use crate::error::{Error, Result};
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
