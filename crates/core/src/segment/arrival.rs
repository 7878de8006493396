//! Waiting for a segment to appear, or for a stale one to be replaced, by watching the directory.

use super::mapping::{Segment, check_name, directory, path_of};
use crate::error::{Error, Result};
use crate::sys::signals;
use crate::sys::wait::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use std::time::Duration;

/// Waits until a segment of this name can be opened. [`Error::NotFound`] when the time is over.
pub fn wait_for(name: &str, deadline: Deadline) -> Result<()> {
    attach(name, deadline, || Segment::open(name, None).map(drop))
}

/// Attaches to a segment of this name as soon as there is one. A stale one of another shape counts as none: the learner that
/// is about to start replaces it. After the deadline, the error of the last attempt.
pub fn attach<T>(name: &str, deadline: Deadline, mut attach: impl FnMut() -> Result<T>) -> Result<T> {
    check_name(name)?;
    // The watch comes before the look: what appears in between is an event.
    let watch = watch_directory();
    let mut met = None;
    loop {
        let error = match attach() {
            Err(error @ Error::NotFound { .. }) => error,
            Err(error) if error.is_mismatch() && is_stale(name) => error,
            Err(error) if error.is_mismatch() => {
                // A participant lives there, perhaps in a successor of what we met. Once more for each segment of this name.
                let there = identity(name);
                if met.is_some() && (met == Some(there) || deadline.remaining().is_none()) {
                    return Err(error);
                }
                met = Some(there);
                continue;
            }
            done => return done,
        };
        met = None;
        let Some(left) = deadline.remaining() else { return Err(error) };
        // Without a watch (the user's inotify instances may be used up) we look twenty times a second.
        let nap = signals::nap(if watch.is_some() { left } else { left.min(Duration::from_millis(50)) });
        let limit =
            Timespec { tv_sec: nap.as_secs().min(i32::MAX as u64) as _, tv_nsec: nap.subsec_nanos() as _ };
        let ended = match &watch {
            Some(watch) => poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&limit)).map(|_| drain(watch)),
            None => poll(&mut [], Some(&limit)).map(|_| ()),
        };
        match ended {
            Ok(()) if signals::are_noted() => return Err(Error::Interrupted),
            Ok(()) => {}
            Err(Errno::INTR) => return Err(Error::Interrupted),
            Err(e) => return Err(Error::io(format!("waiting for segment '{name}'"), e)),
        }
    }
}

/// Whether it is stale, or gone. Doubt counts as life.
fn is_stale(name: &str) -> bool {
    match Segment::open(name, None) {
        Err(error) => matches!(error, Error::NotFound { .. }),
        Ok(segment) => segment.is_live().is_ok_and(|live| !live),
    }
}

/// Which segment the name leads to, if to any. The kernel gives the number to no other file of the directory soon.
fn identity(name: &str) -> Option<(u64, i64, u64)> {
    let stat = rustix::fs::stat(path_of(name)).ok()?;
    Some((stat.st_ino, stat.st_ctime, stat.st_ctime_nsec as u64))
}

fn watch_directory() -> Option<rustix::fd::OwnedFd> {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok()?;
    let events = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&watch, directory(), events).ok()?;
    Some(watch)
}

/// Empties the queue of events; that something happened is all we need to know.
fn drain(watch: &rustix::fd::OwnedFd) {
    let mut events = [0u8; 4096];
    while rustix::io::read(watch, &mut events).is_ok_and(|bytes| bytes > 0) {}
}
