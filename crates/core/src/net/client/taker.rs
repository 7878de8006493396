//! The thread of a forwarder that takes what workers have committed: how it ends, whatever it takes.

use super::disconnect::Ended;
use super::shared::Shared;
use crate::error::Result;
use crate::sys::sync::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What the thread takes, and how.
pub trait Taker: Send + 'static {
    /// Takes and queues until the client has ended.
    fn take(&mut self) -> Result<()>;

    /// Ends the consumer. `leaves`: what is there stays for the next forwarder. `let_go` drops what is queued.
    fn end(self, leaves: bool, let_go: impl FnOnce());
}

/// The work of the thread. `leaves`: whether what workers have committed stays for the next forwarder.
pub fn run(shared: &Arc<Shared>, leaves: &AtomicBool, mut taker: impl Taker) {
    let work = catch_unwind(AssertUnwindSafe(|| taker.take()));
    let failed = match work {
        Ok(ended) => ended.err().map(|error| error.to_string()),
        Err(_) => Some("the thread that takes what workers send failed; this is a bug in Rollway".to_owned()),
    };
    if let Some(why) = failed {
        shared.lock().ended.get_or_insert(Ended::Lost(why));
        shared.connector.request_stop();
        shared.connector.progress.notify();
    }
    // Relaxed: it was set before the client ended, which we have seen under the lock.
    taker.end(leaves.load(Ordering::Relaxed), || shared.lock().outbound.clear());
    shared.connector.progress.notify();
}
