//! Copying leaves, by several threads when they are large, and without the compiler's help.
//!
//! Where the other end is not in this process's memory, as on a GPU, the caller brings a [`CopyLeaves`] of its own.
//!
//! A reader may copy from a buffer that the writer is overwriting (I4 of the protocol): see C1 in [`crate::sys::opaque_copy`].

use super::Weights;
use crate::error::Result;
use crate::sys::opaque_copy::{copy_opaque, streaming_copy};
use crate::sys::parallel::for_each_parallel;
use crate::sys::sync::{Point, crash_point};
use std::sync::Arc;
// Loom sees no payload: its models have cells of their own.
use std::sync::atomic::{AtomicU64, Ordering};

/// What a thread copies at once.
const PIECE: usize = 1 << 20;
/// A further thread must have this much to do: starting one costs as much as copying some hundred kilobytes.
const SHARE: usize = 4 << 20;
/// Copies of this much altogether go around the cache. Smaller ones stay in it for the next reader.
const STREAM: usize = 16 << 20;

/// One leaf's way from here to there.
#[derive(Debug, Clone, Copy)]
pub struct LeafCopy {
    pub leaf: usize,
    pub from: *const u8,
    pub to: *mut u8,
    pub bytes: usize,
}

// SAFETY: the pointers are used by `copy_all` only, whose caller answers for them.
unsafe impl Send for LeafCopy {}
// SAFETY: as above.
unsafe impl Sync for LeafCopy {}

/// The copies of one write or read. They lie in one buffer of the weights at one end, and with the caller at the other.
#[derive(Debug, Clone, Copy)]
pub struct BufferCopies<'a> {
    pub weights: &'a Arc<Weights>,
    pub buffer: usize,
    pub copies: &'a [LeafCopy],
    pub threads: usize,
}

/// How the bytes of leaves are copied.
pub trait CopyLeaves: Sync {
    /// Whether the caller's end is memory of this process.
    const ON_HOST: bool;

    /// Copies all of it, and returns when that is done, or will not be: nothing is read or written any more.
    ///
    /// # Safety
    /// As for [`copy_all`], but that the caller's end is where this copies from or to.
    unsafe fn copy(&self, copies: &BufferCopies<'_>) -> Result<()>;
}

/// For leaves in this process's memory.
#[derive(Debug)]
pub struct HostCopies;

impl CopyLeaves for HostCopies {
    const ON_HOST: bool = true;

    unsafe fn copy(&self, copies: &BufferCopies<'_>) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { copy_all(copies.copies, copies.threads) };
        Ok(())
    }
}

/// Copies all of it with at most `threads` threads.
///
/// # Safety
/// Every copy's bytes are mapped for reading and writing respectively until this returns; only this call writes to `to`, and
/// no two copies overlap there. If `from` may change meanwhile, the caller throws the copy away then.
pub unsafe fn copy_all(copies: &[LeafCopy], threads: usize) {
    let mut pieces = Vec::with_capacity(copies.len());
    for copy in copies {
        let mut done = 0;
        while done < copy.bytes {
            let bytes = (copy.bytes - done).min(PIECE);
            let (from, to) = (copy.from.wrapping_add(done), copy.to.wrapping_add(done));
            pieces.push(LeafCopy { from, to, bytes, ..*copy });
            done += bytes;
        }
    }
    let large = pieces.iter().map(|piece| piece.bytes).sum::<usize>() >= STREAM;
    let copy = if large { streaming_copy() } else { copy_opaque };
    for_each_parallel(&pieces, useful_threads(copies, threads), |piece| {
        // For the kill matrix, in two halves.
        let half = if cfg!(feature = "fault") { piece.bytes / 2 } else { piece.bytes };
        // SAFETY: the piece is a part of a copy, for which the caller answers; both halves are inside it.
        unsafe {
            copy(piece.to, piece.from, half);
            crash_point(Point::LeafHalfCopied);
            if half < piece.bytes {
                copy(piece.to.add(half), piece.from.add(half), piece.bytes - half);
            }
        }
    });
}

/// The checksum of each copy's bytes where they arrived, in order.
///
/// # Safety
/// Every copy's `to` is mapped for reading, and does not change until this returns.
pub unsafe fn checksums(copies: &[LeafCopy], threads: usize) -> Vec<u64> {
    let sums: Vec<_> = copies.iter().map(|_| AtomicU64::new(0)).collect();
    let numbered: Vec<LeafCopy> =
        copies.iter().enumerate().map(|(number, copy)| LeafCopy { leaf: number, ..*copy }).collect();
    for_each_parallel(&numbered, useful_threads(copies, threads), |copy| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(copy.to, copy.bytes) };
        sums[copy.leaf].store(xxhash_rust::xxh3::xxh3_64(bytes), Ordering::Relaxed);
    });
    sums.into_iter().map(|sum| sum.into_inner()).collect()
}

/// How many of `threads` threads it pays to use.
fn useful_threads(copies: &[LeafCopy], threads: usize) -> usize {
    threads.min(copies.iter().map(|copy| copy.bytes).sum::<usize>() / SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_whatever_the_number_of_threads() {
        for (threads, sizes) in [(1, vec![0, 1, 5000]), (3, vec![3 * SHARE + 7, 0, 13, PIECE, 2 * SHARE + 1])]
        {
            let sources: Vec<Vec<u8>> = sizes
                .iter()
                .enumerate()
                .map(|(leaf, &bytes)| (0..bytes).map(|i| (i * 31 + leaf * 7 + i / 251) as u8).collect())
                .collect();
            let mut targets: Vec<Vec<u8>> = sizes.iter().map(|&bytes| vec![0xAA; bytes]).collect();
            let copies: Vec<LeafCopy> = sources
                .iter()
                .zip(&mut targets)
                .enumerate()
                .map(|(leaf, (from, to))| LeafCopy {
                    leaf,
                    from: from.as_ptr(),
                    to: to.as_mut_ptr(),
                    bytes: from.len(),
                })
                .collect();
            // SAFETY: vectors of the right lengths, which only this test uses.
            let sums = unsafe {
                copy_all(&copies, threads);
                checksums(&copies, threads)
            };
            assert_eq!(sources, targets);
            let expected: Vec<u64> = sources.iter().map(|bytes| xxhash_rust::xxh3::xxh3_64(bytes)).collect();
            assert_eq!(sums, expected);
        }
    }
}
