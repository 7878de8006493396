//! The hand-over between one caller and its workers: which of them may touch an environment's data, and how they wake each other.
//!
//! ```text
//!            ask (caller)                      answer (worker)
//! idle ──────────────────────▶ asked ──────────────────────────────▶ idle (answered.number = asked.number)
//!                                └── worker dead: ask again, of its successor ──▶ asked (number + 1)
//! ```
//!
//! V1  An environment's rows are written by its worker only between ask and answer, and by the caller only otherwise.
//! V2  `asked` is stored after the caller's actions (release); its worker loads it before it reads them (acquire).
//! V3  `answered` is stored after the worker's results (release); the caller loads it before it reads them (acquire).
//! V4  An answer counts for the request whose number it bears. A request that was asked again is never answered twice.
//! V5  The caller sleeps with a limit: how many answers may be missing. A worker that answers counts what is missing, and rings
//!     when that is within the limit. There is no counter that a death could leave wrong: the words are the truth.
//!
//! | a worker dies | what is left | noticed by | repaired to |
//! |---|---|---|---|
//! | idle, or between requests | nothing | the caller, with the next request, by the lease | a successor, asked again |
//! | between ask and answer | asked, rows half-written | the caller, by the lease, when it polls for liveness | the same; the rows belong to a request that is void |
//! | answered, not notified | a caller asleep | the caller, when it polls for liveness: it looks before it asks for leases | awake |
//!
//! A caller that dies takes its workers with it: they watch it ([`super::parent`]).

use super::layout::{Answer, Control, Request, WorkerLine, env_range};
use crate::sys::sync::{AtomicU64, Ordering, fence};

/// The words of a vector environment.
#[derive(Debug, Clone, Copy)]
pub struct Protocol<'a> {
    pub control: &'a Control,
    pub lines: &'a [WorkerLine],
    pub asked: &'a [AtomicU64],
    pub answered: &'a [AtomicU64],
}

/// A request to one environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    pub env: usize,
    pub request: Request,
}

impl Protocol<'_> {
    /// Which worker has an environment.
    pub fn worker_of(&self, env: usize) -> usize {
        // The last whose range starts at or before it.
        ((env + 1) * self.lines.len() - 1) / self.asked.len()
    }

    /// Caller: asks an environment that is idle, or whose worker is dead. [`Self::wake_workers`] its worker afterwards.
    pub fn ask(&self, env: usize, what: u8, argument: u32) -> u32 {
        let number = Request::unpack(self.asked[env].load(Ordering::Relaxed)).number.wrapping_add(1);
        // SYNC env.asked: Release here, Acquire in `tasks`. Publishes the actions (V2).
        self.asked[env].store(Request { number, argument, what }.pack(), Ordering::Release);
        number
    }

    /// Caller: calls `workers`, after asking. Those that are awake pay no more than a look at a word.
    pub fn wake_workers(&self, workers: impl Iterator<Item = usize>) {
        // SYNC event.dekker: pairs with the fence in `EventCount::announce`. The requests come before the look at waiters (B1).
        fence(Ordering::SeqCst);
        for worker in workers {
            self.lines[worker].work.advance();
        }
    }

    /// Caller: there is a message for a worker, on another way.
    pub fn post_message(&self, worker: usize) {
        // SYNC line.messages: Release here, Acquire in `messages_sent`. The message itself comes by the pipe, which orders it.
        self.lines[worker].messages_sent.fetch_add(1, Ordering::Release);
        self.lines[worker].work.notify_if_waiting();
    }

    /// Worker: how many messages it was sent so far.
    pub fn messages_sent(&self, worker: usize) -> u64 {
        // SYNC line.messages: Acquire here, Release in `post_message`.
        self.lines[worker].messages_sent.load(Ordering::Acquire)
    }

    /// Worker: its requests that are not answered.
    pub fn tasks(&self, worker: usize) -> impl Iterator<Item = Task> {
        env_range(worker, self.lines.len(), self.asked.len()).filter_map(|env| {
            // SYNC env.asked: Acquire here, Release in `ask`. The actions are there (V2).
            let request = Request::unpack(self.asked[env].load(Ordering::Acquire));
            // Our own word: only we write it.
            let answer = Answer::unpack(self.answered[env].load(Ordering::Relaxed));
            (answer.number != request.number).then_some(Task { env, request })
        })
    }

    /// Worker: the results of a task are in place. [`Self::wake_caller`] afterwards.
    pub fn answer(&self, task: Task, flags: u8) {
        let answer = Answer { number: task.request.number, flags };
        // SYNC env.answered: Release here, Acquire in `answer_of`. Publishes the results (V3).
        self.answered[task.env].store(answer.pack(), Ordering::Release);
    }

    /// Worker: wakes the caller if this was what it waits for.
    pub fn wake_caller(&self) {
        // SYNC event.dekker: pairs with the fence in `EventCount::announce`. Our answers come before the look at the waiter and
        // before the count: of two workers that answer last, the one whose fence is later sees both answers (B1, V5).
        fence(Ordering::SeqCst);
        let event = &self.control.answered;
        if event.has_waiter() && self.missing() <= self.control.limit.load(Ordering::Relaxed) as usize {
            event.notify();
        }
    }

    /// How many requests are not answered.
    pub(crate) fn missing(&self) -> usize {
        let is_missing = |(asked, answered): &(&AtomicU64, &AtomicU64)| {
            Request::unpack(asked.load(Ordering::Relaxed)).number
                != Answer::unpack(answered.load(Ordering::Relaxed)).number
        };
        self.asked.iter().zip(self.answered).filter(is_missing).count()
    }

    /// Caller: the flags of the answer to request `number`, if it is there.
    pub fn answer_of(&self, env: usize, number: u32) -> Option<u8> {
        // SYNC env.answered: Acquire here, Release in `answer`. The results are there (V3).
        let answer = Answer::unpack(self.answered[env].load(Ordering::Acquire));
        (answer.number == number).then_some(answer.flags)
    }

    /// Caller: says that it is about to sleep until at most `limit` answers are missing. Look once more, then wait.
    pub fn announce(&self, limit: usize) -> u32 {
        // Before the announcement, and so before its fence: a worker that sees the waiter sees the limit (V5).
        self.control.limit.store(limit as u32, Ordering::Relaxed);
        self.control.answered.announce()
    }

    /// Caller: no more requests. Ends a wait of the caller, too: another thread may close under it.
    pub fn close(&self) {
        self.control.closed.set();
        self.lines.iter().for_each(|line| line.work.notify());
        self.control.answered.notify();
    }

    pub fn is_closed(&self) -> bool {
        self.control.closed.is_set()
    }
}
