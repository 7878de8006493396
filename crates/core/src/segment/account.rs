//! Where the time of a participant goes: nanoseconds of waiting, holding and copying, in its seat record.
//!
//! A participant does one thing at a time: it waits for data, waits for room, holds what it took, or does work of its own.
//! [`Account::switch`] ends one of them and begins the next, so the times of a participant add up to its life. Only its own
//! process writes to an account, and only where it waits, takes or gives back. Any process reads.
//!
//! A1  The word `now` changes by a swap, and the thread that swapped adds the time that this ended. So no time counts twice, also
//!     when threads share a handle.
//! A2  A handle that threads share waits while one of them waits, otherwise holds while something is held. [`Seat`](super::Seat)
//!     counts that, in its own process.

use super::lease::{self, Role};
use super::mapping::Segment;
use crate::sys::clock::monotonic_ns;
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

/// What a participant is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u64)]
pub enum Activity {
    /// None of the others: its own work.
    #[default]
    Work = 0,
    /// It waits until there is something to take.
    WaitData = 1,
    /// It waits until there is room.
    WaitRoom = 2,
    /// It has taken something, and not given it back.
    Hold = 3,
}

impl Activity {
    /// As Python spells it.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Work => "work",
            Activity::WaitData => "wait_data",
            Activity::WaitRoom => "wait_room",
            Activity::Hold => "hold",
        }
    }
}

const SINCE_BITS: u32 = 62;

fn pack(activity: Activity, since_ns: u64) -> u64 {
    (activity as u64) << SINCE_BITS | since_ns & ((1 << SINCE_BITS) - 1)
}

fn unpack(word: u64) -> (Activity, u64) {
    let activity = match word >> SINCE_BITS {
        0 => Activity::Work,
        1 => Activity::WaitData,
        2 => Activity::WaitRoom,
        _ => Activity::Hold,
    };
    (activity, word & ((1 << SINCE_BITS) - 1))
}

/// The times and counts of one participant, on a line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Account {
    /// `{activity (2), since when (62)}`, by CLOCK_MONOTONIC.
    now: AtomicU64,
    wait_data_ns: AtomicU64,
    wait_room_ns: AtomicU64,
    hold_ns: AtomicU64,
    /// An estimate, where only some copies are timed. Part of the work. Threads that share a handle may lose some.
    copy_ns: AtomicU64,
    /// Samples, records, rows or answers. Threads that share a handle may lose some.
    committed: AtomicU64,
    last_commit_ns: AtomicU64,
    /// Of the weights: that it read last, or that its last commit was made with.
    version: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Account>() == 64);

/// The remote workers of a producer that takes in what they send. For people.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Remotes {
    pub(super) connected: AtomicU32,
    /// Connections that ended without a goodbye, so far.
    lost: AtomicU32,
    /// CLOCK_MONOTONIC when the last of those ended.
    lost_ns: AtomicU64,
    /// From where that one came: `{IPv4 address (32), port (16)}`; 0 for others.
    lost_address: AtomicU64,
}

/// The remote workers of a producer, read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    pub connected: u32,
    pub lost: u32,
    /// How long ago the last connection was lost; `None` if none was.
    pub lost_ns: Option<u64>,
    /// From where it came, if that is an IPv4 address.
    pub lost_address: Option<SocketAddr>,
}

impl Remotes {
    /// For a new holder of the seat.
    pub(super) fn begin(&self) {
        self.connected.store(0, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
        self.lost_ns.store(0, Ordering::Relaxed);
        self.lost_address.store(0, Ordering::Relaxed);
    }

    pub(super) fn note_disconnected(&self, lost: Option<SocketAddr>, now_ns: u64) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
        let Some(address) = lost else { return };
        let packed = match address {
            SocketAddr::V4(v4) => u64::from(u32::from(*v4.ip())) << 16 | u64::from(v4.port()),
            SocketAddr::V6(_) => 0,
        };
        self.lost_address.store(packed, Ordering::Relaxed);
        self.lost_ns.store(now_ns, Ordering::Relaxed);
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub fn counts(&self, now_ns: u64) -> RemoteCounts {
        let (lost_ns, packed) =
            (self.lost_ns.load(Ordering::Relaxed), self.lost_address.load(Ordering::Relaxed));
        let address = SocketAddrV4::new(Ipv4Addr::from((packed >> 16) as u32), packed as u16);
        RemoteCounts {
            connected: self.connected.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            lost_ns: (lost_ns != 0).then(|| now_ns.saturating_sub(lost_ns)),
            lost_address: (packed != 0).then_some(SocketAddr::V4(address)),
        }
    }
}

/// An account, read. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// The time since it joined. The next four add up to it.
    pub wall_ns: u64,
    pub wait_data_ns: u64,
    pub wait_room_ns: u64,
    pub hold_ns: u64,
    pub work_ns: u64,
    /// How much of its work is copying.
    pub copy_ns: u64,
    pub activity: Activity,
    /// How long it has been doing that.
    pub activity_ns: u64,
    pub committed: u64,
    /// How long ago it committed; `None` if it never did.
    pub last_commit_ns: Option<u64>,
    pub version: u64,
}

