//! The work of a forwarder's thread that takes records out of the node's lanes and queues their frames.
//!
//! | under way | records are taken |
//! |---|---|
//! | nothing | as soon as there is one: it sleeps on the event of the lanes, which commits notify |
//! | something | [`GATHER`] after the last time, or at once when there was more than it took at a time |
//!
//! So a single record leaves at once, and with data under way a frame has what came meanwhile.

use super::batch_taker::GATHER;
use super::shared::Shared;
use super::taker::Taker;
use crate::error::Result;
use crate::records::Consumer;
use crate::sys::wait::LivenessPoll;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records that are taken at a time, at most.
const TAKEN: usize = 512;
/// How long it sleeps while there is no connection, or no room: the client's thread wakes it.
const PAUSE: Duration = Duration::from_secs(1);

/// What the thread works with.
pub struct RecordTaker {
    pub shared: Arc<Shared>,
    pub consumer: Arc<Consumer>,
    /// When it took records last, unless there were more than it took.
    pub last_taken: Option<Instant>,
}

impl Taker for RecordTaker {
    fn take(&mut self) -> Result<()> {
        let (shared, mut poll) = (self.shared.clone(), LivenessPoll::start());
        let progress = &shared.connector.progress;
        loop {
            progress.notify_if_waiting(); // What we were woken for may be what a caller waits for.
            let ticket = progress.announce();
            let Some(pause) = self.look() else { return Ok(()) };
            if let Some(pause) = pause {
                progress.wait(ticket, pause);
                continue;
            }
            if self.forward()? {
                poll = LivenessPoll::start();
                continue;
            }
            let ticket = self.consumer.announce();
            if self.look().is_some() && !self.forward()? {
                self.consumer.sleep(ticket, &mut poll);
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

impl RecordTaker {
    /// How long to wait before records are taken. `None`: the client has ended.
    fn look(&self) -> Option<Option<Duration>> {
        let state = self.shared.lock();
        let (outbound, published) = (&state.outbound, state.published);
        if state.ended.is_some() {
            return None;
        }
        let pause = if state.link.is_none() || !outbound.has_room(0) {
            Some(PAUSE)
        } else if outbound.unacknowledged() == 0 {
            None
        } else {
            let left = self.last_taken.and_then(|taken| GATHER.checked_sub(taken.elapsed()));
            left.filter(|left| !left.is_zero())
        };
        drop(state);
        if self.consumer.records().published() != u64::from(published) && published > 0 {
            self.consumer.records().publish(published.into());
        }
        Some(pause)
    }

    /// Takes records and queues them, if there are some.
    fn forward(&mut self) -> Result<bool> {
        // Taken and numbered under the lock: a caller that sees that a record is taken sees the next number, too.
        let mut state = self.shared.lock();
        let records = Consumer::take_ready(&self.consumer, TAKEN)?;
        if records.is_empty() {
            return Ok(false);
        }
        self.last_taken = (records.len() < TAKEN).then(Instant::now);
        let fits = records.iter().try_for_each(|record| state.outbound.check_record(record.len() as u64));
        if let Err(error) = fits {
            records.into_iter().for_each(|record| record.give_back());
            return Err(error);
        }
        self.consumer.number(&records, state.outbound.next); // Before a byte can be sent (F3).
        state.outbound.append_records(records);
        self.shared.push(state, false);
        Ok(true)
    }
}
