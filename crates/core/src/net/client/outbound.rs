//! Frames that a client has to send, and keeps until they are acknowledged.
//!
//! ```text
//! append ──▶ open frame ──seal──▶ queue: ▣ ▣ ▣ │ ▢ ▢        ▣ written, not acknowledged (`written` of them)
//!                                       acknowledged ◀┘        ▢ not written on this connection
//! ```
//!
//! The [`Layout`] says what is in a frame; here samples and records are numbers in a row. Buffers are reused; there are at most
//! one more than frames may be under way. Nothing here sleeps or locks; the client does.
//!
//! O1  `acked ≤ every queued sample < next`, without gaps: what is neither acknowledged nor dropped is here.
//! O2  `touched` is one past the last sample that was ever given to a socket. Later samples cannot have arrived.
//! O3  A frame that was begun on a connection is finished on it before anything else is written.
//! O4  One thread at a time writes: the one that has the [`Piece`]. It writes without the lock, while samples are added and
//!     acknowledged. Then it looks for the next piece, so that it also writes what other threads left to it.

use super::forwarded_batch::BatchRows;
use super::forwarded_records::RecordRun;
use super::packing::{Frame, Layout, Source};
use crate::error::{Error, Result};
use crate::net::wire::frame::{Content, Entry, HEADER_BYTES, Header, Welcome};
use crate::net::wire::limits::MAX_SAMPLE_BYTES;
use crate::net::wire::stats::{ClientCounters, add};
use crate::records::forwarding::Held;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a frame with room left may wait for more samples.
pub const GATHER: Duration = Duration::from_micros(100);
/// Parts of one write.
const PARTS: usize = 64;

/// The samples, or records, of one client.
#[derive(Debug)]
pub struct Outbound {
    layout: Arc<Layout>,
    /// Rows that a frame may have on this connection.
    frame_rows: usize,
    /// Bytes of the largest record that the learner takes.
    record_bytes: u64,
    /// Frames that may be queued, and frames that the learner allows under way.
    limit: usize,
    credit: usize,
    /// Samples that may be unacknowledged.
    most: usize,
    open: Option<Frame>,
    opened: Instant,
    queue: VecDeque<Arc<Frame>>,
    spare: Vec<Frame>,
    written: usize,
    /// Bytes of the frame after those.
    offset: usize,
    /// What the learner wanted first on this connection.
    resumed_at: u64,
    pub next: u64,
    /// Everything below is acknowledged, or dropped.
    pub acked: u64,
    pub touched: u64,
    /// Small frames besides the data, and how much of them is written.
    control: Vec<u8>,
    control_sent: usize,
    /// The socket takes no more.
    pub blocked: bool,
    /// A thread has a [`Piece`] of this connection, and will look for the next one when it is written (O4).
    writing: bool,
    /// Counts the connections.
    connection: u64,
}

/// What one write sends, while other threads may add samples.
#[derive(Debug)]
pub struct Piece {
    connection: u64,
    kind: PieceKind,
}

#[derive(Debug)]
enum PieceKind {
    Control(Vec<u8>),
    Data { frame: Arc<Frame>, header: [u8; HEADER_BYTES], skip: usize, offset: usize },
}

impl Outbound {
    pub fn new(layout: Layout, limit: usize, most: Option<usize>) -> Outbound {
        Outbound {
            layout: Arc::new(layout),
            frame_rows: 0,
            record_bytes: 0,
            limit,
            credit: 0,
            most: most.unwrap_or(usize::MAX),
            open: None,
            opened: Instant::now(),
            queue: VecDeque::new(),
            spare: Vec::new(),
            written: 0,
            offset: 0,
            resumed_at: 0,
            next: 0,
            acked: 0,
            touched: 0,
            control: Vec::new(),
            control_sent: 0,
            blocked: false,
            writing: false,
            connection: 0,
        }
    }

