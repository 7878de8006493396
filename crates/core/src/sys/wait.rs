//! How long to wait, when to check for dead peers while waiting, and when to spin.

use crate::error::{Error, Result};
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{AtomicU64, EventCount, Ordering, Woken};
use std::time::{Duration, Instant};

/// Until when a call may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// The call does not block at all.
    Now,
    At(Instant),
    /// The call blocks for as long as it takes.
    Never,
}

impl Deadline {
    /// From now on; `None` for ever.
    pub fn after(timeout: Option<Duration>) -> Deadline {
        match timeout {
            None => Deadline::Never,
            Some(limit) if limit.is_zero() => Deadline::Now,
            Some(limit) => Instant::now().checked_add(limit).map_or(Deadline::Never, Deadline::At),
        }
    }

    /// The sooner of two.
    pub fn min(self, other: Deadline) -> Deadline {
        match (self, other) {
            (Deadline::At(one), Deadline::At(another)) => Deadline::At(one.min(another)),
            (Deadline::Now, _) | (_, Deadline::Never) => self,
            (Deadline::Never, _) | (_, Deadline::Now) => other,
        }
    }

    /// How much time is left; `None` when the deadline has passed.
    pub fn remaining(self) -> Option<Duration> {
        match self {
            Deadline::Now => None,
            Deadline::Never => Some(Duration::MAX),
            Deadline::At(instant) => {
                instant.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            }
        }
    }
}

/// How often a sleeper asks the kernel whether the processes that it waits for still live.
///
/// Data wakes a sleeper at once. A dead process cannot wake us, so a sleeper checks now and then: first after 4 ms, so that
/// a death delays the others by no more than that; then less and less often, down to every 32 ms, so that waiting costs nothing.
#[derive(Debug)]
pub struct LivenessPoll {
    next: Duration,
}

impl LivenessPoll {
    const FIRST: Duration = Duration::from_millis(4);
    const LONGEST: Duration = Duration::from_millis(32);

    pub fn start() -> LivenessPoll {
        LivenessPoll { next: Self::FIRST }
    }

    /// How long to sleep before the next check.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(Self::LONGEST);
        pause
    }
}

/// Sleeps on `event` until `look` finds something. `None` when the deadline came first. `announce` announces the sleep on the
/// event, before each look. `check` runs whenever it is time to check for dead peers.
pub fn wait_for<T>(
    event: &EventCount,
    announce: impl Fn() -> u32,
    deadline: Deadline,
    mut look: impl FnMut() -> Result<Option<T>>,
    mut check: impl FnMut() -> Result<()>,
) -> Result<Option<T>> {
    let mut poll = LivenessPoll::start();
    loop {
        let ticket = announce();
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        let Some(left) = deadline.remaining() else { return Ok(None) };
        match event.wait(ticket, poll.pause().min(left)) {
            Woken::Notified => {}
            Woken::Interrupted => return Err(Error::Interrupted),
            Woken::Timeout => check()?,
        }
    }
}

/// The same for callers that only try and never sleep: when to check for dead peers, after a try that found nothing.
#[derive(Debug, Default)]
pub struct LivenessTicker {
    last_ns: AtomicU64,
}

