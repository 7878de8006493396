//! The weights' state machine: atomics only, no system call but those of event counts, no payload. Loom runs this very code.
//!
//! ```text
//! writer:  begin ── select ── open (sequence 0) ── copy the leaves ── close (sequence v) ── publish (latest = v) ── ring ── end
//! reader:  pin ── latest again? ── sequence v? ── copy ── sequence still v? ── unpin
//!
//! writer word:  0 ──begin──▶ {A, writing} ──end──▶ {A} ──begin of B──▶ {B, writing} ──end──▶ {B} ──B leaves──▶ {A, which lives}, or 0
//!                                 └── A is dead: begin of B, which discards what A did not publish ──▶ {B, writing}
//! ```
//!
//! I1  At most one process writes at a time: the one that the writer word names as writing. It comes there by a CAS, from a
//!     word that names no process, one between two writes, or a dead one; and it goes by a CAS, after the last store of
//!     the write. Only it stores `latest`, `grown`, sequences and leaf entries, and only it writes into buffers. What the one
//!     before it stored happens before (release at the end, acquire at the beginning), so it reads on as if it were its own.
//! I2  The latest buffer is never written. Its sequence is the version in `latest`, stored before `latest` is (release).
//! I3  A buffer that a pin names, and of which its reader has seen after the pin that it is the latest, is not selected
//!     while another can be had. Pin and `latest` are a Dekker pair: the reader stores its pin, fences, loads `latest`; the
//!     writer has stored `latest`, fences, loads the pins. So either the writer sees the pin, or the reader sees that the
//!     buffer is not the latest any more, and lets go of it before it reads a byte. If another writer stored `latest`, its
//!     store still happens before the fence (I1).
//! I4  A buffer is written only while its sequence is 0, and 0 is stored before the first byte (release fence); a reader
//!     loads the sequence once more after the last byte (acquire fence). So a reader whose buffer was taken nevertheless
//!     notices, and reads again. Versions never come twice in `latest`, so a sequence that is the same is the same copy.
//! I5  A leaf of a buffer with a sequence other than 0 has the bytes that the leaf had in the version its entry names. A writer
//!     that was not the last one zeroes the sequences that were never published (above `latest`): the one before it may have
//!     died, and their version will come again, with other bytes.
//! I6  Wake-ups are those of event counts (B1): a writer notifies `published` after it moved `latest`, for readers, and after
//!     it ended its write, for writers.
//! I7  Once a writer has left, the writer word does not name it. It names a writer that lives, if there is one, so that it
//!     tells how the last writer to go has gone: 0, it left; anything else, it died.
//!
//! What is copied while the buffer may be written (I4) goes through [`super::copy`], which the compiler cannot look into.

use super::layout::{BufferHead, Control, Holder, LastWriter, Latest, LeafEntry, PinLine};
use super::recovery;
use crate::error::Damage;
use crate::segment::Owner;
#[cfg(not(loom))]
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{AtomicU64, Ordering, Point, crash_point, fence};

type Result<T> = std::result::Result<T, Damage>;

/// How often a reader pins again because a newer version came in between. For each turn a whole version has to be published
/// between two loads, so no healthy writer gets a reader this far.
const PIN_TURNS: usize = 1 << 16;

/// The words of weights, wherever they lie: in a segment, or on loom's heap.
#[derive(Debug, Clone, Copy)]
pub struct Protocol<'a> {
    pub control: &'a Control,
    pub pins: &'a [PinLine],
    /// As many as there may ever be.
    pub heads: &'a [BufferHead],
    /// Those of buffer 0, then those of buffer 1, …
    pub entries: &'a [LeafEntry],
}

impl<'a> Protocol<'a> {
    /// What was published last; `None` when nothing was.
    #[inline]
    pub fn latest(&self) -> Result<Option<Latest>> {
        // SYNC weights.latest: Acquire here, Release in `publish`. The buffer is whole (I2).
        self.check(self.control.publish.latest.load(Ordering::Acquire))
    }

    /// The words of another process are input: a buffer that does not exist is damage.
    #[inline]
    fn check(&self, word: u64) -> Result<Option<Latest>> {
        let latest = Latest::unpack(word);
        if latest.version == 0 {
            return Ok(None);
        }
        if latest.buffer >= self.grown() {
            return Err(Damage("the latest version lies in a buffer that does not exist"));
        }
        Ok(Some(latest))
    }

    /// How many buffers exist.
    #[inline]
    pub fn grown(&self) -> usize {
        // SYNC weights.grown: Acquire here, Release in `note_grown`. The pages may be touched.
        (self.control.publish.grown.load(Ordering::Acquire) as usize).min(self.heads.len())
    }

    /// Lets all processes use the buffers below `buffers`. Their pages exist.
    pub fn note_grown(&self, buffers: usize) {
        // SYNC weights.grown: Release here, Acquire in `grown`.
        self.control.publish.grown.store(buffers as u64, Ordering::Release);
    }

