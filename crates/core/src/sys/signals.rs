//! Signals that come just before a thread falls asleep, and so wake nobody.
//!
//! An interpreter's handler leaves a note and is done; whoever was about to sleep has looked for notes already. A thread that
//! is to come back for them sleeps in naps, and looks again after each. Only a process's first thread runs such handlers.

use crate::sys::clock::monotonic_ns;
use rustix::{process, thread};
use std::cell::Cell;
use std::time::Duration;

/// How late such a signal may be noticed.
const NAP: Duration = Duration::from_millis(100);

thread_local! {
    static LOOK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
    static LOOKED_NS: Cell<u64> = const { Cell::new(0) };
}

/// Does `work`. In the first thread, a sleep in there ends as if a signal had woken it when `look` says that there is a note.
pub fn watched<T>(look: fn() -> bool, work: impl FnOnce() -> T) -> T {
    struct Before(Option<fn() -> bool>);
    impl Drop for Before {
        fn drop(&mut self) {
            LOOK.set(self.0);
        }
    }
    let is_first = thread::gettid() == process::getpid();
    let _before = Before(LOOK.replace(is_first.then_some(look)));
    work()
}

/// How long to sleep at a stretch.
pub fn nap(left: Duration) -> Duration {
    if LOOK.get().is_some() { left.min(NAP) } else { left }
}

/// Whether to come back, after a nap. Looks only so often: it may cost a lock.
pub fn are_noted() -> bool {
    LOOK.get().is_some_and(|look| {
        let now = monotonic_ns();
        let is_due = now.saturating_sub(LOOKED_NS.get()) >= NAP.as_nanos() as u64 / 2;
        if is_due {
            LOOKED_NS.set(now);
        }
        is_due && look()
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::sync::{EventCount, Woken};

    #[test]
    fn a_sleep_ends_for_a_note_only_where_somebody_looks_for_it() {
        let event = EventCount::default();
        let sleep = |look: fn() -> bool, time| {
            LOOK.set(Some(look)); // `watched` would do so in the first thread, and tests run in others.
            let woken = event.wait(event.announce(), time);
            LOOK.set(None);
            woken
        };
        assert_eq!(sleep(|| true, Duration::from_secs(600)), Woken::Interrupted);
        assert_eq!(sleep(|| false, NAP * 5 / 2), Woken::Timeout);
        watched(
            || true,
            || assert_eq!(event.wait(event.announce(), Duration::from_millis(1)), Woken::Timeout),
        );
    }

    #[cfg(feature = "fault")]
    #[test]
    fn a_signal_ends_a_read_that_the_writer_overtakes_again_and_again() {
        use crate::sys::sync::{Ordering, Point, fault};
        use crate::weights::{IfExists, Reader, Source, Target, WeightsSpec, Writer};
        let spec = WeightsSpec {
            name: None,
            auto_named: false,
            schema: br#"{"leaves":[["w","uint8",[8]]],"tree":0}"#,
            leaf_bytes: &[8],
            max_buffers: 3,
            max_peers: 4,
            checksum: false,
        };
        let writer = Writer::open(&spec, IfExists::Fail, 1).unwrap();
        let (from, mut to) = (1u64, 0u64);
        // SAFETY: the leaf has eight bytes, as the number has.
        unsafe { writer.write(&[Source { leaf: 0, from: (&raw const from).cast() }]) }.unwrap();
        let reader = Reader::attach_to(writer.weights().clone(), 1).unwrap();
        let weights = writer.weights().clone();
        // There is a newer version after every copy, and its buffer never holds it.
        let claim_newer =
            move || weights.protocol().control.publish.latest.fetch_add(1 << 8, Ordering::Relaxed);
        claim_newer();
        fault::on_point(move |at| {
            if at == Point::LeafHalfCopied {
                claim_newer();
            }
        });
        LOOK.set(Some(|| true));
        // SAFETY: as above.
        let read = unsafe { reader.read(&[Target { leaf: 0, to: (&raw mut to).cast() }], 0) };
        LOOK.set(None);
        fault::on_point(|_| {});
        assert!(matches!(read, Err(crate::Error::Interrupted)), "{read:?}");
    }
}
