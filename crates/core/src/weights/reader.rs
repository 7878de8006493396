//! A reader: copies the latest version, whole. The writer does not wait for it, and it waits only when asked to.

use super::copy::{self, BufferCopies, CopyLeaves, HostCopies, LeafCopy};
use super::layout::PINS;
use super::writer::out_of_range;
use super::{Weights, WeightsSpec};
use crate::error::{Error, Result};
use crate::policies::IfExists;
use crate::segment::{Owner, PeerWatch, Role, Seat};
use crate::sys::fork;
use crate::sys::signals;
use crate::sys::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sys::wait::{Deadline, wait_for};
use std::sync::Arc;
use std::time::Duration;

/// Where the bytes of a leaf go.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub leaf: usize,
    pub to: *mut u8,
}

// SAFETY: the pointer is used by `Reader::read` only, whose caller answers for it.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

/// What a read brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub version: u64,
    /// Which of the targets were written, by their place in the list: those that changed since.
    pub copied: Vec<usize>,
}

/// One reader's handle. Threads may share it.
#[derive(Debug)]
pub struct Reader {
    weights: Arc<Weights>,
    seat: Seat,
    threads: usize,
    /// `generation << 32 | bits`: which words of our pin line threads of this process are using.
    pins_used: AtomicU64,
    /// Up to which buffer our page table is filled.
    populated: AtomicU32,
    /// Whether this handle was closed. Calls that wait in other threads look at it.
    closing: AtomicBool,
}

impl Reader {
    /// Opens or makes weights, to read them. New ones have no writer at first.
    pub fn open(spec: &WeightsSpec<'_>, if_exists: IfExists, threads: usize) -> Result<Reader> {
        Weights::open_or_create(spec, if_exists, |weights| Reader::attach_to(weights, threads))
    }

    /// Sits down in weights that are mapped.
    pub fn attach_to(weights: Arc<Weights>, threads: usize) -> Result<Reader> {
        Reader::attach_as(Role::Consumer, weights, threads)
    }

