//! What was committed last, copied without consuming it: samples of a ring, records, rows of a table, or a version of weights.
//!
//! The bytes are copied by the kernel (`pread`) and not through the mapping: a page that does not exist stays so. The word that
//! guards them is compared afterwards. Bytes that a producer may have overwritten meanwhile are thrown away.

use super::numbers::recent_rows;
use super::{Inspection, Structure};
use crate::error::Result;
use crate::records::layout::{State, Word};
use crate::records::{Records, Stamp as RecordStamp};
use crate::replay::MappedTable;
use crate::ring::Ring;
use crate::ring::layout::{Slot, SlotKind, SlotWord, Stamp};
use crate::segment::Segment;
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{Ordering, fence};
use crate::weights::Weights;

/// One sample, record, row or version.
#[derive(Debug, Clone, Default)]
pub struct Newest {
    /// The bytes of each leaf, or those of the whole record or row.
    pub parts: Vec<Vec<u8>>,
    /// Of the batch, of the lane's records, of the row, or of the weights.
    pub number: u64,
    /// How long ago it was committed, where that is known.
    pub age_ns: Option<u64>,
    pub producer_id: u32,
    pub sequence: u64,
    /// Of the weights that it was made with.
    pub version: u64,
    /// Of a record: what the caller calls it.
    pub kind: u32,
}

/// Of a leaf of weights no more than so many bytes are copied.
pub const MOST_LEAF_BYTES: usize = 16 << 20;
/// And no more than so many of one record or sample.
pub const MOST_BYTES: usize = 256 << 20;

impl Inspection {
    /// Up to `count` of what was committed last, the newest first. Fewer where the segment has fewer, where the producers
    /// overwrite them faster than they can be copied, or where they are larger than [`MOST_BYTES`].
    pub fn newest(&self, count: usize) -> Result<Vec<Newest>> {
        self.segment().check_whole()?;
        match &self.structure {
            Structure::Ring(ring) => of_ring(ring, count),
            Structure::Records(records) => of_records(records, count),
            Structure::Weights(weights) => of_weights(weights, count),
            Structure::Replay(table) => of_table(table, count),
            Structure::VectorEnv(_) | Structure::Other(_) => {
                Err(self.has_no("samples, records, rows or weights"))
            }
        }
    }
}

fn copied(segment: &Segment, offset: usize, bytes: usize) -> Result<Vec<u8>> {
    let mut copy = vec![0; bytes];
    segment.read_body(offset, &mut copy)?;
    Ok(copy)
}

/// Also samples that were released: their bytes stay until a producer claims the slot again.
fn of_ring(ring: &Ring, count: usize) -> Result<Vec<Newest>> {
    let (protocol, geometry, segment) = (ring.protocol(), ring.geometry(), ring.segment());
    let sample_bytes = geometry.leaf_bytes.iter().fold(0usize, |sum, &bytes| sum.saturating_add(bytes));
    if sample_bytes > MOST_BYTES {
        return Ok(Vec::new());
    }
    let now = monotonic_ns();
    let mut ready: Vec<(u64, usize, u64)> = Vec::new();
    for (index, slot) in protocol.slots.iter().enumerate() {
        // SYNC ring.ready: Acquire here, Release in `commit`.
        let word = slot.word.load(Ordering::Acquire);
        let unpacked = SlotWord::unpack(word);
        if unpacked.kind == SlotKind::Ready {
            ready.push((unpacked.batch.value(), index, word));
        }
    }
    ready.sort_unstable_by(|one, other| other.cmp(one));
    let mut newest = Vec::new();
    for (number, index, word) in ready {
        if newest.len() == count {
            break;
        }
        let stamp_offset =
            geometry.slots_offset + index * size_of::<Slot>() + std::mem::offset_of!(Slot, stamp);
        let stamp = copied(segment, stamp_offset, size_of::<Stamp>())?;
        // SAFETY: a stamp is numbers: any bytes are one, and there are as many as it has.
        let stamp: Stamp = unsafe { std::ptr::read_unaligned(stamp.as_ptr().cast()) };
        let (buffer, row) = (index / geometry.batch_size, index % geometry.batch_size);
        let leaves = geometry.leaf_bytes.iter().zip(&geometry.leaf_offsets);
        let parts = leaves.map(|(&bytes, &offset)| {
            let at = geometry.payload_offset + buffer * geometry.buffer_stride + offset + row * bytes;
            copied(segment, at, bytes)
        });
        let parts: Vec<Vec<u8>> = parts.collect::<Result<_>>()?;
        // SYNC ring.claim: this fence, and AcqRel in `claim_slot`. A byte of a later claim shows its word.
        fence(Ordering::Acquire);
        if protocol.slots[index].word.load(Ordering::Relaxed) != word {
            continue;
        }
        newest.push(Newest {
            parts,
            number,
            age_ns: Some(now.saturating_sub(stamp.committed_ns)),
            producer_id: stamp.producer_id,
            sequence: stamp.sequence,
            version: u64::from(stamp.version),
            kind: 0,
        });
    }
    Ok(newest)
}

