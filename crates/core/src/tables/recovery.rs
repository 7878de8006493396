//! What a dead process can leave in replay tables, and how it is put right.
//!
//! | died after ([`Point`](crate::sys::sync::Point)) | state left | noticed by | repaired to |
//! |---|---|---|---|
//! | `TablesLocked`, `ChunkTaken`, `ChunkLetGo`, `ItemWritten`, `ItemLive`, `ItemDelisted`, `ItemFreed`, `ItemTaken`, `PriorityChanged`, `TablesChanged` | the lock, held by the dead; counts, lists and sums in the middle of a change | the next one that wants the lock | the items stay as their words say; all else is made anew from them |
//! | `StepHalfWritten`, `StepWritten` | chunks of a dead writer, with steps that no item has | the next one that needs a chunk, the next holder of the seat, an audit | free, unless items need them |
//! | `ItemCopied` | items Taken by the dead | the same | Live: they were not delivered |
//! | `NotifyCleared`, `NotifyMoved` | sleepers with no one to wake them | their liveness poll | awake |
//!
//! An item is inserted, or not; acknowledged is what [`insert`](super::Tables::insert) has returned from.

use super::index::Index;
use super::layout::{ItemKind, ItemWord, NONE};
use crate::segment::Owner;
use crate::segment::lease::LivenessMemo;
use crate::sys::sync::Ordering;

