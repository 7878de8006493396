//! Peer watch: notices, while a call waits, that its peers are dead. A dead process wakes no waiter.
//!
//! Blocking calls check in their wait loops, whenever they poll for liveness. Event loops check periodically, through the same
//! methods of the handles: `check_learners` of producers, `check_producers` of consumers. So every caller gets the same words.
//!
//! | the waiter | what is wrong | when it is an error |
//! |---|---|---|
//! | a producer, for room | every learner is gone, one died, and the name is gone: none can come | at once |
//! | a producer, for room | every learner is gone, and one died | after the timeout |
//! | a learner, for data | every producer is gone, and one died | after the timeout |
//! | a reader of weights, for a version | no writer lives ([`Reader::wait_for`](crate::weights::Reader::wait_for)) | after the timeout |

use super::lease::{Role, Seat};
use crate::error::{Error, Result};
use std::time::{Duration, Instant};

/// Since when there has been no peer, and how long a call goes on waiting. One for each wait.
#[derive(Debug)]
pub struct PeerWatch {
    timeout: Option<Duration>,
    since: Option<Instant>,
}

impl PeerWatch {
    /// `timeout`: how long to wait without a living peer; `None` for ever.
    pub fn with_timeout(timeout: Option<Duration>) -> PeerWatch {
        PeerWatch { timeout, since: None }
    }

    /// Asks whether there is no peer. Gives the timeout when there has been none for so long.
    pub fn has_timed_out(&mut self, is_alone: impl FnOnce() -> bool) -> Option<Duration> {
        let timeout = self.timeout?;
        if !is_alone() {
            self.since = None;
            return None;
        }
        (self.since.get_or_insert_with(Instant::now).elapsed() >= timeout).then_some(timeout)
    }
}

impl Seat {
    /// For a producer that waits for room. `waiting`: what was not read, for the error.
    pub(crate) fn check_learners(
        &self,
        watch: &mut PeerWatch,
        is_orphaned: bool,
        waiting: impl FnOnce() -> String,
    ) -> Result<()> {
        let who = || if self.census(Role::Forwarder).died.is_empty() { "learner" } else { "forwarder" };
        let death = || {
            format!("the {} on '{}' died (pid {})", who(), self.segment().name(), self.dead(Role::Consumer).1)
        };
        if is_orphaned {
            return Err(Error::PeersGone(format!(
                "{}, and the name is gone: no learner can take its place, and {} are lost. Start another learner, and attach to it \
                 anew",
                death(),
                waiting(),
            )));
        }
        match watch.has_timed_out(|| self.all_died(Role::Consumer)) {
            None => Ok(()),
            Some(timeout) => Err(Error::PeersGone(format!(
                "{} and no other took its place in {timeout:.0?}: there is no room, and {} wait to be read. Start a {} with the \
                 same name to go on with them, or raise peer_timeout_s",
                death(),
                waiting(),
                who(),
            ))),
        }
    }

    /// For a learner that waits for data. `missing`: what it waits for; `advice`: what it can do about that, in a sentence.
    pub(crate) fn check_producers(
        &self,
        watch: &mut PeerWatch,
        missing: &str,
        advice: impl FnOnce() -> String,
    ) -> Result<()> {
        let Some(timeout) = watch.has_timed_out(|| self.all_died(Role::Producer)) else { return Ok(()) };
        let (count, pids) = self.dead(Role::Producer);
        Err(Error::PeersGone(format!(
            "every producer of '{}' is gone, and {count} died without closing (pid {pids}): no {missing} in {timeout:.0?}. \
             {}Look at the workers' logs (killed? out of memory?), or raise peer_timeout_s",
            self.segment().name(),
            advice(),
        )))
    }

    /// How many died, and their pids.
    fn dead(&self, role: Role) -> (usize, String) {
        let died = self.census(role).died;
        (died.len(), died.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))
    }
}