    /// As [`attach_to`](Self::attach_to). `role`: [`Role::Consumer`], or [`Role::NetworkReader`] for remote workers.
    pub fn attach_as(role: Role, weights: Arc<Weights>, threads: usize) -> Result<Reader> {
        let seat = Seat::take(weights.segment().clone(), role, |seat| weights.sweep(seat))?;
        let populated = AtomicU32::new(weights.protocol().grown() as u32);
        let (pins_used, closing) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Reader { weights, seat, threads, pins_used, populated, closing })
    }

    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// Our owner; a forked child sits down on a seat of its own first.
    pub(super) fn owner(&self) -> Result<Owner> {
        self.seat.owner_or_rejoin(|seat| self.weights.sweep(seat))
    }

    /// Copies the leaves that changed after version `since` (0: all of them) into their targets. `None`: nothing was
    /// published yet.
    ///
    /// The copy is made again as long as the writer overtakes it; [`Error::Interrupted`] when a signal comes meanwhile. After
    /// an error the targets may hold anything.
    ///
    /// # Safety
    /// Each target has as many bytes as its leaf, mapped for writing, and only this call uses them.
    pub unsafe fn read(&self, targets: &[Target], since: u64) -> Result<Option<Reading>> {
        // SAFETY: as the caller promises.
        unsafe { self.read_with(targets, since, &HostCopies) }
    }

    /// As [`read`](Self::read), by copies of the caller's.
    ///
    /// # Safety
    /// As for [`read`](Self::read), but that the targets are where `how` copies to.
    pub unsafe fn read_with(
        &self,
        targets: &[Target],
        since: u64,
        how: &impl CopyLeaves,
    ) -> Result<Option<Reading>> {
        loop {
            // SAFETY: as the caller promises.
            match unsafe { self.try_read_with(targets, since, how) } {
                Err(Error::Timeout) if signals::are_noted() => return Err(Error::Interrupted),
                Err(Error::Timeout) => {}
                done => return done,
            }
        }
    }

    /// As [`read_with`](Self::read_with), for callers that hold a lock: copies once. [`Error::Timeout`] when the writer overtook
    /// the copy.
    ///
    /// # Safety
    /// As for [`read_with`](Self::read_with).
    pub unsafe fn try_read_with<C: CopyLeaves>(
        &self,
        targets: &[Target],
        since: u64,
        how: &C,
    ) -> Result<Option<Reading>> {
        let me = self.owner()?;
        let (weights, protocol) = (&self.weights, self.weights.protocol());
        let geometry = weights.geometry();
        if let Some(wrong) = targets.iter().find(|target| target.leaf >= geometry.leaves()) {
            return Err(out_of_range(wrong.leaf, geometry.leaves()));
        }
        let lent = self.lend_pin();
        // With more threads than pins, one reads without: the writer may overtake it, and it reads again (I4).
        let without = AtomicU64::default();
        let pin = lent.as_ref().map_or(&without, |lent| &protocol.pins[me.seat()].pins[lent.index]);
        let pinned = protocol.pin(pin, me).map_err(|damage| weights.damaged(damage))?;
        let Some(latest) = pinned else { return Ok(None) };
        self.populate(latest.buffer);
        let entries = protocol.entries_of(latest.buffer);
        // A version from the future is none of ours: then everything is new.
        let since = if since > latest.version { 0 } else { since };
        let changed = |leaf: usize| entries[leaf].version.load(Ordering::Relaxed) > since;
        let copied: Vec<usize> = (0..targets.len()).filter(|&i| changed(targets[i].leaf)).collect();
        let copies: Vec<LeafCopy> = copied
            .iter()
            .map(|&i| {
                let Target { leaf, to } = targets[i];
                let (from, bytes) = (weights.leaf(latest.buffer, leaf), geometry.leaf_bytes[leaf]);
                LeafCopy { leaf, from, to, bytes }
            })
            .collect();
        let one = BufferCopies { weights, buffer: latest.buffer, copies: &copies, threads: self.threads };
        // SAFETY: the targets are as the caller promises, the buffer exists, and if the writer overtakes us the copy is
        // thrown away below (C1).
        let wrong = unsafe {
            let sum = |leaf: usize| entries[leaf].checksum.load(Ordering::Relaxed);
            how.copy(&one).map(|()| self.first_wrong(&copies, C::ON_HOST, sum))
        };
        let whole = protocol.is_whole(latest);
        protocol.unpin(pin);
        let wrong = wrong?;
        if !whole {
            protocol.check_overtaken(latest).map_err(|damage| weights.damaged(damage))?;
            protocol.control.counters.retries.fetch_add(1, Ordering::Relaxed);
            return Err(Error::Timeout);
        }
        match wrong {
            None => Ok(Some(Reading { version: latest.version, copied })),
            Some(leaf) => {
                let name = weights.segment().name().to_owned();
                Err(Error::Checksum { name, leaf, version: latest.version })
            }
        }
    }

    /// The first leaf that does not have its checksum: its copy, or one made here if that is not `on_host`.
    ///
    /// # Safety
    /// As for [`copy::checksums`].
    unsafe fn first_wrong(
        &self,
        copies: &[LeafCopy],
        on_host: bool,
        expected: impl Fn(usize) -> u64,
    ) -> Option<usize> {
        if !self.weights.has_checksums() {
            return None;
        }
        let mut scratch = Vec::new();
        let mut readable = copies.to_vec();
        if !on_host {
            scratch.resize(copies.iter().map(|copy| copy.bytes).sum(), 0u8);
            let mut rest = scratch.as_mut_slice();
            for copy in &mut readable {
                let (here, after) = rest.split_at_mut(copy.bytes);
                (copy.to, rest) = (here.as_mut_ptr(), after);
            }
            // SAFETY: the buffer is as for the copy that was made, and each leaf has its part of the scratch.
            unsafe { copy::copy_all(&readable, self.threads) };
        }
        // SAFETY: as the caller promises, or the scratch.
        let sums = unsafe { copy::checksums(&readable, self.threads) };
        copies.iter().zip(sums).find(|(copy, sum)| *sum != expected(copy.leaf)).map(|(copy, _)| copy.leaf)
    }

    /// Fills in the page table for a buffer that came into being after we did.
    pub(super) fn populate(&self, buffer: usize) {
        if buffer >= self.populated.load(Ordering::Relaxed) as usize {
            let geometry = self.weights.geometry();
            self.weights.segment().populate_body(geometry.buffer_offset(buffer), geometry.buffer_bytes);
            self.populated.fetch_max(buffer as u32 + 1, Ordering::Relaxed);
        }
    }

    pub(super) fn lend_pin(&self) -> Option<LentPin<'_>> {
        let now = u64::from(fork::generation()) << 32;
        // The threads of a parent did not come with us through the fork, nor did its seat.
        let used_now = |used: u64| if used >> 32 == now >> 32 { used as u32 } else { 0 };
        let lend = |used: u64| {
            let free = used_now(used).trailing_ones();
            ((free as usize) < PINS).then(|| now | u64::from(used_now(used)) | 1 << free)
        };
        // SYNC reader.pins: Acquire here, Release in `LentPin::drop`. The thread that had it has unpinned.
        let before = self.pins_used.fetch_update(Ordering::Acquire, Ordering::Relaxed, lend).ok()?;
        Some(LentPin { used: &self.pins_used, index: used_now(before).trailing_ones() as usize })
    }

    /// Takes back what [`LentPin::keep`] kept.
    pub(super) fn return_pin(&self, index: usize) {
        drop(LentPin { used: &self.pins_used, index });
    }

    /// Sleeps until a version of at least `version` is there, and says which is. [`Error::PeersGone`] when there has been no
    /// living writer for as long as `peer_timeout` says; [`Error::Closed`] when nothing more will come, or this handle was closed.
    pub fn wait_for(&self, version: u64, deadline: Deadline, peer_timeout: Option<Duration>) -> Result<u64> {
        self.owner()?;
        let event = &self.weights.protocol().control.published;
        let mut peer_watch = PeerWatch::with_timeout(peer_timeout);
        let look = || {
            let closed = self.weights.is_closed() || self.closing.load(Ordering::Relaxed);
            match self.weights.version()? {
                there if there >= version => Ok(Some(there)),
                _ if closed => Err(Error::Closed),
                _ => Ok(None),
            }
        };
        let check = || match peer_watch.has_timed_out(|| !self.has_writer()) {
            None => Ok(()),
            Some(timeout) => Err(self.writer_gone(version, self.weights.version()?, timeout)),
        };
        wait_for(event, || event.announce(), deadline, look, check)?.ok_or(Error::Timeout)
    }

    /// Ends the calls that wait with this handle, in whichever thread, and every later one. The seat stays until it is dropped.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        // A forked child that has read nothing has no waiters of its own, and leaves its parent's alone.
        if self.seat.owner().is_some() {
            // A thread that announced itself before this wakes; one that does so later sees the flag (SYNC event.ticket).
            self.weights.protocol().control.published.notify();
        }
    }

    /// The pid of a living writer: the last one, if it lives. Asks the kernel.
    pub fn living_writer(&self) -> Option<u32> {
        let last = self.weights.protocol().last_writer().map(|last| last.owner);
        let living =
            last.filter(|&last| self.seat.is_alive(last)).or_else(|| self.seat.another(Role::Producer));
        living.map(|writer| self.weights.pid_of(writer))
    }

    /// Whether there is a living writer. Asks the kernel.
    pub fn has_writer(&self) -> bool {
        self.living_writer().is_some()
    }

    fn writer_gone(&self, version: u64, there: u64, timeout: Duration) -> Error {
        let death = self.weights.writer_pid().map_or("there is no writer".to_owned(), |pid| {
            format!("the writer (pid {pid}) died without closing")
        });
        Error::PeersGone(format!(
            "{death}: version {version} of '{}' did not come, {there} is the latest, and no writer took over in {timeout:.0?}. Look at \
             the learner's log, or raise peer_timeout_s",
            self.weights.segment().name(),
        ))
    }
}

