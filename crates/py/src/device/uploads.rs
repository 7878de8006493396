//! `Uploads`: blocks of host memory that go to a GPU one after the other. `Upload`: one of them, in one asynchronous copy.
//!
//! A thread waits for the copies and gives their room back. The driver could call a function instead: that was no faster on an
//! H200.

use crate::device::driver::{Entered, Gpu, Handle, Result};
use crate::errors::named;
use crate::ring::batch::Held;
use crate::ring::sample::Sample;
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Copies to one GPU, on a stream of their own. Not for users: addresses and streams are taken as they are.
#[pyclass(frozen, module = "rollway._core")]
pub struct Uploads {
    stream: Arc<Stream>,
    /// To the thread that gives room back. It ends with this.
    under_way: Sender<(Arc<Event>, Held)>,
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
            // The thread is there as long as we are. After a fork it is not, and neither is the GPU.
            let _ = self.under_way.send((event.clone(), held));
        }
        Ok(Upload(event))
    }
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
        let _ = event.stream.gpu.enter().and_then(|entered| entered.wait_for(event.handle));
        drop(held);
    }
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
