//! Copies of weights between shared memory and tensors on GPUs, through page-locked memory.

use crate::device::driver::{Gpu, Handle, Result};
use crate::device::page_lock::LockedPages;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use rollway_core::Error;
use rollway_core::weights::Weights;
use rollway_core::weights::copy::{BufferCopies, CopyLeaves, LeafCopy, copy_all};
use rollway_core::weights::layout::ALIGN;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// The leaves whose tensors are on one GPU: its number, the caller's stream there, which leaves they are, and whether they lie
/// there in one block as they do in a buffer.
pub type LeavesOnGpu = (i32, Handle, Vec<usize>, bool);

/// The buffers of weights that this process has page-locked, as it came to use them.
#[derive(Default)]
pub struct LockedBuffers {
    of: Mutex<Option<Arc<BuffersOf>>>,
}

struct BuffersOf {
    buffers: Mutex<Vec<(usize, Option<LockedPages>)>>,
    /// Keeps the memory mapped. Dropped after the buffers.
    weights: Arc<Weights>,
}

impl LockedBuffers {
    /// Those of `weights`. A mirror's may be others than before.
    fn of(&self, weights: &Arc<Weights>) -> Arc<BuffersOf> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        match &*of {
            Some(known) if Arc::ptr_eq(&known.weights, weights) => known.clone(),
            _ => {
                let new = Arc::new(BuffersOf { buffers: Mutex::default(), weights: weights.clone() });
                of.insert(new).clone()
            }
        }
    }

    /// Lets go of all of them, once the copies that use them are done.
    pub fn clear(&self) {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl BuffersOf {
    /// Page-locks a buffer, when it is first used. The reason when that fails, the first time.
    fn lock(&self, gpu: Gpu, buffer: usize) -> Result<()> {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.iter().any(|(known, _)| *known == buffer) {
            return Ok(());
        }
        let (address, bytes) = self.weights.buffer_memory(buffer);
        // SAFETY: `weights` keeps the memory mapped, and is dropped last.
        let locked = unsafe { LockedPages::of(gpu, address as usize, bytes) };
        let failed = locked.as_ref().err().cloned();
        buffers.push((buffer, locked.ok()));
        failed.map_or(Ok(()), Err)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    FromGpu,
    ToGpu,
}

struct OnGpu {
    gpu: Gpu,
    stream: Handle,
    /// In order.
    leaves: Vec<usize>,
    in_one_block: bool,
}

/// Copies leaves of which some, or all, are on GPUs.
pub struct LeafCopies<'a> {
    locked: &'a LockedBuffers,
    on_gpus: Vec<OnGpu>,
    direction: Direction,
    slow: Mutex<Option<String>>,
}

impl<'a> LeafCopies<'a> {
    pub fn new(locked: &'a LockedBuffers, leaves: Vec<LeavesOnGpu>, direction: Direction) -> Result<Self> {
        let open = |(gpu, stream, mut leaves, in_one_block): LeavesOnGpu| {
            leaves.sort_unstable();
            Ok(OnGpu { gpu: Gpu::open(gpu)?, stream, leaves, in_one_block })
        };
        let on_gpus = leaves.into_iter().map(open).collect::<Result<_>>()?;
        Ok(LeafCopies { locked, on_gpus, direction, slow: Mutex::default() })
    }

    /// Warns if a buffer could not be page-locked.
    pub fn warn(self, py: Python<'_>) -> PyResult<()> {
        let Some(why) = self.slow.into_inner().unwrap_or_else(PoisonError::into_inner) else { return Ok(()) };
        let text =
            format!("weights are not in page-locked memory, so copies from and to the GPU are slower: {why}");
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &CString::new(text)?, 2)
    }

    /// Gives the copies of one GPU to the caller's stream.
    ///
    /// # Safety
    /// As for [`CopyLeaves::copy`].
    unsafe fn start(&self, on_gpu: &OnGpu, copies: Vec<LeafCopy>) -> Result<()> {
        let (entered, stream) = (on_gpu.gpu.enter()?, on_gpu.stream);
        let copies = if on_gpu.in_one_block { joined(copies) } else { copies };
        for copy in copies.iter().filter(|copy| copy.bytes > 0) {
            let (to, from) = (copy.to as usize, copy.from as usize);
            // SAFETY: as the caller promises, who waits for the stream.
            unsafe {
                match self.direction {
                    Direction::FromGpu => entered.to_host(to, from, copy.bytes, stream)?,
                    Direction::ToGpu => entered.to_gpu(to, from, copy.bytes, stream)?,
                }
            }
        }
        Ok(())
    }
}

/// Copies of neighbours as one, with what lies between them: less than an alignment, at both ends.
fn joined(copies: Vec<LeafCopy>) -> Vec<LeafCopy> {
    let mut joined: Vec<LeafCopy> = Vec::with_capacity(copies.len());
    for copy in copies {
        let gap = |last: &LeafCopy| (copy.to as usize).checked_sub(last.to as usize + last.bytes);
        match joined.last_mut() {
            Some(last) if gap(last).is_some_and(|gap| gap < ALIGN) => {
                last.bytes = copy.to as usize + copy.bytes - last.to as usize;
            }
            _ => joined.push(copy),
        }
    }
    joined
}

impl CopyLeaves for LeafCopies<'_> {
    const ON_HOST: bool = false;

    unsafe fn copy(&self, copies: &BufferCopies<'_>) -> rollway_core::Result<()> {
        let locked = self.locked.of(copies.weights);
        let mut on_host = copies.copies.to_vec();
        let mut outcome = Ok(());
        for on_gpu in &self.on_gpus {
            if let Err(why) = locked.lock(on_gpu.gpu, copies.buffer) {
                *self.slow.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            }
            let theirs: Vec<LeafCopy>;
            (theirs, on_host) =
                on_host.into_iter().partition(|copy| on_gpu.leaves.binary_search(&copy.leaf).is_ok());
            // SAFETY: as the caller promises.
            outcome = outcome.and_then(|()| unsafe { self.start(on_gpu, theirs) });
        }
        // SAFETY: as the caller promises, of the leaves that are on no GPU.
        unsafe { copy_all(&on_host, copies.threads) };
        // Also those that were started before one failed: afterwards, nothing is written any more.
        for on_gpu in &self.on_gpus {
            let waited = on_gpu.gpu.enter().and_then(|entered| entered.synchronize(on_gpu.stream));
            outcome = outcome.and(waited);
        }
        outcome.map_err(|error| Error::Device { what: format!("weights cannot be copied: {error}") })
    }
}
