//! A writer: fills the next buffer and publishes it. It waits for no reader, and for another writer only when asked to.

use super::copy::{BufferCopies, CopyLeaves, HostCopies, LeafCopy};
use super::layout::LastWriter;
use super::{Weights, WeightsSpec};
use crate::error::{Error, Result};
use crate::policies::IfExists;
use crate::segment::lease::JoinLock;
use crate::segment::{Owner, Role, Seat};
use crate::sys::sync::{AtomicBool, Ordering};
use crate::sys::wait::{Deadline, wait_for};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the bytes of a leaf come from.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    pub leaf: usize,
    pub from: *const u8,
}

// SAFETY: the pointer is used by `Writer::write` only, whose caller answers for it.
unsafe impl Send for Source {}
// SAFETY: as above.
unsafe impl Sync for Source {}

/// A writer's handle. There may be several, of which one writes at a time (I1).
#[derive(Debug)]
pub struct Writer {
    weights: Arc<Weights>,
    seat: Seat,
    pid: u32,
    threads: usize,
    /// Whether no other handle may ever write: the versions come from elsewhere, with numbers of their own.
    is_mirror: bool,
    /// Threads that share the handle write one after the other.
    turn: Mutex<()>,
    /// Whether this handle was closed. Calls that wait in other threads look at it.
    closing: AtomicBool,
}

impl Writer {
    /// Opens or makes weights, to write them: for their learner. Refused while another process that opened them like this lives.
    pub fn open(spec: &WeightsSpec<'_>, if_exists: IfExists, threads: usize) -> Result<Writer> {
        Weights::open_or_create(spec, if_exists, |weights| Writer::attach_alone(weights, threads))
    }

    /// Sits down in weights that are mapped, to write them beside others.
    pub fn attach_to(weights: Arc<Weights>, threads: usize) -> Result<Writer> {
        let writer = Writer::sit_down(weights, threads, Role::Producer)?;
        writer.join()
    }

    fn attach_alone(weights: Arc<Weights>, threads: usize) -> Result<Writer> {
        // Of two that come at once, the second sees the first.
        let _join_lock = JoinLock::acquire(weights.segment())?;
        let writer = Writer::sit_down(weights, threads, Role::OwnProducer)?;
        match writer.seat.another(Role::OwnProducer) {
            Some(other) => Err(Error::WriterLives { name: writer.name(), pid: writer.weights.pid_of(other) }),
            None => writer.join(),
        }
    }

    /// Becomes the only writer of a mirror, for as long as the handle lives.
    pub(super) fn attach_mirror(weights: Arc<Weights>, threads: usize) -> Result<Writer> {
        let mut writer = Writer::sit_down(weights, threads, Role::OwnProducer)?;
        let me = writer.owner()?;
        if let Err(other) = writer.weights.protocol().begin_write(me, |other| !writer.seat.is_alive(other)) {
            return Err(Error::WriterLives { name: writer.name(), pid: writer.weights.pid_of(other) });
        }
        writer.is_mirror = true;
        Ok(writer)
    }

    fn sit_down(weights: Arc<Weights>, threads: usize, role: Role) -> Result<Writer> {
        let seat = Seat::take(weights.segment().clone(), role, |seat| weights.sweep(seat))?;
        Ok(Writer {
            weights,
            seat,
            pid: std::process::id(),
            threads,
            is_mirror: false,
            turn: Mutex::new(()),
            closing: AtomicBool::new(false),
        })
    }

    fn join(self) -> Result<Writer> {
        if self.weights.is_mirror() {
            return Err(Error::Mirrored { name: self.name() });
        }
        self.weights.protocol().join_writers(self.owner()?, |other| !self.seat.is_alive(other));
        Ok(self)
    }

    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    fn name(&self) -> String {
        self.weights.segment().name().to_owned()
    }

    /// Whether this process made the handle: a forked child makes one of its own.
    pub fn is_of_this_process(&self) -> bool {
        self.seat.owner().is_some()
    }

    fn owner(&self) -> Result<Owner> {
        self.seat.owner().ok_or(Error::Forked { what: "writer of weights", owner: self.pid })
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Begins a write, after those of other threads. [`Error::Writing`] when another process is in the middle of one.
    pub(super) fn begin_write(&self) -> Result<Turn<'_>> {
        let me = self.owner()?;
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let protocol = self.weights.protocol();
        if self.is_mirror {
            if protocol.last_writer() != Some(LastWriter { owner: me, is_writing: true }) {
                let what = "another process became its writer while this one lives";
                return Err(self.weights.damaged(super::Damage(what)));
            }
        } else if let Err(other) = protocol.begin_write(me, |other| !self.seat.is_alive(other)) {
            return Err(Error::Writing { name: self.name(), pid: self.weights.pid_of(other) });
        }
        Ok(Turn { writer: self, me, _turn: turn })
    }

