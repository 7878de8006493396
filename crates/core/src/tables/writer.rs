//! A writer: steps, one after the other, and items that are windows of the last of them.

use super::Tables;
use super::index::Steps;
use crate::error::Result;
use crate::replay::Source;
use crate::segment::{Activity, Owner};
use crate::sys::opaque_copy::copy_field;
use crate::sys::sync::{Ordering, Point, crash_point, fence};
use crate::sys::wait::Deadline;
use std::collections::VecDeque;
use std::sync::Arc;

/// One stream of steps. Items can be made of the last `history` of them.
#[derive(Debug)]
pub struct Writer {
    tables: Arc<Tables>,
    history: usize,
    /// The chunks of the steps from `base` on.
    chunks: VecDeque<u32>,
    base: u64,
    /// The number of the next step.
    next: u64,
    /// The process that the chunks belong to; a forked child has none of them.
    owner: Option<Owner>,
}

impl Writer {
    pub fn new(tables: Arc<Tables>, history: usize) -> Writer {
        Writer { tables, history: history.max(1), chunks: VecDeque::new(), base: 0, next: 0, owner: None }
    }

    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// How many steps were appended.
    pub fn steps(&self) -> u64 {
        self.next
    }

    /// The oldest step that an item can still have.
    pub fn oldest(&self) -> u64 {
        self.base.max(self.next.saturating_sub(self.history as u64))
    }

    /// Where a step lies that an item can have.
    pub fn place(&self, step: u64) -> u64 {
        assert!((self.oldest()..self.next).contains(&step), "it was written, and is not forgotten");
        let per = self.tables.geometry.chunk_steps as u64;
        let (chunk, offset) = ((step - self.base) / per, (step - self.base) % per);
        self.chunks[chunk as usize] as u64 * per + offset
    }

    /// Appends the steps `done..count`, and moves `done` as they are written. [`Error::Timeout`](crate::Error::Timeout) when there was no room in
    /// time.
    ///
    /// # Safety
    /// There is one source for each field, with `count` rows, alive and unchanged.
    pub unsafe fn append(
        &mut self,
        sources: &[Source],
        done: &mut usize,
        count: usize,
        deadline: Deadline,
    ) -> Result<()> {
        assert_eq!(sources.len(), self.tables.geometry.fields.len(), "one source for each field");
        let tables = self.tables.clone();
        tables.check_open()?;
        let owner = tables.owner()?;
        if self.owner != Some(owner) {
            self.forget(owner); // The parent's chunks are the parent's.
        }
        let per = tables.geometry.chunk_steps as u64;
        while *done < count {
            if self.next == self.base + self.chunks.len() as u64 * per {
                self.next_chunk(deadline)?;
            }
            let (chunk, offset) =
                (*self.chunks.back().expect("it was just taken") as u64, (self.next - self.base) % per);
            let place = tables.step(chunk * per + offset);
            for (source, field) in sources.iter().zip(&tables.geometry.fields) {
                // SAFETY: the field lies in the step, whose chunk is ours (T3); the rest is as the caller promises. A reader may
                // copy the same bytes, of an item that is gone (C1): it throws them away (T4).
                unsafe { copy_field(place.add(field.offset), source.row(*done), field.bytes) };
                crash_point(Point::StepHalfWritten);
            }
            self.next += 1;
            *done += 1;
        }
        crash_point(Point::StepWritten);
        Ok(())
    }

    /// Goes over to another chunk, and lets go of those that no item can be made of any more.
    fn next_chunk(&mut self, deadline: Deadline) -> Result<()> {
        let tables = self.tables.clone();
        let per = tables.geometry.chunk_steps as u64;
        let needed = self.next.saturating_sub(self.history as u64);
        loop {
            let taken = tables.locked(deadline, |owner| {
                let steps = tables.steps();
                while !self.chunks.is_empty() && self.base + per <= needed {
                    steps.let_go(self.chunks.pop_front().expect("there is one") as usize);
                    self.base += per;
                }
                let taken = steps.take(owner).or_else(|| tables.make_room(&steps, owner))?;
                if let Some(&last) = self.chunks.back() {
                    steps.chunks[last as usize].next.store(taken as u32, Ordering::Relaxed);
                } else {
                    self.base = self.next;
                }
                self.chunks.push_back(taken as u32);
                Some(())
            })?;
            // SYNC tables.turn: Release fence here, Acquire fence in `is_unchanged`. The items that had this chunk are gone (T4).
            fence(Ordering::Release);
            if taken.is_some() {
                return Ok(());
            }
            let room = &tables.control().room;
            let is_free = || tables.control().store.free_count.load(Ordering::Relaxed) > 0;
            tables.wait_on(room, Activity::WaitRoom, deadline, is_free)?;
        }
    }

    fn forget(&mut self, owner: Owner) {
        self.chunks.clear();
        self.base = self.next;
        self.owner = Some(owner);
    }

    /// Lets go of everything: no item can be made of what was appended so far.
    pub fn close(&mut self) -> Result<()> {
        if self.owner.is_none() || self.owner != self.tables.seat.owner() || self.tables.check_open().is_err()
        {
            self.chunks.clear(); // Of a parent, or of tables that are gone.
            return Ok(());
        }
        let tables = self.tables.clone();
        tables.locked(Deadline::Never, |_| {
            let steps = tables.steps();
            self.chunks.drain(..).for_each(|chunk| steps.let_go(chunk as usize));
        })?;
        self.base = self.next;
        tables.control().room.notify_if_waiting();
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.close(); // A seat that is left, or a process that dies, gives its chunks back as well.
    }
}

impl Tables {
    /// Frees a chunk, by removing items where that loses nothing that a sampler was promised: of tables that do not hold
    /// their writers back. The lock is held. `None`: others hold all of them.
    fn make_room(&self, steps: &Steps<'_>, owner: Owner) -> Option<usize> {
        super::recovery::sweep(&self.indexes(), |owner| !self.seat.is_alive(owner));
        let indexes = self.indexes();
        loop {
            if let Some(chunk) = steps.take(owner) {
                return Some(chunk);
            }
            let removable = indexes.iter().filter(|index| index.config.limiter.is_free());
            let largest = removable.max_by_key(|index| index.counts().size)?;
            let (item, _) = largest.choose(1, self.removal_stream(), largest.counts().inserts)?;
            largest.remove(item);
        }
    }
}