impl Account {
    /// For a new holder of the seat.
    pub(super) fn begin(&self, now_ns: u64) {
        for counter in [&self.wait_data_ns, &self.wait_room_ns, &self.hold_ns, &self.copy_ns] {
            counter.store(0, Ordering::Relaxed);
        }
        for counter in [&self.committed, &self.last_commit_ns, &self.version] {
            counter.store(0, Ordering::Relaxed);
        }
        self.now.store(pack(Activity::Work, now_ns), Ordering::Relaxed);
    }

    /// What it is doing.
    pub(super) fn activity(&self) -> Activity {
        unpack(self.now.load(Ordering::Relaxed)).0
    }

    /// Ends what it was doing, and begins `activity` (A1).
    pub(crate) fn switch(&self, activity: Activity, now_ns: u64) {
        let (was, since) = unpack(self.now.swap(pack(activity, now_ns), Ordering::Relaxed));
        let counter = match was {
            Activity::Work => return,
            Activity::WaitData => &self.wait_data_ns,
            Activity::WaitRoom => &self.wait_room_ns,
            Activity::Hold => &self.hold_ns,
        };
        counter.fetch_add(now_ns.saturating_sub(since), Ordering::Relaxed);
    }

    /// Counts what was committed.
    #[inline]
    pub fn note_commit(&self, count: usize, now_ns: u64, version: u32) {
        add(&self.committed, count as u64);
        self.last_commit_ns.store(now_ns, Ordering::Relaxed);
        self.version.store(u64::from(version), Ordering::Relaxed);
    }

    /// As [`note_commit`](Self::note_commit), by several threads at once.
    #[inline]
    pub fn note_commit_by_many(&self, count: usize, now_ns: u64, version: u32) {
        self.committed.fetch_add(count as u64, Ordering::Relaxed);
        self.last_commit_ns.store(now_ns, Ordering::Relaxed);
        self.version.store(u64::from(version), Ordering::Relaxed);
    }

    /// Notes which weights it has.
    pub fn note_version(&self, version: u64) {
        self.version.store(version, Ordering::Relaxed);
    }

    /// Adds a copy that took `ns`, and stands for `of` copies of `bytes` bytes each. A copy of less than 1 GB/s was interrupted:
    /// the others were not.
    #[inline]
    pub fn note_copy(&self, ns: u64, of: u64, bytes: usize) {
        const OVERHEAD_NS: u64 = 10_000;
        let typical = ns.min((bytes as u64).saturating_add(OVERHEAD_NS));
        let all = ns.saturating_add(typical.saturating_mul(of.saturating_sub(1)));
        add(&self.copy_ns, all);
    }

    /// Reads it. Any words give numbers that make sense: another process wrote them.
    pub(super) fn times(&self, joined_ns: u64, now_ns: u64) -> Times {
        let (activity, since) = unpack(self.now.load(Ordering::Relaxed));
        let wall_ns = now_ns.saturating_sub(joined_ns);
        let activity_ns = now_ns.saturating_sub(since).min(wall_ns);
        let read = |counter: &AtomicU64, of: Activity| {
            let open = if activity == of { activity_ns } else { 0 };
            counter.load(Ordering::Relaxed).saturating_add(open)
        };
        let mut left = wall_ns;
        let mut share = |ns: u64| {
            let share = ns.min(left);
            left -= share;
            share
        };
        let wait_data_ns = share(read(&self.wait_data_ns, Activity::WaitData));
        let wait_room_ns = share(read(&self.wait_room_ns, Activity::WaitRoom));
        let hold_ns = share(read(&self.hold_ns, Activity::Hold));
        let last_commit = self.last_commit_ns.load(Ordering::Relaxed);
        Times {
            wall_ns,
            wait_data_ns,
            wait_room_ns,
            hold_ns,
            work_ns: left,
            copy_ns: self.copy_ns.load(Ordering::Relaxed).min(wall_ns),
            activity,
            activity_ns,
            committed: self.committed.load(Ordering::Relaxed),
            last_commit_ns: (last_commit != 0).then(|| now_ns.saturating_sub(last_commit)),
            version: self.version.load(Ordering::Relaxed),
        }
    }
}

/// Adds without a locked instruction, which would wait for all of the copy's stores.
#[inline]
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

/// What the attached participants in a role wait for now, and have waited and held so far. Nanoseconds, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many wait now: for room, if they are producers, otherwise for data.
    pub waiting: usize,
    pub wait_ns: u64,
    pub hold_ns: u64,
    pub copy_ns: u64,
}

