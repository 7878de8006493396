//! A process that must not outlive another: a native thread watches the other one, and ends this process with it.
//!
//! Not `PR_SET_PDEATHSIG`: that one fires when the *thread* that forked us ends, and not at all under a fork server. And no
//! thread of the interpreter: an environment that never lets go of the GIL must not become an orphan either.

use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;

/// A handle on a process, by which the kernel tells whether it has ended.
#[derive(Debug)]
pub struct ProcessWatch(OwnedFd);

impl ProcessWatch {
    /// The caller makes sure that the pid is still the one it means.
    pub fn process(pid: u32) -> Result<ProcessWatch> {
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| Error::out_of_range("pid", pid as usize, "that of a process"))?;
        let handle = pidfd_open(id, PidfdFlags::empty())
            .map_err(|e| Error::io(format!("opening process {pid}, to know when it ends"), e))?;
        Ok(ProcessWatch(handle))
    }

    /// Whether it has ended, also if its parent has not waited for it yet.
    pub fn has_ended(&self) -> bool {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    fn wait(&self) {
        while poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) == Err(Errno::INTR) {}
    }

    /// Kills this process when the other one ends.
    pub fn exit_with_it(self) -> Result<()> {
        let watch = move || {
            self.wait();
            // SAFETY: a signal to ourselves, which the kernel handles alone.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        };
        let thread = std::thread::Builder::new().name("rollway-parent".to_owned());
        thread.spawn(watch).map(drop).map_err(|e| Error::io("starting the thread that watches the parent", e))
    }
}
