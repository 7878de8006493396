//! Turns the core's errors into the exceptions of `rollway.errors`.

use crate::segment::contents::contents;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rollway_core::error::REPLACE;
use rollway_core::{Error, sys::signals};
use std::cell::RefCell;

/// The exception class of that name, with the error's own words.
pub fn named(py: Python<'_>, class: &str, message: String) -> PyErr {
    let raised = py.import("rollway.errors").and_then(|module| module.getattr(class)?.call1((message,)));
    match raised {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Which exception says what.
pub fn to_py(py: Python<'_>, error: Error) -> PyErr {
    let class = match &error {
        Error::NotFound { .. } => "SegmentNotFound",
        Error::InUse { .. }
        | Error::Forwarded { .. }
        | Error::WriterLives { .. }
        | Error::Writing { .. }
        | Error::Locked { .. }
        | Error::Mirrored { .. } => "SegmentInUse",
        Error::Exists { .. } => "SegmentExists",
        Error::NoMemory { .. } | Error::NoRam { .. } | Error::TooLarge { .. } => "NotEnoughMemory",
        Error::BadName { .. } | Error::OutOfRange { .. } => "InvalidArgument",
        Error::NotOurs { .. } => "SegmentNotOurs",
        Error::NotASegment { .. }
        | Error::Corrupt { .. }
        | Error::BadText { .. }
        | Error::Checksum { .. } => "SegmentDamaged",
        Error::BadSchema { .. } => "SchemaMismatch",
        Error::NothingPublished { .. } => "NothingPublished",
        Error::LayoutVersion { .. } => "LayoutMismatch",
        Error::Geometry { .. } | Error::Policy { .. } => "GeometryMismatch",
        Error::NoSeat { .. } => "NoSeatLeft",
        Error::NoLane { .. } => "NoLaneLeft",
        Error::RecordTooLarge { .. } => "RecordTooLarge",
        Error::HugePages { .. } => "HugePagesUnavailable",
        Error::Closed
        | Error::ConnectionClosed { .. }
        | Error::NotForwarded { .. }
        | Error::WeightsLost { .. } => "ConnectionClosedError",
        Error::Full | Error::Refused { .. } => "RingFull",
        Error::Unreachable { .. } => "LearnerUnreachable",
        Error::Token { .. } => "NotAuthorized",
        Error::TokenRequired { .. } => "TokenRequired",
        Error::Protocol { .. } | Error::WrongContent { .. } => "ProtocolMismatch",
        Error::Tls { .. } => "TlsFailed",
        Error::Bind { .. } | Error::TokenFile { .. } => "AddressUnavailable",
        Error::Forked { .. } => "NotInThisProcess",
        Error::Timeout => "WaitTimeout",
        Error::PeersGone(_) => "PeerDied",
        Error::Empty { .. } => "BufferEmpty",
        Error::Overrun { .. } => "RowsOverrun",
        Error::AllHeld(_) => "BatchesHeld",
        Error::Device { .. } => "DeviceFailed",
        Error::Interrupted | Error::Io { .. } => "SystemCallFailed",
        Error::Kind { name, creator, theirs, ours } => {
            let (theirs, ours) = (contents(*theirs).1, contents(*ours).1);
            let message = format!(
                "segment '{name}' (created by pid {creator}) holds {theirs}, not {ours}. Open it with its own class, choose \
                 another name, or {REPLACE}"
            );
            return named(py, "SchemaMismatch", message);
        }
        Error::Schema { name, creator, theirs } => {
            let place = format!("in segment '{name}' (created by pid {creator})");
            return schema_mismatch(py, place, theirs);
        }
        Error::ForeignSchema { address, theirs, .. } => {
            return schema_mismatch(py, format!("at the learner on {address}"), theirs);
        }
    };
    named(py, class, error.to_string())
}

fn schema_mismatch(py: Python<'_>, place: String, theirs: &[u8]) -> PyErr {
    // The handle in Python knows our side, and says which leaf differs.
    let raised = py
        .import("rollway.errors")
        .and_then(|module| module.getattr("ForeignSchema")?.call1((place, PyBytes::new(py, theirs))));
    match raised {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// With the number of samples that were sent before: also on Ctrl-C's.
pub fn after(py: Python<'_>, raised: PyErr, sent: usize) -> PyErr {
    // A handler may raise what takes no attribute; then that is what the caller has to see.
    let _ = raised.value(py).setattr("sent", sent);
    raised
}

thread_local! {
    /// What a signal handler raised in the middle of a blocking call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs a blocking call with the GIL released, as often as signals interrupt it. The outer error is Ctrl-C's.
pub fn blocking<T: Send>(
    py: Python<'_>,
    mut call: impl FnMut() -> rollway_core::Result<T> + Send,
) -> PyResult<rollway_core::Result<T>> {
    loop {
        let ended = py.detach(|| signals::watched(a_handler_raised, &mut call));
        if let Some(raised) = RAISED.take() {
            return Err(raised);
        }
        match ended {
            Err(Error::Interrupted) => py.check_signals()?,
            ended => return Ok(ended),
        }
    }
}

/// Runs the handlers of signals that have come, as the interpreter would; true when one raised.
fn a_handler_raised() -> bool {
    let raised = Python::attach(|py| py.check_signals()).err();
    let has_raised = raised.is_some();
    RAISED.set(raised);
    has_raised
}
