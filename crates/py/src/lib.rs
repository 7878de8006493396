//! `rollway._core`: the core for Python. Each file is one class: convert, release the GIL, call; no logic.

mod array;
mod batch;
mod block;
mod catalog;
mod columns;
mod consumer;
mod env_caller;
mod env_sink;
mod env_worker;
mod errors;
mod gil;
mod group;
mod group_assembler;
mod histogram;
mod json;
mod numbers;
mod plan;
mod producer;
mod record;
mod record_bundle;
mod record_consumer;
mod record_key;
mod record_label;
mod record_plan;
mod record_producer;
mod record_slot;
mod record_table;
mod rows;
mod sample;
mod sample_info;
mod scalar;
mod schema;
mod sentry;
mod slot;
mod table;
mod tcp_client;
mod tcp_connection;
mod tcp_record_client;
mod tcp_server;
mod wanted;
mod weight_mirror;
mod weights;

use pyo3::prelude::*;

/// The native part of Rollway. Import from `rollway`, not from here.
#[pymodule]
mod _core {
    use super::{Bound, PyModule, PyResult};

    #[pymodule_export]
    use super::block::{Block, map_for};
    #[pymodule_export]
    use super::catalog::{collect, collect_all, list_segments, memory_limits, shm_directory};
    #[pymodule_export]
    use super::consumer::Consumer;
    #[pymodule_export]
    use super::env_caller::EnvCaller;
    #[pymodule_export]
    use super::env_sink::EnvSink;
    #[pymodule_export]
    use super::env_worker::{EnvWorker, end_with};
    #[pymodule_export]
    use super::group::Group;
    #[pymodule_export]
    use super::group_assembler::Assembler;
    #[pymodule_export]
    use super::histogram::HistSnapshot;
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::producer::Producer;
    #[pymodule_export]
    use super::record::Record;
    #[pymodule_export]
    use super::record_consumer::RecordConsumer;
    #[pymodule_export]
    use super::record_plan::RecordPlan;
    #[pymodule_export]
    use super::record_producer::RecordProducer;
    #[pymodule_export]
    use super::record_slot::RecordSlot;
    #[pymodule_export]
    use super::record_table::{RecordTable, plan_budget};
    #[pymodule_export]
    use super::sample::Sample;
    #[pymodule_export]
    use super::sample_info::SampleInfo;
    #[pymodule_export]
    use super::schema::{read_schema, read_weight_schema};
    #[pymodule_export]
    use super::sentry::Sentry;
    #[pymodule_export]
    use super::slot::Slot;
    #[pymodule_export]
    use super::table::Table;
    #[pymodule_export]
    use super::tcp_client::TcpSender;
    #[pymodule_export]
    use super::tcp_connection::TcpConnection;
    #[pymodule_export]
    use super::tcp_record_client::TcpRecordSender;
    #[pymodule_export]
    use super::tcp_server::TcpServer;
    #[pymodule_export]
    use super::weight_mirror::WeightMirror;
    #[pymodule_export]
    use super::weights::Weights;

    /// Loads numpy's API table now: that runs Python code, and a signal handler that raises in there is a panic.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.py().import("numpy")?;
        super::array::ndarray_type(module.py());
        Ok(())
    }
}
