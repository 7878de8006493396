//! A worker: waits for requests to its environments, and answers them.

use super::VectorEnv;
use super::layout::env_range;
use super::protocol::Task;
use crate::error::{Error, Result};
use crate::segment::{Activity, Owner, Role, Seat};
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{AtomicU64, Ordering, Woken};
use crate::sys::wait::{AdaptiveSpin, SpinOutcome};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One worker's handle. One thread uses it.
#[derive(Debug)]
pub struct Worker {
    vector_env: Arc<VectorEnv>,
    /// The proof that we live.
    seat: Seat,
    index: usize,
    messages: AtomicU64,
    spin: Mutex<AdaptiveSpin>,
}

/// What there is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Call {
    /// Requests to answer.
    Tasks(Vec<Task>),
    /// A message has come, by the other way.
    Message,
    /// The caller is done with us.
    Closed,
}

/// A sleep without end, cut into hours. The caller's death ends this process; nothing else needs a look around.
const LONG: Duration = Duration::from_secs(3600);

/// The most messages that wait for a worker. The caller waits for a reply to each, and gives up after a timeout at most: there
/// are one or two.
const MAX_MESSAGES: u64 = 1 << 16;

impl Worker {
    /// Attaches, and sits down as worker `index`.
    pub fn attach(name: &str, index: usize) -> Result<Worker> {
        let vector_env = Arc::new(VectorEnv::open(name)?);
        let workers = vector_env.geometry().workers;
        if index >= workers {
            return Err(Error::out_of_range("worker", index, format!("below {workers}")));
        }
        let seat = Seat::take(vector_env.segment().clone(), Role::Producer, |_| {})?;
        let owner = seat.owner().ok_or(Error::Closed)?;
        let protocol = vector_env.protocol();
        // SYNC line.owner: Release here, Acquire in `Caller::is_dead`. Our lock is held.
        protocol.lines[index].owner.store(Owner::pack_maybe(Some(owner)), Ordering::Release);
        // Messages to our predecessor were lost with it.
        let messages = AtomicU64::new(protocol.messages_sent(index));
        Ok(Worker { vector_env, seat, index, messages, spin: AdaptiveSpin::for_waiters(workers).into() })
    }

    /// Whether the caller lives. Asked once, after the watch on its process was set up ([`super::parent`]): then the watched
    /// process is the caller, and not a later one with the same pid.
    pub fn caller_lives(&self) -> bool {
        // SYNC control.caller: Acquire here, Release in `Caller::create`.
        let word = self.vector_env.protocol().control.caller.load(Ordering::Acquire);
        Owner::unpack_maybe(word).is_some_and(|caller| self.seat.is_alive(caller))
    }

    /// Waits until there is something to do: awake where the last wait was short, then asleep.
    ///
    /// `Interrupted` after a signal, or when one may have come unnoticed before we go to sleep: call again.
    pub fn wait(&self) -> Result<Call> {
        let event = &self.vector_env.protocol().lines[self.index].work;
        let mut spin = self.spin.lock().unwrap_or_else(PoisonError::into_inner);
        let _waiting = self.seat.waits(Activity::WaitData);
        loop {
            let moved = event.count();
            if let Some(call) = self.look()? {
                spin.finish();
                return Ok(call);
            }
            match spin.spin_until(|| event.count() != moved) {
                SpinOutcome::Happened => continue,
                SpinOutcome::Expired => return Err(Error::Interrupted),
                SpinOutcome::Skipped => {}
            }
            let ticket = event.announce();
            if let Some(call) = self.look()? {
                spin.finish();
                return Ok(call);
            }
            if event.wait(ticket, LONG) == Woken::Interrupted {
                return Err(Error::Interrupted);
            }
        }
    }

    fn look(&self) -> Result<Option<Call>> {
        let protocol = self.vector_env.protocol();
        let tasks: Vec<Task> = protocol.tasks(self.index).collect();
        if !tasks.is_empty() {
            return Ok(Some(Call::Tasks(tasks)));
        }
        let messages = self.messages.load(Ordering::Relaxed);
        match protocol.messages_sent(self.index).wrapping_sub(messages) {
            0 => Ok(protocol.is_closed().then_some(Call::Closed)),
            1..=MAX_MESSAGES => {
                self.messages.store(messages.wrapping_add(1), Ordering::Relaxed);
                Ok(Some(Call::Message))
            }
            _ => Err(self.vector_env.damaged("a worker has more messages than a caller sends")),
        }
    }

    /// The results of these tasks are in place. `flags` go with them, one for each.
    pub fn answer(&self, tasks: &[Task], flags: &[u8]) {
        let protocol = self.vector_env.protocol();
        tasks.iter().zip(flags).for_each(|(&task, &flags)| protocol.answer(task, flags));
        self.seat.record().account.note_commit(tasks.len(), monotonic_ns(), 0);
        protocol.wake_caller();
    }

    /// Which environments are ours.
    pub fn env_range(&self) -> Range<usize> {
        let geometry = self.vector_env.geometry();
        env_range(self.index, geometry.workers, geometry.envs)
    }

    pub fn vector_env(&self) -> &Arc<VectorEnv> {
        &self.vector_env
    }
}