/// Makes anew, from the words of the items and of the chunks, all that follows from them. The lock is held.
pub fn rebuild(tables: &[Index<'_>], is_dead: impl Fn(Owner) -> bool) {
    let Some(first) = tables.first() else { return };
    let steps = first.steps;
    let mut memo = LivenessMemo::of(is_dead);
    for chunk in steps.chunks {
        chunk.items.store(0, Ordering::Relaxed);
        if Owner::unpack_maybe(chunk.owner.load(Ordering::Relaxed)).is_some_and(|owner| memo.is_dead(owner)) {
            chunk.owner.store(0, Ordering::Relaxed);
        }
    }
    for table in tables {
        rebuild_table(table, &mut |owner| memo.is_dead(owner));
    }
    steps.store.free.store(NONE, Ordering::Relaxed);
    steps.store.free_count.store(0, Ordering::Relaxed);
    (0..steps.chunks.len()).rev().for_each(|chunk| steps.free_if_unused(chunk));
    steps.store.rebuilt.fetch_add(1, Ordering::Relaxed);
}

fn rebuild_table(table: &Index<'_>, is_dead: &mut impl FnMut(Owner) -> bool) {
    let head = table.head;
    table.order().clear();
    table.ranks().inspect(|ranks| ranks.clear());
    for which in 0..2 {
        table.heap(which).inspect(|heap| heap.clear());
        table.tree(which).inspect(|(tree, _)| tree.clear());
    }
    head.size.store(0, Ordering::Relaxed);
    head.free.store(NONE, Ordering::Relaxed);
    table.undo_noted(is_dead);
    let (mut live, mut taken) = (Vec::new(), Vec::new());
    let mut inserts = head.inserts.load(Ordering::Relaxed);
    for (place, item) in table.items.iter().enumerate().rev() {
        let word = ItemWord::unpack(item.word.load(Ordering::Relaxed));
        match word.kind {
            ItemKind::Free => {
                table.put_on_free_list(place);
                continue;
            }
            ItemKind::Taken if is_dead(word.owner) => {
                // Not enlisted yet, which `give_back_place` does.
                taken.push(place);
            }
            ItemKind::Taken => {}
            ItemKind::Live => live.push(place),
        }
        table.hold_steps_of(place);
        inserts = inserts.max(item.number.load(Ordering::Relaxed) + 1);
    }
    head.inserts.store(inserts, Ordering::Relaxed);
    live.sort_by_key(|&place| table.items[place].number.load(Ordering::Relaxed));
    live.into_iter().for_each(|place| table.enlist(place));
    taken.into_iter().for_each(|place| table.give_back_place(place));
    head.changed.notify_if_waiting();
}

/// Takes back what dead processes held without the lock: chunks of writers, and items that were being copied. The lock is
/// held. Says how many.
pub fn sweep(tables: &[Index<'_>], is_dead: impl Fn(Owner) -> bool) -> usize {
    let Some(first) = tables.first() else { return 0 };
    let mut memo = LivenessMemo::of(is_dead);
    let mut swept = 0;
    for (number, chunk) in first.steps.chunks.iter().enumerate() {
        if Owner::unpack_maybe(chunk.owner.load(Ordering::Relaxed)).is_some_and(|owner| memo.is_dead(owner)) {
            first.steps.let_go(number);
            swept += 1;
        }
    }
    for table in tables.iter().filter(|table| table.config.max_times_sampled > 0) {
        for (place, item) in table.items.iter().enumerate() {
            let word = ItemWord::unpack(item.word.load(Ordering::Relaxed));
            if word.kind == ItemKind::Taken && memo.is_dead(word.owner) {
                table.give_back_place(place);
                swept += 1;
            }
        }
    }
    if swept > 0 {
        tables.iter().for_each(|table| table.head.changed.notify_if_waiting());
    }
    swept
}

/// Counts everything anew, and says what does not fit. The lock is held. Empty: all is well.
pub fn audit(tables: &[Index<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let Some(first) = tables.first() else { return found };
    let steps = first.steps;
    let mut needed = vec![0u32; steps.chunks.len()];
    for (number, table) in tables.iter().enumerate() {
        audit_table(table, &mut needed, |what| found.push(format!("table {number}: {what}")));
    }
    let mut free = 0;
    for (number, (chunk, needed)) in steps.chunks.iter().zip(needed).enumerate() {
        let items = chunk.items.load(Ordering::Relaxed);
        if items != needed {
            found.push(format!("chunk {number} counts {items} items, and {needed} need it"));
        }
        free += (items == 0 && chunk.owner.load(Ordering::Relaxed) == 0) as u32;
    }
    let (mut listed, mut chunk) = (0, steps.store.free.load(Ordering::Relaxed));
    while let Some(it) = steps.chunks.get(chunk as usize).filter(|_| listed <= free) {
        (listed, chunk) = (listed + 1, it.next.load(Ordering::Relaxed));
    }
    let count = steps.store.free_count.load(Ordering::Relaxed);
    if (listed, count) != (free, free) {
        found.push(format!("{free} chunks are free; {listed} are listed, and {count} counted"));
    }
    found
}

fn audit_table(table: &Index<'_>, needed: &mut [u32], mut wrong: impl FnMut(String)) {
    let (mut live, mut free, mut weights) = (0u64, 0, [0.0; 2]);
    for (place, item) in table.items.iter().enumerate() {
        match ItemWord::unpack(item.word.load(Ordering::Relaxed)).kind {
            ItemKind::Free => free += 1,
            kind => {
                let (first, span) = (item.first.load(Ordering::Relaxed), item.span.load(Ordering::Relaxed));
                table.steps.chunks_of(first, span).for_each(|chunk| needed[chunk] += 1);
                if kind == ItemKind::Live {
                    live += 1;
                    for (which, weight) in weights.iter_mut().enumerate() {
                        *weight += table.tree(which).map_or(0.0, |(tree, _)| tree.weight(place));
                    }
                }
            }
        }
    }
    let size = table.head.size.load(Ordering::Relaxed);
    if size != live {
        wrong(format!("it counts {size} items, and has {live}"));
    }
    let (mut listed, mut item) = (0, table.head.free.load(Ordering::Relaxed));
    while let Some(it) = table.items.get(item as usize).filter(|_| listed <= free) {
        (listed, item) = (listed + 1, it.next.load(Ordering::Relaxed));
    }
    if listed != free {
        wrong(format!("{free} places are free, and {listed} are listed"));
    }
    let (mut ordered, mut item, mut last) = (0, table.order().oldest(), None);
    while let Some(it) = item.filter(|_| ordered <= live) {
        let number = table.items[it].number.load(Ordering::Relaxed);
        if last.is_some_and(|last| last >= number) {
            wrong(format!("item {number} is listed behind a later one"));
        }
        last = Some(number);
        ordered += 1;
        item =
            Some(table.items[it].next.load(Ordering::Relaxed) as usize).filter(|&it| it < table.items.len());
    }
    if ordered != live {
        wrong(format!("it has {live} items, and {ordered} are in order"));
    }
    if table.ranks().is_some_and(|ranks| ranks.count() as u64 != live) {
        wrong(format!("it has {live} items, and draws from another number"));
    }
    for (which, weight) in weights.into_iter().enumerate() {
        if let Some((tree, _)) = table.tree(which) {
            let total = tree.total();
            if (total - weight).abs() > 1e-9 * weight.max(1e-300) {
                wrong(format!("its weights add up to {weight}, and its tree says {total}"));
            }
        }
    }
}
