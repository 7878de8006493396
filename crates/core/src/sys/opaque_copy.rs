//! Copies of bytes that another process may be changing, or that no cache holds. Weights and replay use it.
//!
//! C1  A reader may copy from memory that its writer is overwriting: it finds out afterwards and throws the copy away. To the
//!     compiler that would be a data race. So both move the bytes with atomics, or with code that the compiler cannot see
//!     (assembly, or a function whose address is loaded with a volatile read). No copy is looked at before it was found whole.
//!
//! C2  Large copies go around the cache, four pages side by side: a plain copy would first read every line that it is about to
//!     overwrite. Such stores keep no order with others, so each copy is fenced before and after. Single lines are not
//!     fenced: a caller that copies lines fences once, for all of them.
//!
//! C3  `vzeroupper` clears the upper halves of the sixteen registers ymm0 to ymm15. `avx_asm!` names all of
//!     them as clobbered, because a compiler that may use AVX keeps values in them across the block.

use std::ffi::c_void;
// Bytes of a payload, at any address: loom's atomics lie nowhere but in its own cells. Its models store payload of their own.
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

static COPY: Copy = libc::memcpy;

/// A way to copy.
pub type CopyFn = unsafe fn(*mut u8, *const u8, usize);

/// The C library's, unseen by the compiler (C1).
///
/// # Safety
/// As for `copy_nonoverlapping`; but see C1.
pub unsafe fn copy_opaque(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: a static of function pointer type, read in a way that hides its value; the rest is as the caller promises.
    unsafe { (&raw const COPY).read_volatile()(to.cast(), from.cast(), bytes) };
}

/// As [`copy_opaque`], without a call for the sizes of single numbers (C1): those are stored with atomics.
///
/// # Safety
/// As for `copy_nonoverlapping`, and `from` does not change; but see C1 about `to`.
#[inline]
pub unsafe fn copy_field(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: as the caller promises. Each atomic is aligned, and lies in the bytes at `to`, to which only the caller stores.
    unsafe {
        let store_eight = |at: usize| {
            let value = from.add(at).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(to.add(at).cast()).store(value, Ordering::Relaxed);
        };
        match bytes {
            1 => AtomicU8::from_ptr(to).store(from.read(), Ordering::Relaxed),
            4 if to.cast::<AtomicU32>().is_aligned() => {
                AtomicU32::from_ptr(to.cast()).store(from.cast::<u32>().read_unaligned(), Ordering::Relaxed);
            }
            8 if to.cast::<AtomicU64>().is_aligned() => store_eight(0),
            16 if to.cast::<AtomicU64>().is_aligned() => {
                store_eight(0);
                store_eight(8);
            }
            _ => copy_opaque(to, from, bytes),
        }
    }
}

/// The best way to copy to where no cache holds anything (C2).
pub fn streaming_copy() -> CopyFn {
    #[cfg(target_arch = "x86_64")]
    if can_stream_lines() {
        return copy_streaming;
    }
    copy_opaque
}

/// Four pages.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 4 * 4096;

/// # Safety
/// As for `copy_nonoverlapping`, on a processor with AVX; but see C1.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_streaming(to: *mut u8, from: *const u8, bytes: usize) {
    // Such stores want addresses that are multiples of their width.
    let head = to.align_offset(64).min(bytes);
    let blocks = (bytes - head) / BLOCK;
    let tail = head + blocks * BLOCK;
    // SAFETY: head, blocks and tail are the bytes, one after the other; the blocks start at a multiple of 64.
    unsafe {
        copy_opaque(to, from, head);
        if blocks > 0 {
            copy_blocks(to.add(head), from.add(head), blocks);
        }
        copy_opaque(to.add(tail), from.add(tail), bytes - tail);
    }
}

/// A block of assembly, with its operands behind a semicolon, that may use all of AVX's registers and clears their upper halves (C3).
#[cfg(target_arch = "x86_64")]
macro_rules! avx_asm {
    ($($line:expr),+; $($operands:tt)+) => {
        std::arch::asm!(
            $($line,)+
            "vzeroupper",
            $($operands)+
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        )
    };
}

/// Each instruction, with the offset of a page in its address.
#[cfg(target_arch = "x86_64")]
macro_rules! at_page {
    ($page:literal: $($before:literal $after:literal)+) => { concat!($($before, $page, $after, "\n"),+) };
}