/// Records that were released are gone: another record may lie there.
fn of_records(records: &Records, count: usize) -> Result<Vec<Newest>> {
    let (segment, geometry) = (records.segment(), records.geometry());
    let now = monotonic_ns();
    let mut there = Vec::new();
    for lane in records.protocol().existing_lanes() {
        for descriptor in lane.table {
            // SYNC records.ready: Acquire here, Release in `make_ready`.
            let word = descriptor.word.load(Ordering::Acquire);
            if matches!(Word::unpack(word).state, State::Ready | State::Taken) {
                there.push((descriptor.committed_ns.load(Ordering::Relaxed), lane, descriptor, word));
            }
        }
    }
    there.sort_unstable_by_key(|&(committed_ns, ..)| std::cmp::Reverse(committed_ns));
    let mut newest = Vec::new();
    for (committed_ns, lane, descriptor, word) in there {
        if newest.len() == count {
            break;
        }
        let place = lane.place(descriptor);
        let stamp = RecordStamp {
            version: descriptor.version.load(Ordering::Relaxed),
            kind: descriptor.kind.load(Ordering::Relaxed),
            producer_id: descriptor.producer_id.load(Ordering::Relaxed),
            sequence: descriptor.sequence.load(Ordering::Relaxed),
        };
        let bytes = match place {
            Ok((_, bytes)) if bytes > MOST_BYTES => continue,
            Ok((start, bytes)) => copied(segment, geometry.lane_offset(lane.index) + start, bytes)?,
            Err(_) => Vec::new(),
        };
        // SYNC records.free: this fence, and Release in `release`. A byte of a later record shows that this one was freed.
        fence(Ordering::Acquire);
        let is_same = Word::unpack(descriptor.word.load(Ordering::Relaxed));
        let was = Word::unpack(word);
        if is_same.number != was.number || !matches!(is_same.state, State::Ready | State::Taken) {
            continue;
        }
        place.map_err(|damage| segment.damaged(damage))?;
        newest.push(Newest {
            parts: vec![bytes],
            number: was.number,
            age_ns: Some(now.saturating_sub(committed_ns)),
            producer_id: stamp.producer_id,
            sequence: stamp.sequence,
            version: u64::from(stamp.version),
            kind: stamp.kind,
        });
    }
    Ok(newest)
}

fn of_weights(weights: &Weights, count: usize) -> Result<Vec<Newest>> {
    const TRIES: usize = 8;
    let (protocol, geometry, segment) = (weights.protocol(), weights.geometry(), weights.segment());
    for _ in 0..TRIES {
        let latest = protocol.latest().map_err(|damage| segment.damaged(damage))?;
        let Some(latest) = latest.filter(|_| count > 0) else { return Ok(Vec::new()) };
        let leaves = geometry.leaf_bytes.iter().zip(&geometry.leaf_offsets);
        let parts = leaves.map(|(&bytes, &offset)| {
            copied(segment, geometry.buffer_offset(latest.buffer) + offset, bytes.min(MOST_LEAF_BYTES))
        });
        let parts: Vec<Vec<u8>> = parts.collect::<Result<_>>()?;
        if protocol.is_whole(latest) {
            let published_ns = protocol.control.publish.published_ns.load(Ordering::Relaxed);
            let age_ns = (published_ns != 0).then(|| monotonic_ns().saturating_sub(published_ns));
            let version = latest.version;
            return Ok(vec![Newest { parts, number: version, version, age_ns, ..Newest::default() }]);
        }
    }
    Ok(Vec::new()) // They are published faster than they can be copied.
}

fn of_table(table: &MappedTable, count: usize) -> Result<Vec<Newest>> {
    let (protocol, geometry) = (table.protocol(), &table.geometry);
    let mut newest = Vec::new();
    if geometry.row_bytes > MOST_BYTES {
        return Ok(newest);
    }
    for row in recent_rows(table) {
        if newest.len() == count {
            break;
        }
        let Some(word) = protocol.begin_read(row) else { continue };
        let bytes = copied(&table.segment, geometry.rows_offset + row * geometry.stride, geometry.row_bytes)?;
        if protocol.is_unchanged(row, word) {
            newest.push(Newest { parts: vec![bytes], number: row as u64, ..Newest::default() });
        }
    }
    Ok(newest)
}
