//! The items of one table, and all that is derived from them. Everything here is called with the lock held, unless it says
//! otherwise.
//!
//! T1  An item's word is the truth about it: its other fields are written before it says Live, and after it says Free.
//!     Counts, order, heaps, trees, lists of free items and chunks, and how many items need a chunk follow from the words;
//!     [`rebuild`](super::recovery::rebuild) makes them anew.
//! T2  A word never comes back: each item has a later generation than the one before it in its place.
//! T3  A chunk that a Live or Taken item needs, or that a living writer owns, is not free; only a free one is given to a
//!     writer. So the steps of an item are not written to before its word has changed.
//! T4  A reader without the lock keeps what it copied only if the word is of the same generation afterwards, and not Free. A word that says Free is
//!     followed by a release fence before anything of the item is written to, and a writer's first step in a chunk by
//!     another; the reader's second look comes after an acquire fence.
//! T5  `samples` cannot be counted anew, and a queue that counts one too many never gives its last item. So a process notes
//!     which sample it counts before it does so: one that was being counted, or given back, when its process died, was not.

use super::layout::{Chunk, Config, Item, ItemKind, ItemWord, Key, NONE, Store, TableHead};
use super::limiter::Counts;
use super::selectors::Kind;
use super::selectors::heap::Heap;
use super::selectors::order::Order;
use super::selectors::ranks::Ranks;
use super::selectors::tree::Tree;
use crate::replay::draw::RandomStream;
use crate::segment::Owner;
use crate::sys::sync::{AtomicU32, AtomicU64, Ordering, Point, crash_point, fence};

/// The steps, as far as items need them.
#[derive(Debug, Clone, Copy)]
pub struct Steps<'a> {
    pub store: &'a Store,
    pub chunks: &'a [Chunk],
    pub chunk_steps: usize,
}

