//! `Uploads`: blocks of host memory that go to a GPU one after the other. `Upload`: one of them, in one asynchronous copy.
//!
//! A thread waits for the copies and gives their room back. The driver could call a function instead: that was no faster on an
//! H200. A copy of some megabytes takes less time than it takes to wake a thread, so both ends of it spin, where that pays.

use crate::device::driver::{Entered, Gpu, Handle, Result};
use crate::errors::{named, to_py};
use crate::ring::batch::Held;
use crate::ring::consumer::Consumer;
use crate::ring::sample::Sample;
use pyo3::prelude::*;
use rollway_core::ring::Consumer as Core;
use rollway_core::sys::wait::spin_gently;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Copies to one GPU, on a stream of their own. Not for users: addresses and streams are taken as they are.
#[pyclass(frozen, module = "rollway._core")]
pub struct Uploads {
    stream: Arc<Stream>,
    /// To the thread that gives room back. It ends with this.
    under_way: Sender<(Arc<Event>, Held)>,
}

/// So long a thread spins before it sleeps: somewhat longer than the copies for which waking would take as long as they do.
const SPIN: Duration = Duration::from_micros(100);
/// The learner's thread, the one that gives room back, and two that fill the ring.
const WAITERS: usize = 4;

/// What came of the next batch of a ring.
#[derive(IntoPyObject)]
pub enum Started {
    /// It is being copied.
    Copy(Upload),
    /// It was closed early, so it is to be gathered.
    Short(Sample),
}

/// A copy that was started.
#[pyclass(frozen, module = "rollway._core")]
pub struct Upload(Arc<Event>);

/// The stream of the copies.
struct Stream {
    gpu: Gpu,
    handle: Handle,
    /// Events that nobody uses: making one takes longer than using it.
    events: Mutex<Vec<Handle>>,
    /// A forked child has no GPU.
    pid: u32,
}

/// Stands for one copy.
struct Event {
    handle: Handle,
    stream: Arc<Stream>,
}

#[pymethods]
impl Uploads {
    #[new]
    fn new(py: Python<'_>, gpu: i32) -> PyResult<Uploads> {
        let open = || {
            let gpu = Gpu::open(gpu)?;
            let handle = gpu.enter()?.new_stream()?;
            let stream = Stream { gpu, handle, events: Mutex::default(), pid: std::process::id() };
            let (under_way, done) = channel();
            let thread = std::thread::Builder::new().name("rollway-uploads".to_owned());
            thread.spawn(|| give_back(done)).map_err(|error| format!("starting a thread failed: {error}"))?;
            Ok(Uploads { stream: Arc::new(stream), under_way })
        };
        py.detach(open).map_err(|error| failed(py, error))
    }

    /// The stream of the copies.
    #[getter]
    fn stream(&self) -> Handle {
        self.stream.handle
    }

    /// Starts a copy of `nbytes`. The room of `sample` goes back when it is done, without a call from here; without a sample,
    /// the caller keeps the memory until then.
    fn start(
        &self,
        py: Python<'_>,
        address: usize,
        to: usize,
        nbytes: usize,
        sample: Option<&Sample>,
    ) -> PyResult<Upload> {
        // SAFETY: the Python side gives blocks of that size, and keeps them, or their sample.
        let event = unsafe { self.stream.copy(address, to, nbytes) }.map_err(|error| failed(py, error))?;
        if let Some(held) = sample.and_then(|sample| sample.take_held(py)) {
            self.give_back_after(event.clone(), held);
        }
        Ok(Upload(event))
    }

