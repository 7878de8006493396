//! Copying leaves, by several threads when they are large, and without the compiler's help.
//!
//! C1  A reader may copy from a buffer that the writer is overwriting (I4 of the protocol): it finds out afterwards and throws
//!     the copy away. To the compiler that would be a data race, about which it may assume what it likes. So the bytes
//!     go through a function whose address is loaded with a volatile read: the compiler must take it for code that it
//!     cannot see, which may well copy word by word with atomics. What such a copy brings is never looked at before
//!     the sequence was checked.
//!
//! C2  Large copies go around the cache, four pages side by side: a plain copy would first read every line that it is about to
//!     overwrite. Such stores keep no order with others, so each piece is fenced before and after: nothing of it is seen
//!     before the 0 of the sequence, or after the version.
//!
//! Who copies what is decided while it runs: each thread takes the next piece when it is done with its last one, so a
//! thread that another process keeps from its core holds up no more than a piece.

use crate::sync::{Point, crash_point};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

static COPY: Copy = libc::memcpy;

/// What a thread copies at once.
const PIECE: usize = 1 << 20;
/// A further thread must have this much to do: starting one costs as much as copying some hundred kilobytes.
const SHARE: usize = 4 << 20;
/// More threads than this do not make memory faster.
const MOST_THREADS: usize = 4;

/// Copies of this much altogether go around the cache. Below it, whoever reads next may find them there.
const STREAM: usize = 16 << 20;

/// How many threads copy, unless somebody says: as many as this process may use, at most four.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS))
}

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
/// no two legs overlap there. Whoever may be writing to `from` meanwhile throws the copy away (C1).
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
    let carry = if large { stream::best() } else { plain };
    share_out(&pieces, threads, |piece| {
        // For the kill matrix, in two halves.
        let half = if cfg!(feature = "fault") { piece.bytes / 2 } else { piece.bytes };
        // SAFETY: the piece is a part of a leg, for which the caller answers; both halves are inside it.
        unsafe {
            carry(piece.to, piece.from, half);
            crash_point(Point::LeafHalfCopied);
            if half < piece.bytes {
                carry(piece.to.add(half), piece.from.add(half), piece.bytes - half);
            }
        }
    });
}

/// The checksum of each leg's bytes where they arrived, in order.
///
/// # Safety
/// Every leg's `to` is mapped for reading, and nobody writes to it until this returns.
pub unsafe fn checksums(legs: &[Leg], threads: usize) -> Vec<u64> {
    let sums: Vec<_> = legs.iter().map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    let numbered: Vec<Leg> =
        legs.iter().enumerate().map(|(number, leg)| Leg { leaf: number, ..*leg }).collect();
    share_out(&numbered, threads, |leg| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(leg.to, leg.bytes) };
        sums[leg.leaf].store(xxhash_rust::xxh3::xxh3_64(bytes), Ordering::Relaxed);
    });
    sums.into_iter().map(|sum| sum.into_inner()).collect()
}

/// Does `work` on every leg, by the calling thread and as many others as it pays for.
fn share_out(legs: &[Leg], threads: usize, work: impl Fn(&Leg) + Sync) {
    let bytes: usize = legs.iter().map(|leg| leg.bytes).sum();
    let next = AtomicUsize::new(0);
    let toil = || {
        while let Some(leg) = legs.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(leg);
        }
    };
    let others = threads.min(bytes / SHARE).max(1) - 1;
    std::thread::scope(|scope| {
        for _ in 0..others {
            // Where no further thread is to be had, the others do its share.
            let _ = std::thread::Builder::new().name("rollway-copy".to_owned()).spawn_scoped(scope, toil);
        }
        toil();
    });
}

/// A way to copy.
type Carry = unsafe fn(*mut u8, *const u8, usize);

/// The C library's, unseen by the compiler (C1).
///
/// # Safety
/// As for [`copy_all`].
unsafe fn plain(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: a static of function pointer type, read in a way that hides its value; the rest is as the caller promises.
    unsafe { (&raw const COPY).read_volatile()(to.cast(), from.cast(), bytes) };
}

/// Copying around the cache (C2).
mod stream {
    use super::{Carry, plain};

    /// The best way to copy what no cache holds.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn best() -> Carry {
        plain
    }

    /// The best way to copy what no cache holds.
    #[cfg(target_arch = "x86_64")]
    pub fn best() -> Carry {
        if std::arch::is_x86_feature_detected!("avx") { around } else { plain }
    }

    /// Four pages.
    #[cfg(target_arch = "x86_64")]
    const BLOCK: usize = 4 * 4096;

    /// # Safety
    /// As for [`copy_all`](super::copy_all), on a processor with AVX.
    #[cfg(target_arch = "x86_64")]
    unsafe fn around(to: *mut u8, from: *const u8, bytes: usize) {
        // Such stores want addresses that are multiples of their width.
        let head = to.align_offset(64).min(bytes);
        let blocks = (bytes - head) / BLOCK;
        let tail = head + blocks * BLOCK;
        // SAFETY: head, blocks and tail are the bytes, one after the other; the blocks start at a multiple of 64.
        unsafe {
            plain(to, from, head);
            if blocks > 0 {
                copy_blocks(to.add(head), from.add(head), blocks);
            }
            plain(to.add(tail), from.add(tail), bytes - tail);
        }
    }

    /// One 128-byte stretch of one of the four pages.
    #[cfg(target_arch = "x86_64")]
    macro_rules! stretch {
        ($page:literal) => {
            concat!(
                "vmovdqu ymm0, [{from} + ",
                $page,
                "]\n",
                "vmovdqu ymm1, [{from} + ",
                $page,
                " + 32]\n",
                "vmovdqu ymm2, [{from} + ",
                $page,
                " + 64]\n",
                "vmovdqu ymm3, [{from} + ",
                $page,
                " + 96]\n",
                "prefetcht0 [{from} + ",
                $page,
                " + 256]\n",
                "prefetcht0 [{from} + ",
                $page,
                " + 320]\n",
                "vmovntdq [{to} + ",
                $page,
                "], ymm0\n",
                "vmovntdq [{to} + ",
                $page,
                " + 32], ymm1\n",
                "vmovntdq [{to} + ",
                $page,
                " + 64], ymm2\n",
                "vmovntdq [{to} + ",
                $page,
                " + 96], ymm3\n",
            )
        };
    }

    /// # Safety
    /// `blocks` blocks, at least one, are readable and writable, `to` is a multiple of 64, and there is AVX.
    #[cfg(target_arch = "x86_64")]
    unsafe fn copy_blocks(to: *mut u8, from: *const u8, blocks: usize) {
        // SAFETY: reads and writes `blocks` blocks, as the caller promises (a prefetch beyond them is a hint, and faults
        // nowhere). The compiler takes the block for code that it cannot see, which may change any memory (C1).
        unsafe {
            std::arch::asm!(
                "sfence",
                "2:",
                "mov {stretches:e}, 32",
                "3:",
                stretch!("0"),
                stretch!("4096"),
                stretch!("8192"),
                stretch!("12288"),
                "add {from}, 128",
                "add {to}, 128",
                "dec {stretches:e}",
                "jnz 3b",
                "add {from}, 12288",
                "add {to}, 12288",
                "dec {blocks}",
                "jnz 2b",
                "sfence",
                "vzeroupper",
                to = inout(reg) to => _,
                from = inout(reg) from => _,
                blocks = inout(reg) blocks => _,
                stretches = out(reg) _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                options(nostack),
            );
        }
    }
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
