//! `Weights`: one process's handle on weights in shared memory. `rollway.SharedWeightSync` is built on it.

use crate::convert::arguments::{deadline, seconds};
use crate::convert::numbers;
use crate::device::leaf_copies::{Direction, LeafCopies, LeavesOnGpu, LockedBuffers};
use crate::errors::{blocking, named, to_py};
use crate::gil::GilCell;
use crate::stats::set_fields;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rollway_core::Error;
use rollway_core::segment::arrival;
use rollway_core::sys::clock::monotonic_ns;
use rollway_core::sys::parallel::default_threads;
use rollway_core::weights::copy::{CopyLeaves, HostCopies};
use rollway_core::weights::reader::Reading;
use rollway_core::weights::{IfExists, Reader, Source, Target, Weights as Core, WeightsSpec, Writer};
use std::sync::Arc;

/// Copies larger than this let other threads of the interpreter run meanwhile.
const DETACH_BYTES: usize = 256 * 1024;

/// The roles that this handle has taken. A role is taken when it is first needed.
struct Open {
    core: Arc<Core>,
    writer: Option<Arc<Writer>>,
    reader: Option<Arc<Reader>>,
}

impl Open {
    fn end_waits(&self) {
        if let Some(reader) = &self.reader {
            reader.close();
        }
        if let Some(writer) = &self.writer {
            writer.close();
        }
    }
}

/// Weights in shared memory: one writer at a time, any number of readers. Not for users: addresses are taken as they are.
#[pyclass(frozen, module = "rollway._core")]
pub struct Weights {
    open: GilCell<Option<Open>>,
    name: String,
    threads: usize,
    /// For copies from and to GPUs.
    locked: LockedBuffers,
}

#[pymethods]
impl Weights {
    /// Makes weights, or goes on with those of that name. `writes`: as their learner, of which there is one.
    #[staticmethod]
    #[pyo3(signature = (name, *, auto_named, schema, leaf_bytes, max_buffers, max_peers, checksum, writes, threads=None))]
    #[allow(clippy::too_many_arguments)]
    fn create(
        py: Python<'_>,
        name: String,
        auto_named: bool,
        schema: Vec<u8>,
        leaf_bytes: Vec<usize>,
        #[pyo3(from_py_with = numbers::max_buffers)] max_buffers: usize,
        #[pyo3(from_py_with = numbers::max_peers)] max_peers: usize,
        checksum: bool,
        writes: bool,
        #[pyo3(from_py_with = numbers::threads)] threads: Option<usize>,
    ) -> PyResult<Self> {
        let threads = threads.unwrap_or_else(default_threads);
        let spec = WeightsSpec {
            name: Some(&name),
            auto_named,
            schema: &schema,
            leaf_bytes: &leaf_bytes,
            max_buffers,
            max_peers,
            checksum,
        };
        let open = py.detach(|| {
            Ok(if writes {
                let writer = Arc::new(Writer::open(&spec, IfExists::Resume, threads)?);
                Open { core: writer.weights().clone(), writer: Some(writer), reader: None }
            } else {
                let reader = Arc::new(Reader::open(&spec, IfExists::Resume, threads)?);
                Open { core: reader.weights().clone(), writer: None, reader: Some(reader) }
            })
        });
        let open = open.map_err(|e| to_py(py, e))?;
        Ok(Weights { open: GilCell::new(Some(open)), name, threads, locked: LockedBuffers::default() })
    }