    /// The size of the learner's lane, if it is known and smaller than the largest record may be.
    pub fn lane_bytes(&self) -> Option<u64> {
        let is_said =
            matches!(*self.layout, Layout::Records | Layout::ForwardedRecords) && self.frame_rows > 0;
        (is_said && self.record_bytes < MAX_SAMPLE_BYTES as u64).then_some(self.record_bytes)
    }

    pub fn unacknowledged(&self) -> u64 {
        self.next - self.acked
    }

    /// Begins on a new connection. An error says which limit or number in the welcome is wrong.
    pub fn resume(&mut self, welcome: &Welcome, counters: &ClientCounters) -> Result<(), String> {
        let frames = || self.queue.iter().map(|frame| &**frame).chain(&self.open);
        let largest = frames().map(|frame| frame.rows).max().unwrap_or(0);
        if matches!(*self.layout, Layout::Records) && largest > welcome.max_rows as usize {
            let most = welcome.max_rows;
            return Err(format!(
                "the learner now takes {most} records at a time, and {largest} are packed already"
            ));
        }
        let largest = frames().map(Frame::largest_record).max().unwrap_or(0);
        if largest > welcome.max_bytes as u64 {
            let most = welcome.max_bytes;
            return Err(format!(
                "the learner now takes records of at most {most} bytes, and one of {largest} is packed already. Give its \
                 server a larger lane_bytes"
            ));
        }
        if !(self.acked..=self.touched).contains(&welcome.next) {
            let (acked, touched, next) = (self.acked, self.touched, welcome.next);
            return Err(format!(
                "the learner expects sample {next}, but only {acked} to {touched} are possible"
            ));
        }
        self.frame_rows = self.layout.capacity().min(welcome.max_rows as usize);
        self.record_bytes = welcome.max_bytes as u64;
        self.credit = welcome.credit as usize;
        (self.written, self.offset, self.resumed_at) = (0, 0, welcome.next);
        (self.control_sent, self.blocked) = (0, false);
        (self.writing, self.connection) = (false, self.connection + 1);
        self.control.clear();
        self.split_frames();
        self.release(welcome.next);
        self.trim_first(welcome.next);
        let again = self.queue.iter().filter(|frame| frame.first < self.touched).count();
        add(&counters.frames_again, again as u64);
        Ok(())
    }

    /// Divides the frames that have more rows than the learner now takes.
    fn split_frames(&mut self) {
        let (layout, most) = (self.layout.clone(), self.frame_rows);
        let is_large = |frame: &Frame| frame.rows > most;
        if let Some(open) = self.open.take_if(|open| is_large(open)) {
            self.queue.push_back(Arc::new(open));
        }
        if self.queue.iter().any(|frame| is_large(frame)) {
            let parts = self.queue.drain(..).flat_map(|frame| match is_large(&frame) {
                true => layout.split(&frame, most),
                false => vec![frame],
            });
            self.queue = parts.collect();
        }
    }

    /// Takes the rows below `next` out of a forwarded frame: the index of one that is sent in part would not fit.
    fn trim_first(&mut self, next: u64) {
        if let Some(first) = self.queue.front_mut()
            && let Some(known) = next.checked_sub(first.first)
            && known > 0
            && let Some(rest) = first.part(known as usize, usize::MAX)
        {
            *first = Arc::new(rest);
        }
    }

    /// Queues the rows of a batch of a node's ring.
    pub fn append_batch(&mut self, batch: BatchRows) {
        self.append_source(Source::Rows(batch));
    }

    /// Queues records of a node.
    pub fn append_records(&mut self, records: Vec<Held>) {
        RecordRun::divide(records).for_each(|run| self.append_source(Source::Records(run)));
    }

    fn append_source(&mut self, source: Source) {
        let frame = Frame::forwarded(self.next, source);
        self.next = frame.end();
        match self.frame_rows {
            most if most > 0 && frame.rows > most => self.queue.extend(self.layout.split(&frame, most)),
            _ => self.queue.push_back(Arc::new(frame)),
        }
    }

