//! Atomics, the event count, and crash points. Every other module takes its atomics from here, so that loom can stand in.
//! Loom's atomics live in a model, not in statics or in a segment: an import of the standard library's says why it needs those.
//!
//! Every thread waits for another on an [`EventCount`]: *check, announce, fence, check again, sleep*. The thread that changes
//! the state fences, and notifies when a waiter is announced. An announcement is made before every sleep, and cleared by the
//! notification that answers it.

#[cfg(loom)]
pub use loom::sync::atomic::{Ordering, fence};
#[cfg(loom)]
mod watched;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub use watched::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

#[cfg(not(loom))]
use crate::sys::signals;
use std::time::Duration;

/// [`std::sync::atomic::fence`], but a SeqCst one is a locked instruction in place of `mfence`: it orders loads after stores
/// just as well, and costs a `send` 30 ns less.
#[cfg(not(loom))]
#[inline(always)]
pub fn fence(ordering: Ordering) {
    #[cfg(target_arch = "x86_64")]
    if ordering == Ordering::SeqCst {
        // SAFETY: it changes no byte of the stack, only flags, and is a barrier to the compiler: it may touch any memory.
        unsafe { std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack)) };
        return;
    }
    std::sync::atomic::fence(ordering);
}

/// Why [`EventCount::wait`] came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// There was a notification after the ticket was drawn (or a spurious wake-up: look again).
    Notified,
    /// The time was up.
    Timeout,
    /// A signal handler ran, perhaps before the sleep ([`signals`]).
    Interrupted,
}

/// A futex with an announcement beside it, on a cache line of its own.
///
/// ```text
/// waiter:   ticket = announce() ── look ── nothing? wait(ticket)
/// notifier: change the state ── notify_if_waiting()
/// ```
///
/// B1  The waiter's announcement and the notifier's change are each followed by a SeqCst fence before the other's
///     side is read; so either the waiter sees the change or the notifier sees the announcement.
/// B2  `waiting` is cleared before `epoch` moves, by the same notifier: a waiter whose announcement was cleared holds
///     an old ticket, and does not sleep on it.
/// B3  A notifier that dies between the change and the wake-up leaves a sleeper behind. That is why sleepers poll for liveness.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct EventCount {
    epoch: AtomicU32,
    waiting: AtomicU32,
    #[cfg(loom)]
    parking: Parking,
}

/// Loom has no futex: a mutex and a condition variable behave like one.
#[cfg(loom)]
#[derive(Debug, Default)]
struct Parking {
    door: loom::sync::Mutex<()>,
    sleepers: loom::sync::Condvar,
}

impl EventCount {
    /// Says that this thread is about to sleep. Look once more after this, then [`wait`](Self::wait) on the ticket.
    pub fn announce(&self) -> u32 {
        // SYNC event.ticket: Acquire here, Release in `notify`. Orders our announcement after the clearing we saw (B2).
        let ticket = self.epoch.load(Ordering::Acquire);
        self.waiting.store(1, Ordering::Relaxed);
        // SYNC event.dekker: this fence pairs with the one in `notify_if_waiting` (B1).
        fence(Ordering::SeqCst);
        ticket
    }

    /// Wakes all waiters if one is announced. Call it after the change that they wait for.
    pub fn notify_if_waiting(&self) {
        // SYNC event.dekker: this fence pairs with the one in `announce` (B1).
        fence(Ordering::SeqCst);
        if self.has_waiter() {
            self.notify();
        }
    }