    /// Opens weights by their name alone, as a reader; waits for them to appear.
    #[staticmethod]
    #[pyo3(signature = (name, *, connect_timeout_s=0.0, threads=None))]
    fn attach(
        py: Python<'_>,
        name: String,
        connect_timeout_s: f64,
        #[pyo3(from_py_with = numbers::threads)] threads: Option<usize>,
    ) -> PyResult<Self> {
        let threads = threads.unwrap_or_else(default_threads);
        let deadline = deadline(Some(connect_timeout_s))?;
        let reader = blocking(py, || {
            arrival::attach(&name, deadline, || {
                Reader::attach_to(Arc::new(Core::open(&name, None)?), threads)
            })
        })?;
        let reader = Arc::new(reader.map_err(|e| to_py(py, e))?);
        let open = Open { core: reader.weights().clone(), writer: None, reader: Some(reader) };
        Ok(Weights { open: GilCell::new(Some(open)), name, threads, locked: LockedBuffers::default() })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.core(py)?.segment().schema()))
    }

    #[getter]
    fn leaf_bytes(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.core(py)?.geometry().leaf_bytes.clone())
    }

    /// Where each leaf begins in a buffer.
    #[getter]
    fn leaf_offsets(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.core(py)?.geometry().leaf_offsets.clone())
    }

    /// The version published last; 0 when nothing was.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        self.core(py)?.version().map_err(|e| to_py(py, e))
    }

    /// Whether this handle is closed, or the weights were shut down.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.shared(py, |open| Some(open.core.clone())).is_none_or(|core| core.is_closed())
    }

    /// The process that wrote last, as it saw its own id; `None` when there is none.
    #[getter]
    fn writer_pid(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        Ok(self.core(py)?.writer_pid())
    }

    /// Publishes a version made of the leaves at these addresses and, for the others, of what they were. Waits for a write of
    /// another process, at most `timeout` seconds. `on_gpus`: which addresses are on GPUs.
    #[pyo3(signature = (leaves, addresses, timeout, on_gpus=Vec::new()))]
    fn write(
        &self,
        py: Python<'_>,
        leaves: Vec<usize>,
        addresses: Vec<usize>,
        timeout: Option<f64>,
        on_gpus: Vec<LeavesOnGpu>,
    ) -> PyResult<u64> {
        let (writer, deadline) = (self.writer(py)?, deadline(timeout)?);
        let sources: Vec<Source> = leaves
            .iter()
            .zip(&addresses)
            .map(|(&leaf, &address)| Source { leaf, from: address as *const u8 })
            .collect();
        let gpu_copies = gpu_copies(py, &self.locked, on_gpus, Direction::FromGpu)?;
        // SAFETY: the Python side has checked that each address is that of an array of the leaf's size, and holds it.
        let write = || unsafe {
            match &gpu_copies {
                None => writer.write(&sources),
                Some(how) => writer.write_with(&sources, how),
            }
        };
        // What is not given may have to be copied as well.
        let large = gpu_copies.is_some() || writer.weights().geometry().buffer_bytes > DETACH_BYTES;
        let written = loop {
            let started = monotonic_ns();
            match if large { py.detach(write) } else { write() } {
                Err(Error::Writing { .. }) if deadline.remaining().is_some() => {
                    let waited = blocking(py, || writer.wait_idle(deadline))?;
                    waited.map_err(|_| self.is_closed(py))?;
                }
                written => {
                    if let Ok(version) = written {
                        writer.weights().note_write(version, monotonic_ns() - started);
                    }
                    break written;
                }
            }
        };
        gpu_copies.map_or(Ok(()), |how| how.warn(py))?;
        written.map_err(|e| to_py(py, e))
    }

    /// Copies the leaves that changed after `since` to these addresses. The version, and which of them were copied. `on_gpus`:
    /// which addresses are on GPUs.
    #[pyo3(signature = (leaves, addresses, since, on_gpus=Vec::new()))]
    fn read(
        &self,
        py: Python<'_>,
        leaves: Vec<usize>,
        addresses: Vec<usize>,
        #[pyo3(from_py_with = numbers::since)] since: u64,
        on_gpus: Vec<LeavesOnGpu>,
    ) -> PyResult<(u64, Vec<usize>)> {
        let reader = self.reader(py)?;
        let targets = targets(&leaves, &addresses);
        let large = total(reader.weights(), &leaves) > DETACH_BYTES;
        let started = monotonic_ns();
        let reading = match gpu_copies(py, &self.locked, on_gpus, Direction::ToGpu)? {
            // SAFETY: as in `write`; the arrays are writable.
            None => unsafe { read_with(py, &reader, &targets, since, &HostCopies, large) },
            Some(how) => {
                // SAFETY: as above.
                let reading = unsafe { read_with(py, &reader, &targets, since, &how, true) };
                how.warn(py)?;
                reading
            }
        }?;
        if let Ok(Some(reading)) = &reading {
            reader.note_read(reading.version, monotonic_ns() - started);
        }
        if self.open.is_none(py) {
            self.leave(py, reader);
        }
        Ok(reading.map_err(|e| to_py(py, e))?.map_or((0, Vec::new()), |r| (r.version, r.copied)))
    }

    /// Sleeps until that version, or a later one, is there; gives back which.
    fn wait_for_version(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = numbers::weights_version)] version: u64,
        timeout: Option<f64>,
        peer_timeout_s: Option<f64>,
    ) -> PyResult<u64> {
        let (reader, deadline) = (self.reader(py)?, deadline(timeout)?);
        let peer_timeout = peer_timeout_s.map(seconds).transpose()?;
        let there = blocking(py, || reader.wait_for_counted(version, deadline, peer_timeout));
        if self.open.is_none(py) {
            self.leave(py, reader);
            return there?.map_err(|_| self.is_closed(py));
        }
        there?.map_err(|error| match error {
            Error::Timeout => {
                let (latest, name) = (reader.weights().version().unwrap_or(0), &self.name);
                let writer = match (reader.living_writer(), reader.weights().writer_pid()) {
                    (Some(pid), _) => format!("the writer (pid {pid}) lives"),
                    (None, Some(pid)) => format!("the writer (pid {pid}) is dead"),
                    (None, None) => "no process writes".to_owned(),
                };
                let waited = timeout.unwrap_or_default();
                let text = format!(
                    "version {version} of '{name}' did not come in {waited} s; {latest} is the latest, and {writer}"
                );
                named(py, "WaitTimeout", text)
            }
            Error::Closed => {
                let text = format!("the weights '{}' were shut down: version {version} will not come", self.name);
                named(py, "ConnectionClosedError", text)
            }
            other => to_py(py, other),
        })
    }

    /// What happened so far, in numbers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let totals = self.core(py)?.totals();
        let stats = PyDict::new(py);
        stats.set_item("version", self.version(py)?)?;
        set_fields!(stats, totals, buffers, retries, overtaken, recovered);
        Ok(stats)
    }

    /// Lets go, and ends the calls that wait. The last one to leave takes the name away, unless the writer died and may come
    /// back for what it published.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.locked.clear());
        if let Some(open) = self.open.replace(py, None) {
            py.detach(|| {
                open.end_waits();
                drop(open);
                Core::collect(&self.name)
            })
            .map_err(|e| to_py(py, e))?;
        }
        Ok(())
    }

    /// Removes the name, tells all attached processes that nothing more will come, and detaches.
    fn unlink(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.locked.clear());
        if let Some(open) = self.open.replace(py, None) {
            py.detach(|| {
                open.end_waits();
                open.core.shut_down()
            })
            .map_err(|e| to_py(py, e))?;
        }
        Ok(())
    }
}

