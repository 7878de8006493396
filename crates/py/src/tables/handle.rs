//! `Tables`: one participant's handle on replay tables. `rollway.replay.Replay` owns one.

use crate::convert::arguments::{deadline, if_exists};
use crate::convert::numbers;
use crate::convert::plan::Plan;
use crate::errors::{blocking, named, to_py};
use crate::gil::GilCell;
use crate::tables::writer::TablesWriter;
use numpy::npyffi::{self, npy_intp};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rollway_core::Error;
use rollway_core::replay::{Field, Sampler};
use rollway_core::segment::arrival;
use rollway_core::tables::limiter::Limiter;
use rollway_core::tables::patterns::{Column, FROM_SPAN, Pattern, Slice};
use rollway_core::tables::sample::{Draw, Target};
use rollway_core::tables::selectors::Kind;
use rollway_core::tables::{Config, Tables as Core, TablesSpec};
use std::sync::Arc;

/// A selector: its kind, and the exponent of a prioritised one.
type Selector = (String, f64);

/// A table: name, max_size, sampler, remover, max_times_sampled; min_size, samples_per_insert, min_diff, max_diff,
/// items_per_version, versions_ahead; max_age_ms, max_later_items, max_staleness.
type TableForm = (String, usize, Selector, Selector, u32, (u64, f64, f64, f64, u64, u64), (u32, u64, u64));

/// A column of an item: name, leaf, whether it is a single step, and (first step, how many) of each slice; a negative number of
/// steps counts from the end of the item.
pub type ColumnForm = (String, usize, bool, Vec<(u32, i64)>);

/// A batch: the names and arrays of its columns, keys, probabilities, priorities, times sampled, and the steps of each item in
/// each column, if they differ.
type BatchForm<'py> = (
    Vec<String>,
    Vec<Bound<'py, PyAny>>,
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray1<u32>>,
    Option<Vec<Bound<'py, PyArray1<i64>>>>,
);

/// The arrays of a batch, where they are, and the most steps of each.
type Arrays<'py> = (Vec<Bound<'py, PyAny>>, Vec<Target>, Vec<usize>);

/// One participant of replay tables.
#[pyclass(frozen, module = "rollway._core")]
pub struct Tables {
    core: GilCell<Option<Arc<Core>>>,
    sampler: Arc<Sampler>,
    plan: Py<Plan>,
    name: String,
}

#[pymethods]
impl Tables {
    /// A learner's handle: makes the tables, or goes on with those that are there.
    #[new]
    #[pyo3(signature = (name, plan, tables, chunks, chunk_steps, *, auto_named, if_exists, max_peers, huge_pages, seed))]
    #[allow(clippy::too_many_arguments)] // Python's keyword arguments, one by one.
    fn open(
        py: Python<'_>,
        name: String,
        plan: Py<Plan>,
        tables: Vec<TableForm>,
        chunks: usize,
        chunk_steps: usize,
        auto_named: bool,
        if_exists: &str,
        #[pyo3(from_py_with = numbers::max_peers)] max_peers: usize,
        huge_pages: Option<bool>,
        #[pyo3(from_py_with = numbers::seed)] seed: Option<u64>,
    ) -> PyResult<Self> {
        let (fields, row_bytes) = fields(&plan.get().leaf_bytes());
        let tables = tables.into_iter().map(|table| config(py, table)).collect::<PyResult<Vec<_>>>()?;
        let spec = TablesSpec {
            name: Some(&name),
            auto_named,
            schema: &plan.get().text,
            row_bytes,
            fields: &fields,
            chunks,
            chunk_steps,
            tables: &tables,
            max_peers,
            huge_pages,
        };
        let if_exists = self::if_exists(if_exists)?;
        let core = py.detach(|| Core::open(&spec, if_exists)).map_err(|e| to_py(py, e))?;
        Ok(Tables::wrap(core, plan, seed))
    }

