//! The segments of this user: listing them, and collecting the stale ones.

use super::header::{SeatRecord, seat_state};
use super::lease::{self, StaleOwner};
use super::mapping::{PREFIX, Segment, directory, in_directory, path_of, unix_ns};
use crate::error::{Error, Result};
use crate::sys::sync::Ordering;
use rustix::fs::{self, Mode, OFlags};

/// One line of `rollway ls`.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: String,
    /// What it may grow to.
    pub bytes: u64,
    /// What it takes up now.
    pub used_bytes: u64,
    /// The structure in its body: the `KIND` of its layout; 0 when it could not be read.
    pub kind: u32,
    /// Handles attached, by the kernel's own record.
    pub alive: usize,
    pub creator_pid: u32,
    pub created_unix_ns: u64,
    /// The processes of these handles, one for each, as their owners saw them.
    pub pids: Vec<u32>,
    /// Why it could not be read, if it could not.
    pub problem: Option<String>,
}

/// Every segment in the directory that bears our prefix.
pub fn list() -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = names()?.into_iter().filter_map(|name| describe(&name)).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Removes every stale segment; gives back what was removed.
pub fn collect_all() -> Result<Vec<Entry>> {
    let mut removed = Vec::new();
    for entry in list()? {
        if entry.problem.is_none() && entry.alive == 0 && collect(&entry.name)? {
            removed.push(entry);
        }
    }
    Ok(removed)
}

/// A creation looks at no more segments than this, however many there are.
const LOOKS: usize = 64;

/// Removes stale segments with automatic names: no process comes back for them. Where there are many, it looks at some of them,
/// and at others the next time.
pub(super) fn collect_auto_named() -> Result<()> {
    let mut names = names()?;
    if names.len() > LOOKS {
        names.sort_unstable();
        let start = unix_ns() as usize % names.len();
        names.rotate_left(start);
        names.truncate(LOOKS);
    }
    for name in names.iter().filter(|name| looks_stale(name)) {
        // A failure does not stop the creation: `rollway ls` shows the segment.
        let _ = collect(name);
    }
    Ok(())
}

/// Whether the name is automatic and no participant seems to live. Reads the header and the locks, and maps nothing.
fn looks_stale(name: &str) -> bool {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(file) = fs::open(path_of(name), flags, Mode::empty()) else { return false };
    let Ok(stat) = fs::fstat(&file) else { return false };
    Segment::read_header(name, &path_of(name), &file, stat.st_size as u64)
        .is_ok_and(|(header, _)| header.auto_named == 1 && !lease::is_held_by_anybody(&file))
}

/// Removes the name of a stale segment; false when a participant lives, or the name is gone already.
///
/// Only the holder of every lease of a file may remove its name. So between our look at the name and its removal,
/// no process can have put another file there: it would have had to remove this one first.
pub fn collect(name: &str) -> Result<bool> {
    collect_unless(name, |_| false)
}

/// As [`collect`], but keeps a segment of which `is_kept` says so. No process can sit down there while it is asked.
pub fn collect_unless(name: &str, is_kept: impl FnOnce(&Segment) -> bool) -> Result<bool> {
    let segment = match Segment::open(name, None) {
        Ok(segment) => segment,
        Err(Error::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    match StaleOwner::of(&segment)? {
        Some(_owner) if is_kept(&segment) => Ok(false),
        Some(_owner) => segment.unlink(),
        None => Ok(false),
    }
}

fn names() -> Result<Vec<String>> {
    let dir = directory();
    let listing = std::fs::read_dir(&dir).map_err(|e| in_directory("looking for segments", e))?;
    let ours = |e: std::fs::DirEntry| Some(e.file_name().to_str()?.strip_prefix(PREFIX)?.to_owned());
    Ok(listing.filter_map(|e| e.ok()).filter_map(ours).collect())
}

fn describe(name: &str) -> Option<Entry> {
    let unreadable = |problem: String| Entry {
        name: name.to_owned(),
        bytes: fs::stat(path_of(name)).map_or(0, |s| s.st_size as u64),
        used_bytes: fs::stat(path_of(name)).map_or(0, |s| s.st_blocks as u64 * 512),
        kind: 0,
        alive: 0,
        creator_pid: 0,
        created_unix_ns: 0,
        pids: Vec::new(),
        problem: Some(problem),
    };
    let segment = match Segment::open_read_only(name) {
        Ok(segment) => segment,
        Err(Error::NotFound { .. }) => return None, // Gone since the listing.
        Err(error) => return Some(unreadable(error.to_string())),
    };
    let alive = match lease::seats_alive(&segment) {
        Ok(alive) => alive,
        Err(error) => return Some(unreadable(error.to_string())),
    };
    let joined = |seat: &&SeatRecord| seat.state.load(Ordering::Relaxed) == seat_state::JOINED;
    let seats = alive.iter().map(|&seat| &segment.seats()[seat]).filter(joined);
    let pids = seats.map(|seat| seat.pid.load(Ordering::Relaxed)).collect();
    let header = segment.header();
    Some(Entry {
        name: name.to_owned(),
        bytes: header.total_bytes,
        used_bytes: segment.used_bytes(),
        kind: header.kind,
        alive: alive.len(),
        creator_pid: header.creator_pid,
        created_unix_ns: header.created_unix_ns,
        pids,
        problem: None,
    })
}
