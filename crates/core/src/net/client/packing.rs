//! The layout of samples and records in a client's frames. No queue and no socket.
//!
//! ```text
//! samples   │ leaf 0 of every row │ leaf 1 of every row │ …        one buffer with room for `capacity` rows
//! records   │ entry │ entry │ …   and   │ record │ record │ …      an index, and the bytes one after the other
//! forwarded │ origin │ origin │ …   and   rows of a batch          an index, and the leaves where they lie in the ring
//! forwarded │ entry │ … │ origin │ …   and   records               an index, and the records where they lie in their lanes
//! ```
//!
//! All samples of a client's frame have one version, which is in its header; records and forwarded samples have theirs in the
//! index. A frame leaves with vectored writes, without the first rows that arrived over an earlier connection.

use super::forwarded_batch::BatchRows;
use super::forwarded_records::RecordRun;
use crate::net::wire::frame::{Content, ENTRY_BYTES, Entry, Kind};
use crate::net::wire::limits::{FRAME_BYTES, MAX_FRAME_RECORDS};
use std::sync::Arc;

/// Adjacent samples of one version, or adjacent records.
#[derive(Debug)]
pub struct Frame {
    pub first: u64,
    pub rows: usize,
    pub version: u32,
    /// Of records: one entry for each, and then their origins if they are forwarded. Of forwarded samples: their origins.
    index: Vec<u8>,
    buffer: Vec<u8>,
    /// Of records: their bytes, which are in the buffer or where they lie.
    used: usize,
    /// Of what is forwarded: where it lies.
    source: Option<Source>,
}

impl Frame {
    /// Rows of a node's ring, or records of a node.
    pub fn forwarded(first: u64, source: Source) -> Frame {
        let (rows, index, used) = match &source {
            Source::Rows(batch) => (batch.rows(), batch.index(), 0),
            Source::Records(run) => (run.rows(), run.index(), run.bytes()),
        };
        Frame { first, rows, version: 0, index, buffer: Vec::new(), used, source: Some(source) }
    }

    /// The rows of a forwarded frame from `skip` on, `most` at most, as a frame of their own.
    pub fn part(&self, skip: usize, most: usize) -> Option<Frame> {
        let source = match self.source.as_ref()? {
            Source::Rows(batch) => Source::Rows(batch.part(skip, most)),
            Source::Records(run) => Source::Records(run.part(skip, most)),
        };
        Some(Frame::forwarded(self.first + skip as u64, source))
    }

    pub fn end(&self) -> u64 {
        self.first + self.rows as u64
    }

    /// Whether a record of so many bytes fits behind those that are there.
    pub fn fits_record(&self, bytes: u64) -> bool {
        (self.buffer.len() - self.used) as u64 >= bytes
    }

    /// Calls `write` with room for a record behind those that are there. The frame has room for it.
    pub fn put_record(&mut self, entry: Entry, write: impl FnOnce(&mut [u8])) {
        let end = self.used + entry.bytes as usize;
        write(&mut self.buffer[self.used..end]);
        self.index.extend_from_slice(&entry.encoded());
        (self.used, self.rows) = (end, self.rows + 1);
    }

    /// The largest record of a frame; 0 for samples, which are all of one size.
    pub fn largest_record(&self) -> u64 {
        let index = match &self.source {
            Some(Source::Rows(_)) => &[],
            Some(Source::Records(_)) => &self.index[..self.rows * ENTRY_BYTES],
            None => &self.index[..],
        };
        Entry::all(index).map(|entry| entry.bytes).max().unwrap_or(0)
    }

    /// Where the records begin, without the first `skip`.
    fn record_start(&self, skip: usize) -> usize {
        Entry::all(&self.index).take(skip).map(|entry| entry.bytes as usize).sum()
    }
}

/// Where the samples or records of a forwarded frame lie.
#[derive(Debug)]
pub enum Source {
    Rows(BatchRows),
    Records(RecordRun),
}

