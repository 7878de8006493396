//! `EnvWorker`: a worker's handle on the environments that it steps. `rollway.vector_env.worker` owns one.

use crate::errors::{blocking, to_py};
use crate::gil::GilCell;
use crate::segment::block::view;
use crate::vector_env::sink::EnvSink;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rollway_core::vector_env::parent::ProcessWatch;
use rollway_core::vector_env::protocol::Task;
use rollway_core::vector_env::{Call, Worker as Core};
use smallvec::SmallVec;

/// Kills this process when another one ends, whatever this one is doing then.
#[pyfunction]
pub fn end_with(py: Python<'_>, pid: u32) -> PyResult<()> {
    ProcessWatch::process(pid).and_then(ProcessWatch::exit_with_it).map_err(|e| to_py(py, e))
}

/// Waits for requests and answers them. One thread.
#[pyclass(frozen, module = "rollway._core")]
pub struct EnvWorker {
    core: Core,
    /// What the last `serve` gave.
    tasks: GilCell<Vec<Task>>,
}

#[pymethods]
impl EnvWorker {
    /// A task: step, and answer for all of the worker's environments at once.
    #[classattr]
    const STEP: u8 = 1;
    /// A task: step, and answer for each environment as soon as it is done.
    #[classattr]
    const SEND: u8 = 2;

    #[new]
    fn attach(py: Python<'_>, name: &str, worker: usize) -> PyResult<Self> {
        let core = Core::attach(name, worker).map_err(|e| to_py(py, e))?;
        Ok(EnvWorker { core, tasks: GilCell::new(Vec::new()) })
    }

    /// The data that caller and workers share.
    #[getter]
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, self.core.vector_env().data(), self.core.vector_env().clone())
    }

    /// Whether the caller lives.
    fn caller_lives(&self) -> bool {
        self.core.caller_lives()
    }

    /// Steps environments when it is asked to, and sleeps meanwhile, until there is something else to do:
    /// `("tasks", what, argument, envs)`, all of one kind; or `"message"` or `"closed"`.
    ///
    /// `steps` has a function for each environment, or `None` where the next step is none; `sinks` where results of a buffer
    /// go, if that can be done here; `in_hand` is told who is being stepped. Everything else is asked of the desk.
    fn serve<'py>(
        &self,
        desk: &Bound<'py, PyAny>,
        steps: &Bound<'py, PyList>,
        sinks: &Bound<'py, PyDict>,
        in_hand: &Bound<'py, PyArray1<i64>>,
    ) -> PyResult<(&'static str, u8, u32, Vec<usize>)> {
        let py = desk.py();
        if in_hand.is_empty()? {
            return Err(PyValueError::new_err("in_hand has no place"));
        }
        loop {
            let call = blocking(py, || self.core.wait())?.map_err(|e| to_py(py, e))?;
            let mut tasks = match call {
                Call::Tasks(tasks) => tasks,
                Call::Message => return Ok(("message", 0, 0, Vec::new())),
                Call::Closed => return Ok(("closed", 0, 0, Vec::new())),
            };
            let first = tasks[0].request;
            tasks.retain(|task| (task.request.what, task.request.argument) == (first.what, first.argument));
            if !matches!(first.what, Self::STEP | Self::SEND) {
                let envs = tasks.iter().map(|task| task.env).collect();
                self.tasks.replace(py, tasks);
                return Ok(("tasks", first.what, first.argument, envs));
            }
            let sink = sinks.get_item(first.argument)?;
            let sink = sink.as_ref().map(|sink| sink.cast::<EnvSink>()).transpose()?;
            let context =
                StepContext { desk, steps, sink: sink.map(Bound::get), buffer: first.argument, in_hand };
            self.step(&context, &tasks, first.what == Self::STEP)?;
        }
    }

    /// All tasks that the last `serve` gave are done; one flag for each.
    fn answer(&self, py: Python<'_>, flags: &[u8]) {
        // SAFETY: `answer` stores words and wakes the caller; it knows nothing of Python.
        unsafe { self.tasks.with(py, |tasks| self.core.answer(tasks, flags)) };
    }
}

impl EnvWorker {
    /// Steps the environments of these tasks, and answers: for all of them at once, or for one after the other.
    fn step(&self, context: &StepContext<'_, '_>, tasks: &[Task], at_once: bool) -> PyResult<()> {
        let first = self.core.env_range().start;
        let envs: Option<Vec<usize>> =
            (tasks.len() != context.steps.len()).then(|| tasks.iter().map(|task| task.env).collect());
        let actions = context.desk.call_method1("actions", (envs,))?;
        let mut flags: SmallVec<[u8; 64]> = SmallVec::with_capacity(tasks.len());
        for (position, task) in tasks.iter().enumerate() {
            let flag = context.step(task.env, task.env - first, &actions, position)?;
            if at_once {
                flags.push(flag);
            } else {
                self.core.answer(std::slice::from_ref(task), &[flag]);
                context.desk.call_method0("ship")?;
            }
        }
        context.busy_with(0);
        if at_once {
            self.core.answer(tasks, &flags);
            if flags.iter().any(|&flag| flag != 0) {
                context.desk.call_method0("ship")?;
            }
        }
        Ok(())
    }
}

/// What is needed to step environments once.
struct StepContext<'a, 'py> {
    desk: &'a Bound<'py, PyAny>,
    steps: &'a Bound<'py, PyList>,
    sink: Option<&'a EnvSink>,
    buffer: u32,
    in_hand: &'a Bound<'py, PyArray1<i64>>,
}

impl StepContext<'_, '_> {
    /// Steps one environment; gives its flags.
    fn step(&self, env: usize, place: usize, actions: &Bound<'_, PyAny>, position: usize) -> PyResult<u8> {
        self.busy_with(env + 1);
        let step = self.steps.get_item(place)?;
        if step.is_none() {
            return self.desk.call_method1("begin", (env, self.buffer))?.extract();
        }
        let action = match actions.is_none() {
            false => actions.get_item(position),
            true => self.desk.call_method1("action", (env,)), // They come one by one.
        };
        match action.and_then(|action| step.call1((action,))) {
            Ok(outcome) if self.sink.is_some_and(|sink| sink.take(env, &outcome)) => Ok(0),
            Ok(outcome) => self.desk.call_method1("settle", (env, self.buffer, outcome))?.extract(),
            Err(error) => self.desk.call_method1("fail", (env, error.into_value(self.desk.py())))?.extract(),
        }
    }

    /// For reports about the dead and the hung. Nobody: 0.
    fn busy_with(&self, number: usize) {
        // SAFETY: the array has one element at least, as `serve` has seen; the GIL is held.
        unsafe { self.in_hand.data().write_volatile(number as i64) };
    }
}