    /// A worker's handle. Waits for the tables to appear.
    #[staticmethod]
    fn attach(
        py: Python<'_>,
        name: &str,
        plan: Py<Plan>,
        #[pyo3(from_py_with = numbers::seed)] seed: Option<u64>,
        connect_timeout_s: f64,
    ) -> PyResult<Self> {
        let (fields, row_bytes) = fields(&plan.get().leaf_bytes());
        let deadline = deadline(Some(connect_timeout_s))?;
        let attach = || Core::attach(name, &plan.get().text, row_bytes, &fields);
        let core = blocking(py, || arrival::attach(name, deadline, attach))?.map_err(|e| to_py(py, e))?;
        Ok(Tables::wrap(core, plan, seed))
    }

    /// The schema of tables. Waits for them to appear.
    #[staticmethod]
    fn schema_of<'py>(py: Python<'py>, name: &str, connect_timeout_s: f64) -> PyResult<Bound<'py, PyBytes>> {
        let deadline = deadline(Some(connect_timeout_s))?;
        let text = blocking(py, || arrival::attach(name, deadline, || Core::schema_of(name)))?;
        Ok(PyBytes::new(py, &text.map_err(|e| to_py(py, e))?))
    }

    /// What each table was made as.
    fn configs(&self, py: Python<'_>) -> PyResult<Vec<TableForm>> {
        Ok(self.core(py)?.configs().iter().map(form).collect())
    }

    /// A stream of steps; items can be made of the last `history`.
    fn writer(&self, py: Python<'_>, history: usize) -> PyResult<TablesWriter> {
        Ok(TablesWriter::new(self.core(py)?, self.plan.clone_ref(py), history))
    }

    /// The number of a pattern.
    fn pattern(&self, py: Python<'_>, columns: Vec<ColumnForm>) -> PyResult<u32> {
        let core = self.core(py)?;
        let slice = |(start, steps): (u32, i64)| {
            let length = if steps < 0 { FROM_SPAN | steps.unsigned_abs() as u32 } else { steps as u32 };
            Slice::new(start, if steps == i64::MIN { FROM_SPAN } else { length })
        };
        let column = |(name, field, single, slices): ColumnForm| Column {
            name,
            field,
            single,
            slices: slices.into_iter().map(slice).collect(),
        };
        let pattern = Pattern { columns: columns.into_iter().map(column).collect() };
        if pattern.columns.iter().any(|column| column.field >= self.plan.get().leaves.len()) {
            return Err(named(py, "InvalidArgument", "there is no such leaf".to_owned()));
        }
        core.pattern_number(&pattern).map_err(|e| self.explain(py, e))
    }

    /// Chooses `count` items and copies their steps. `None` when the limiter did not admit them in time.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        table: usize,
        #[pyo3(from_py_with = numbers::batch_size)] count: usize,
        timeout: Option<f64>,
    ) -> PyResult<Option<BatchForm<'py>>> {
        let (core, deadline) = (self.core(py)?, deadline(timeout)?);
        let (draw, arrays, lengths) = loop {
            let drawn = blocking(py, || core.draw(table, count, &self.sampler, deadline))?;
            let mut draw = match drawn {
                Err(Error::Timeout) => return Ok(None),
                drawn => drawn.map_err(|e| self.explain(py, e))?,
            };
            let (arrays, targets, lengths) = match self.arrays(py, &draw) {
                Ok(made) => made,
                Err(error) => {
                    core.give_back(&draw).map_err(|e| self.explain(py, e))?;
                    return Err(error);
                }
            };
            // SAFETY: each target has room for `count` items of the longest length; the arrays are new, and nobody else's.
            let gather = || unsafe { core.gather(&mut draw, &targets, &self.sampler) };
            if py.detach(gather).map_err(|e| self.explain(py, e))? {
                break (draw, arrays, lengths);
            }
        };
        let is_ragged = is_ragged(&draw);
        let chosen = &draw.chosen;
        let names = draw.patterns[0].1.columns.iter().map(|column| column.name.clone()).collect();
        let lengths = is_ragged.then(|| {
            let column = |column: usize| {
                let steps = chosen.iter().map(|one| {
                    draw.pattern(one.pattern)
                        .map_or(0, |pattern| pattern.columns[column].len(one.span) as i64)
                });
                PyArray1::from_iter(py, steps)
            };
            (0..lengths.len()).map(column).collect()
        });
        Ok(Some((
            names,
            arrays,
            PyArray1::from_iter(py, chosen.iter().map(|one| one.key().0)),
            PyArray1::from_iter(py, chosen.iter().map(|one| one.probability)),
            PyArray1::from_iter(py, chosen.iter().map(|one| one.priority)),
            PyArray1::from_iter(py, chosen.iter().map(|one| one.times_sampled)),
            lengths,
        )))
    }

    /// Gives items new priorities; says how many were still there.
    fn update_priorities(
        &self,
        py: Python<'_>,
        table: usize,
        keys: &Bound<'_, PyArray1<u64>>,
        priorities: &Bound<'_, PyArray1<f64>>,
    ) -> PyResult<usize> {
        let (keys, priorities) = (keys.to_vec()?, priorities.to_vec()?);
        let core = self.core(py)?;
        let update = || core.update_priorities(table, &keys, &priorities);
        blocking(py, update)?.map_err(|e| self.explain(py, e))
    }

    /// Removes items; says how many were there.
    fn delete(&self, py: Python<'_>, table: usize, keys: &Bound<'_, PyArray1<u64>>) -> PyResult<usize> {
        let (core, keys) = (self.core(py)?, keys.to_vec()?);
        blocking(py, || core.delete(table, &keys))?.map_err(|e| self.explain(py, e))
    }

    fn clear(&self, py: Python<'_>, table: usize) -> PyResult<()> {
        let core = self.core(py)?;
        blocking(py, || core.clear(table))?.map_err(|e| self.explain(py, e))
    }

    /// Items, and how many were ever inserted, sampled and removed; the version of the weights.
    fn counts(&self, py: Python<'_>, table: usize) -> PyResult<(u64, u64, u64, u64, u64)> {
        let (counts, deletes) = self.core(py)?.counts(table);
        Ok((counts.size, counts.inserts, counts.samples, deletes, counts.version))
    }

    /// Steps that there is room for in all, and that are free.
    fn steps(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let core = self.core(py)?;
        Ok((core.geometry().steps(), core.free_steps()))
    }

    fn note_version(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        self.core(py)?.note_version(version);
        Ok(())
    }

    /// Counts everything anew, and says what does not fit.
    fn audit(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let core = self.core(py)?;
        blocking(py, || core.audit())?.map_err(|e| self.explain(py, e))
    }

    /// How many bytes the segment has.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.core(py)?.segment().header().total_bytes)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Whether this handle was closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.core.is_none(py)
    }

    /// Leaves; the last learner takes the name away.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(core) = self.core.replace(py, None) else { return Ok(()) };
        py.detach(|| core.leave()).map_err(|e| to_py(py, e))
    }

    /// Ends as if this process had been killed: what is in the tables stays for the next learner.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        let Some(core) = self.core.replace(py, None) else { return Ok(()) };
        py.detach(|| Core::abandon(core)).map_err(|e| to_py(py, e))
    }
}

