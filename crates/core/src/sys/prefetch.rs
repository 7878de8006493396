//! A hint to the processor: these bytes are read, or written, soon. It changes nothing but the time, and may be given for any address.

/// Fetches the cache line of `address`, and does not wait for it.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program could see, and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Fetches every cache line of `bytes` bytes.
#[inline(always)]
pub fn prefetch_all(address: *const u8, bytes: usize) {
    (0..bytes).step_by(64).for_each(|line| prefetch(address.wrapping_add(line)));
}

/// Fetches the cache line of `address` in order to write it, and does not wait for it.
#[inline(always)]
pub fn prefetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing that the program could see, and never faults; processors without this one ignore it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