    /// Takes the next batch of a ring and starts its copy, as [`start`](Self::start). `nbytes` of whole batches lie in one
    /// piece, which begins with the first row. `None` when there is no batch: with `spin`, after a moment.
    fn start_next(
        &self,
        consumer: &Bound<'_, Consumer>,
        to: usize,
        nbytes: usize,
        spin: bool,
    ) -> PyResult<Option<Started>> {
        let py = consumer.py();
        let Some(batch) = self.take(consumer, spin)? else { return Ok(None) };
        let ring = batch.consumer().ring().clone();
        if batch.len() < ring.geometry().batch_size {
            return Consumer::sample_of(consumer, batch).map(|sample| Some(Started::Short(sample)));
        }
        let buffer = batch.number().1;
        let first =
            (0..ring.geometry().leaf_bytes.len()).map(|leaf| ring.leaf(buffer, leaf, 0) as usize).min();
        // SAFETY: the Python side gives a block of that size, and has seen that whole batches are as large; `batch` keeps its room.
        match unsafe { self.stream.copy(first.unwrap_or_default(), to, nbytes) } {
            Ok(event) => {
                self.give_back_after(event.clone(), batch);
                Ok(Some(Started::Copy(Upload(event))))
            }
            Err(error) => {
                batch.give_back(); // Unread: nothing is lost.
                Err(failed(py, error))
            }
        }
    }
}

impl Uploads {
    /// The room goes back when the copy is done. The thread is there as long as we are; after a fork it is not, and neither is
    /// the GPU.
    fn give_back_after(&self, event: Arc<Event>, held: Held) {
        let _ = self.under_way.send((event, held));
    }

    fn take(&self, consumer: &Bound<'_, Consumer>, spins: bool) -> PyResult<Option<Held>> {
        let py = consumer.py();
        let core = consumer.get().core(py)?;
        let taken = match Core::try_take_in_order(core.clone()) {
            Ok(None) if spins && has_cores() => py.detach(|| Core::take_spinning(core, SPIN)),
            at_once => at_once,
        };
        taken.map_err(|error| to_py(py, error))
    }
}

/// Whether threads may spin: not where they take the time of those that they wait for.
fn has_cores() -> bool {
    static CORES: OnceLock<bool> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= WAITERS))
}

#[pymethods]
impl Upload {
    /// Lets a stream of the caller's wait for the copy.
    fn wait(&self, py: Python<'_>, stream: Handle) -> PyResult<()> {
        let Event { handle, stream: ours } = &*self.0;
        let waiting = ours.gpu.enter().and_then(|entered| entered.wait_event(stream, *handle));
        waiting.map_err(|error| failed(py, error))
    }

    /// Whether the copy is done.
    #[getter]
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        let done = self.0.stream.gpu.enter().and_then(|entered| entered.is_done(self.0.handle));
        done.map_err(|error| failed(py, error))
    }
}

/// Gives the room of each copy back when it is done. A GPU that is lost copies nothing any more.
fn give_back(under_way: Receiver<(Arc<Event>, Held)>) {
    for (event, held) in under_way {
        let _ = event.stream.gpu.enter().and_then(|entered| wait_for(&entered, event.handle));
        drop(held);
    }
}

/// Waits for a copy, at first without sleeping.
fn wait_for(entered: &Entered, event: Handle) -> Result<()> {
    let started = Instant::now();
    while has_cores() && started.elapsed() < SPIN {
        if entered.is_done(event)? {
            return Ok(());
        }
        spin_gently();
    }
    entered.wait_for(event)
}

impl Stream {
    /// # Safety
    /// Both ends have as many bytes, until the copy is done.
    unsafe fn copy(self: &Arc<Self>, from: usize, to: usize, bytes: usize) -> Result<Arc<Event>> {
        let entered = self.gpu.enter()?;
        let handle = self.free_events().pop().map_or_else(|| entered.new_event(), Ok)?;
        let event = Arc::new(Event { handle, stream: self.clone() });
        // SAFETY: as the caller promises.
        unsafe { entered.to_gpu(to, from, bytes, self.handle)? };
        if let Err(error) = entered.record(handle, self.handle) {
            entered.synchronize(self.handle)?;
            return Err(error);
        }
        Ok(event)
    }

    fn free_events(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_this_process(&self) -> Option<Entered> {
        if self.pid == std::process::id() { self.gpu.enter().ok() } else { None }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.stream.free_events().push(self.handle);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(entered) = self.of_this_process() else { return };
        // SAFETY: they are ours, and this is the end of their use; the driver finishes what they were given.
        unsafe {
            entered.destroy_stream(self.handle);
            for event in self.free_events().drain(..) {
                entered.destroy_event(event);
            }
        }
    }
}

#[cold]
fn failed(py: Python<'_>, error: String) -> PyErr {
    named(py, "DeviceFailed", format!("a batch cannot be copied to the GPU: {error}"))
}