    /// Sleeps until no other process is in the middle of a write, or until the deadline. [`Error::Closed`] when this handle was
    /// closed.
    pub fn wait_idle(&self, deadline: Deadline) -> Result<()> {
        self.owner()?;
        let protocol = self.weights.protocol();
        let event = &protocol.control.published;
        let is_busy =
            || protocol.last_writer().is_some_and(|last| last.is_writing && self.seat.is_alive(last.owner));
        let look = || match self.closing.load(Ordering::Relaxed) {
            true => Err(Error::Closed),
            false => Ok((!is_busy()).then_some(())),
        };
        wait_for(event, || event.announce(), deadline, look, || Ok(())).map(|_| ())
    }

    /// Ends the calls that wait with this handle, in whichever thread, and every later wait.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        if self.is_of_this_process() {
            // A thread that announced itself before this wakes; one that does so later sees the flag (SYNC event.ticket).
            self.weights.protocol().control.published.notify();
        }
    }

    /// The buffer for the next version.
    pub(super) fn select(&self) -> Result<usize> {
        let (weights, geometry) = (&self.weights, self.weights.geometry());
        let grow =
            |buffer| weights.segment().grow(geometry.buffer_offset(buffer), geometry.buffer_bytes).is_ok();
        let selected = weights.protocol().select(|reader| !self.seat.is_alive(reader), grow);
        selected.map_err(|damage| weights.damaged(damage))
    }

    /// Publishes the next version and says which it is. Leaves that are not among the sources stay as they are.
    /// [`Error::Writing`] when another process is in the middle of a write; see [`wait_idle`](Self::wait_idle).
    ///
    /// # Safety
    /// Each source has as many bytes as its leaf, mapped for reading, until this returns.
    pub unsafe fn write(&self, sources: &[Source]) -> Result<u64> {
        // SAFETY: as the caller promises.
        unsafe { self.write_with(sources, &HostCopies) }
    }

    /// As [`write`](Self::write), by copies of the caller's. When they fail, nothing is published.
    ///
    /// # Safety
    /// As for [`write`](Self::write), but that the sources are where `how` copies from.
    pub unsafe fn write_with(&self, sources: &[Source], how: &impl CopyLeaves) -> Result<u64> {
        let from = self.sources_by_leaf(sources)?;
        let given: Vec<usize> = (0..from.len()).filter(|&leaf| from[leaf].is_some()).collect();
        let draft = self.begin(None, &given)?;
        let copies: Vec<LeafCopy> = given
            .iter()
            .filter_map(|&leaf| {
                let (to, bytes) = draft.place(leaf);
                Some(LeafCopy { leaf, from: from[leaf]?, to, bytes })
            })
            .collect();
        let (weights, buffer) = (&self.weights, draft.buffer());
        let copies = BufferCopies { weights, buffer, copies: &copies, threads: self.threads };
        // SAFETY: the sources are as the caller promises, and the places of the draft are ours (I1).
        unsafe { how.copy(&copies)? };
        draft.publish(None)
    }

    /// The source of each leaf. Of two for one leaf, the last counts.
    fn sources_by_leaf(&self, sources: &[Source]) -> Result<Vec<Option<*const u8>>> {
        let leaves = self.weights.geometry().leaves();
        let mut from = vec![None; leaves];
        for source in sources {
            let place = from.get_mut(source.leaf).ok_or_else(|| out_of_range(source.leaf, leaves))?;
            *place = Some(source.from);
        }
        Ok(from)
    }
}

pub(super) fn out_of_range(leaf: usize, leaves: usize) -> Error {
    Error::out_of_range("leaf", leaf, format!("below {leaves}"))
}

impl Drop for Writer {
    /// Leaves, while no other writer does (I7).
    fn drop(&mut self) {
        if let Some(me) = self.seat.owner() {
            // Without it when no descriptor is left, or its holder was stopped.
            let _join_lock = JoinLock::acquire(self.weights.segment()).ok().flatten();
            let next = self.seat.another(Role::Producer);
            self.weights.protocol().leave_writers(me, |other| !self.seat.is_alive(other), next);
            self.seat.leave();
        }
    }
}

/// A write that has begun. Dropped, it has ended.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub writer: &'a Writer,
    me: Owner,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.writer.is_mirror {
            self.writer.weights.protocol().end_write(self.me);
        }
    }
}
