//! What a dead process can leave in the table, and how it is put right.
//!
//! | died after ([`Point`](crate::sys::sync::Point)) | state left | noticed by | repaired to |
//! |---|---|---|---|
//! | `RowsPromised` | positions that no adder will claim | – | the rows keep what they hold for one lap more |
//! | `RowsPartlyClaimed`, `RowHalfWritten`, `RowsWritten` | rows Writing, by the dead | the adder that comes by, the next holder of the seat, a census | Writing, by that adder; or Empty |
//! | `RowsPartlyCommitted` | some rows Ready, the others Writing by the dead | as above | the Ready ones stay |
//! | `RowsCommitted` | rows Ready, and sleepers | their liveness poll | awake |
//! | `RowUnsettled` | `settled` too low | the next count | counted again |
//! | `SeatLeaving`, `NameRemoved` | a table that is not shut down, with or without its name | the next learner | resumed; the adders add on |
//! | `NotifyCleared`, `NotifyMoved` | sleepers with no one to wake them | their liveness poll | awake |
//!
//! Samplers need no repair: a row that is not Ready is not sampled. Each repair is one CAS from a word that names the dead
//! owner; it can be done twice, or by two at once, and only one succeeds.

use super::layout::{RowKind, RowWord};
use super::protocol::Protocol;
use crate::segment::Owner;
use crate::segment::lease::LivenessMemo;
use crate::sys::sync::Ordering;

/// Empties every row that an owner was Writing that `is_dead` names; gives their number.
pub fn recover(table: &Protocol<'_>, is_dead: impl Fn(Owner) -> bool) -> usize {
    let mut memo = LivenessMemo::of(is_dead);
    let mut repaired = 0;
    for row in 0..table.promised_rows() {
        let word = table.words[row].load(Ordering::Relaxed);
        let there = RowWord::unpack(word);
        if there.kind == RowKind::Writing && memo.is_dead(there.owner) {
            repaired += table.give_up(row, word) as usize;
        }
    }
    if repaired > 0 {
        table.control.changed.notify_if_waiting();
    }
    repaired
}
