//! Sampling: items, chosen as their table says, and their steps, copied into arrays.
//!
//! A table that draws at random, keeps what was sampled, and counts no samples against inserts is sampled without the lock.
//! Otherwise items are chosen with it. In both cases they are copied without it: an item that is removed meanwhile is
//! replaced by another draw, and one that may be sampled no more is Taken, which keeps its steps until it was copied.

use super::index::{Chosen, Index};
use super::layout::{ItemKind, ItemWord};
use super::limiter::Counts;
use super::patterns::Pattern;
use super::selectors::Kind;
use super::{Tables, now_ms};
use crate::error::{Error, Result};
use crate::replay::Sampler;
use crate::replay::draw::RandomStream;
use crate::replay::layout::Field;
use crate::segment::{Activity, Owner};
use crate::sys::opaque_copy::copy_opaque;
use crate::sys::prefetch::{prefetch, prefetch_all};
use crate::sys::sync::{Ordering, Point, crash_point};
use crate::sys::wait::Deadline;

/// Draws without the lock that meet an item that is gone, before one is drawn with it.
const FREE_DRAWS: u64 = 32;
/// Items whose steps are asked for before they are copied.
const AHEAD: usize = 8;
/// Bytes of an item that are asked for ahead: memory fetches the rest by itself.
const AHEAD_BYTES: usize = 512;
/// How often an item that was removed while it was copied is replaced by another.
const MAX_REDRAWS: usize = 1000;

/// Where a column of a batch goes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Of the first item.
    pub data: *mut u8,
    /// From one item to the next.
    pub stride: usize,
    /// Steps that there is room for in each.
    pub steps: usize,
}

// SAFETY: the pointers are to memory that the caller of `gather` owns.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

/// Items that were chosen, and the patterns that they have.
#[derive(Debug)]
pub struct Draw {
    pub table: usize,
    pub chosen: Vec<Chosen>,
    pub patterns: Vec<(u32, Pattern)>,
}

impl Draw {
    /// The pattern of an item.
    #[inline]
    pub fn pattern(&self, number: u32) -> Option<&Pattern> {
        self.patterns.iter().find(|(known, _)| *known == number).map(|(_, pattern)| pattern)
    }

    /// Puts another item in the place of one.
    fn replace(&mut self, place: usize, mut other: Draw) {
        self.chosen[place] = other.chosen[0];
        let (number, pattern) = other.patterns.remove(0);
        if self.pattern(number).is_none() {
            self.patterns.push((number, pattern));
        }
    }

    /// The most steps that any item has in each column. `None` if the items do not have the same columns.
    pub fn lengths(&self) -> Option<Vec<usize>> {
        let (_, first) = self.patterns.first()?;
        let like_first = |pattern: &Pattern| {
            let (ours, theirs) = (&first.columns, &pattern.columns);
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|(a, b)| (&a.name, a.field, a.single) == (&b.name, b.field, b.single))
        };
        if !self.patterns.iter().all(|(_, pattern)| like_first(pattern)) {
            return None;
        }
        let mut most = vec![0; first.columns.len()];
        for chosen in &self.chosen {
            let pattern = self.pattern(chosen.pattern)?;
            for (most, column) in most.iter_mut().zip(&pattern.columns) {
                *most = column.len(chosen.span).max(*most);
            }
        }
        Some(most)
    }
}

impl Tables {
    /// Chooses items. Waits until the limiter admits all of them: it is all or nothing.
    pub fn draw(&self, table: usize, count: usize, sampler: &Sampler, deadline: Deadline) -> Result<Draw> {
        let index = self.index(table);
        let chosen = loop {
            self.check_open()?;
            let (random, first) = sampler.reserve(count as u64);
            let drawn = match is_free(&index) {
                true => self.draw_freely(&index, count, random, first)?,
                false => {
                    let drawn =
                        self.locked(deadline, |owner| draw_counted(&index, count, random, first, owner))?;
                    index.head.changed.notify_if_waiting();
                    drawn
                }
            };
            let then = match drawn {
                Ok(chosen) => break chosen,
                Err(then) => then,
            };
            let limiter = &index.config.limiter;
            let admitted = || {
                let now = index.counts();
                now != then && limiter.admits_sample(&now).is_ok()
            };
            self.wait(table, Activity::WaitData, deadline, admitted)?;
        };
        let mut patterns: Vec<(u32, Pattern)> = Vec::new();
        for one in &chosen {
            if !patterns.iter().any(|(known, _)| *known == one.pattern) {
                patterns.push((one.pattern, self.pattern(one.pattern)?));
            }
        }
        Ok(Draw { table, chosen, patterns })
    }

