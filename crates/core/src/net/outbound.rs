//! What a client has to send, and keeps until it is acknowledged.
//!
//! ```text
//! append ──▶ open frame ──seal──▶ queue: ▣ ▣ ▣ │ ▢ ▢        ▣ written, not acknowledged (`written` of them)
//!                                       acknowledged ◀┘        ▢ not written on this connection
//! ```
//!
//! A frame is one buffer, leaf by leaf, so that it leaves with one vectored write. Buffers are used again; there are
//! at most as many as frames may be under way, and one. Nothing here sleeps or locks; the client does.
//!
//! O1  `acked ≤ every queued sample < next`, without gaps: what is not acknowledged is here.
//! O2  `touched` is one past the last sample that was ever given to a socket. What lies behind it cannot have
//!     arrived.
//! O3  A frame that was begun on a connection is finished on it before anything else is written.

use super::frame::{HEADER_BYTES, Header, Kind, Welcome};
use super::link::Link;
use super::stats::{ClientCounters, add};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::time::{Duration, Instant};

/// How long a frame with room left may wait for more samples.
pub const GATHER: Duration = Duration::from_micros(100);
/// Parts of one write.
const PARTS: usize = 32;

/// Adjacent samples of one version.
#[derive(Debug)]
struct Frame {
    first: u64,
    rows: usize,
    version: u32,
    /// `capacity` rows of each leaf.
    columns: Box<[u8]>,
}

impl Frame {
    fn end(&self) -> u64 {
        self.first + self.rows as u64
    }
}

/// The samples of one client.
#[derive(Debug)]
pub struct Outbound {
    leaf_bytes: Vec<usize>,
    /// Where each leaf begins in a frame's buffer.
    leaf_offsets: Vec<usize>,
    /// Rows that a buffer has room for, and rows that a frame may have on this connection.
    capacity: usize,
    frame_rows: usize,
    /// Frames that may be queued, and frames that the learner allows under way.
    limit: usize,
    credit: usize,
    open: Option<Frame>,
    opened: Instant,
    queue: VecDeque<Frame>,
    spare: Vec<Box<[u8]>>,
    written: usize,
    /// Bytes of the frame after those.
    offset: usize,
    /// What the learner wanted first on this connection.
    resumed_at: u64,
    pub next: u64,
    pub acked: u64,
    pub touched: u64,
    /// Small frames besides the data, and how much of them is written.
    control: Vec<u8>,
    control_sent: usize,
    /// The socket takes no more.
    pub blocked: bool,
}

impl Outbound {
    pub fn new(leaf_bytes: &[usize], capacity: usize, limit: usize) -> Outbound {
        let mut end = 0;
        let leaf_offsets = leaf_bytes
            .iter()
            .map(|bytes| {
                let offset = end;
                end += bytes * capacity;
                offset
            })
            .collect();
        Outbound {
            leaf_bytes: leaf_bytes.to_vec(),
            leaf_offsets,
            capacity,
            frame_rows: 0,
            limit,
            credit: 0,
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
        }
    }

    pub fn unacknowledged(&self) -> u64 {
        self.next - self.acked
    }

    /// Begins on a new connection, with what the learner wants next. An error is what it cannot want.
    pub fn resume(&mut self, welcome: &Welcome, counters: &ClientCounters) -> Result<(), String> {
        let largest = self.queue.iter().chain(&self.open).map(|frame| frame.rows).max().unwrap_or(0);
        if largest > welcome.max_rows as usize {
            let most = welcome.max_rows;
            return Err(format!(
                "the learner now takes {most} samples at a time, and {largest} are packed already"
            ));
        }
        if !(self.acked..=self.touched).contains(&welcome.next) {
            let (acked, touched, next) = (self.acked, self.touched, welcome.next);
            return Err(format!("the learner wants sample {next}; it can only want {acked} to {touched}"));
        }
        self.frame_rows = self.capacity.min(welcome.max_rows as usize);
        self.credit = welcome.credit as usize;
        (self.written, self.offset, self.resumed_at) = (0, 0, welcome.next);
        (self.control_sent, self.blocked) = (0, false);
        self.control.clear();
        self.release(welcome.next);
        let again = self.queue.iter().filter(|frame| frame.first < self.touched).count();
        add(&counters.frames_again, again as u64);
        Ok(())
    }

    /// Gives back the frames that are settled.
    fn release(&mut self, next: u64) {
        self.acked = self.acked.max(next);
        while self.queue.front().is_some_and(|frame| frame.end() <= next)
            && let Some(frame) = self.queue.pop_front()
        {
            self.spare.push(frame.columns);
            self.written = self.written.saturating_sub(1);
        }
    }