    /// Goes on where an earlier forwarder was: its next number, and what it may have sent, which ends there: so many samples or
    /// records, which `append` queues.
    pub fn restore(&mut self, next: u64, rows: usize, append: impl FnOnce(&mut Outbound)) {
        self.acked = next - rows as u64;
        self.next = self.acked;
        append(self);
        self.touched = self.next;
    }

    /// Lets go of everything.
    pub fn clear(&mut self) {
        self.queue.clear();
        (self.written, self.offset, self.acked) = (0, 0, self.next);
    }

    /// Gives up what was sent and is not acknowledged: a learner that does not know it cannot tell whether it arrived. Later
    /// samples go to that learner.
    pub fn drop_sent(&mut self, counters: &ClientCounters) {
        add(&counters.dropped, self.unknown_fate());
        self.release(self.touched);
    }

    /// How many samples were given to a socket and are not acknowledged.
    pub fn unknown_fate(&self) -> u64 {
        self.touched.saturating_sub(self.acked)
    }

    /// Gives back the frames that are settled.
    fn release(&mut self, next: u64) {
        self.acked = self.acked.max(next);
        while self.queue.front().is_some_and(|frame| frame.end() <= next)
            && let Some(frame) = self.queue.pop_front()
        {
            // Not if a thread still writes it to a connection that was lost.
            self.spare.extend(Arc::into_inner(frame).filter(|frame| self.layout.is_reusable(frame)));
            self.written = self.written.saturating_sub(1);
        }
    }

