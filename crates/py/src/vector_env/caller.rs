//! `EnvCaller`: the caller's handle on environments in worker processes. `rollway.vector_env` owns one.

use crate::convert::arguments::{deadline, seconds};
use crate::errors::{blocking, named, to_py};
use crate::segment::block::view;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rollway_core::Error;
use rollway_core::vector_env::{Caller as Core, Outcome, VectorEnv};
use std::sync::{Arc, Mutex, MutexGuard};

/// Asks environments and waits for their answers. One thread at a time.
#[pyclass(frozen, module = "rollway._core")]
pub struct EnvCaller {
    core: Mutex<Core>,
    vector_env: Arc<VectorEnv>,
    name: String,
}

/// What a wait ended with, in Python's words.
type Waited = (&'static str, Vec<usize>, Vec<u8>);

fn wait_outcome(
    py: Python<'_>,
    core: &mut Core,
    count: usize,
    limit: Option<f64>,
    timeout: Option<f64>,
) -> PyResult<Outcome> {
    let (limit, deadline) = (limit.map(seconds).transpose()?, deadline(timeout)?);
    blocking(py, || core.wait(count, limit, deadline))?.map_err(|error| match error {
        Error::Closed => named(
            py,
            "ConnectionClosedError",
            "this vector environment was closed by another thread".to_owned(),
        ),
        other => to_py(py, other),
    })
}

fn describe(outcome: Outcome) -> Waited {
    match outcome {
        Outcome::Answered(answers) => {
            let (envs, flags): (Vec<usize>, Vec<u8>) = answers.into_iter().unzip();
            ("answered", envs, flags)
        }
        Outcome::Died(workers) => ("died", workers, Vec::new()),
        Outcome::Hung(envs) => ("hung", envs, Vec::new()),
    }
}

impl EnvCaller {
    fn core(&self) -> PyResult<MutexGuard<'_, Core>> {
        self.core
            .try_lock()
            .map_err(|_| PyRuntimeError::new_err("another thread is using this vector environment"))
    }
}

#[pymethods]
impl EnvCaller {
    #[new]
    fn create(
        py: Python<'_>,
        name: String,
        workers: usize,
        envs: usize,
        data_bytes: usize,
    ) -> PyResult<Self> {
        let core = Core::create(&name, workers, envs, data_bytes).map_err(|e| to_py(py, e))?;
        let vector_env = core.vector_env().clone();
        Ok(EnvCaller { core: Mutex::new(core), vector_env, name })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The data that caller and workers share.
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, self.vector_env.data(), self.vector_env.clone())
    }

    /// No process is this worker any more.
    fn vacate(&self, py: Python<'_>, worker: usize) -> PyResult<()> {
        self.core()?.vacate(worker).map_err(|e| to_py(py, e))
    }

    /// A process was started as this worker.
    fn expect(&self, py: Python<'_>, worker: usize, pid: u32) -> PyResult<()> {
        self.core()?.expect(worker, pid).map_err(|e| to_py(py, e))
    }

    /// Asks environments; all of them when `envs` is `None`.
    fn ask(&self, py: Python<'_>, what: u8, argument: u32, envs: Option<Vec<usize>>) -> PyResult<()> {
        let mut core = self.core()?;
        match envs {
            Some(envs) => core.ask(envs.into_iter(), what, argument),
            None => core.ask(0..self.vector_env.geometry().envs, what, argument),
        }
        .map_err(|e| to_py(py, e))
    }

    /// Wakes a worker to receive a message by the pipe.
    fn announce_message(&self, py: Python<'_>, worker: usize) -> PyResult<()> {
        self.core()?.post_message(worker).map_err(|e| to_py(py, e))
    }

    /// Asks all environments and waits for them. `None`: all have answered, and no flag is set; otherwise as `wait`.
    fn step(&self, py: Python<'_>, what: u8, argument: u32, limit: Option<f64>) -> PyResult<Option<Waited>> {
        let mut guard = self.core()?;
        let core: &mut Core = &mut guard;
        let envs = self.vector_env.geometry().envs;
        core.ask(0..envs, what, argument).map_err(|e| to_py(py, e))?;
        let outcome = wait_outcome(py, core, envs, limit, None)?;
        let is_plain = matches!(&outcome, Outcome::Answered(answers)
            if answers.len() == envs && answers.iter().all(|&(_, flags)| flags == 0));
        Ok((!is_plain).then(|| describe(outcome)))
    }

    /// Waits for `count` answers: `("answered", envs, flags)`, `("died", workers, b"")` or `("hung", envs, b"")`.
    fn wait(
        &self,
        py: Python<'_>,
        count: usize,
        limit: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Waited> {
        Ok(describe(wait_outcome(py, &mut *self.core()?, count, limit, timeout)?))
    }

    /// How many environments have a request whose answer was not taken yet.
    fn num_busy(&self) -> PyResult<usize> {
        Ok(self.core()?.outstanding())
    }

    /// Whether this environment has such a request.
    fn is_busy(&self, env: usize) -> PyResult<bool> {
        Ok(self.core()?.is_outstanding(env))
    }

    /// Tells the workers to end, takes the name away, and ends a wait of another thread.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.vector_env.close().map_err(|e| to_py(py, e))
    }
}