impl Weights {
    pub fn core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        let core = self.shared(py, |open| Some(open.core.clone()));
        core.ok_or_else(|| self.is_closed(py))
    }

    /// One of the handles in `open`, if it is there.
    fn shared<T>(&self, py: Python<'_>, choose: fn(&Open) -> Option<Arc<T>>) -> Option<Arc<T>> {
        // SAFETY: the callers' functions, all in this file, count references.
        unsafe { self.open.with(py, |open| open.as_ref().and_then(choose)) }
    }

    fn is_closed(&self, py: Python<'_>) -> PyErr {
        named(py, "ConnectionClosedError", format!("this handle on the weights '{}' is closed", self.name))
    }

    /// The handle was closed while `reader` was used in this thread, which kept it from leaving: it leaves now.
    #[cold]
    fn leave(&self, py: Python<'_>, reader: Arc<Reader>) {
        py.detach(|| {
            drop(reader);
            // A name that stays behind is collected by the next look.
            let _ = Core::collect(&self.name);
        });
    }

    fn writer(&self, py: Python<'_>) -> PyResult<Arc<Writer>> {
        let core = self.core(py)?;
        if let Some(writer) = self.shared(py, |open| open.writer.clone()).filter(|it| it.is_of_this_process())
        {
            return Ok(writer);
        }
        let writer = Arc::new(Writer::attach_to(core, self.threads).map_err(|e| to_py(py, e))?);
        self.keep(py, |open| open.writer = Some(writer.clone()));
        Ok(writer)
    }

    fn reader(&self, py: Python<'_>) -> PyResult<Arc<Reader>> {
        let core = self.core(py)?;
        if let Some(reader) = self.shared(py, |open| open.reader.clone()) {
            return Ok(reader);
        }
        let reader = Arc::new(Reader::attach_to(core, self.threads).map_err(|e| to_py(py, e))?);
        self.keep(py, |open| open.reader = Some(reader.clone()));
        Ok(reader)
    }

    /// Notes a role that was taken. Nothing in here lets go of the GIL.
    fn keep(&self, py: Python<'_>, note: impl FnOnce(&mut Open)) {
        let mut open = self.open.replace(py, None);
        if let Some(open) = &mut open {
            note(open);
        }
        drop(self.open.replace(py, open));
    }
}

/// Bytes of these leaves.
fn total(core: &Core, leaves: &[usize]) -> usize {
    let sizes = &core.geometry().leaf_bytes;
    leaves.iter().filter_map(|&leaf| sizes.get(leaf)).sum()
}

/// How leaves are copied of which some are on GPUs; `None` when none are.
pub fn gpu_copies<'a>(
    py: Python<'_>,
    locked: &'a LockedBuffers,
    on_gpus: Vec<LeavesOnGpu>,
    direction: Direction,
) -> PyResult<Option<LeafCopies<'a>>> {
    if on_gpus.is_empty() {
        return Ok(None);
    }
    let copies = LeafCopies::new(locked, on_gpus, direction);
    copies.map(Some).map_err(|error| named(py, "DeviceFailed", format!("weights cannot be copied: {error}")))
}

/// Reads as often as the writer is faster, in the end without the GIL, so that Ctrl-C ends it.
///
/// # Safety
/// As for [`Reader::read_with`].
unsafe fn read_with(
    py: Python<'_>,
    reader: &Reader,
    targets: &[Target],
    since: u64,
    how: &impl CopyLeaves,
    large: bool,
) -> PyResult<rollway_core::Result<Option<Reading>>> {
    // SAFETY: as the caller promises.
    let try_read = || unsafe { reader.try_read_with(targets, since, how) };
    match if large { py.detach(try_read) } else { try_read() } {
        // SAFETY: as the caller promises.
        Err(Error::Timeout) => blocking(py, || unsafe { reader.read_with(targets, since, how) }),
        reading => Ok(reading),
    }
}

/// Where the leaves go.
pub fn targets(leaves: &[usize], addresses: &[usize]) -> Vec<Target> {
    let target = |(&leaf, &address)| Target { leaf, to: address as *mut u8 };
    leaves.iter().zip(addresses).map(target).collect()
}
