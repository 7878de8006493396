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
//! O4  One at a time writes: he who has the [`Piece`]. He needs no lock for that; samples are added, and acknowledged,
//!     meanwhile. When he is done he looks for the next piece, so what the others left to him is not forgotten.

use super::frame::{HEADER_BYTES, Header, Kind, Welcome};
use super::stats::{ClientCounters, add};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a frame with room left may wait for more samples.
pub const GATHER: Duration = Duration::from_micros(100);
/// Parts of one write.
const PARTS: usize = 32;

/// Adjacent samples of one version.
#[derive(Debug)]
pub struct Frame {
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

/// Where the leaves lie in a frame's buffer.
#[derive(Debug)]
pub struct Layout {
    leaf_bytes: Vec<usize>,
    leaf_offsets: Vec<usize>,
    /// Rows that a buffer has room for.
    capacity: usize,
}

impl Layout {
    fn new(leaf_bytes: &[usize], capacity: usize) -> Layout {
        let mut end = 0;
        let place = |bytes: &usize| {
            end += bytes * capacity;
            end - bytes * capacity
        };
        let leaf_offsets = leaf_bytes.iter().map(place).collect();
        Layout { leaf_bytes: leaf_bytes.to_vec(), leaf_offsets, capacity }
    }

    fn sample_bytes(&self) -> usize {
        self.leaf_bytes.iter().sum()
    }

    /// The start of each leaf, and the bytes of one row of it.
    fn leaves(&self) -> impl Iterator<Item = (usize, usize)> {
        self.leaf_offsets.iter().copied().zip(self.leaf_bytes.iter().copied())
    }
}

/// The samples of one client.
#[derive(Debug)]
pub struct Outbound {
    layout: Arc<Layout>,
    /// Rows that a frame may have on this connection.
    frame_rows: usize,
    /// Frames that may be queued, and frames that the learner allows under way.
    limit: usize,
    credit: usize,
    open: Option<Frame>,
    opened: Instant,
    queue: VecDeque<Arc<Frame>>,
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
    /// Somebody has a [`Piece`] of this connection, and will look for the next one when it is written (O4).
    writing: bool,
    /// Counts the connections.
    connection: u64,
}

/// What one write is about, so that it can be done while others add samples.
#[derive(Debug)]
pub struct Piece {
    connection: u64,
    words: Words,
}

#[derive(Debug)]
enum Words {
    Control(Vec<u8>),
    Data { frame: Arc<Frame>, header: [u8; HEADER_BYTES], skip: usize, offset: usize },
}

impl Outbound {
    pub fn new(leaf_bytes: &[usize], capacity: usize, limit: usize) -> Outbound {
        Outbound {
            layout: Arc::new(Layout::new(leaf_bytes, capacity)),
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
            writing: false,
            connection: 0,
        }
    }

    pub fn unacknowledged(&self) -> u64 {
        self.next - self.acked
    }

    /// Begins on a new connection, with what the learner wants next. An error is what it cannot want.
    pub fn resume(&mut self, welcome: &Welcome, counters: &ClientCounters) -> Result<(), String> {
        let queued = self.queue.iter().map(|frame| frame.rows);
        let largest = queued.chain(self.open.iter().map(|frame| frame.rows)).max().unwrap_or(0);
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
        self.frame_rows = self.layout.capacity.min(welcome.max_rows as usize);
        self.credit = welcome.credit as usize;
        (self.written, self.offset, self.resumed_at) = (0, 0, welcome.next);
        (self.control_sent, self.blocked) = (0, false);
        (self.writing, self.connection) = (false, self.connection + 1);
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
            // Not if somebody still writes it to a connection that was lost.
            self.spare.extend(Arc::into_inner(frame).map(|frame| frame.columns));
            self.written = self.written.saturating_sub(1);
        }
    }