impl Tables {
    fn wrap(core: Core, plan: Py<Plan>, seed: Option<u64>) -> Tables {
        let (name, sampler) = (core.name().to_owned(), Arc::new(Sampler::new(seed)));
        Tables { name, core: GilCell::new(Some(Arc::new(core))), sampler, plan }
    }

    fn core(&self, py: Python<'_>) -> PyResult<Arc<Core>> {
        self.core.share(py).ok_or_else(|| self.is_closed(py))
    }

    fn is_closed(&self, py: Python<'_>) -> PyErr {
        named(py, "ConnectionClosedError", format!("this handle on '{}' is closed", self.name))
    }

    fn explain(&self, py: Python<'_>, error: Error) -> PyErr {
        match error {
            Error::Closed if self.core.is_none(py) => self.is_closed(py),
            error => closed_or(py, &self.name, error),
        }
    }

    /// New arrays for a batch: for each column, items, steps (if it is not a single one), and the shape of the leaf.
    /// And the most steps of each column.
    fn arrays<'py>(&self, py: Python<'py>, draw: &Draw) -> PyResult<Arrays<'py>> {
        let Some(lengths) = draw.lengths() else {
            let what =
                "items with different columns were drawn: insert items with the same columns into a table";
            return Err(named(py, "SchemaMismatch", what.to_owned()));
        };
        let make = py.import("numpy")?.getattr("empty")?;
        let (mut arrays, mut targets) = (Vec::new(), Vec::new());
        for (column, &steps) in draw.patterns[0].1.columns.iter().zip(&lengths) {
            let leaf = &self.plan.get().leaves[column.field];
            let mut shape = vec![draw.chosen.len() as npy_intp];
            if !column.single {
                shape.push(steps as npy_intp);
            }
            shape.extend(&leaf.shape);
            let array = make.call1((PyTuple::new(py, shape)?, leaf.descr.bind(py)))?;
            // SAFETY: numpy has just made it: an ndarray.
            let data = unsafe { (*array.as_ptr().cast::<npyffi::PyArrayObject>()).fields.data.cast() };
            targets.push(Target { data, stride: steps * leaf.bytes, steps });
            arrays.push(array);
        }
        Ok((arrays, targets, lengths))
    }
}