/// One word of our pin line, for one thread.
pub(super) struct LentPin<'a> {
    used: &'a AtomicU64,
    index: usize,
}

impl LentPin<'_> {
    /// Keeps it until [`Reader::return_pin`].
    pub(super) fn keep(self) -> usize {
        let index = self.index;
        std::mem::forget(self);
        index
    }
}

impl Drop for LentPin<'_> {
    fn drop(&mut self) {
        // SYNC reader.pins: Release here, Acquire in `lend_pin`.
        self.used.fetch_and(!(1 << self.index), Ordering::Release);
    }
}

#[cfg(all(test, not(loom), feature = "fault"))]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_a_read_that_the_writer_overtakes_again_and_again() {
        use crate::sys::sync::{Ordering, Point, fault};
        use crate::weights::{Source, Writer};
        let spec = WeightsSpec {
            name: None,
            auto_named: false,
            schema: br#"{"leaves":[["w","uint8",[8]]],"tree":0}"#,
            leaf_bytes: &[8],
            max_buffers: 3,
            max_peers: 4,
            checksum: false,
        };
        let writer = Writer::open(&spec, IfExists::Fail, 1).unwrap();
        let (from, mut to) = (1u64, 0u64);
        // SAFETY: the leaf has eight bytes, as the number has.
        unsafe { writer.write(&[Source { leaf: 0, from: (&raw const from).cast() }]) }.unwrap();
        let reader = Reader::attach_to(writer.weights().clone(), 1).unwrap();
        let weights = writer.weights().clone();
        // There is a newer version after every copy, and its buffer never holds it.
        let claim_newer =
            move || weights.protocol().control.publish.latest.fetch_add(1 << 8, Ordering::Relaxed);
        claim_newer();
        fault::on_point(move |at| {
            if at == Point::LeafHalfCopied {
                claim_newer();
            }
        });
        let targets = [Target { leaf: 0, to: (&raw mut to).cast() }];
        // SAFETY: as above.
        let read = signals::watched_here(|| true, || unsafe { reader.read(&targets, 0) });
        fault::on_point(|_| {});
        assert!(matches!(read, Err(Error::Interrupted)), "{read:?}");
    }
}