    /// The learner has settled everything below `next`. An error says why it cannot have.
    pub fn acknowledge(&mut self, next: u64, credit: u32) -> Result<(), &'static str> {
        // The frame that is being written may arrive before `finish` is called; of a frame of records, the first ones are
        // committed while the others are on their way.
        let given = self.written + (self.writing || self.offset > 0) as usize;
        let written = given.min(self.queue.len()).checked_sub(1).and_then(|last| self.queue.get(last));
        let through = written.map_or(self.acked, |frame| frame.end()).max(self.resumed_at);
        if next > through {
            return Err("it acknowledges samples that were not sent");
        }
        self.credit = credit.max(1) as usize;
        self.release(next);
        Ok(())
    }

    /// Copies as many rows as there is room for; returns how many.
    ///
    /// # Safety
    ///
    /// Each leaf has `rows` rows of its size, one after the other.
    pub unsafe fn append(&mut self, leaves: &[*const u8], from: usize, rows: usize, version: u32) -> usize {
        let fits = |open: &Frame| open.version == version;
        if !self.make_room(fits, version, 0) {
            return 0;
        }
        let allowed = self.allowed();
        let Some(open) = &mut self.open else { return 0 };
        let part = rows.min(self.frame_rows - open.rows).min(allowed);
        // SAFETY: the caller vouches for the leaves.
        unsafe { self.layout.put_samples(open, leaves, from, part) };
        self.added(part)
    }

    /// Calls `write` with room for a record, if there is some; returns 0 or 1.
    pub fn append_record(&mut self, entry: Entry, write: impl FnOnce(&mut [u8])) -> Result<usize> {
        self.check_record(entry.bytes)?;
        if !self.make_room(|open| open.fits_record(entry.bytes), 0, entry.bytes as usize) {
            return Ok(0);
        }
        let Some(open) = &mut self.open else { return Ok(0) };
        open.put_record(entry, write);
        Ok(self.added(1))
    }

    /// Whether the learner takes records of so many bytes, if that is known.
    pub fn check_record(&self, bytes: u64) -> Result<()> {
        if self.frame_rows > 0 && bytes > self.record_bytes {
            return Err(Error::RecordTooLarge { bytes, lane_bytes: self.record_bytes });
        }
        Ok(())
    }

    /// Makes the open frame have room for a row, and fulfil `fits`.
    fn make_room(&mut self, fits: impl Fn(&Frame) -> bool, version: u32, bytes: usize) -> bool {
        if self.allowed() == 0 {
            return false;
        }
        let (layout, rows) = (&self.layout, self.frame_rows);
        let takes = |open: &Frame| !layout.is_full(open, rows) && fits(open);
        let Some(open) = &self.open else { return self.open(version, bytes) };
        takes(open) || self.seal() && self.open(version, bytes)
    }

    /// Samples that may be added, as far as their number is limited.
    fn allowed(&self) -> usize {
        self.most.saturating_sub(self.unacknowledged() as usize)
    }

    /// Opens a frame, if there may be one more.
    fn open(&mut self, version: u32, bytes: usize) -> bool {
        if self.frame_rows == 0 || self.queue.len() >= self.limit {
            return false;
        }
        self.open = Some(self.layout.open(&mut self.spare, self.next, version, bytes));
        self.opened = Instant::now();
        true
    }

    /// Counts rows that were put into the open frame, and closes it when it is full.
    fn added(&mut self, rows: usize) -> usize {
        self.next += rows as u64;
        if self.open.as_ref().is_some_and(|open| self.layout.is_full(open, self.frame_rows)) {
            self.seal();
        }
        rows
    }

    /// Whether a sample would find room, or a record of so many bytes.
    pub fn has_room(&self, bytes: u64) -> bool {
        let records = self.layout.content() == Content::Records;
        let room = |open: &Frame| !records || open.fits_record(bytes);
        let open = self.open.as_ref().is_some_and(|open| open.rows < self.frame_rows && room(open));
        self.frame_rows > 0 && self.allowed() > 0 && (open || self.queue.len() < self.limit)
    }

    /// Closes the open frame, if the queue has room for it.
    fn seal(&mut self) -> bool {
        if self.queue.len() >= self.limit {
            return false;
        }
        match self.open.take() {
            Some(open) => {
                if open.rows > 0 {
                    self.queue.push_back(Arc::new(open));
                }
                true
            }
            None => false,
        }
    }

    /// Queues a small frame behind the one that is being written; returns whether it did.
    pub fn queue(&mut self, frame: &[u8]) -> bool {
        if self.control_sent == self.control.len() {
            self.control.clear();
            self.control_sent = 0;
        }
        // Not for a learner that does not read.
        let listens = self.control.len() < 64 * HEADER_BYTES;
        if listens {
            self.control.extend_from_slice(frame);
        }
        listens
    }

    /// The last frame: no data after it.
    pub fn finish_with(&mut self, goodbye: &[u8]) {
        self.credit = 0;
        self.queue(goodbye);
    }

    /// When the open frame must leave, if the learner would take it.
    pub fn flush_at(&self) -> Option<Instant> {
        let open = self.open.as_ref()?;
        let waits = open.rows > 0 && !self.blocked && self.written < self.window();
        waits.then(|| self.opened + GATHER)
    }

    fn window(&self) -> usize {
        self.credit.min(self.limit)
    }

    /// Whether every small frame is written.
    pub fn control_is_sent(&self) -> bool {
        self.control_sent == self.control.len()
    }

    /// Whether there is something to write, and no thread writes.
    pub fn has_work(&self) -> bool {
        let data = self.written < self.queue.len() && self.written < self.window();
        !self.writing && !self.blocked && (data || self.offset > 0 || !self.control_is_sent())
    }

    /// Whether data is under way, so that the client's thread may write the rest.
    pub fn is_under_way(&self) -> bool {
        self.written > 0
    }

    /// The next thing to write, if anything may be written now. `eager`: also the open frame, though it has room left. The caller
    /// writes some of the piece and gives it to [`finish`](Self::finish).
    pub fn begin(&mut self, eager: bool) -> Option<Piece> {
        if self.writing || self.blocked {
            return None;
        }
        let kind = if self.offset == 0 && !self.control_is_sent() {
            PieceKind::Control(self.control[self.control_sent..].to_vec())
        } else {
            self.next_data(eager)?
        };
        self.writing = true;
        Some(Piece { connection: self.connection, kind })
    }

    fn next_data(&mut self, eager: bool) -> Option<PieceKind> {
        if self.offset == 0 && self.written >= self.window() {
            return None;
        }
        if self.written == self.queue.len() {
            let open = self.open.as_ref().filter(|open| open.rows > 0)?;
            let full = self.layout.is_full(open, self.frame_rows);
            let leaves = eager || full || self.written == 0 || self.opened.elapsed() >= GATHER;
            if !(leaves && self.seal()) {
                return None;
            }
        }
        let frame = self.queue.get(self.written)?.clone();
        // The first rows may have arrived over another connection.
        let skip = self.resumed_at.saturating_sub(frame.first).min(frame.rows as u64) as usize;
        let rows = frame.rows - skip;
        let header = Header {
            rows: rows as u32,
            version: frame.version,
            sequence: frame.first + skip as u64,
            length: self.layout.length(&frame, skip) as u64,
            ..Header::new(self.layout.kind())
        };
        self.touched = self.touched.max(frame.end());
        Some(PieceKind::Data { frame, header: header.bytes(), skip, offset: self.offset })
    }

    pub fn layout(&self) -> Arc<Layout> {
        self.layout.clone()
    }

    /// Notes the result of a write. An error ends the connection, unless the piece is of an earlier one.
    pub fn finish(
        &mut self,
        piece: Piece,
        written: io::Result<usize>,
        counters: &ClientCounters,
    ) -> io::Result<()> {
        if piece.connection != self.connection {
            return Ok(());
        }
        self.writing = false;
        let written = match written {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.blocked = true;
                return Ok(());
            }
            written => written?,
        };
        match piece.kind {
            PieceKind::Control(_) => self.control_sent += written,
            PieceKind::Data { frame, skip, .. } => {
                add(&counters.bytes, written as u64);
                self.offset += written;
                let waits = self.queue.get(self.written).is_some_and(|next| Arc::ptr_eq(next, &frame));
                if self.offset == HEADER_BYTES + self.layout.length(&frame, skip) {
                    self.offset = 0;
                    self.written += waits as usize; // Unless it is acknowledged, and gone.
                    add(&counters.frames, 1);
                } else if !waits {
                    return Err(io::Error::new(ErrorKind::InvalidData, "acknowledged before it was sent"));
                }
            }
        }
        Ok(())
    }
}

