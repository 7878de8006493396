//! The thread of a forwarder that takes batches out of the node's ring and queues their frames.
//!
//! It sleeps on the ring's own event. Commits notify it, and so does the client's thread after each acknowledgement.
//!
//! | under way | a batch is closed early and sent |
//! |---|---|
//! | nothing | as soon as it has a sample |
//! | something | [`GATHER`] after the last one, while the forwarder holds less than half of the buffers |
//!
//! So a single sample leaves at once, and a link that is slower than the workers gets full batches.

use super::disconnect::Ended;
use super::forwarded_batch::BatchRows;
use super::shared::Shared;
use crate::error::Result;
use crate::ring::Consumer;
use crate::sys::sync::{AtomicBool, Ordering};
use crate::sys::wait::LivenessPoll;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long samples may gather in an unfinished batch while others are under way.
const GATHER: Duration = Duration::from_micros(500);

/// The thread, and what it works with.
pub struct BatchTaker {
    pub shared: Arc<Shared>,
    pub consumer: Arc<Consumer>,
    /// Whether what is in the ring stays there for the next forwarder.
    pub leaves_ring: Arc<AtomicBool>,
    pub last_taken: Instant,
}

/// How far the connection is.
struct Outlook {
    /// Frames may be queued.
    has_room: bool,
    is_idle: bool,
}

impl BatchTaker {
    /// The work of the thread.
    pub fn run(mut self) {
        let work = catch_unwind(AssertUnwindSafe(|| self.take_batches()));
        let failed = match work {
            Ok(ended) => ended.err().map(|error| error.to_string()),
            Err(_) => Some("the thread that takes batches failed; this is a bug in Rollway".to_owned()),
        };
        if let Some(why) = failed {
            self.shared.lock().ended.get_or_insert(Ended::Lost(why));
            self.shared.connector.request_stop();
            self.shared.connector.progress.notify();
        }
        let BatchTaker { shared, consumer, leaves_ring, .. } = self;
        // Relaxed: it was set before the client ended, which we have seen under the lock.
        if leaves_ring.load(Ordering::Relaxed) {
            let _ = Consumer::abandon_with(consumer, || shared.lock().outbound.clear());
        } else {
            shared.lock().outbound.clear();
            let _ = consumer.close();
        }
        shared.connector.progress.notify();
    }

    fn take_batches(&mut self) -> Result<()> {
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