/// What the frames of a client look like.
#[derive(Debug)]
pub enum Layout {
    Samples(Columns),
    Records,
    /// Samples that lie in a ring.
    Forwarded(Columns),
    /// Records that lie in the lanes of a node.
    ForwardedRecords,
}

/// Where the leaves lie in a buffer.
#[derive(Debug)]
pub struct Columns {
    leaf_bytes: Vec<usize>,
    leaf_offsets: Vec<usize>,
    sample_bytes: usize,
    /// Rows that a buffer has room for.
    capacity: usize,
}

impl Columns {
    /// The start of each leaf, and the bytes of one row of it.
    fn leaves(&self) -> impl Iterator<Item = (usize, usize)> {
        self.leaf_offsets.iter().copied().zip(self.leaf_bytes.iter().copied())
    }
}

impl Layout {
    /// For samples of these leaves, `capacity` to a frame.
    pub fn samples(leaf_bytes: &[usize], capacity: usize) -> Layout {
        let mut end = 0;
        let place = |bytes: &usize| {
            end += bytes * capacity;
            end - bytes * capacity
        };
        let leaf_offsets = leaf_bytes.iter().map(place).collect();
        let (leaf_bytes, sample_bytes) = (leaf_bytes.to_vec(), leaf_bytes.iter().sum());
        Layout::Samples(Columns { leaf_bytes, leaf_offsets, sample_bytes, capacity })
    }

    /// For samples of these leaves that lie in a ring, `capacity` to a frame at most.
    pub fn forwarded(leaf_bytes: &[usize], capacity: usize) -> Layout {
        let (leaf_bytes, sample_bytes) = (leaf_bytes.to_vec(), leaf_bytes.iter().sum());
        Layout::Forwarded(Columns { leaf_bytes, leaf_offsets: Vec::new(), sample_bytes, capacity })
    }

    pub fn content(&self) -> Content {
        match self {
            Layout::Samples(_) => Content::Samples,
            Layout::Records => Content::Records,
            Layout::Forwarded(_) => Content::Forwarded,
            Layout::ForwardedRecords => Content::ForwardedRecords,
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Layout::Samples(_) => Kind::Data,
            Layout::Records => Kind::Records,
            Layout::Forwarded(_) => Kind::Stamped,
            Layout::ForwardedRecords => Kind::StampedRecords,
        }
    }

    /// Rows of a frame, at most.
    pub fn capacity(&self) -> usize {
        match self {
            Layout::Samples(columns) | Layout::Forwarded(columns) => columns.capacity,
            Layout::Records | Layout::ForwardedRecords => MAX_FRAME_RECORDS,
        }
    }

    fn buffer_bytes(&self) -> usize {
        match self {
            Layout::Samples(columns) => columns.capacity * columns.sample_bytes,
            Layout::Records => FRAME_BYTES,
            Layout::Forwarded(_) | Layout::ForwardedRecords => 0,
        }
    }

    /// An empty frame with room for `bytes` bytes, in the buffers of a spare one if there is one.
    pub fn open(&self, spare: &mut Vec<Frame>, first: u64, version: u32, bytes: usize) -> Frame {
        let usual = self.buffer_bytes();
        let reused = if bytes <= usual { spare.pop() } else { None };
        let (mut index, buffer) = match reused {
            Some(frame) => (frame.index, frame.buffer),
            None => (Vec::new(), vec![0; bytes.max(usual)]),
        };
        index.clear();
        Frame { first, rows: 0, version, index, buffer, used: 0, source: None }
    }

    /// Whether its buffers can be reused: not those of a record that is larger than a frame, nor those of a ring.
    pub fn is_reusable(&self, frame: &Frame) -> bool {
        frame.source.is_none() && frame.buffer.len() == self.buffer_bytes()
    }