    /// The learner has settled everything below `next`. An error is what it cannot have.
    pub fn acknowledge(&mut self, next: u64, credit: u32) -> Result<(), &'static str> {
        let written = self.written.checked_sub(1).and_then(|last| self.queue.get(last));
        let through = written.map_or(self.acked, Frame::end).max(self.resumed_at);
        if next > through {
            return Err("it acknowledges samples that were not sent");
        }
        self.credit = credit.max(1) as usize;
        self.release(next);
        Ok(())
    }

    /// Copies rows in, as many as there is room for; says how many.
    ///
    /// # Safety
    ///
    /// Each leaf has `rows` rows of its size, one after the other.
    pub unsafe fn append(&mut self, leaves: &[*const u8], from: usize, rows: usize, version: u32) -> usize {
        if self.open.as_ref().is_some_and(|open| open.rows >= self.frame_rows || open.version != version) {
            self.seal();
        }
        if self.open.is_none() {
            if self.frame_rows == 0 || self.queue.len() >= self.limit {
                return 0;
            }
            let bytes = self.capacity * self.leaf_bytes.iter().sum::<usize>();
            let columns = self.spare.pop().unwrap_or_else(|| vec![0; bytes].into_boxed_slice());
            self.open = Some(Frame { first: self.next, rows: 0, version, columns });
            self.opened = Instant::now();
        }
        let Some(open) = &mut self.open else { return 0 };
        if open.version != version || open.rows >= self.frame_rows {
            return 0; // It could not be sealed.
        }
        let part = rows.min(self.frame_rows - open.rows);
        for (leaf, &bytes) in self.leaf_bytes.iter().enumerate() {
            let start = self.leaf_offsets[leaf] + open.rows * bytes;
            let room = &mut open.columns[start..start + part * bytes];
            // SAFETY: the caller vouches for the source; the room was just checked.
            unsafe { room.as_mut_ptr().copy_from_nonoverlapping(leaves[leaf].add(from * bytes), room.len()) };
        }
        open.rows += part;
        self.next += part as u64;
        if open.rows == self.frame_rows {
            self.seal();
        }
        part
    }

    /// Whether a sample would find room.
    pub fn has_room(&self) -> bool {
        let open = self.open.as_ref().is_some_and(|open| open.rows < self.frame_rows);
        self.frame_rows > 0 && (open || self.queue.len() < self.limit)
    }

    /// Closes the open frame, if the queue has room for it.
    fn seal(&mut self) -> bool {
        if self.queue.len() >= self.limit {
            return false;
        }
        match self.open.take() {
            Some(open) => {
                self.queue.push_back(open);
                true
            }
            None => false,
        }
    }

    /// Puts a small frame behind the one that is being written.
    pub fn say(&mut self, frame: &[u8]) {
        if self.control_sent == self.control.len() {
            self.control.clear();
            self.control_sent = 0;
        }
        // A learner that does not read is not worth more words.
        if self.control.len() < 64 * HEADER_BYTES {
            self.control.extend_from_slice(frame);
        }
    }

    /// The last frame: no data after it.
    pub fn finish(&mut self, goodbye: &[u8]) {
        self.credit = 0;
        self.say(goodbye);
    }

    /// When the open frame must leave, if the learner would take it.
    pub fn gathers_until(&self) -> Option<Instant> {
        let open = self.open.as_ref()?;
        let waits = open.rows > 0 && !self.blocked && self.written < self.window();
        waits.then(|| self.opened + GATHER)
    }

    fn window(&self) -> usize {
        self.credit.min(self.limit)
    }

    /// Writes what may be written now. `eager`: the open frame, too, though it has room left.
    pub fn pump(&mut self, link: &mut Link, eager: bool, counters: &ClientCounters) -> io::Result<()> {
        self.blocked = false;
        match self.pump_until_blocked(link, eager, counters) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.blocked = true;
                Ok(())
            }
            other => other,
        }
    }

    fn pump_until_blocked(
        &mut self,
        link: &mut Link,
        eager: bool,
        counters: &ClientCounters,
    ) -> io::Result<()> {
        link.flush()?;
        loop {
            if self.offset == 0 && self.control_sent < self.control.len() {
                self.control_sent += link.write(&[IoSlice::new(&self.control[self.control_sent..])])?;
                continue;
            }
            if self.offset == 0 && self.written >= self.window() {
                return link.flush();
            }
            if self.written == self.queue.len() {
                let Some(rows) = self.open.as_ref().map(|open| open.rows).filter(|&rows| rows > 0) else {
                    return link.flush();
                };
                let full = rows >= self.frame_rows;
                let leaves = eager || full || self.written == 0 || self.opened.elapsed() >= GATHER;
                if !(leaves && self.seal()) {
                    return link.flush();
                }
            }
            self.write_some(link, counters)?;
        }
    }

    /// One write of the frame that is next.
    fn write_some(&mut self, link: &mut Link, counters: &ClientCounters) -> io::Result<()> {
        let Some(frame) = self.queue.get(self.written) else { return Ok(()) };
        // The first rows may have arrived over another connection.
        let skip = self.resumed_at.saturating_sub(frame.first).min(frame.rows as u64) as usize;
        let rows = frame.rows - skip;
        let length: usize = rows * self.leaf_bytes.iter().sum::<usize>();
        let header = Header {
            rows: rows as u32,
            version: frame.version,
            sequence: frame.first + skip as u64,
            length: length as u64,
            ..Header::new(Kind::Data)
        }
        .bytes();
        let columns = self.leaf_offsets.iter().zip(&self.leaf_bytes).map(|(offset, bytes)| {
            let start = offset + skip * bytes;
            &frame.columns[start..start + rows * bytes]
        });
        let mut parts: [IoSlice<'_>; PARTS] = std::array::from_fn(|_| IoSlice::new(&[]));
        let (mut count, mut before) = (0, self.offset);
        for part in std::iter::once(&header[..]).chain(columns) {
            let gone = before.min(part.len());
            before -= gone;
            if gone < part.len() && count < PARTS {
                parts[count] = IoSlice::new(&part[gone..]);
                count += 1;
            }
        }
        self.touched = self.touched.max(frame.end());
        let written = link.write(&parts[..count])?;
        add(&counters.bytes, written as u64);
        self.offset += written;
        if self.offset == HEADER_BYTES + length {
            self.offset = 0;
            self.written += 1;
            add(&counters.frames, 1);
        }
        Ok(())
    }
}
