//! The work of a forwarder's thread that takes batches out of the node's ring and queues their frames.
//!
//! It sleeps on the ring's own event. Commits notify it, and so does the client's thread after each acknowledgement.
//!
//! | under way | a batch is closed early and sent |
//! |---|---|
//! | nothing | as soon as it has a sample |
//! | something | [`GATHER`] after the last one, while the forwarder holds less than half of the buffers |
//!
//! So a single sample leaves at once, and a link that is slower than the workers gets full batches.

use super::forwarded_batch::BatchRows;
use super::shared::Shared;
use super::taker::Taker;
use crate::error::Result;
use crate::ring::Consumer;
use crate::sys::wait::LivenessPoll;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long samples may gather in an unfinished batch while others are under way.
pub const GATHER: Duration = Duration::from_micros(500);

/// What the thread works with.
pub struct BatchTaker {
    pub shared: Arc<Shared>,
    pub consumer: Arc<Consumer>,
    pub last_taken: Instant,
}

/// How far the connection is.
struct Outlook {
    /// Frames may be queued.
    has_room: bool,
    is_idle: bool,
}

impl Taker for BatchTaker {
    fn take(&mut self) -> Result<()> {
        let mut poll = LivenessPoll::start();
        loop {
            let ticket = self.consumer.announce();
            self.shared.connector.progress.notify_if_waiting(); // What we were woken for may be what a caller waits for.
            let Some(outlook) = self.look() else { return Ok(()) };
            let (early, gathers) = self.pace(&outlook);
            if outlook.has_room && self.forward(early)? {
                poll = LivenessPoll::start();
                continue;
            }
            let idle = match outlook.has_room {
                false => true,
                true if early && self.consumer.is_idle(true)? => true,
                // Something is committed: it came just now, or its batch is closed and waits for a writer.
                true if early && self.forward(early)? => continue,
                true => self.consumer.is_idle(false)?,
            };
            if idle {
                self.consumer.sleep(ticket, gathers, &mut poll)?;
            }
        }
    }

    fn end(self, leaves: bool, let_go: impl FnOnce()) {
        if leaves {
            let _ = Consumer::abandon_with(self.consumer, let_go);
        } else {
            let_go();
            let _ = self.consumer.close();
        }
    }
}

impl BatchTaker {
    /// `None`: the client has ended.
    fn look(&self) -> Option<Outlook> {
        let state = self.shared.lock();
        let outbound = &state.outbound;
        state.ended.is_none().then(|| Outlook {
            has_room: state.link.is_some() && outbound.has_room(0),
            is_idle: outbound.unacknowledged() == 0,
        })
    }

    /// Whether to close unfinished batches now, or after which time.
    fn pace(&self, outlook: &Outlook) -> (bool, Option<Duration>) {
        if outlook.is_idle {
            return (true, None);
        }
        let buffers = self.consumer.ring().geometry().num_buffers;
        if !outlook.has_room || self.consumer.held() >= buffers / 2 {
            return (false, None); // The next acknowledgement wakes us.
        }
        let left = GATHER.checked_sub(self.last_taken.elapsed()).filter(|left| !left.is_zero());
        (left.is_none(), left)
    }

    /// Takes a batch and queues it, if there is one.
    fn forward(&mut self, early: bool) -> Result<bool> {
        let Some(batch) = Consumer::take_early(&self.consumer, early)? else { return Ok(false) };
        self.last_taken = Instant::now();
        let mut state = self.shared.lock();
        // In the ring before a byte can be sent (F3), and under the lock: a caller that sees it sees the next number, too.
        self.consumer.number(&batch, state.outbound.next);
        state.outbound.append_batch(BatchRows::all(batch));
        self.shared.push(state, false);
        Ok(true)
    }
}
