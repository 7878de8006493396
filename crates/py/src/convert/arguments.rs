//! Arguments that many classes share, as Python gives them: timeouts and policies.

use crate::errors::named;
use pyo3::prelude::*;
use rollway_core::policies::{IfExists, OnFull, OnRestart};
use rollway_core::sys::wait::Deadline;
use std::time::Duration;

/// A timeout in seconds, as Python gives it.
pub fn deadline(timeout: Option<f64>) -> PyResult<Deadline> {
    Ok(Deadline::after(timeout.map(seconds).transpose()?))
}

/// Refuses what is no timeout, also where no call will wait.
#[inline]
pub fn check_timeout(timeout: Option<f64>) -> PyResult<()> {
    match timeout {
        Some(value) if value.is_nan() || value < 0.0 => seconds(value).map(drop),
        _ => Ok(()),
    }
}

pub fn seconds(value: f64) -> PyResult<Duration> {
    if value.is_nan() || value < 0.0 {
        let message = format!("a timeout must be a number of seconds >= 0 or None, not {value}");
        return Err(Python::attach(|py| named(py, "InvalidArgument", message)));
    }
    Ok(Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX))
}

pub fn on_full(policy: &str) -> PyResult<OnFull> {
    match policy {
        "block" => Ok(OnFull::Block),
        "drop_oldest" => Ok(OnFull::DropOldest),
        "drop_newest" => Ok(OnFull::DropNewest),
        "error" => Ok(OnFull::Error),
        _ => Err(pyo3::exceptions::PyValueError::new_err(format!(
            "on_full is '{policy}'; it must be 'block', 'drop_oldest', 'drop_newest' or 'error'"
        ))),
    }
}

/// What a remote client does when its learner was restarted.
pub fn on_restart(choice: &str) -> PyResult<OnRestart> {
    match choice {
        "raise" => Ok(OnRestart::Raise),
        "drop" => Ok(OnRestart::Drop),
        "resend" => Ok(OnRestart::Resend),
        other => Err(pyo3::exceptions::PyValueError::new_err(format!(
            "on_restart is '{other}'; it must be 'raise', 'drop' or 'resend'"
        ))),
    }
}

/// What to do when the name is taken.
pub fn if_exists(choice: &str) -> PyResult<IfExists> {
    match choice {
        "resume" => Ok(IfExists::Resume),
        "replace" => Ok(IfExists::Replace),
        "error" => Ok(IfExists::Fail),
        other => Err(pyo3::exceptions::PyValueError::new_err(format!(
            "if_exists is '{other}'; it must be 'resume', 'replace' or 'error'"
        ))),
    }
}