    /// Copies `rows` samples behind those that are there. The frame has room for them.
    ///
    /// # Safety
    ///
    /// Each leaf has that many rows of its size from row `from` on, one after the other.
    pub unsafe fn put_samples(&self, frame: &mut Frame, leaves: &[*const u8], from: usize, rows: usize) {
        let Layout::Samples(columns) = self else { return };
        for ((start, bytes), leaf) in columns.leaves().zip(leaves) {
            let start = start + frame.rows * bytes;
            let room = &mut frame.buffer[start..start + rows * bytes];
            // SAFETY: the caller vouches for the source; the room was just checked.
            unsafe { room.as_mut_ptr().copy_from_nonoverlapping(leaf.add(from * bytes), room.len()) };
        }
        frame.rows += rows;
    }

    /// The samples of a frame in frames of at most `most` rows each.
    pub fn split(&self, frame: &Frame, most: usize) -> Vec<Arc<Frame>> {
        let Layout::Samples(columns) = self else {
            let parts = (0..frame.rows).step_by(most).filter_map(|skip| frame.part(skip, most));
            return parts.map(Arc::new).collect();
        };
        let leaves: Vec<*const u8> =
            columns.leaves().map(|(start, _)| frame.buffer[start..].as_ptr()).collect();
        let part = |from: usize| {
            let mut part = self.open(&mut Vec::new(), frame.first + from as u64, frame.version, 0);
            // SAFETY: the leaves lie in the frame, with room for `capacity` rows each.
            unsafe { self.put_samples(&mut part, &leaves, from, most.min(frame.rows - from)) };
            Arc::new(part)
        };
        (0..frame.rows).step_by(most).map(part).collect()
    }

    /// Whether nothing more goes into a frame that may have so many rows.
    pub fn is_full(&self, frame: &Frame, rows: usize) -> bool {
        frame.rows >= rows || matches!(self, Layout::Records) && frame.used >= FRAME_BYTES
    }

    /// Bytes of the payload, without the first `skip` rows.
    pub fn length(&self, frame: &Frame, skip: usize) -> usize {
        let rows = frame.rows - skip;
        match self {
            Layout::Samples(columns) => rows * columns.sample_bytes,
            Layout::Records => rows * ENTRY_BYTES + frame.used - frame.record_start(skip),
            Layout::Forwarded(columns) => frame.index.len() + rows * columns.sample_bytes,
            Layout::ForwardedRecords => frame.index.len() + frame.used,
        }
    }

    /// The parts of the payload, without the first `skip` rows. A forwarded frame has all of its rows to send.
    pub fn parts<'a>(&'a self, frame: &'a Frame, skip: usize) -> impl Iterator<Item = &'a [u8]> {
        let (columns, indexed, forwarded, records) = match self {
            Layout::Samples(columns) => (Some(columns), None, None, None),
            Layout::Records => {
                let bytes = &frame.buffer[frame.record_start(skip)..frame.used];
                (None, Some([&frame.index[skip * ENTRY_BYTES..], bytes]), None, None)
            }
            Layout::Forwarded(_) | Layout::ForwardedRecords => {
                let (batch, run) = match (self, &frame.source) {
                    (Layout::Forwarded(columns), Some(Source::Rows(batch))) => (Some((batch, columns)), None),
                    (_, Some(Source::Records(run))) => (None, Some(run)),
                    _ => (None, None),
                };
                let rows = batch.map(|(batch, columns)| batch.parts(&columns.leaf_bytes));
                (None, Some([&frame.index[..], &[]]), rows, run.map(RecordRun::parts))
            }
        };
        let leaves = columns.into_iter().flat_map(Columns::leaves);
        let leaves =
            leaves.map(move |(start, bytes)| &frame.buffer[start + skip * bytes..start + frame.rows * bytes]);
        let forwarded = forwarded.into_iter().flatten().chain(records.into_iter().flatten());
        leaves.chain(indexed.into_iter().flatten()).chain(forwarded)
    }
}