    /// The learner has settled everything below `next`. An error is what it cannot have.
    pub fn acknowledge(&mut self, next: u64, credit: u32) -> Result<(), &'static str> {
        // The one that is being written may be there before its writer has told.
        let given = self.written + self.writing as usize;
        let written = given.min(self.queue.len()).checked_sub(1).and_then(|last| self.queue.get(last));
        let through = written.map_or(self.acked, |frame| frame.end()).max(self.resumed_at);
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
            let bytes = self.layout.capacity * self.layout.sample_bytes();
            let columns = self.spare.pop().unwrap_or_else(|| vec![0; bytes].into_boxed_slice());
            self.open = Some(Frame { first: self.next, rows: 0, version, columns });
            self.opened = Instant::now();
        }
        let Some(open) = &mut self.open else { return 0 };
        if open.version != version || open.rows >= self.frame_rows {
            return 0; // It could not be sealed.
        }
        let part = rows.min(self.frame_rows - open.rows);
        for ((start, bytes), leaf) in self.layout.leaves().zip(leaves) {
            let start = start + open.rows * bytes;
            let room = &mut open.columns[start..start + part * bytes];
            // SAFETY: the caller vouches for the source; the room was just checked.
            unsafe { room.as_mut_ptr().copy_from_nonoverlapping(leaf.add(from * bytes), room.len()) };
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
                self.queue.push_back(Arc::new(open));
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
    pub fn finish_with(&mut self, goodbye: &[u8]) {
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

    /// Whether every small frame is written.
    pub fn has_said_all(&self) -> bool {
        self.control_sent == self.control.len()
    }

    /// Whether somebody should write, and nobody does.
    pub fn has_work(&self) -> bool {
        let data = self.written < self.queue.len() && self.written < self.window();
        !self.writing && !self.blocked && (data || self.offset > 0 || !self.has_said_all())
    }

    /// Whether data is under way: somebody else than the sender may write the rest.
    pub fn is_under_way(&self) -> bool {
        self.written > 0
    }

    /// The next thing to write, if anything may be written now. `eager`: the open frame, too, though it has room left.
    /// Whoever has a piece writes some of it and brings it back to [`finish`](Self::finish).
    pub fn begin(&mut self, eager: bool) -> Option<Piece> {
        if self.writing || self.blocked {
            return None;
        }
        let words = if self.offset == 0 && !self.has_said_all() {
            Words::Control(self.control[self.control_sent..].to_vec())
        } else {
            self.next_data(eager)?
        };
        self.writing = true;
        Some(Piece { connection: self.connection, words })
    }

    fn next_data(&mut self, eager: bool) -> Option<Words> {
        if self.offset == 0 && self.written >= self.window() {
            return None;
        }
        if self.written == self.queue.len() {
            let rows = self.open.as_ref().map(|open| open.rows).filter(|&rows| rows > 0)?;
            let full = rows >= self.frame_rows;
            let leaves = eager || full || self.written == 0 || self.opened.elapsed() >= GATHER;
            if !(leaves && self.seal()) {
                return None;
            }
        }
        let frame = self.queue.get(self.written)?.clone();
        // The first rows may have arrived over another connection.
        let skip = self.resumed_at.saturating_sub(frame.first).min(frame.rows as u64) as usize;
        let rows = frame.rows - skip;
        let length = rows * self.layout.sample_bytes();
        let header = Header {
            rows: rows as u32,
            version: frame.version,
            sequence: frame.first + skip as u64,
            length: length as u64,
            ..Header::new(Kind::Data)
        };
        self.touched = self.touched.max(frame.end());
        Some(Words::Data { frame, header: header.bytes(), skip, offset: self.offset })
    }

    pub fn layout(&self) -> Arc<Layout> {
        self.layout.clone()
    }

    /// Notes how a write went. An error ends the connection; that of one which is over already does not matter.
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
        match piece.words {
            Words::Control(_) => self.control_sent += written,
            Words::Data { frame, skip, .. } => {
                add(&counters.bytes, written as u64);
                self.offset += written;
                let waits = self.queue.get(self.written).is_some_and(|next| Arc::ptr_eq(next, &frame));
                if self.offset == HEADER_BYTES + (frame.rows - skip) * self.layout.sample_bytes() {
                    self.offset = 0;
                    self.written += waits as usize; // Unless it is acknowledged already, and gone.
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
    /// Hands the bytes to `write`, which says how many it took.
    pub fn write(
        &self,
        layout: &Layout,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let (frame, header, skip, offset) = match &self.words {
            Words::Control(bytes) => return write(&[IoSlice::new(bytes)]),
            Words::Data { frame, header, skip, offset } => (frame, header, *skip, *offset),
        };
        let columns = layout
            .leaves()
            .map(|(start, bytes)| &frame.columns[start + skip * bytes..start + frame.rows * bytes]);
        let mut parts: [IoSlice<'_>; PARTS] = std::array::from_fn(|_| IoSlice::new(&[]));
        let (mut count, mut before) = (0, offset);
        for part in std::iter::once(&header[..]).chain(columns) {
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