    /// Without the lock. Otherwise the counts with which it could not be.
    fn draw_freely(
        &self,
        index: &Index<'_>,
        count: usize,
        random: RandomStream,
        first: u64,
    ) -> Result<std::result::Result<Vec<Chosen>, Counts>> {
        let then = index.counts();
        if index.config.limiter.admits_sample(&then).is_err() {
            return Ok(Err(then));
        }
        let missed = || Ok(Err(Counts::default())); // Others change the table just now: look again at once.
        let draw = |random: RandomStream, counter: u64| match index.config.sampler {
            Kind::Uniform => index.choose_uniformly(random, counter),
            _ => index.choose_by_weight(0, random, counter),
        };
        let mut places = Vec::with_capacity(count);
        for counter in first..first + count as u64 {
            let Some(drawn) = draw(random, counter) else { return missed() };
            prefetch(index.items[drawn.0..].as_ptr().cast());
            places.push(drawn);
        }
        let mut chosen = Vec::with_capacity(count);
        for (counter, (place, probability)) in (first..).zip(places) {
            let found = match index.look(place) {
                Some(found) => Some(Chosen { probability, ..found }),
                None => (0..FREE_DRAWS).find_map(|again| {
                    let (place, probability) = draw(random.branch(counter), again)?;
                    index.look(place).map(|found| Chosen { probability, ..found })
                }),
            };
            let Some(found) = found else { return missed() };
            index.items[found.item].sampled.fetch_add(1, Ordering::Relaxed);
            chosen.push(found);
        }
        index.head.samples.fetch_add(count as u64, Ordering::Relaxed);
        Ok(Ok(chosen))
    }

    /// Copies the steps of the items into the targets, one for each column, with zeros behind those of shorter items. An item that was removed meanwhile is replaced by
    /// another; `draw` says which they are in the end. False when there is no other just now: all were given back, so draw
    /// again.
    ///
    /// # Safety
    /// Each target has room for all items, and to each only this call writes.
    pub unsafe fn gather(&self, draw: &mut Draw, targets: &[Target], sampler: &Sampler) -> Result<bool> {
        let index = self.index(draw.table);
        for ahead in draw.chosen.iter().take(AHEAD) {
            self.prefetch(ahead);
        }
        for place in 0..draw.chosen.len() {
            if let Some(ahead) = draw.chosen.get(place + AHEAD) {
                self.prefetch(ahead);
            }
            let mut tries = 0;
            loop {
                let chosen = draw.chosen[place];
                // SAFETY: as the caller promises.
                let fits = unsafe { self.copy_item(draw, &chosen, place, targets) };
                if fits && index.is_unchanged(chosen.item, chosen.word) {
                    break;
                }
                tries += 1;
                let overrun =
                    || Error::Overrun { name: self.name().to_owned(), capacity: index.items.len() as u64 };
                // It does not count: the limiter is asked anew for the next one.
                if !is_free(&index) {
                    index.head.samples.fetch_sub(1, Ordering::Relaxed);
                }
                let other = match tries {
                    MAX_REDRAWS => Err(overrun()),
                    _ => self.draw(draw.table, 1, sampler, Deadline::Now),
                };
                match other {
                    Ok(other) => draw.replace(place, other),
                    Err(error) => {
                        draw.chosen.remove(place);
                        self.give_back(draw)?;
                        return if matches!(error, Error::Timeout) { Ok(false) } else { Err(error) };
                    }
                }
            }
        }
        crash_point(Point::ItemCopied);
        self.settle(draw).map(|()| true)
    }

    /// Removes the items that were copied for the last time.
    fn settle(&self, draw: &Draw) -> Result<()> {
        let index = self.index(draw.table);
        if index.config.max_times_sampled == 0 {
            return Ok(());
        }
        self.locked(Deadline::Never, |_| {
            let taken = |chosen: &&Chosen| ItemWord::unpack(chosen.word).kind == ItemKind::Taken;
            draw.chosen.iter().filter(taken).for_each(|chosen| index.settle(chosen));
        })?;
        index.head.changed.notify_if_waiting();
        self.control().room.notify_if_waiting();
        Ok(())
    }

    /// Gives items back that were drawn and not copied: as if they had not been drawn.
    pub fn give_back(&self, draw: &Draw) -> Result<()> {
        let index = self.index(draw.table);
        if is_free(&index) {
            return Ok(());
        }
        self.locked(Deadline::Never, |_| undo(&index, &draw.chosen))?;
        index.head.changed.notify_if_waiting();
        Ok(())
    }

