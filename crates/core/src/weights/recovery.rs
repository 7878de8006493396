//! What a dead process can leave in the weights, and how it is put right.
//!
//! | died after ([`Point`](crate::sys::sync::Point)) | state left | noticed by | repaired to |
//! |---|---|---|---|
//! | `WriterTaken`, or any time until `WriteEnded` | a writer word that names the dead, in the middle of a write | the next writer, which asks the kernel, also while it waits; the next holder of the seat | its own name; `ABANDONED` |
//! | `WriteEnded`, or any time between two writes | a writer word that names the dead, and writers asleep | any writer that comes, writes or leaves; their liveness poll | its own name, or none |
//! | `BufferGrown` | pages that exist beyond `grown` | – | reserved again by the next growth |
//! | `BufferOpened`, `LeafHalfCopied` (the writer) | a buffer with sequence 0, some leaves new, one torn; `latest` is elsewhere | readers: never | written anew, every leaf of it |
//! | `BufferWritten` | a whole buffer with a sequence above `latest` | the next writer | sequence 0: its version comes again |
//! | `VersionPublished` | a new version, and readers asleep | their liveness poll | awake |
//! | `ReaderPinned`, or any time in the copy | a pin that names the dead | the writer, when it finds no free buffer; the next holder of the seat | cleared |
//! | `NotifyCleared`, `NotifyMoved` | sleepers with no one to wake them | their liveness poll | awake |
//!
//! The kernel says whether a process is dead ([`crate::segment::lease`]). Every repair is one CAS from a word that names the
//! dead, or a store by the one process that writes; each can be done twice.

use super::layout::{ABANDONED, BufferHead, Control, Holder, LastWriter, Latest, PinLine};
use crate::segment::Owner;
use crate::segment::lease::LivenessMemo;
use crate::sys::sync::Ordering;

/// Clears the pins of the readers that `is_dead` names; how many.
pub fn clear_dead_pins(control: &Control, pins: &[PinLine], is_dead: impl Fn(Owner) -> bool) -> usize {
    let mut memo = LivenessMemo::of(is_dead);
    let mut cleared = 0;
    for pin in pins.iter().flat_map(|line| &line.pins) {
        let word = pin.load(Ordering::Relaxed);
        if Holder::unpack(word).is_some_and(|holder| memo.is_dead(holder.owner)) {
            // SYNC weights.unpin: as in `Protocol::unpin`, in the name of the dead, whose reads are over. A newcomer to the seat
            // has another life in its word, so this fails on it.
            cleared += pin.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() as usize;
        }
    }
    control.counters.recovered.fetch_add(cleared as u64, Ordering::Relaxed);
    cleared
}

/// For a writer that was not the last one: discards what the last one wrote and did not publish (I5).
pub fn discard_unpublished(control: &Control, heads: &[BufferHead]) {
    let published = Latest::unpack(control.publish.latest.load(Ordering::Relaxed));
    for head in heads {
        if head.sequence.load(Ordering::Relaxed) > published.version {
            head.sequence.store(0, Ordering::Relaxed);
        }
    }
}

/// Takes back what the last holder of a seat left. The caller holds the seat's lock.
pub fn sweep(control: &Control, pins: &[PinLine], seat: usize) {
    clear_dead_pins(control, pins, |owner| owner.seat() == seat);
    let writer = &control.write.writer;
    let word = writer.load(Ordering::Relaxed);
    if LastWriter::unpack(word).is_some_and(|last| last.owner.seat() == seat) {
        // SYNC weights.writer: as in `hand_over`, in the name of the dead.
        let _ = writer.compare_exchange(word, ABANDONED, Ordering::AcqRel, Ordering::Relaxed);
    }
}