    /// Moves the count for threads that spin on it, and wakes those that sleep. Call it after the change and a SeqCst
    /// fence, which pairs with the one in `announce` (B1).
    pub fn advance(&self) {
        if self.has_waiter() {
            self.notify();
        } else {
            // SYNC event.moved: Release here, Acquire in `count`. A thread that sees it move sees the change. One that
            // announces itself just now does not sleep on its ticket.
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether a waiter is announced. Meaningful only after a SeqCst fence that follows the change.
    pub fn has_waiter(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Wakes all waiters.
    pub fn notify(&self) {
        self.waiting.store(0, Ordering::Relaxed);
        crash_point(Point::NotifyCleared);
        // SYNC event.ticket: Release here, Acquire in `announce`. The clearing above comes first (B2).
        // SYNC event.moved: Release here, Acquire in `count`.
        self.epoch.fetch_add(1, Ordering::Release);
        crash_point(Point::NotifyMoved);
        self.wake_all();
    }

    /// How often the count has moved, modulo 2³².
    pub fn count(&self) -> u32 {
        // SYNC event.moved: Acquire here, Release in `advance` and `notify`.
        self.epoch.load(Ordering::Acquire)
    }

    /// Sleeps until a notification after `ticket` was drawn, or until `timeout` is over.
    #[cfg(not(loom))]
    pub fn wait(&self, ticket: u32, timeout: Duration) -> Woken {
        use rustix::io::Errno;
        use rustix::thread::futex;
        let mut left = timeout;
        loop {
            let nap = signals::nap(left);
            let limit = futex::Timespec {
                tv_sec: nap.as_secs().min(i32::MAX as u64) as _,
                tv_nsec: nap.subsec_nanos() as _,
            };
            match futex::wait(&self.epoch, futex::Flags::empty(), ticket, Some(&limit)) {
                Ok(()) | Err(Errno::AGAIN) => return Woken::Notified,
                Err(Errno::INTR) => return Woken::Interrupted,
                Err(_) if signals::are_noted() => return Woken::Interrupted,
                Err(_) if nap == left => return Woken::Timeout,
                Err(_) => left -= nap,
            }
        }
    }

    #[cfg(not(loom))]
    fn wake_all(&self) {
        // A failure could only mean that the address is not mapped, which it is.
        let _ =
            rustix::thread::futex::wake(&self.epoch, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until a notification. Under loom no time passes: a lost wake-up is a deadlock, which loom reports.
    #[cfg(loom)]
    pub fn wait(&self, ticket: u32, _timeout: Duration) -> Woken {
        let mut door = self.parking.door.lock().unwrap();
        while self.epoch.load(Ordering::Relaxed) == ticket {
            door = self.parking.sleepers.wait(door).unwrap();
        }
        Woken::Notified
    }

    #[cfg(loom)]
    fn wake_all(&self) {
        let _door = self.parking.door.lock().unwrap();
        self.parking.sleepers.notify_all();
    }
}

/// Whether something was shut down, for all processes that share the memory.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct ClosedFlag(AtomicU32);

impl ClosedFlag {
    /// A thread that sees it set sees what was done before the shutdown.
    pub fn is_set(&self) -> bool {
        // SYNC event.closed: Acquire here, Release in `set`.
        self.0.load(Ordering::Acquire) != 0
    }

    /// A hint, for calls that look again before they wait.
    #[inline(always)]
    pub fn seems_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Notify the waiters after this, to wake those that looked before.
    pub fn set(&self) {
        // SYNC event.closed: Release here, Acquire in `is_set`.
        self.0.store(1, Ordering::Release);
    }

    /// Undoes [`set`](Self::set).
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Declares the crash points: those that structures share, then those of each structure, with what it shares.
macro_rules! points {
    (
        shared { $($(#[$shared_doc:meta])+ $other:ident,)+ }
        $($structure:ident [$($shared:ident),+] { $($(#[$doc:meta])+ $point:ident,)+ })+
    ) => {
        /// The steps between which a process can die and leave something behind. The `recovery.rs` of the ring, of records,
        /// of weights, of a table and of replay tables has a row for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Point {
            $($($(#[$doc])+ $point,)+)+
            $($(#[$shared_doc])+ $other,)+
        }

        impl Point {
            $(
                /// Every point of this structure, for its kill matrix.
                pub const $structure: &[Point] = &[$(Point::$point,)+ $(Point::$shared),+];
            )+
        }
    };
}

points! {
    shared {
        /// A forked child takes a seat of its own, and has not opened its lease.
        SeatRejoining,
        /// The last learner said that it leaves, and has not removed the name.
        SeatLeaving,
        /// The last learner removed the name, and has not shut down what it led to.
        NameRemoved,
        /// A notifier cleared the announcement, and has not moved the futex.
        NotifyCleared,
        /// A notifier moved the futex, and has not woken the sleepers.
        NotifyMoved,
        /// A forwarder moved the next number past what it took, and has sent nothing of it.
        NumbersMoved,
    }
    RING [SeatLeaving, NameRemoved, NotifyCleared, NotifyMoved] {
        /// A producer moved `open`, and has not marked the buffer.
        RingOpened,
        /// A producer moved the cursor past a run, and has not claimed any of it.
        RunPromised,
        /// A producer owns a slot, and has not moved the cursor.
        SlotClaimed,
        /// A producer owns only a part of the run it wants.
        RunPartlyClaimed,
        /// A producer is filling its slot.
        SlotHalfWritten,
        /// A producer filled its slot, and has not committed it.
        SlotWritten,
        /// A producer committed, and has not woken the consumer.
        SlotReady,
        /// A producer counted a hole, and has not yet freed the slot.
        HoleCounted,
        /// A consumer took a batch.
        BatchTaken,
        /// A consumer gave a batch back, and has not woken the producers.
        BatchFreed,
        /// A consumer closed an unfinished batch for new claims.
        BatchSealed,
    }
    FORWARDING [NumbersMoved, NotifyCleared, NotifyMoved] {
        /// A forwarder noted the first number of a batch, and not the batch.
        FirstNumbered,
        /// A forwarder gave a batch numbers, and has not moved the next one.
        BatchNumbered,
    }
    RECORD_FORWARDING [NumbersMoved, NotifyCleared, NotifyMoved] {
        /// A forwarder gave a record a number, and not those that it took with it; it has not moved the next one.
        RecordSentNumbered,
    }
    SESSIONS [NotifyCleared, NotifyMoved] {
        /// A server emptied an entry for another session, and has not named that.
        SessionEmptied,
        /// A server noted where a whole run lies, and has not logged it.
        RunPlaced,
        /// A server logged a run, and has not committed any of it.
        RunLogged,
        /// A server committed a logged run, and has not moved the next number.
        RunCommitted,
        /// A server moved the next number past a run, and has not acknowledged it.
        SessionMoved,
        /// A process committed a run that a dead server had logged, and has not taken its session.
        RunFinished,
        /// A process took the session of a dead server, and has not moved the next number past what that had logged.
        SessionInherited,
    }
    RECORDS [SeatLeaving, NameRemoved, NotifyCleared, NotifyMoved] {
        /// A producer took a lane, and has not looked into it.
        LaneTaken,
        /// A producer reserved more pages for its lane, and has not noted it.
        LaneGrown,
        /// A producer owns a descriptor, and has not moved the head past it.
        RecordReserved,
        /// A producer moved the head past its record, and has not begun to write.
        RecordNumbered,
        /// A producer is filling its record.
        RecordHalfWritten,
        /// A producer filled and described its record, and has not committed it.
        RecordWritten,
        /// A producer committed, and has not woken the consumers.
        RecordReady,
        /// A producer dropped its oldest record, and has not counted it.
        RecordDropped,
        /// A consumer took a record, and has not moved the cursor.
        RecordTaken,
        /// A consumer gave a record back, and has not told the producer.
        RecordFreed,
        /// A record of a dead consumer is Ready again, and not yet counted.
        RecordReturned,
    }
    WEIGHTS [NotifyCleared, NotifyMoved] {
        /// A process began to write weights, and has not looked at what the last writer left.
        WriterTaken,
        /// A writer reserved one more buffer, and has not noted it.
        BufferGrown,
        /// A writer marked its buffer as being written.
        BufferOpened,
        /// A writer or reader of weights is in the middle of a leaf.
        LeafHalfCopied,
        /// A writer finished its buffer, and has not pointed the readers to it.
        BufferWritten,
        /// A writer published a version, and has not woken the readers.
        VersionPublished,
        /// A writer ended its write, and has not woken the next writer.
        WriteEnded,
        /// A reader pinned a buffer, and has not read it.
        ReaderPinned,
    }
    REPLAY [SeatLeaving, NameRemoved, NotifyCleared, NotifyMoved] {
        /// An adder was promised rows, and has not claimed any of them.
        RowsPromised,
        /// An adder owns only a part of the rows it wants.
        RowsPartlyClaimed,
        /// An adder is filling a row.
        RowHalfWritten,
        /// An adder filled its rows, and has not committed any.
        RowsWritten,
        /// An adder committed a part of its rows.
        RowsPartlyCommitted,
        /// An adder committed its rows, and has not woken the waiters.
        RowsCommitted,
        /// A process that gives a row up has taken it out of the count, and has not emptied it.
        RowUnsettled,
    }
    TABLES [SeatLeaving, NameRemoved, NotifyCleared, NotifyMoved] {
        /// A process has the lock, and has changed nothing.
        TablesLocked,
        /// A process has changed everything that it wanted to, and still has the lock.
        TablesChanged,
        /// A writer took a free chunk, and has not linked it.
        ChunkTaken,
        /// A writer let go of a chunk that is not yet free.
        ChunkLetGo,
        /// A writer is filling a step.
        StepHalfWritten,
        /// A writer filled its steps, and has made no item of them.
        StepWritten,
        /// A process described an item that is not yet Live.
        ItemWritten,
        /// An item is Live, and not yet listed.
        ItemLive,
        /// An item is not listed any more, and still Live.
        ItemDelisted,
        /// An item is Free, and its steps are not.
        ItemFreed,
        /// An item is Taken, and not copied.
        ItemTaken,
        /// Items were copied, and are not yet settled.
        ItemCopied,
        /// A priority was changed, and the sums above it were not.
        PriorityChanged,
    }
}

/// A place where the kill matrix may stop or kill the process. Nothing at all in a release build.
#[inline(always)]
pub fn crash_point(point: Point) {
    #[cfg(any(feature = "fault", loom))]
    fault::reached(point);
    #[cfg(not(any(feature = "fault", loom)))]
    let _ = point;
}

/// What happens at a crash point, chosen by the test that runs this thread.
#[cfg(any(feature = "fault", loom))]
pub mod fault {
    use super::Point;
    use std::cell::RefCell;

    type Hook = Box<dyn FnMut(Point)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Calls `hook` at every crash point that this thread reaches from now on.
    pub fn on_point(hook: impl FnMut(Point) + 'static) {
        HOOK.with(|cell| *cell.borrow_mut() = Some(Box::new(hook)));
    }

    static EVERY_THREAD: std::sync::OnceLock<fn(Point)> = std::sync::OnceLock::new();

    /// Calls `hook` at every crash point that any thread of this process reaches, from now on. Once per process.
    pub fn on_point_of_any_thread(hook: fn(Point)) {
        EVERY_THREAD.set(hook).expect("it is set once");
    }

    pub(super) fn reached(point: Point) {
        if let Some(hook) = EVERY_THREAD.get() {
            hook(point);
        }
        HOOK.with(|cell| {
            // The hook is taken out while it runs: it may unwind, and a dying thread reaches no further point.
            let hook = cell.borrow_mut().take();
            if let Some(mut hook) = hook {
                hook(point);
                cell.borrow_mut().get_or_insert(hook);
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_for_a_note_only_where_somebody_looks_for_it() {
        let event = EventCount::default();
        let sleep =
            |look: fn() -> bool, time| signals::watched_here(look, || event.wait(event.announce(), time));
        assert_eq!(sleep(|| true, Duration::from_secs(600)), Woken::Interrupted);
        assert_eq!(sleep(|| false, signals::NAP * 5 / 2), Woken::Timeout);
        signals::watched(
            || true,
            || assert_eq!(event.wait(event.announce(), Duration::from_millis(1)), Woken::Timeout),
        );
    }
}