impl Piece {
    /// Calls `write` with the bytes; it returns how many it took.
    pub fn write(
        &self,
        layout: &Layout,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let (frame, header, skip, offset) = match &self.kind {
            PieceKind::Control(bytes) => return write(&[IoSlice::new(bytes)]),
            PieceKind::Data { frame, header, skip, offset } => (frame, header, *skip, *offset),
        };
        let mut parts: [IoSlice<'_>; PARTS] = std::array::from_fn(|_| IoSlice::new(&[]));
        let (mut count, mut before) = (0, offset);
        for part in std::iter::once(&header[..]).chain(layout.parts(frame, skip)) {
            let gone = before.min(part.len());
            before -= gone;
            if gone < part.len() && count < PARTS {
                parts[count] = IoSlice::new(&part[gone..]);
                count += 1;
            }
        }
        write(&parts[..count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::wire::frame::LearnerStatus;

    const WELCOME: Welcome = Welcome {
        producer_id: 0,
        max_rows: 512,
        max_bytes: 1000,
        credit: 4,
        next: 0,
        status: LearnerStatus { version: 0, waiting: 0 },
    };

    /// Samples of one byte, `capacity` to a frame.
    fn samples(capacity: usize, limit: usize, most: Option<usize>) -> (Outbound, ClientCounters) {
        let layout = Layout::samples(&[1, 1], capacity);
        let (mut outbound, counters) = (Outbound::new(layout, limit, most), ClientCounters::default());
        outbound.resume(&WELCOME, &counters).unwrap();
        (outbound, counters)
    }

    /// Adds samples whose leaves are their numbers and twice that; returns how many there was room for.
    fn add_samples(outbound: &mut Outbound, count: u8) -> usize {
        let first = outbound.next as u8;
        let numbers: Vec<u8> = (first..first + count).collect();
        let doubled: Vec<u8> = numbers.iter().map(|number| 2 * number).collect();
        let (leaves, mut added) = ([numbers.as_ptr(), doubled.as_ptr()], 0);
        loop {
            // SAFETY: the leaves have `count` rows of one byte.
            match unsafe { outbound.append(&leaves, added, count as usize - added, 0) } {
                0 => return added,
                part => added += part,
            }
            if added == count as usize {
                return added;
            }
        }
    }

    #[test]
    fn no_more_samples_than_allowed_are_unacknowledged_and_an_acknowledgement_makes_room() {
        let (mut outbound, counters) = samples(4, 8, Some(6));
        assert_eq!(add_samples(&mut outbound, 10), 6);
        assert!(!outbound.has_room(0));
        write(&mut outbound, &counters, 1000);
        outbound.acknowledge(4, 4).unwrap();
        assert!(outbound.has_room(0));
        assert_eq!((add_samples(&mut outbound, 10), outbound.unacknowledged()), (4, 6));
    }

    #[test]
    fn what_was_sent_is_dropped_and_what_was_packed_goes_to_the_next_learner() {
        let (mut outbound, counters) = samples(4, 8, None);
        add_samples(&mut outbound, 10);
        write(&mut outbound, &counters, 1000);
        write(&mut outbound, &counters, 3); // Also a frame of which a part was written.
        outbound.acknowledge(2, 4).unwrap();
        outbound.drop_sent(&counters);
        outbound.drop_sent(&counters); // There is no more.
        assert_eq!((outbound.acked, counters.snapshot().dropped, outbound.unacknowledged()), (8, 6, 2));
        outbound.resume(&Welcome { next: 8, ..WELCOME }, &counters).unwrap();
        let written = write(&mut outbound, &counters, 1000);
        assert_eq!(Header::parse(&written).unwrap().unwrap().sequence, 8);
        assert_eq!(written[HEADER_BYTES..], [8, 9, 16, 18]);
    }

    #[test]
    fn a_learner_with_smaller_batches_gets_the_packed_samples_in_smaller_frames() {
        let (mut outbound, counters) = samples(8, 8, None);
        add_samples(&mut outbound, 13);
        write(&mut outbound, &counters, 1000);
        outbound.resume(&Welcome { max_rows: 3, next: 7, ..WELCOME }, &counters).unwrap();
        let mut seen: Vec<u8> = (0..7).collect();
        while outbound.unacknowledged() > 0 {
            let written = write(&mut outbound, &counters, 1000);
            let header = Header::parse(&written).unwrap().unwrap();
            let rows = header.rows as usize;
            assert!((1..=3).contains(&rows) && header.sequence == seen.len() as u64);
            let (numbers, doubled) = written[HEADER_BYTES..].split_at(rows);
            assert!(numbers.iter().zip(doubled).all(|(number, doubled)| 2 * number == *doubled));
            seen.extend_from_slice(numbers);
            outbound.acknowledge(seen.len() as u64, 4).unwrap();
        }
        assert_eq!(seen, (0..13).collect::<Vec<u8>>());
    }

    /// Three records of 3, 0 and 5 bytes, not written yet.
    fn three_records() -> (Outbound, ClientCounters) {
        let (mut outbound, counters) = (Outbound::new(Layout::Records, 4, None), ClientCounters::default());
        outbound.resume(&WELCOME, &counters).unwrap();
        for (kind, bytes) in [(1, 3), (2, 0), (3, 5)] {
            let entry = Entry { bytes, version: 9, kind };
            assert_eq!(outbound.append_record(entry, |room| room.fill(kind as u8)).unwrap(), 1);
        }
        (outbound, counters)
    }

    /// Writes up to `most` bytes of the next piece; gives what was written.
    fn write(outbound: &mut Outbound, counters: &ClientCounters, most: usize) -> Vec<u8> {
        let piece = outbound.begin(true).unwrap();
        let mut bytes = Vec::new();
        let written = piece.write(&outbound.layout(), |parts| {
            bytes = parts.iter().flat_map(|part| part.to_vec()).take(most).collect();
            Ok(bytes.len())
        });
        outbound.finish(piece, written, counters).unwrap();
        bytes
    }

    fn parsed(bytes: &[u8]) -> (Header, Vec<Entry>, Vec<u8>) {
        let header = Header::parse(bytes).unwrap().unwrap();
        let (index, records) = bytes[HEADER_BYTES..].split_at(header.rows as usize * 16);
        assert_eq!(header.length as usize, index.len() + records.len());
        (header, Entry::all(index).collect(), records.to_vec())
    }

    #[test]
    fn a_frame_is_resumed_in_its_middle_with_the_rest_of_its_index_and_records() {
        let (mut outbound, counters) = three_records();
        let (header, entries, records) = parsed(&write(&mut outbound, &counters, 1000));
        assert_eq!((header.rows, header.sequence, entries.len()), (3, 0, 3));
        assert_eq!(records, [1, 1, 1, 3, 3, 3, 3, 3]);
        outbound.resume(&Welcome { next: 1, ..WELCOME }, &counters).unwrap();
        let (header, entries, records) = parsed(&write(&mut outbound, &counters, 1000));
        assert_eq!((header.rows, header.sequence), (2, 1));
        assert_eq!(
            entries.iter().map(|entry| (entry.kind, entry.bytes)).collect::<Vec<_>>(),
            [(2, 0), (3, 5)]
        );
        assert_eq!(records, [3; 5]);
    }

    #[test]
    fn an_acknowledgement_in_the_middle_of_a_frame_that_is_half_written_is_believed() {
        let (mut outbound, counters) = three_records();
        assert!(outbound.acknowledge(1, 4).is_err(), "nothing was sent");
        write(&mut outbound, &counters, HEADER_BYTES + 3 * 16 + 3);
        outbound.acknowledge(1, 4).unwrap();
        assert_eq!((outbound.acked, outbound.unacknowledged()), (1, 2));
        assert_eq!(write(&mut outbound, &counters, 1000), [3; 5]);
        outbound.acknowledge(3, 4).unwrap();
        assert!(outbound.queue.is_empty() && outbound.spare.len() == 1);
    }

    #[test]
    fn a_record_larger_than_a_frame_has_one_of_its_own_whose_buffer_is_not_kept() {
        let (mut outbound, counters) = (Outbound::new(Layout::Records, 4, None), ClientCounters::default());
        let large = 3 * crate::net::wire::limits::FRAME_BYTES;
        outbound.resume(&Welcome { max_bytes: large as u32, ..WELCOME }, &counters).unwrap();
        for bytes in [10, large as u64, 10] {
            assert_eq!(outbound.append_record(Entry { bytes, version: 0, kind: 0 }, |_| {}).unwrap(), 1);
        }
        for rows in [(0, 1), (1, 1), (2, 1)] {
            let header = Header::parse(&write(&mut outbound, &counters, usize::MAX)).unwrap().unwrap();
            assert_eq!((header.sequence, header.rows), rows);
        }
        outbound.acknowledge(3, 4).unwrap();
        assert_eq!(outbound.spare.len(), 2);
        let error = outbound.append_record(Entry { bytes: large as u64 + 1, version: 0, kind: 0 }, |_| {});
        assert!(matches!(error, Err(Error::RecordTooLarge { .. })));
    }
}