    /// The entries of a buffer.
    #[inline]
    pub fn entries_of(&self, buffer: usize) -> &'a [LeafEntry] {
        let leaves = self.entries.len() / self.heads.len();
        &self.entries[buffer * leaves..(buffer + 1) * leaves]
    }

    // ── writers ────────────────────────────────────────────────────────────────────────────────────────────────

    /// Begins a write (I1). `Err`: the living process that is in the middle of one.
    pub fn begin_write(&self, me: Owner, is_dead: impl Fn(Owner) -> bool) -> std::result::Result<(), Owner> {
        let [idle, writing] = [false, true].map(|is_writing| LastWriter { owner: me, is_writing }.pack());
        loop {
            let word = self.control.write.writer.load(Ordering::Relaxed);
            match LastWriter::unpack(word) {
                Some(last) if last.is_writing && last.owner == me => return Ok(()),
                Some(last) if last.is_writing && !is_dead(last.owner) => return Err(last.owner),
                _ => {}
            }
            // SYNC weights.writer: Acquire here, Release in `hand_over`. What the last writer stored is ours (I1).
            let taking = self.control.write.writer.compare_exchange(
                word,
                writing,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if taking.is_ok() {
                crash_point(Point::WriterTaken);
                if word != idle {
                    recovery::discard_unpublished(self.control, self.heads);
                }
                return Ok(());
            }
        }
    }

    /// Ends a write, published or not: from here on any process may begin one.
    pub fn end_write(&self, me: Owner) {
        self.hand_over(me, Some(me));
    }

    /// From `me`, which is writing, to the owner that counts as the last writer from now on.
    fn hand_over(&self, me: Owner, next: Option<Owner>) {
        let writing = LastWriter { owner: me, is_writing: true }.pack();
        let next = next.map_or(0, |owner| LastWriter { owner, is_writing: false }.pack());
        // SYNC weights.writer: Release here, Acquire in `begin_write`.
        let _ =
            self.control.write.writer.compare_exchange(writing, next, Ordering::Release, Ordering::Relaxed);
        crash_point(Point::WriteEnded);
        self.control.published.notify_if_waiting();
    }

    /// For a process that came to write: it is the last writer, unless a living one is.
    pub fn join_writers(&self, me: Owner, is_dead: impl Fn(Owner) -> bool) {
        let is_taken = self.last_writer().is_some_and(|last| !is_dead(last.owner));
        if !is_taken && self.begin_write(me, is_dead).is_ok() {
            self.end_write(me);
        }
    }

    /// For a writer that leaves: `next`, another writer that lives, is the last writer from now on, if there is one; unless a
    /// third one, which lives, is (I7). No other writer leaves meanwhile.
    pub fn leave_writers(&self, me: Owner, is_dead: impl Fn(Owner) -> bool, next: Option<Owner>) {
        let is_taken = self.last_writer().is_some_and(|last| last.owner != me && !is_dead(last.owner));
        if !is_taken && self.begin_write(me, is_dead).is_ok() {
            self.hand_over(me, next);
        }
    }

    /// The last writer; `None` when it left, or its seat has another holder.
    pub fn last_writer(&self) -> Option<LastWriter> {
        LastWriter::unpack(self.control.write.writer.load(Ordering::Relaxed))
    }

    /// The buffer for the next version: one that no reader pins; else one whose readers are dead; else a new one, if `grow`
    /// makes it; else the oldest, whose readers will notice (I4). It never waits.
    pub fn select(&self, is_dead: impl Fn(Owner) -> bool, grow: impl FnOnce(usize) -> bool) -> Result<usize> {
        let latest = self.latest()?.map(|latest| latest.buffer);
        if let Some(free) = self.unread(latest) {
            return Ok(free);
        }
        if recovery::clear_dead_pins(self.control, self.pins, is_dead) > 0
            && let Some(free) = self.unread(latest)
        {
            return Ok(free);
        }
        let grown = self.grown();
        if grown < self.heads.len() && grow(grown) {
            crash_point(Point::BufferGrown);
            self.note_grown(grown + 1);
            return Ok(grown);
        }
        self.control.counters.overtaken.fetch_add(1, Ordering::Relaxed);
        let oldest = (0..grown)
            .filter(|&buffer| Some(buffer) != latest)
            .min_by_key(|&buffer| self.heads[buffer].sequence.load(Ordering::Relaxed));
        oldest.ok_or(Damage("it has no buffer to write into"))
    }

    /// The first buffer that is not the latest, and that no pin names.
    fn unread(&self, latest: Option<usize>) -> Option<usize> {
        // SYNC weights.dekker: this fence pairs with the one in `pin` (I3). `latest` was stored before it, by us or before
        // our write began (I1).
        // SYNC weights.overtaken: it also pairs with the Acquire fence in `check_overtaken`.
        fence(Ordering::SeqCst);
        let mut read = [0u64; 4]; // One bit for each buffer.
        for pin in self.pins.iter().flat_map(|line| &line.pins) {
            // SYNC weights.unpin: Acquire here, Release in `unpin`. The reader is done with the bytes.
            if let Some(Holder { buffer, .. }) = Holder::unpack(pin.load(Ordering::Acquire)) {
                read[buffer / 64] |= 1 << (buffer % 64);
            }
        }
        (0..self.grown()).find(|&b| Some(b) != latest && read[b / 64] >> (b % 64) & 1 == 0)
    }

    /// Starts to write a buffer that `select` gave. True: its other leaves are as its entries say (I5).
    pub fn open(&self, buffer: usize) -> bool {
        let sequence = &self.heads[buffer].sequence;
        let reliable = sequence.load(Ordering::Relaxed) != 0;
        sequence.store(0, Ordering::Relaxed);
        // SYNC weights.sequence: this fence pairs with the one in `is_whole`. A reader that sees a byte of ours sees the 0 (I4).
        fence(Ordering::Release);
        crash_point(Point::BufferOpened);
        reliable
    }

    /// Ends it: every leaf and entry of `next` is written.
    pub fn publish(&self, next: Latest) {
        // SYNC weights.sequence: Release here, the Acquire fence in `is_whole`. A reader of the number sees every byte of it.
        self.heads[next.buffer].sequence.store(next.version, Ordering::Release);
        crash_point(Point::BufferWritten);
        #[cfg(not(loom))] // No process decides anything by it, and every store costs interleavings.
        self.control.publish.published_ns.store(monotonic_ns(), Ordering::Relaxed);
        // SYNC weights.latest: Release here, Acquire in `latest` and `pin` (I2).
        self.control.publish.latest.store(next.pack(), Ordering::Release);
        crash_point(Point::VersionPublished);
        self.control.published.notify_if_waiting();
    }

    // ── readers ────────────────────────────────────────────────────────────────────────────────────────────────

    /// Keeps the writer away from the latest buffer, and says which it is. `None` when nothing was published; then nothing is
    /// pinned. A latest version that goes back, or that moves on for ever, is damage (I4).
    pub fn pin(&self, pin: &AtomicU64, me: Owner) -> Result<Option<Latest>> {
        let Some(mut latest) = self.latest()? else { return Ok(None) };
        for _ in 0..PIN_TURNS {
            pin.store(Holder { owner: me, buffer: latest.buffer }.pack(), Ordering::Relaxed);
            // SYNC weights.dekker: this fence pairs with the one in `unread` (I3).
            fence(Ordering::SeqCst);
            crash_point(Point::ReaderPinned);
            // SYNC weights.latest: Acquire here, Release in `publish`.
            match self.check(self.control.publish.latest.load(Ordering::Acquire)) {
                Ok(Some(still)) if still == latest => return Ok(Some(latest)),
                Ok(Some(newer)) if newer.version > latest.version => latest = newer,
                Ok(_) => {
                    self.unpin(pin);
                    return Err(Damage("its latest version went back"));
                }
                Err(damage) => {
                    self.unpin(pin);
                    return Err(damage);
                }
            }
        }
        self.unpin(pin);
        Err(Damage("its latest version changes faster than a writer can write"))
    }

    /// Whether what was read since [`pin`](Self::pin) is `latest`, whole. The reader has read its last byte.
    #[inline]
    pub fn is_whole(&self, latest: Latest) -> bool {
        // SYNC weights.sequence: this fence pairs with the one in `open`. A reader of a newer byte loads a newer word (I4).
        fence(Ordering::Acquire);
        self.heads[latest.buffer].sequence.load(Ordering::Relaxed) == latest.version
    }

    /// Whether to read again, after `latest` was not whole: only if there is a newer version by now. The writer never writes
    /// into the latest buffer (I2), so a buffer that changed while it was the latest one is damage, and would never be whole.
    pub fn check_overtaken(&self, latest: Latest) -> Result<()> {
        // SYNC weights.overtaken: this fence pairs with the SeqCst one in `unread`, which lies between the store of the newer
        // `latest` and the 0 of `open`. A reader that has loaded the 0, or what followed it, loads the newer `latest` here.
        fence(Ordering::Acquire);
        match self.latest()? {
            Some(newer) if newer.version > latest.version => Ok(()),
            _ => Err(Damage("the buffer of its latest version does not hold that version")),
        }
    }

    /// Lets go of the buffer.
    #[inline]
    pub fn unpin(&self, pin: &AtomicU64) {
        // SYNC weights.unpin: Release here, Acquire in `unread`. Our reads come before the writer's next writes.
        pin.store(0, Ordering::Release);
    }
}