/// Whether the items of a batch have different numbers of steps.
fn is_ragged(draw: &Draw) -> bool {
    let first = &draw.chosen[0];
    draw.chosen.iter().any(|one| (one.span, one.pattern) != (first.span, first.pattern))
}

/// The error of a call on tables that may be closed by their learner.
pub fn closed_or(py: Python<'_>, name: &str, error: Error) -> PyErr {
    match error {
        Error::Closed => {
            let message = format!("the tables '{name}' are closed: their last learner has left");
            named(py, "ConnectionClosedError", message)
        }
        error => to_py(py, error),
    }
}

/// The fields of a step: each leaf at a multiple of eight, where it is not smaller.
fn fields(leaf_bytes: &[usize]) -> (Vec<Field>, usize) {
    let mut end = 0usize;
    let field = |&bytes: &usize| {
        let align = if bytes >= 8 { 8 } else { bytes.max(1).next_power_of_two() };
        let offset = end.next_multiple_of(align);
        end = offset + bytes;
        Field { offset, bytes }
    };
    let fields = leaf_bytes.iter().map(field).collect();
    (fields, end.max(1))
}

fn kind(py: Python<'_>, (name, exponent): Selector) -> PyResult<Kind> {
    Ok(match name.as_str() {
        "fifo" => Kind::Fifo,
        "lifo" => Kind::Lifo,
        "uniform" => Kind::Uniform,
        "prioritised" => Kind::Prioritised(exponent),
        "min_heap" => Kind::MinHeap,
        "max_heap" => Kind::MaxHeap,
        other => return Err(named(py, "InvalidArgument", format!("there is no selector '{other}'"))),
    })
}

fn selector(kind: Kind) -> Selector {
    match kind {
        Kind::Fifo => ("fifo".to_owned(), 0.0),
        Kind::Lifo => ("lifo".to_owned(), 0.0),
        Kind::Uniform => ("uniform".to_owned(), 0.0),
        Kind::Prioritised(exponent) => ("prioritised".to_owned(), exponent),
        Kind::MinHeap => ("min_heap".to_owned(), 0.0),
        Kind::MaxHeap => ("max_heap".to_owned(), 0.0),
    }
}

fn config(py: Python<'_>, table: TableForm) -> PyResult<Config> {
    let (name, max_items, sampler, remover, max_times_sampled, limiter, ages) = table;
    let (min_size, samples_per_insert, min_diff, max_diff, items_per_version, versions_ahead) = limiter;
    let (max_age_ms, max_later_items, max_staleness) = ages;
    Ok(Config {
        name,
        max_items,
        sampler: kind(py, sampler)?,
        remover: kind(py, remover)?,
        max_times_sampled,
        limiter: Limiter {
            min_size,
            samples_per_insert,
            min_diff,
            max_diff,
            items_per_version,
            versions_ahead,
        },
        max_age_ms,
        max_later_items,
        max_staleness,
    })
}

fn form(config: &Config) -> TableForm {
    let Limiter { min_size, samples_per_insert, min_diff, max_diff, items_per_version, versions_ahead } =
        config.limiter;
    (
        config.name.clone(),
        config.max_items,
        selector(config.sampler),
        selector(config.remover),
        config.max_times_sampled,
        (min_size, samples_per_insert, min_diff, max_diff, items_per_version, versions_ahead),
        (config.max_age_ms, config.max_later_items, config.max_staleness),
    )
}
