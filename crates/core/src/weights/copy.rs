//! Copying leaves, by several threads when they are large, and without the compiler's help.
//!
//! A reader may copy from a buffer that the writer is overwriting (I4 of the protocol): see C1 in [`crate::sys::opaque_copy`].

use crate::sys::opaque_copy::{copy_opaque, streaming_copy};
use crate::sys::parallel::for_each_parallel;
use crate::sys::sync::{Point, crash_point};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a thread copies at once.
const PIECE: usize = 1 << 20;
/// A further thread must have this much to do: starting one costs as much as copying some hundred kilobytes.
const SHARE: usize = 4 << 20;
/// Copies of this much altogether go around the cache. Below it, whoever reads next may find them there.
const STREAM: usize = 16 << 20;

/// One leaf's way from here to there.
#[derive(Debug, Clone, Copy)]
pub struct Leg {
    pub leaf: usize,
    pub from: *const u8,
    pub to: *mut u8,
    pub bytes: usize,
}

// SAFETY: the pointers are used by `copy_all` only, whose caller answers for them.
unsafe impl Send for Leg {}
// SAFETY: as above.
unsafe impl Sync for Leg {}

/// Copies all of it with at most `threads` threads.
///
/// # Safety
/// Every leg's bytes are mapped for reading and writing respectively until this returns; nobody else writes to `to`, and
/// no two legs overlap there. Whoever may be writing to `from` meanwhile throws the copy away.
pub unsafe fn copy_all(legs: &[Leg], threads: usize) {
    let mut pieces = Vec::with_capacity(legs.len());
    for leg in legs {
        let mut done = 0;
        while done < leg.bytes {
            let bytes = (leg.bytes - done).min(PIECE);
            let (from, to) = (leg.from.wrapping_add(done), leg.to.wrapping_add(done));
            pieces.push(Leg { from, to, bytes, ..*leg });
            done += bytes;
        }
    }
    let large = pieces.iter().map(|piece| piece.bytes).sum::<usize>() >= STREAM;
    let copy = if large { streaming_copy() } else { copy_opaque };
    for_each_parallel(&pieces, worth(legs, threads), |piece| {
        // For the kill matrix, in two halves.
        let half = if cfg!(feature = "fault") { piece.bytes / 2 } else { piece.bytes };
        // SAFETY: the piece is a part of a leg, for which the caller answers; both halves are inside it.
        unsafe {
            copy(piece.to, piece.from, half);
            crash_point(Point::LeafHalfCopied);
            if half < piece.bytes {
                copy(piece.to.add(half), piece.from.add(half), piece.bytes - half);
            }
        }
    });
}

/// The checksum of each leg's bytes where they arrived, in order.
///
/// # Safety
/// Every leg's `to` is mapped for reading, and nobody writes to it until this returns.
pub unsafe fn checksums(legs: &[Leg], threads: usize) -> Vec<u64> {
    let sums: Vec<_> = legs.iter().map(|_| AtomicU64::new(0)).collect();
    let numbered: Vec<Leg> =
        legs.iter().enumerate().map(|(number, leg)| Leg { leaf: number, ..*leg }).collect();
    for_each_parallel(&numbered, worth(legs, threads), |leg| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(leg.to, leg.bytes) };
        sums[leg.leaf].store(xxhash_rust::xxh3::xxh3_64(bytes), Ordering::Relaxed);
    });
    sums.into_iter().map(|sum| sum.into_inner()).collect()
}

/// How many of `threads` threads it pays to use.
fn worth(legs: &[Leg], threads: usize) -> usize {
    threads.min(legs.iter().map(|leg| leg.bytes).sum::<usize>() / SHARE)
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
            let legs: Vec<Leg> = sources
                .iter()
                .zip(&mut targets)
                .enumerate()
                .map(|(leaf, (from, to))| Leg {
                    leaf,
                    from: from.as_ptr(),
                    to: to.as_mut_ptr(),
                    bytes: from.len(),
                })
                .collect();
            // SAFETY: vectors of the right lengths, which only this test uses.
            let sums = unsafe {
                copy_all(&legs, threads);
                checksums(&legs, threads)
            };
            assert_eq!(sources, targets);
            let expected: Vec<u64> = sources.iter().map(|bytes| xxhash_rust::xxh3::xxh3_64(bytes)).collect();
            assert_eq!(sums, expected);
        }
    }
}
