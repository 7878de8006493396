//! `rollway._core`: the core for Python. Each file is one class: convert, release the GIL, call; no logic.
//!
//! | module | what it is |
//! |---|---|
//! | `ring`, `records`, `weights`, `replay`, `tables`, `vector_env`, `net`, `segment` | the classes of each, one file per class |
//! | `inspect` | a segment that is looked at from outside |
//! | `convert` | from Python values to bytes and numbers, and back |
//! | `device` | copies to and from GPUs |
//! | `sends`, `consumer_view` | what the handles that send have in common, and those of learners |
//! | `stats` | numbers for Python |
//! | `eventfd_waiter` | lets an event loop wait for any handle |
//! | `errors`, `gil` | the exceptions; a cell that the GIL guards |

mod consumer_view;
mod convert;
mod device;
mod errors;
mod eventfd_waiter;
mod gil;
mod inspect;
mod net;
mod records;
mod replay;
mod ring;
mod segment;
mod sends;
mod stats;
mod tables;
mod vector_env;
mod weights;

use pyo3::prelude::*;

/// The native part of Rollway. Import from `rollway`, not from here.
#[pymodule]
mod _core {
    use super::{Bound, PyAnyMethods, PyModule, PyResult};

    #[pymodule_export]
    use super::convert::array::writable_view;
    #[pymodule_export]
    use super::convert::plan::Plan;
    #[pymodule_export]
    use super::convert::record_plan::RecordPlan;
    #[pymodule_export]
    use super::convert::schema::{read_schema, read_weight_schema};
    #[pymodule_export]
    use super::device::page_lock::PageLock;
    #[pymodule_export]
    use super::device::uploads::{Upload, Uploads};
    #[pymodule_export]
    use super::eventfd_waiter::EventfdWaiter;
    #[pymodule_export]
    use super::inspect::inspection::Inspection;
    #[pymodule_export]
    use super::net::connection::TcpConnection;
    #[pymodule_export]
    use super::net::forwarder::Forwarder;
    #[pymodule_export]
    use super::net::record_client::TcpRecordSender;
    #[pymodule_export]
    use super::net::sample_client::TcpSender;
    #[pymodule_export]
    use super::net::tcp_server::TcpServer;
    #[pymodule_export]
    use super::records::consumer::RecordConsumer;
    #[pymodule_export]
    use super::records::group::Group;
    #[pymodule_export]
    use super::records::group_assembler::Assembler;
    #[pymodule_export]
    use super::records::producer::RecordProducer;
    #[pymodule_export]
    use super::records::record::Record;
    #[pymodule_export]
    use super::records::slot::RecordSlot;
    #[pymodule_export]
    use super::records::table::{RecordTable, plan_budget};
    #[pymodule_export]
    use super::replay::table::Table;
    #[pymodule_export]
    use super::ring::consumer::Consumer;
    #[pymodule_export]
    use super::ring::producer::Producer;
    #[pymodule_export]
    use super::ring::row_writer::RowWriter;
    #[pymodule_export]
    use super::ring::sample::Sample;
    #[pymodule_export]
    use super::ring::sample_info::SampleInfo;
    #[pymodule_export]
    use super::ring::slot::Slot;
    #[pymodule_export]
    use super::segment::block::{Block, map_for};
    #[pymodule_export]
    use super::segment::catalog::{
        collect, collect_all, discard_forwarded, list_segments, memory_limits, shm_directory,
    };
    #[pymodule_export]
    use super::segment::histogram::HistSnapshot;
    #[pymodule_export]
    use super::segment::sizes::{ring_bytes, table_bytes, weights_bytes};
    #[pymodule_export]
    use super::tables::handle::Tables;
    #[pymodule_export]
    use super::tables::writer::TablesWriter;
    #[pymodule_export]
    use super::vector_env::caller::EnvCaller;
    #[pymodule_export]
    use super::vector_env::sink::EnvSink;
    #[pymodule_export]
    use super::vector_env::worker::{EnvWorker, end_with};
    #[pymodule_export]
    use super::weights::handle::Weights;
    #[pymodule_export]
    use super::weights::mirror::WeightMirror;

    /// Loads numpy's API table now: that runs Python code, and a signal handler that raises in there is a panic.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.setattr("__version__", env!("CARGO_PKG_VERSION"))?;
        module.setattr("WIRE_PROTOCOL", rollway_core::net::wire::frame::PROTOCOL)?;
        module.py().import("numpy")?;
        super::convert::numpy_types::ndarray_type(module.py());
        super::convert::scalar::check_layout(module.py())
    }
}