impl LivenessTicker {
    /// Whether it is time. Of several threads that ask at once, one gets `true`.
    pub fn is_due(&self) -> bool {
        let (now, last) = (monotonic_ns(), self.last_ns.load(Ordering::Relaxed));
        now.saturating_sub(last) >= LivenessPoll::LONGEST.as_nanos() as u64
            && self.last_ns.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Waits awake for a moment before sleeping, as long as that pays.
///
/// A core with nothing to run is halted, and waking it takes tens of microseconds on a virtual machine: longer than many
/// waits. The spinning thread yields its core before every look, so it takes no time from other threads. A wait that was
/// longer than [`LIMIT`](Self::LIMIT) turns spinning off. A wait that was shorter turns it on again, whether the thread
/// slept or not. So a thread that waits for a slow peer sleeps at once.
#[derive(Debug, Default)]
pub struct AdaptiveSpin {
    forbidden: bool,
    pays: bool,
    since: Option<Instant>,
}

/// Lets others run, and a moment pass, between two looks at memory that they write to.
pub fn spin_gently() {
    const LOOKS_APART: u32 = 50; // 2 µs
    std::thread::yield_now();
    (0..LOOKS_APART).for_each(|_| std::hint::spin_loop());
}

/// How [`AdaptiveSpin::spin_until`] ended.
#[derive(Debug, PartialEq, Eq)]
pub enum SpinOutcome {
    /// The condition holds.
    Happened,
    /// It took too long. Signals that came meanwhile have interrupted nothing.
    Expired,
    /// Spinning does not pay: sleep.
    Skipped,
}

impl AdaptiveSpin {
    const LIMIT: Duration = Duration::from_micros(200);

    /// Spins only where each of `waiters` waiting threads has a core.
    pub fn for_waiters(waiters: usize) -> AdaptiveSpin {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        AdaptiveSpin { forbidden: waiters > cores, ..AdaptiveSpin::default() }
    }

    /// Spins until `happened`, if that pays. One wait may spin several times; [`finish`](Self::finish) ends the wait.
    pub fn spin_until(&mut self, happened: impl Fn() -> bool) -> SpinOutcome {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.forbidden || !self.pays {
            return SpinOutcome::Skipped;
        }
        while since.elapsed() < Self::LIMIT {
            if happened() {
                return SpinOutcome::Happened;
            }
            std::thread::yield_now();
        }
        self.pays = false;
        SpinOutcome::Expired
    }

    /// The wait is over: learns from how long it was.
    pub fn finish(&mut self) {
        self.pays = self.since.take().is_none_or(|since| since.elapsed() < Self::LIMIT);
    }
}

/// How long a consumer waits for an unfinished batch for the sake of order, while a younger one is complete.
///
/// A writer that was merely preempted is back within a few milliseconds, so that samples stay in order. A writer that is
/// stopped, or slow, is overtaken. Before a batch overtakes another, the kernel has been asked whether the writer lives.
#[derive(Debug, Default)]
pub struct OrderGrace {
    batch: AtomicU64,
    since_ns: AtomicU64,
}

impl OrderGrace {
    const LIMIT_NS: u64 = 4_000_000;

    /// Whether to go on waiting for `batch`, which a younger one could overtake now.
    pub fn still_applies(&self, batch: u64, now_ns: u64) -> bool {
        // Threads that share a consumer may overwrite each other's note: one of them waits a little longer, or less long.
        if self.batch.swap(batch, Ordering::Relaxed) != batch {
            self.since_ns.store(now_ns, Ordering::Relaxed);
            return true;
        }
        self.remaining(now_ns).is_some()
    }

    /// How much of the last grace period remains: a sleeper looks again when it is over. `None` when it is over.
    pub fn remaining(&self, now_ns: u64) -> Option<Duration> {
        let gone = now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed));
        (gone < Self::LIMIT_NS).then(|| Duration::from_nanos(Self::LIMIT_NS - gone))
    }
}

#[cfg(test)]
mod tests {
    use super::{AdaptiveSpin, OrderGrace, SpinOutcome};
    use std::time::Duration;

    #[test]
    fn a_grace_period_ends_when_it_said_and_another_batch_begins_a_new_one() {
        let (grace, came) = (OrderGrace::default(), 1_000_000_000);
        assert_eq!(grace.remaining(came), None, "nobody waits for anybody");
        for batch in [1, 2] {
            assert!(grace.still_applies(batch, came));
            let later = came + 1_000_000;
            assert!(grace.still_applies(batch, later));
            let left = grace.remaining(later).unwrap();
            assert_eq!(left, Duration::from_millis(3));
            let over = later + left.as_nanos() as u64;
            assert!(!grace.still_applies(batch, over) && grace.remaining(over).is_none());
        }
    }

    #[test]
    fn nothing_spins_before_a_wait_was_short() {
        let mut spin = AdaptiveSpin::for_waiters(1);
        assert_eq!(spin.spin_until(|| true), SpinOutcome::Skipped);
    }

    #[test]
    fn a_long_wait_turns_spinning_off_and_a_short_one_turns_it_on() {
        let mut spin = AdaptiveSpin::for_waiters(1);
        for _ in 0..2 {
            spin.finish(); // There was no wait at all.
            assert_eq!(spin.spin_until(|| true), SpinOutcome::Happened);
            assert_eq!(spin.spin_until(|| false), SpinOutcome::Expired);
            assert_eq!(spin.spin_until(|| false), SpinOutcome::Skipped);
            spin.finish();
            assert_eq!(spin.spin_until(|| false), SpinOutcome::Skipped);
            spin.finish();
        }
    }

    #[test]
    fn nothing_spins_where_there_are_more_waiters_than_cores() {
        let mut spin = AdaptiveSpin::for_waiters(usize::MAX);
        spin.finish();
        assert_eq!(spin.spin_until(|| true), SpinOutcome::Skipped);
    }
}