impl Steps<'_> {
    /// The chunks of a window. Each says which comes next; a broken chain ends.
    #[inline]
    pub fn chunks_of(&self, first: u64, span: u32) -> impl Iterator<Item = usize> + '_ {
        let mut chunk = (first / self.chunk_steps as u64) as usize;
        let offset = (first % self.chunk_steps as u64) as usize;
        let mut left = (offset + span.max(1) as usize).div_ceil(self.chunk_steps);
        std::iter::from_fn(move || {
            let here = (left > 0 && chunk < self.chunks.len()).then_some(chunk)?;
            left -= 1;
            if left > 0 {
                chunk = self.chunks[here].next.load(Ordering::Relaxed) as usize;
            }
            Some(here)
        })
    }

    /// Takes a free chunk for a writer.
    pub fn take(&self, owner: Owner) -> Option<usize> {
        let chunk = self.store.free.load(Ordering::Relaxed) as usize;
        let free = self.chunks.get(chunk)?;
        free.owner.store(Owner::pack_maybe(Some(owner)), Ordering::Relaxed);
        self.store.free.store(free.next.load(Ordering::Relaxed), Ordering::Relaxed);
        self.store.free_count.fetch_sub(1, Ordering::Relaxed);
        free.next.store(NONE, Ordering::Relaxed);
        crash_point(Point::ChunkTaken);
        Some(chunk)
    }

    /// A writer needs the chunk no more.
    pub fn let_go(&self, chunk: usize) {
        self.chunks[chunk].owner.store(0, Ordering::Relaxed);
        crash_point(Point::ChunkLetGo);
        self.free_if_unused(chunk);
    }

    /// One more item needs these chunks.
    #[inline]
    fn hold(&self, first: u64, span: u32) {
        self.chunks_of(first, span).for_each(|chunk| {
            self.chunks[chunk].items.fetch_add(1, Ordering::Relaxed);
        });
    }

    #[inline]
    fn release(&self, first: u64, span: u32) {
        for chunk in self.chunks_of(first, span) {
            // Freeing a chunk changes its `next`: the iterator has read that already.
            if self.chunks[chunk].items.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.free_if_unused(chunk);
            }
        }
    }

    pub(super) fn free_if_unused(&self, chunk: usize) {
        let it = &self.chunks[chunk];
        if it.items.load(Ordering::Relaxed) == 0 && it.owner.load(Ordering::Relaxed) == 0 {
            it.next.store(self.store.free.load(Ordering::Relaxed), Ordering::Relaxed);
            self.store.free.store(chunk as u32, Ordering::Relaxed);
            self.store.free_count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What is inserted.
#[derive(Debug, Clone, Copy)]
pub struct NewItem {
    pub first: u64,
    pub span: u32,
    pub pattern: u32,
    pub priority: f64,
    pub version: u32,
}

/// An item that was chosen, as its word was then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    pub item: usize,
    pub word: u64,
    pub first: u64,
    pub span: u32,
    pub pattern: u32,
    pub priority: f64,
    pub probability: f64,
    /// With this time.
    pub times_sampled: u32,
    pub version: u32,
}

impl Chosen {
    pub fn key(&self) -> Key {
        Key::new(self.item, self.word)
    }
}

/// One table, wherever its words lie: in a segment, or on loom's heap.
#[derive(Debug, Clone, Copy)]
pub struct Index<'a> {
    pub config: &'a Config,
    pub head: &'a TableHead,
    pub items: &'a [Item],
    pub ranks: Option<&'a [AtomicU32]>,
    pub heaps: [Option<(&'a [AtomicU32], &'a [AtomicU32])>; 2],
    pub trees: [Option<&'a [AtomicU64]>; 2],
    pub steps: Steps<'a>,
}

impl<'a> Index<'a> {
    pub fn order(&self) -> Order<'a> {
        Order { head: self.head, items: self.items }
    }

    pub fn ranks(&self) -> Option<Ranks<'a>> {
        self.ranks.map(|ranks| Ranks { head: self.head, items: self.items, ranks })
    }

    pub fn heap(&self, which: usize) -> Option<Heap<'a>> {
        let (heap, places) = self.heaps[which]?;
        let greatest = self.config.selectors()[which] == Kind::MaxHeap;
        Some(Heap { len: &self.head.heaped[which], items: self.items, heap, places, greatest })
    }

    #[inline]
    pub fn tree(&self, which: usize) -> Option<(Tree<'a>, f64)> {
        match self.config.selectors()[which] {
            Kind::Prioritised(exponent) => {
                self.trees[which].map(|nodes| (Tree::new(self.items.len(), nodes), exponent))
            }
            _ => None,
        }
    }

    pub fn counts(&self) -> Counts {
        Counts {
            size: self.head.size.load(Ordering::Relaxed),
            inserts: self.head.inserts.load(Ordering::Relaxed),
            samples: self.head.samples.load(Ordering::Relaxed),
            version: self.steps.store.version.load(Ordering::Relaxed),
        }
    }

    /// Puts an item in. The caller has made room.
    pub fn insert(&self, new: &NewItem, now_ms: u32) -> Option<Key> {
        let place = self.head.free.load(Ordering::Relaxed) as usize;
        let item = self.items.get(place)?;
        self.head.free.store(item.next.load(Ordering::Relaxed), Ordering::Relaxed);
        let number = self.head.inserts.load(Ordering::Relaxed);
        item.number.store(number, Ordering::Relaxed);
        item.first.store(new.first, Ordering::Relaxed);
        item.span.store(new.span, Ordering::Relaxed);
        item.pattern.store(new.pattern, Ordering::Relaxed);
        item.priority.store(new.priority.to_bits(), Ordering::Relaxed);
        item.sampled.store(0, Ordering::Relaxed);
        item.born_ms.store(now_ms, Ordering::Relaxed);
        item.version.store(new.version, Ordering::Relaxed);
        self.steps.hold(new.first, new.span);
        crash_point(Point::ItemWritten);
        let last = ItemWord::unpack(item.word.load(Ordering::Relaxed));
        let word =
            ItemWord { generation: last.generation.next(), kind: ItemKind::Live, owner: last.owner }.pack();
        // SYNC tables.item: Release here, Acquire in `look`. The fields and the steps come first (T1).
        item.word.store(word, Ordering::Release);
        crash_point(Point::ItemLive);
        self.head.inserts.store(number + 1, Ordering::Relaxed);
        self.enlist(place);
        Some(Key::new(place, word))
    }

    /// The steps of an item are needed once more.
    pub(super) fn hold_steps_of(&self, place: usize) {
        let item = &self.items[place];
        self.steps.hold(item.first.load(Ordering::Relaxed), item.span.load(Ordering::Relaxed));
    }

    /// Takes an item out.
    pub fn remove(&self, place: usize) {
        self.delist(place);
        crash_point(Point::ItemDelisted);
        self.free(place);
    }

    /// Lists an item that says Live: it can be chosen.
    pub(super) fn enlist(&self, place: usize) {
        self.order().insert(place);
        if let Some(ranks) = self.ranks() {
            ranks.push(place);
        }
        for which in 0..2 {
            if let Some(heap) = self.heap(which) {
                heap.push(place);
            }
            if let Some((tree, exponent)) = self.tree(which) {
                tree.set(place, self.weight(place, exponent));
            }
        }
        self.head.size.fetch_add(1, Ordering::Relaxed);
    }

    /// It cannot be chosen any more.
    fn delist(&self, place: usize) {
        self.order().remove(place);
        if let Some(ranks) = self.ranks() {
            ranks.remove(place);
        }
        for which in 0..2 {
            if let Some(heap) = self.heap(which) {
                heap.remove(place);
            }
            if let Some((tree, _)) = self.tree(which) {
                tree.set(place, 0.0);
            }
        }
        self.head.size.fetch_sub(1, Ordering::Relaxed);
        self.head.deletes.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the place of an item that is not listed Free, and lets go of its steps.
    fn free(&self, place: usize) {
        let item = &self.items[place];
        let word = ItemWord::unpack(item.word.load(Ordering::Relaxed));
        item.word.store(ItemWord { kind: ItemKind::Free, ..word }.pack(), Ordering::Relaxed);
        // SYNC tables.turn: Release fence here, Acquire fence in `is_unchanged` (T4).
        fence(Ordering::Release);
        crash_point(Point::ItemFreed);
        self.steps.release(item.first.load(Ordering::Relaxed), item.span.load(Ordering::Relaxed));
        self.put_on_free_list(place);
    }

    pub(super) fn put_on_free_list(&self, place: usize) {
        self.items[place].next.store(self.head.free.load(Ordering::Relaxed), Ordering::Relaxed);
        self.head.free.store(place as u32, Ordering::Relaxed);
    }

    #[inline]
    fn weight(&self, place: usize, exponent: f64) -> f64 {
        weight_of(f64::from_bits(self.items[place].priority.load(Ordering::Relaxed)), exponent)
    }

    /// Gives items new priorities; those that are gone are passed over. Says how many there were.
    pub fn update(&self, keys: &[u64], priorities: &[f64]) -> usize {
        let mut found = 0;
        let there = |key: u64| {
            let item = self.items.get(Key(key).item())?;
            let word = item.word.load(Ordering::Relaxed);
            (Key(key).names(word) && ItemWord::unpack(word).kind == ItemKind::Live).then_some(item)
        };
        for (&key, &priority) in keys.iter().zip(priorities) {
            let Some(item) = there(key) else { continue };
            found += 1;
            item.priority.store(priority.to_bits(), Ordering::Relaxed);
            for which in 0..2 {
                if let Some(heap) = self.heap(which) {
                    heap.update(Key(key).item());
                }
                if let Some((tree, exponent)) = self.tree(which) {
                    tree.set_leaf(Key(key).item(), weight_of(priority, exponent));
                }
            }
            crash_point(Point::PriorityChanged);
        }
        for which in 0..2 {
            if let Some((tree, _)) = self.tree(which) {
                tree.add_up_all(
                    keys.iter().map(|&key| Key(key).item()).filter(|&item| item < self.items.len()),
                );
            }
        }
        found
    }

    /// Chooses by a selector: 0 samples, 1 removes.
    pub fn choose(&self, which: usize, random: RandomStream, counter: u64) -> Option<(usize, f64)> {
        match self.config.selectors()[which] {
            Kind::Fifo => self.order().oldest().map(|item| (item, 1.0)),
            Kind::Lifo => self.order().newest().map(|item| (item, 1.0)),
            Kind::MinHeap | Kind::MaxHeap => self.heap(which)?.first().map(|item| (item, 1.0)),
            Kind::Uniform => self.choose_uniformly(random, counter),
            Kind::Prioritised(_) => self.choose_by_weight(which, random, counter),
        }
    }

    /// Without the lock, too: then the item may be gone.
    #[inline]
    pub fn choose_uniformly(&self, random: RandomStream, counter: u64) -> Option<(usize, f64)> {
        let ranks = self.ranks()?;
        match ranks.count() {
            0 => None,
            len => Some((ranks.at(random.below(len, counter)), 1.0 / len as f64)),
        }
    }

    /// Without the lock, too.
    #[inline]
    pub fn choose_by_weight(&self, which: usize, random: RandomStream, counter: u64) -> Option<(usize, f64)> {
        let (tree, _) = self.tree(which)?;
        let share = random.below(1 << 53, counter) as f64 / (1u64 << 53) as f64;
        if let Some(item) = tree.find(share).filter(|&item| item < self.items.len()) {
            return Some((item, tree.weight(item) / tree.total()));
        }
        // All weights are 0: any item, with the same chance.
        let size = self.head.size.load(Ordering::Relaxed).min(self.items.len() as u64);
        let random = random.branch(counter);
        let tries = (64 * self.items.len() as u64).checked_div(size).unwrap_or(0);
        (0..tries)
            .map(|again| random.below(self.items.len(), again))
            .find(|&item| self.look(item).is_some())
            .map(|item| (item, 1.0 / size as f64))
    }

    /// What an item is, if it is Live. Without the lock, ask [`is_unchanged`](Self::is_unchanged) after it was copied.
    #[inline]
    pub fn look(&self, place: usize) -> Option<Chosen> {
        let item = &self.items[place];
        // SYNC tables.item: Acquire here, Release in `insert` (T1).
        let word = item.word.load(Ordering::Acquire);
        (ItemWord::unpack(word).kind == ItemKind::Live).then(|| Chosen {
            item: place,
            word,
            first: item.first.load(Ordering::Relaxed),
            span: item.span.load(Ordering::Relaxed),
            pattern: item.pattern.load(Ordering::Relaxed),
            priority: f64::from_bits(item.priority.load(Ordering::Relaxed)),
            probability: 1.0,
            times_sampled: item.sampled.load(Ordering::Relaxed) + 1,
            version: item.version.load(Ordering::Relaxed),
        })
    }

    /// Whether the item was not removed since [`look`](Self::look): then what was copied in between is whole. It may have been
    /// taken: that keeps its steps.
    #[inline]
    pub fn is_unchanged(&self, place: usize, word: u64) -> bool {
        // SYNC tables.turn: Acquire fence here, Release fences in `free` and `next_chunk` (T4).
        fence(Ordering::Acquire);
        let now = ItemWord::unpack(self.items[place].word.load(Ordering::Relaxed));
        now.generation == ItemWord::unpack(word).generation && now.kind != ItemKind::Free
    }

    /// Counts a sample of a Live item. It was the last one that it may have: it is Taken, until it is
    /// [`settle`](Self::settle)d or [`give_back`](Self::give_back)n.
    pub fn take(&self, chosen: &mut Chosen, owner: Owner) {
        let (item, samples) = (&self.items[chosen.item], self.head.samples.load(Ordering::Relaxed));
        self.note(chosen.item, chosen.times_sampled, samples);
        item.sampled.store(chosen.times_sampled, Ordering::Relaxed);
        if chosen.times_sampled == self.config.max_times_sampled {
            self.delist(chosen.item);
            crash_point(Point::ItemDelisted);
            let word = ItemWord { kind: ItemKind::Taken, owner, ..ItemWord::unpack(chosen.word) }.pack();
            item.word.store(word, Ordering::Relaxed);
            chosen.word = word;
            crash_point(Point::ItemTaken);
        }
        self.head.samples.store(samples + 1, Ordering::Relaxed);
        self.note_done();
    }

    /// Notes a sample before it is counted (T5).
    fn note(&self, place: usize, times: u32, samples_before: u64) {
        self.head.samples_before.store(samples_before, Ordering::Relaxed);
        // SYNC tables.taking: Release here, Acquire in `undo_noted`: the compiler moves no store across. The lock does the rest.
        self.head.taking.store((times as u64) << 32 | (place as u64 + 1), Ordering::Release);
        fence(Ordering::Release);
    }

    fn note_done(&self) {
        // SYNC tables.taking: Release here, Acquire in `undo_noted`.
        self.head.taking.store(0, Ordering::Release);
    }

    /// After a death: what was being counted, was not (T5). The rest is put right by [`rebuild`](super::recovery::rebuild).
    pub(super) fn undo_noted(&self, is_dead: &mut impl FnMut(Owner) -> bool) {
        // SYNC tables.taking: Acquire here, Release in `note` and `note_done`.
        let noted = self.head.taking.load(Ordering::Acquire);
        let (place, times) = ((noted as u32).wrapping_sub(1) as usize, (noted >> 32) as u32);
        let Some(item) = self.items.get(place) else { return };
        let word = ItemWord::unpack(item.word.load(Ordering::Relaxed));
        if word.kind == ItemKind::Taken && is_dead(word.owner) {
            item.word.store(ItemWord { kind: ItemKind::Live, ..word }.pack(), Ordering::Relaxed);
        }
        item.sampled.store(times.saturating_sub(1), Ordering::Relaxed);
        self.head.samples.store(self.head.samples_before.load(Ordering::Relaxed), Ordering::Relaxed);
        self.head.taking.store(0, Ordering::Relaxed);
    }

    /// A Taken item was copied.
    pub fn settle(&self, chosen: &Chosen) {
        self.free(chosen.item);
    }

    /// Undoes [`take`](Self::take). Of an item that was removed since, only the sample is not counted.
    pub fn give_back(&self, chosen: &Chosen) {
        if self.is_unchanged(chosen.item, chosen.word) {
            self.give_back_place(chosen.item);
        } else {
            self.head.samples.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes the last sample of an item back. If it was Taken, it is Live again.
    pub(super) fn give_back_place(&self, place: usize) {
        let item = &self.items[place];
        let (times, samples) =
            (item.sampled.load(Ordering::Relaxed), self.head.samples.load(Ordering::Relaxed));
        self.note(place, times, samples.saturating_sub(1));
        item.sampled.store(times.saturating_sub(1), Ordering::Relaxed);
        let word = ItemWord::unpack(item.word.load(Ordering::Relaxed));
        if word.kind == ItemKind::Taken {
            // Nothing of it has changed since it said so before.
            item.word.store(ItemWord { kind: ItemKind::Live, ..word }.pack(), Ordering::Relaxed);
            crash_point(Point::ItemLive);
            self.enlist(place);
            self.head.deletes.fetch_sub(1, Ordering::Relaxed);
        }
        self.head.samples.store(samples.saturating_sub(1), Ordering::Relaxed);
        self.note_done();
    }

    /// Removes what is too old.
    pub fn expire(&self, now_ms: u32) {
        let Config { max_age_ms, max_later_items, .. } = *self.config;
        let inserts = self.head.inserts.load(Ordering::Relaxed);
        while let Some(oldest) = self.order().oldest() {
            let item = &self.items[oldest];
            let age_ms = now_ms.wrapping_sub(item.born_ms.load(Ordering::Relaxed));
            let later = inserts.saturating_sub(item.number.load(Ordering::Relaxed) + 1);
            if (max_age_ms > 0 && age_ms >= max_age_ms) || (max_later_items > 0 && later >= max_later_items) {
                self.remove(oldest);
            } else {
                return;
            }
        }
    }

    /// Whether an item was made with weights that are too old.
    pub fn is_stale(&self, chosen: &Chosen) -> bool {
        let version = self.steps.store.version.load(Ordering::Relaxed) as u32;
        let behind = version.wrapping_sub(chosen.version) as i32;
        self.config.max_staleness > 0 && behind as i64 > self.config.max_staleness as i64
    }
}

/// The weight of a priority.
#[inline]
pub fn weight_of(priority: f64, exponent: f64) -> f64 {
    match exponent {
        0.0 => 1.0,
        1.0 => priority,
        exponent => priority.powf(exponent),
    }
}