    #[inline]
    fn prefetch(&self, chosen: &Chosen) {
        if chosen.first < self.geometry.steps() as u64 {
            prefetch_all(self.step(chosen.first), self.geometry.row_bytes.min(AHEAD_BYTES));
        }
    }

    /// False when the item does not fit: it is another than the one that was drawn.
    ///
    /// # Safety
    /// As for [`gather`](Self::gather).
    #[inline]
    unsafe fn copy_item(&self, draw: &Draw, chosen: &Chosen, place: usize, targets: &[Target]) -> bool {
        let Some(pattern) = draw.pattern(chosen.pattern) else { return false };
        if pattern.columns.len() != targets.len() {
            return false;
        }
        for (column, target) in pattern.columns.iter().zip(targets) {
            if column.len(chosen.span) > target.steps {
                return false;
            }
            let field = self.geometry.fields[column.field];
            // SAFETY: the target has room for this item, and its column is not longer than that.
            let mut to = unsafe { target.data.add(place * target.stride) };
            for slice in &column.slices {
                let count = slice.len(chosen.span) as usize;
                // SAFETY: as above.
                match unsafe { self.copy_steps(chosen.first, slice.start as usize, count, field, to) } {
                    true => to = to.wrapping_add(count * field.bytes),
                    false => return false,
                }
            }
            let missing = target.steps - column.len(chosen.span);
            // SAFETY: as above: the rest of the item.
            unsafe { to.write_bytes(0, missing * field.bytes) };
        }
        true
    }

    /// Copies one field of steps that follow each other. False when they do not: the item is gone.
    ///
    /// # Safety
    /// `to` has room for them.
    #[inline]
    unsafe fn copy_steps(
        &self,
        first: u64,
        start: usize,
        count: usize,
        field: Field,
        mut to: *mut u8,
    ) -> bool {
        let (steps, per) = (self.steps(), self.geometry.chunk_steps);
        let (mut chunk, mut offset) = ((first / per as u64) as usize, (first % per as u64) as usize + start);
        let mut left = count;
        loop {
            if chunk >= steps.chunks.len() {
                return false;
            }
            if offset < per {
                let here = left.min(per - offset);
                let from = self.step((chunk * per + offset) as u64);
                for step in 0..here {
                    // SAFETY: the steps lie in the chunk, and `to` has room for them. A writer may write to them meanwhile, which
                    // the compiler must not know (C1): then the word has changed, and these bytes mean nothing (T4).
                    unsafe {
                        copy_opaque(to, from.add(step * self.geometry.stride + field.offset), field.bytes);
                        to = to.add(field.bytes);
                    }
                }
                left -= here;
                offset += here;
            }
            if left == 0 {
                return true;
            }
            chunk = steps.chunks[chunk].next.load(Ordering::Relaxed) as usize;
            offset -= per;
        }
    }
}

/// Whether a table can be sampled without the lock.
fn is_free(index: &Index<'_>) -> bool {
    let config = index.config;
    matches!(config.sampler, Kind::Uniform | Kind::Prioritised(_))
        && config.max_times_sampled == 0
        && config.limiter.is_free()
        && !config.has_limits_of_age()
}

/// With the lock held: all of them, or none.
fn draw_counted(
    index: &Index<'_>,
    count: usize,
    random: RandomStream,
    first: u64,
    owner: Owner,
) -> std::result::Result<Vec<Chosen>, Counts> {
    if index.config.has_limits_of_age() {
        index.expire(now_ms());
    }
    let mut chosen = Vec::with_capacity(count);
    while chosen.len() < count {
        let admitted = index.config.limiter.admits_sample(&index.counts()).is_ok();
        let found = match admitted {
            true => index.choose(0, random, first + chosen.len() as u64),
            false => None,
        };
        let Some((item, probability)) = found else {
            undo(index, &chosen);
            return Err(index.counts());
        };
        let Some(mut one) = index.look(item) else {
            undo(index, &chosen); // Nobody honest lists what is not Live.
            return Err(index.counts());
        };
        one.probability = probability;
        if index.is_stale(&one) {
            index.remove(item);
            continue;
        }
        index.take(&mut one, owner);
        chosen.push(one);
    }
    Ok(chosen)
}

/// The last first: so a queue is in order again.
fn undo(index: &Index<'_>, chosen: &[Chosen]) {
    chosen.iter().rev().for_each(|one| index.give_back(one));
}