/// So many participants are named in a message.
const NAMED: usize = 3;

impl Segment {
    /// Adds up the times of the attached participants in a role.
    pub fn waits(&self, role: Role) -> Waits {
        let (now_ns, mut waits) = (monotonic_ns(), Waits::default());
        for record in lease::attached(self, role) {
            let times = record.times(now_ns);
            waits.waiting += matches!(times.activity, Activity::WaitData | Activity::WaitRoom) as usize;
            waits.wait_ns =
                waits.wait_ns.saturating_add(times.wait_data_ns).saturating_add(times.wait_room_ns);
            waits.hold_ns = waits.hold_ns.saturating_add(times.hold_ns);
            waits.copy_ns = waits.copy_ns.saturating_add(times.copy_ns);
        }
        waits
    }

    /// What the attached participants in a role are doing, for the message of a call that waited for them in vain. Empty when
    /// there are none.
    pub fn describe(&self, role: Role) -> String {
        let (now_ns, attached) = (monotonic_ns(), lease::attached(self, role));
        let mut named: Vec<String> = attached
            .iter()
            .take(NAMED)
            .map(|record| {
                let times = record.times(now_ns);
                let (pid, since) = (record.pid.load(Ordering::Relaxed), times.activity_ns as f64 / 1e9);
                match (times.activity, times.last_commit_ns) {
                    (Activity::WaitData, _) => format!("pid {pid} has waited for data for {since:.1} s"),
                    (Activity::WaitRoom, _) => format!("pid {pid} has waited for room for {since:.1} s"),
                    (Activity::Hold, _) => format!("pid {pid} has had data in its hands for {since:.1} s"),
                    (Activity::Work, _) if role == Role::Consumer => {
                        format!("pid {pid} has been at other work for {since:.1} s")
                    }
                    (Activity::Work, Some(ago)) => {
                        format!("pid {pid} committed {:.1} s ago", ago as f64 / 1e9)
                    }
                    (Activity::Work, None) => format!("pid {pid} has committed nothing"),
                }
            })
            .collect();
        if attached.len() > NAMED {
            named.push(format!("and {} more", attached.len() - NAMED));
        }
        named.join(", ")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn commits_of_several_threads_are_all_counted() {
        const COMMITS: u64 = 1_000_000;
        let (account, together) = (Account::default(), std::sync::Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    (0..COMMITS).for_each(|now| account.note_commit_by_many(1, now, 1));
                });
            }
        });
        assert_eq!(account.committed.load(Ordering::Relaxed), 4 * COMMITS);
    }

    #[test]
    fn the_times_of_a_participant_add_up_to_its_life() {
        let account = Account::default();
        account.begin(1000);
        account.switch(Activity::WaitData, 1100);
        account.switch(Activity::Hold, 1400);
        account.switch(Activity::WaitRoom, 1450);
        account.switch(Activity::Work, 1460);
        account.switch(Activity::WaitData, 1500);
        let times = account.times(1000, 2000);
        assert_eq!((times.wait_data_ns, times.wait_room_ns, times.hold_ns), (300 + 500, 10, 50));
        assert_eq!((times.activity, times.activity_ns), (Activity::WaitData, 500));
        assert_eq!(times.wait_data_ns + times.wait_room_ns + times.hold_ns + times.work_ns, times.wall_ns);
        account.begin(3000);
        let times = account.times(3000, 3000);
        assert_eq!(times, Times::default());
    }

    #[test]
    fn any_words_give_times_that_add_up() {
        for word in [0, 1, u64::MAX, u64::MAX / 2, 1 << 62, 3 << 62] {
            let account = Account::default();
            let words = [
                &account.now,
                &account.wait_data_ns,
                &account.wait_room_ns,
                &account.hold_ns,
                &account.copy_ns,
            ];
            words.iter().for_each(|counter| counter.store(word, Ordering::Relaxed));
            account.last_commit_ns.store(word, Ordering::Relaxed);
            for (joined, now) in [(0, 1000), (1000, 0), (word, 1000), (0, word)] {
                let times = account.times(joined, now);
                let sum = times.wait_data_ns + times.wait_room_ns + times.hold_ns + times.work_ns;
                assert_eq!(sum, times.wall_ns);
                assert!(times.copy_ns <= times.wall_ns);
            }
        }
    }

    #[test]
    fn a_copy_that_was_interrupted_stands_for_itself() {
        let account = Account::default();
        account.note_copy(1000, 64, 100);
        assert_eq!(account.copy_ns.load(Ordering::Relaxed), 64_000);
        account.note_copy(50_000_000, 64, 100);
        assert_eq!(account.copy_ns.load(Ordering::Relaxed), 64_000 + 50_000_000 + 63 * 10_100);
    }
}
