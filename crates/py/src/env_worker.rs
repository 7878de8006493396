//! `EnvWorker`: a worker's handle on the environments that it steps. `rollway.vector_env.worker` owns one.

use crate::block::view;
use crate::errors::{blocking, to_py};
use crate::gil::GilCell;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use rollway_core::vector_env::parent::Watched;
use rollway_core::vector_env::protocol::Task;
use rollway_core::vector_env::{Call, Worker as Core};

/// Kills this process when another one ends, whatever this one is doing then.
#[pyfunction]
pub fn end_with(py: Python<'_>, pid: u32) -> PyResult<()> {
    Watched::process(pid).and_then(Watched::end_with_it).map_err(|e| to_py(py, e))
}

/// Waits for requests and answers them. One thread.
#[pyclass(frozen, module = "rollway._core")]
pub struct EnvWorker {
    core: Core,
    /// What the last `wait` gave.
    tasks: GilCell<Vec<Task>>,
}

#[pymethods]
impl EnvWorker {
    #[new]
    fn attach(py: Python<'_>, name: &str, worker: usize) -> PyResult<Self> {
        let core = Core::attach(name, worker).map_err(|e| to_py(py, e))?;
        Ok(EnvWorker { core, tasks: GilCell::new(Vec::new()) })
    }

    /// The data that caller and workers share.
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, self.core.stage().data(), self.core.stage().clone())
    }

    /// Whether the caller lives.
    fn caller_lives(&self) -> bool {
        self.core.caller_lives()
    }

    /// Sleeps until there is something to do: `("tasks", what, argument, envs)`, all of one kind; or `"mail"` or `"closed"`.
    fn wait(&self, py: Python<'_>) -> PyResult<(&'static str, u8, u32, Vec<usize>)> {
        let call = blocking(py, || self.core.wait())?.map_err(|e| to_py(py, e))?;
        let mut tasks = match call {
            Call::Tasks(tasks) => tasks,
            Call::Mail => return Ok(("mail", 0, 0, Vec::new())),
            Call::Closed => return Ok(("closed", 0, 0, Vec::new())),
        };
        let first = tasks[0].request;
        tasks.retain(|task| (task.request.what, task.request.argument) == (first.what, first.argument));
        let envs = tasks.iter().map(|task| task.env).collect();
        self.tasks.replace(py, tasks);
        Ok(("tasks", first.what, first.argument, envs))
    }

    /// All tasks of the last `wait` are done; one flag for each.
    fn answer(&self, py: Python<'_>, flags: &[u8]) {
        self.tasks.with(py, |tasks| self.core.answer(tasks, flags));
    }

    /// One of them is.
    fn answer_one(&self, py: Python<'_>, position: usize, flags: u8) -> PyResult<()> {
        let answered = self.tasks.with(py, |tasks| {
            tasks.get(position..=position).map(|task| self.core.answer(task, &[flags])).is_some()
        });
        if answered { Ok(()) } else { Err(PyIndexError::new_err(format!("there is no task {position}"))) }
    }
}
