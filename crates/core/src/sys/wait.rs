//! How long to wait, and when to look around while waiting.

use crate::sys::clock::monotonic_ns;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a call may block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    Never,
    Until(Instant),
    Forever,
}

impl Patience {
    /// From now on.
    pub fn of(timeout: Option<Duration>) -> Patience {
        match timeout {
            None => Patience::Forever,
            Some(limit) if limit.is_zero() => Patience::Never,
            Some(limit) => Instant::now().checked_add(limit).map_or(Patience::Forever, Patience::Until),
        }
    }

    /// What is left; `None` when it is over.
    pub fn left(self) -> Option<Duration> {
        match self {
            Patience::Never => None,
            Patience::Forever => Some(Duration::MAX),
            Patience::Until(deadline) => {
                deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            }
        }
    }
}

/// The rhythm in which a sleeper asks the kernel whether those it waits for still live.
///
/// Data wakes a sleeper through the bell, at once. The patrol is for what the dead cannot do: wake us. It starts at
/// 4 ms, so that a death costs the others no more than that, and slows down to 32 ms, so that waiting costs nothing.
#[derive(Debug)]
pub struct Patrol {
    next: Duration,
}

impl Patrol {
    const FIRST: Duration = Duration::from_millis(4);
    const LONGEST: Duration = Duration::from_millis(32);

    pub fn start() -> Patrol {
        Patrol { next: Self::FIRST }
    }

    /// How long to sleep before the next round.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(Self::LONGEST);
        pause
    }
}

/// The same for those who only try and never sleep: when to look around, after a try that found nothing.
#[derive(Debug, Default)]
pub struct Rounds {
    last_ns: AtomicU64,
}

impl Rounds {
    /// Whether it is time. One of several threads is told so.
    pub fn are_due(&self) -> bool {
        let (now, last) = (monotonic_ns(), self.last_ns.load(Ordering::Relaxed));
        now.saturating_sub(last) >= Patrol::LONGEST.as_nanos() as u64
            && self.last_ns.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Waiting awake for a moment before sleeping, as long as that pays.
///
/// A core with nobody to run is halted, and waking it takes tens of microseconds on a virtual machine: longer than many
/// a wait. Who waits awake gives the core away before every look, so it keeps nobody from it. One wait that was longer
/// than [`LIMIT`](Self::LIMIT) ends that, and one that was not, slept or not, begins it again: who waits for somebody that
/// thinks sleeps at once.
#[derive(Debug, Default)]
pub struct Vigil {
    forbidden: bool,
    pays: bool,
    since: Option<Instant>,
}

/// How a [`Vigil`] ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Vigilance {
    /// What was watched for has happened.
    Rewarded,
    /// It took too long. Signals that came meanwhile have interrupted nothing.
    Exhausted,
    /// There is none: sleep.
    Pointless,
}

impl Vigil {
    const LIMIT: Duration = Duration::from_micros(200);

    /// Only where every one of those who wait has a core to do so.
    pub fn among(waiters: usize) -> Vigil {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Vigil { forbidden: waiters > cores, ..Vigil::default() }
    }

    /// Watches until `happened`, if it pays. A wait may have several watches; it is over with [`end`](Self::end).
    pub fn watch(&mut self, happened: impl Fn() -> bool) -> Vigilance {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.forbidden || !self.pays {
            return Vigilance::Pointless;
        }
        while since.elapsed() < Self::LIMIT {
            if happened() {
                return Vigilance::Rewarded;
            }
            std::thread::yield_now();
        }
        self.pays = false;
        Vigilance::Exhausted
    }

    /// The wait is over: learns from how long it was.
    pub fn end(&mut self) {
        self.pays = self.since.take().is_none_or(|since| since.elapsed() < Self::LIMIT);
    }
}

/// How long a consumer waits for an unfinished batch for the sake of order, while a younger one is complete.
///
/// A writer that was merely preempted is back within a few milliseconds, so that samples stay in order. One that is
/// stopped, or takes its time, is overtaken. Before every overtaking the kernel has been asked whether it lives.
#[derive(Debug, Default)]
pub struct Courtesy {
    batch: AtomicU64,
    since_ns: AtomicU64,
}

impl Courtesy {
    const LIMIT_NS: u64 = 4_000_000;

    /// Whether to go on waiting for `batch`, which a younger one could overtake now.
    pub fn is_due(&self, batch: u64, now_ns: u64) -> bool {
        // Threads that share a consumer may overwrite each other's note: someone waits a little longer, or less long.
        if self.batch.swap(batch, Ordering::Relaxed) != batch {
            self.since_ns.store(now_ns, Ordering::Relaxed);
            return true;
        }
        self.left(now_ns).is_some()
    }

    /// How long the last courtesy lasts from now on: whoever sleeps looks again when it is over. `None` when it is.
    pub fn left(&self, now_ns: u64) -> Option<Duration> {
        let gone = now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed));
        (gone < Self::LIMIT_NS).then(|| Duration::from_nanos(Self::LIMIT_NS - gone))
    }
}

/// Notices that nobody is left on the other side, and gives them time to come back.
#[derive(Debug)]
pub struct Solitude {
    limit: Option<Duration>,
    since: Option<Instant>,
}

impl Solitude {
    /// `limit`: how long to bear it; `None` for ever.
    pub fn bearing(limit: Option<Duration>) -> Solitude {
        Solitude { limit, since: None }
    }

    /// Says whether there is anybody; true when it has been too long.
    pub fn is_unbearable(&mut self, alone: impl FnOnce() -> bool) -> bool {
        let Some(limit) = self.limit else { return false };
        if !alone() {
            self.since = None;
            return false;
        }
        self.since.get_or_insert_with(Instant::now).elapsed() >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::{Courtesy, Vigil, Vigilance};
    use std::time::Duration;

    #[test]
    fn a_courtesy_is_over_when_it_said_so_and_another_batch_begins_a_new_one() {
        let (courtesy, came) = (Courtesy::default(), 1_000_000_000);
        assert_eq!(courtesy.left(came), None, "nobody waits for anybody");
        for batch in [1, 2] {
            assert!(courtesy.is_due(batch, came));
            let later = came + 1_000_000;
            assert!(courtesy.is_due(batch, later));
            let left = courtesy.left(later).unwrap();
            assert_eq!(left, Duration::from_millis(3));
            let over = later + left.as_nanos() as u64;
            assert!(!courtesy.is_due(batch, over) && courtesy.left(over).is_none());
        }
    }

    #[test]
    fn nobody_watches_before_a_wait_was_short() {
        let mut vigil = Vigil::among(1);
        assert_eq!(vigil.watch(|| true), Vigilance::Pointless);
    }

    #[test]
    fn a_long_wait_ends_the_watching_and_a_short_one_begins_it_again() {
        let mut vigil = Vigil::among(1);
        for _ in 0..2 {
            vigil.end(); // There was no wait at all.
            assert_eq!(vigil.watch(|| true), Vigilance::Rewarded);
            assert_eq!(vigil.watch(|| false), Vigilance::Exhausted);
            assert_eq!(vigil.watch(|| false), Vigilance::Pointless);
            vigil.end();
            assert_eq!(vigil.watch(|| false), Vigilance::Pointless);
            vigil.end();
        }
    }

    #[test]
    fn nobody_watches_where_there_are_more_waiters_than_cores() {
        let mut vigil = Vigil::among(usize::MAX);
        vigil.end();
        assert_eq!(vigil.watch(|| true), Vigilance::Pointless);
    }
}