/// One 128-byte stretch of one of the four pages.
#[cfg(target_arch = "x86_64")]
macro_rules! stretch {
    ($page:literal) => {
        at_page!($page:
            "vmovdqu ymm0, [{from} + " "]"
            "vmovdqu ymm1, [{from} + " " + 32]"
            "vmovdqu ymm2, [{from} + " " + 64]"
            "vmovdqu ymm3, [{from} + " " + 96]"
            "prefetcht0 [{from} + " " + 256]"
            "prefetcht0 [{from} + " " + 320]"
            "vmovntdq [{to} + " "], ymm0"
            "vmovntdq [{to} + " " + 32], ymm1"
            "vmovntdq [{to} + " " + 64], ymm2"
            "vmovntdq [{to} + " " + 96], ymm3"
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
        avx_asm!(
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
            "sfence";
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            blocks = inout(reg) blocks => _,
            stretches = out(reg) _,
        );
    }
}

/// Whether single lines can be copied around the cache.
pub fn can_stream_lines() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Copies whole cache lines around the cache, in no order with other stores (C2): call [`stream_fence`] before they are published.
///
/// # Safety
/// As for `copy_nonoverlapping` (but see C1); [`can_stream_lines`], both addresses are multiples of 64, and there is a line.
#[inline(always)]
pub unsafe fn stream_lines(to: *mut u8, from: *const u8, lines: usize) {
    debug_assert!(to.align_offset(64) == 0 && from.align_offset(64) == 0 && lines > 0);
    // SAFETY: reads and writes `lines` lines, as the caller promises. The compiler takes the block for code that it cannot
    // see, which may change any memory (C1).
    #[cfg(target_arch = "x86_64")]
    unsafe {
        avx_asm!(
            "2:",
            "vmovdqa ymm0, [{from}]",
            "vmovdqa ymm1, [{from} + 32]",
            "vmovntdq [{to}], ymm0",
            "vmovntdq [{to} + 32], ymm1",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b";
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            lines = inout(reg) lines => _,
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller promises.
    unsafe {
        copy_opaque(to, from, 64 * lines)
    };
}

/// What was copied before is seen before anything that is stored from now on (C2).
#[inline(always)]
pub fn stream_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an instruction that every x86-64 processor has, and that only orders stores.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_way_copies_every_byte_and_no_more() {
        let source: Vec<u8> = (0..6 * 4096).map(|at| (at * 31 + at / 251) as u8).collect();
        for bytes in (0..300).chain([4096, 16_384, 16_384 + 4095]) {
            for (copy, start) in [copy_opaque, streaming_copy(), copy_field as CopyFn]
                .into_iter()
                .flat_map(|copy| [(copy, 1), (copy, 4), (copy, 8)])
            {
                let mut target = vec![0xAA; start + bytes + 1];
                // SAFETY: source and target have the bytes, and are apart.
                unsafe { copy(target[start..].as_mut_ptr(), source[3..].as_ptr(), bytes) };
                let end = start + bytes;
                assert_eq!(target[start..end], source[3..3 + bytes]);
                assert!(target[start - 1] == 0xAA && target[end] == 0xAA);
            }
        }
    }

    /// Fails where a block does not name the registers that it clears (C3): the compiler keeps `kept` in registers.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_copy_of_lines_leaves_the_callers_registers_as_they_were() {
        use std::arch::x86_64::{__m256i, _mm256_add_epi64};

        #[repr(align(64))]
        struct Lines([u8; 128]);

        #[target_feature(enable = "avx2")]
        fn sum_across_a_copy(numbers: &[[i64; 4]; 4], to: &mut Lines, from: &Lines) -> [i64; 4] {
            // SAFETY: plain bits of the same size. A volatile read is not put off until the sum is made.
            let load = |n: &[i64; 4]| unsafe { std::ptr::from_ref(n).cast::<__m256i>().read_volatile() };
            let kept = [load(&numbers[0]), load(&numbers[1]), load(&numbers[2]), load(&numbers[3])];
            // SAFETY: there is AVX; both are aligned, two lines long, and apart.
            unsafe { stream_lines(to.0.as_mut_ptr(), from.0.as_ptr(), 2) };
            let [a, b, c, d] = kept;
            let sum = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
            // SAFETY: plain bits of the same size.
            unsafe { std::mem::transmute::<__m256i, [i64; 4]>(sum) }
        }

        #[repr(align(64))]
        struct Numbers([[i64; 4]; 4]);

        if !std::arch::is_x86_feature_detected!("avx2") {
            return;
        }
        let (mut to, from) = (Lines([0; 128]), Lines([7; 128]));
        // SAFETY: there is AVX2.
        let sum = unsafe { sum_across_a_copy(&Numbers([[3; 4], [5; 4], [7; 4], [11; 4]]).0, &mut to, &from) };
        stream_fence();
        assert_eq!(sum, [26; 4]);
        assert_eq!(to.0, from.0);
    }
}
