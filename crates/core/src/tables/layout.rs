//! The bytes of replay tables: where everything lies, and what the words say.
//!
//! ```text
//! body ┌───────────────────────────────────────────────────────────────┐
//!      │ Control       lock │ steps │ closed │ events                  │
//!      ├───────────────────────────────────────────────────────────────┤
//!      │ Table × tables     what each was made as, and its counts      │
//!      ├───────────────────────────────────────────────────────────────┤
//!      │ Chunk × chunks     who fills it, how many items need it       │
//!      ├───────────────────────────────────────────────────────────────┤
//!      │ patterns           which steps of which columns an item takes │
//!      ├───────────────────────────────────────────────────────────────┤
//!      │ for each table: Item × max_items │ order of its selectors     │
//! page ├───────────────────────────────────────────────────────────────┤
//!      │ step 0: field 0 │ field 1 │ … │ step 1: …                     │
//!      └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! Steps lie in *chunks* of as many steps each. A writer fills one chunk after the other; each says which comes next. An
//! *item* is a window of steps of one writer: its first step, how many it spans, and a *pattern*, which says which of them
//! each column takes. Items that overlap share their steps.
//!
//! An item's word, from the high bits down:
//!
//! | word | generation (40) | kind (2) | owner (22) |
//! |---|---|---|---|
//! | item | how often its place was filled | Free, Taken, Live | who has taken it |

use super::limiter::Limiter;
use super::selectors::{Kind, tree};
use crate::error::{Error, Result};
use crate::replay::layout::Field;
use crate::segment::header::{GEOMETRY_WORDS, PAGE, geometry_words};
use crate::segment::lease::OWNER_BITS;
use crate::segment::{Owner, SERIAL_BITS, Serial};
use crate::sys::sync::{AtomicU32, AtomicU64, ClosedFlag, EventCount, Ordering};

/// The `kind` of a segment that holds replay tables.
pub const KIND: u32 = 7;

/// No item, no chunk.
pub const NONE: u32 = u32::MAX;
/// The most tables of one segment.
pub const MAX_TABLES: usize = 64;
/// The longest name of a table, in bytes.
pub const MAX_NAME: usize = 64;
/// Words for patterns, of all tables together.
pub const PATTERN_WORDS: usize = 1 << 16;
/// The most items of one table, and the most chunks.
pub const MAX_ITEMS: usize = NONE as usize - 1;

const KIND_SHIFT: u32 = OWNER_BITS;
const GENERATION_SHIFT: u32 = OWNER_BITS + 2;
const _: () = assert!(SERIAL_BITS + 2 + OWNER_BITS == 64);

/// What an item word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum ItemKind {
    Free = 0,
    /// Sampled for the last time; its owner is copying it.
    Taken = 1,
    Live = 2,
}

/// `{generation, kind, owner}`, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemWord {
    pub generation: Serial,
    pub kind: ItemKind,
    pub owner: Owner,
}

impl ItemWord {
    #[inline]
    pub fn unpack(word: u64) -> ItemWord {
        let kind = match word >> KIND_SHIFT & 3 {
            1 => ItemKind::Taken,
            2 => ItemKind::Live,
            _ => ItemKind::Free,
        };
        ItemWord { generation: Serial::new(word >> GENERATION_SHIFT), kind, owner: Owner::from_bits(word) }
    }

    #[inline]
    pub fn pack(self) -> u64 {
        self.generation.value() << GENERATION_SHIFT | (self.kind as u64) << KIND_SHIFT | self.owner.bits()
    }
}

/// An item as a user names it: its place, and which of the items that were there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(pub u64);

impl Key {
    #[inline]
    pub fn new(item: usize, word: u64) -> Key {
        Key((word >> GENERATION_SHIFT) << 32 | item as u64)
    }

    #[inline]
    pub fn item(self) -> usize {
        (self.0 & u32::MAX as u64) as usize
    }

    /// Whether a word is of the item that this names.
    #[inline]
    pub fn names(self, word: u64) -> bool {
        (word >> GENERATION_SHIFT) as u32 == (self.0 >> 32) as u32
    }
}

/// One item, on a cache line. All but the word mean something only while that says Live or Taken.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Item {
    /// An [`ItemWord`]: the truth about this place.
    pub word: AtomicU64,
    /// How many items the table had been given before.
    pub number: AtomicU64,
    /// The first step.
    pub first: AtomicU64,
    /// How many steps it spans.
    pub span: AtomicU32,
    pub pattern: AtomicU32,
    /// An `f64`.
    pub priority: AtomicU64,
    /// How often it was sampled.
    pub sampled: AtomicU32,
    /// Its neighbours in the order of insertion. Of a Free item, `next` is the next Free one.
    pub older: AtomicU32,
    pub next: AtomicU32,
    /// Its place in the array that uniform selection draws from.
    pub rank: AtomicU32,
    /// Milliseconds of the monotonic clock, modulo 2³².
    pub born_ms: AtomicU32,
    /// The version of the weights that it was made with, modulo 2³².
    pub version: AtomicU32,
}

/// One chunk.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Chunk {
    /// Who fills it, or may yet make items of it: an [`Owner`] or none.
    pub owner: AtomicU64,
    /// How many items need it.
    pub items: AtomicU32,
    /// The chunk with the steps that follow; of a free one, the next free one.
    pub next: AtomicU32,
}

/// The head of the body.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Control {
    pub lock: super::lock::Lock,
    pub store: Store,
    /// Notified when chunks become free.
    pub room: EventCount,
}

/// What all tables share.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Store {
    pub closed: ClosedFlag,
    /// The first free chunk.
    pub free: AtomicU32,
    /// How many are free.
    pub free_count: AtomicU32,
    /// How many words of patterns there are.
    pub pattern_words: AtomicU32,
    /// The latest version of the weights that anybody told.
    pub version: AtomicU64,
    /// How often everything was counted anew, because a process died while it had the lock.
    pub rebuilt: AtomicU64,
}

/// What a table was made as: numbers that never change.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub name: String,
    pub max_items: usize,
    pub sampler: Kind,
    pub remover: Kind,
    /// An item goes when it was sampled so often. 0: it stays.
    pub max_times_sampled: u32,
    pub limiter: Limiter,
    /// An item goes when it is so old. 0: it stays.
    pub max_age_ms: u32,
    /// An item goes when so many came after it. 0: it stays.
    pub max_later_items: u64,
    /// An item goes when the weights are so many versions ahead. 0: it stays.
    pub max_staleness: u64,
}

const CONFIG_WORDS: usize = 18;

impl Config {
    fn words(&self) -> [u64; CONFIG_WORDS] {
        let (sampler, sampler_exponent) = self.sampler.words();
        let (remover, remover_exponent) = self.remover.words();
        let limiter = &self.limiter;
        [
            self.name.len() as u64,
            self.max_items as u64,
            sampler,
            sampler_exponent,
            remover,
            remover_exponent,
            self.max_times_sampled as u64,
            limiter.min_size,
            limiter.samples_per_insert.to_bits(),
            limiter.min_diff.to_bits(),
            limiter.max_diff.to_bits(),
            limiter.items_per_version,
            limiter.versions_ahead,
            self.max_age_ms as u64,
            self.max_later_items,
            self.max_staleness,
            0,
            0,
        ]
    }

    fn of_words(words: [u64; CONFIG_WORDS], name: &[u8]) -> Option<Config> {
        let name = name.get(..usize::try_from(words[0]).ok()?)?;
        Some(Config {
            name: std::str::from_utf8(name).ok()?.to_owned(),
            max_items: usize::try_from(words[1]).ok().filter(|items| (1..=MAX_ITEMS).contains(items))?,
            sampler: Kind::of_words(words[2], words[3])?,
            remover: Kind::of_words(words[4], words[5])?,
            max_times_sampled: u32::try_from(words[6]).ok()?,
            limiter: Limiter {
                min_size: words[7],
                samples_per_insert: f64::from_bits(words[8]),
                min_diff: f64::from_bits(words[9]),
                max_diff: f64::from_bits(words[10]),
                items_per_version: words[11],
                versions_ahead: words[12],
            },
            max_age_ms: u32::try_from(words[13]).ok()?,
            max_later_items: words[14],
            max_staleness: words[15],
        })
    }

    /// Whether items go by themselves.
    pub fn has_limits_of_age(&self) -> bool {
        self.max_age_ms > 0 || self.max_later_items > 0 || self.max_staleness > 0
    }

    /// The kinds of its two selectors: for sampling, and for removal.
    pub fn selectors(&self) -> [Kind; 2] {
        [self.sampler, self.remover]
    }
}

/// One table: what it was made as, and its counts. All but the configuration is changed with the lock held.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct TableHead {
    config: [AtomicU64; CONFIG_WORDS],
    name: [AtomicU64; MAX_NAME / 8],
    /// Items that can be sampled.
    pub size: AtomicU64,
    /// Items that were ever inserted, and the number of the next one.
    pub inserts: AtomicU64,
    pub deletes: AtomicU64,
    /// Items that were sampled: the same one as often as it was.
    pub samples: AtomicU64,
    /// A sample that is being counted or given back (T5): its item and one, and above 32 bits how often that was sampled with it.
    pub taking: AtomicU64,
    /// What `samples` was without it.
    pub samples_before: AtomicU64,
    /// The first Free item.
    pub free: AtomicU32,
    /// The oldest and the newest item.
    pub oldest: AtomicU32,
    pub newest: AtomicU32,
    /// How many items the array of uniform selection has, and the heap of each selector.
    pub ranked: AtomicU32,
    pub heaped: [AtomicU32; 2],
    /// Notified when items come, go, or are sampled.
    pub changed: EventCount,
}

impl TableHead {
    /// Writes down what the table is. Before anybody else sees it.
    pub fn configure(&self, config: &Config) {
        for (word, value) in self.config.iter().zip(config.words()) {
            word.store(value, Ordering::Relaxed);
        }
        let mut name = [0; MAX_NAME];
        name[..config.name.len()].copy_from_slice(config.name.as_bytes());
        for (word, bytes) in self.name.iter().zip(name.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().expect("eight bytes")), Ordering::Relaxed);
        }
    }

    /// What the table is; `None` if no honest process can have written that.
    pub fn config(&self) -> Option<Config> {
        let words = std::array::from_fn(|word| self.config[word].load(Ordering::Relaxed));
        let name: Vec<u8> =
            self.name.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        Config::of_words(words, &name)
    }
}

/// Where the words of one table lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablePlace {
    pub max_items: usize,
    pub items: usize,
    pub ranks: Option<usize>,
    /// Of each selector that is a heap: the heap, and where each item is in it.
    pub heaps: [Option<(usize, usize)>; 2],
    /// Of each selector that is prioritised.
    pub trees: [Option<usize>; 2],
}

/// The sizes, and every offset derived from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    pub fields: Vec<Field>,
    pub row_bytes: usize,
    /// From one step to the next.
    pub stride: usize,
    pub chunks: usize,
    /// Steps of a chunk.
    pub chunk_steps: usize,
    pub heads: usize,
    pub chunks_offset: usize,
    pub patterns_offset: usize,
    pub tables: Vec<TablePlace>,
    pub steps_offset: usize,
    pub body_bytes: usize,
}

/// Adds up the parts of a body.
struct Places(usize);

impl Places {
    fn take(&mut self, count: usize, bytes: usize) -> Option<usize> {
        let offset = self.0.checked_next_multiple_of(64)?;
        self.0 = offset.checked_add(count.checked_mul(bytes)?)?;
        Some(offset)
    }
}

impl Geometry {
    /// Checks the sizes and derives the offsets.
    pub fn new(
        chunks: usize,
        chunk_steps: usize,
        row_bytes: usize,
        fields: &[Field],
        configs: &[Config],
    ) -> Result<Geometry> {
        if chunks == 0 || chunks > MAX_ITEMS || chunk_steps == 0 {
            return Err(Error::out_of_range("max_steps", chunks, "1 to 4,294,967,294 chunks of steps"));
        }
        if configs.is_empty() || configs.len() > MAX_TABLES {
            return Err(Error::out_of_range("tables", configs.len(), "1 to 64"));
        }
        let inside =
            |field: &Field| field.offset.checked_add(field.bytes).is_some_and(|end| end <= row_bytes);
        if row_bytes == 0 || fields.is_empty() || !fields.iter().all(inside) {
            return Err(Error::out_of_range(
                "step bytes",
                row_bytes,
                "at least one, and room for every field",
            ));
        }
        Self::derive(chunks, chunk_steps, row_bytes, fields, configs).ok_or_else(|| {
            Error::out_of_range("table bytes", usize::MAX, "1 to what the address space holds")
        })
    }

    fn derive(
        chunks: usize,
        chunk_steps: usize,
        row_bytes: usize,
        fields: &[Field],
        configs: &[Config],
    ) -> Option<Geometry> {
        let stride = row_bytes.checked_next_multiple_of(8)?;
        let mut places = Places(size_of::<Control>());
        let heads = places.take(configs.len(), size_of::<TableHead>())?;
        let chunks_offset = places.take(chunks, size_of::<Chunk>())?;
        let patterns_offset = places.take(PATTERN_WORDS, 4)?;
        let tables =
            configs.iter().map(|config| Self::place(&mut places, config)).collect::<Option<Vec<_>>>()?;
        let steps_offset = places.0.checked_next_multiple_of(PAGE)?;
        let steps = chunks.checked_mul(chunk_steps)?;
        let body_bytes = steps_offset.checked_add(stride.checked_mul(steps)?)?;
        (body_bytes <= isize::MAX as usize).then(|| Geometry {
            fields: fields.to_vec(),
            row_bytes,
            stride,
            chunks,
            chunk_steps,
            heads,
            chunks_offset,
            patterns_offset,
            tables,
            steps_offset,
            body_bytes,
        })
    }

    fn place(places: &mut Places, config: &Config) -> Option<TablePlace> {
        let max_items = config.max_items;
        let items = places.take(max_items, size_of::<Item>())?;
        let kinds = config.selectors();
        let ranks = match kinds.contains(&Kind::Uniform) {
            true => Some(places.take(max_items, 4)?),
            false => None,
        };
        let (mut heaps, mut trees) = ([None; 2], [None; 2]);
        for (which, kind) in kinds.into_iter().enumerate() {
            match kind {
                Kind::MinHeap | Kind::MaxHeap => {
                    heaps[which] = Some((places.take(max_items, 4)?, places.take(max_items, 4)?));
                }
                Kind::Prioritised(_) => trees[which] = Some(places.take(tree::nodes(max_items), 8)?),
                Kind::Fifo | Kind::Lifo | Kind::Uniform => {}
            }
        }
        Some(TablePlace { max_items, items, ranks, heaps, trees })
    }

    /// The numbers for the segment header: what cannot be read off the schema and the tables.
    pub fn words(&self) -> [u64; GEOMETRY_WORDS] {
        geometry_words([self.chunks, self.chunk_steps, self.row_bytes, self.tables.len(), self.stride])
    }

    /// Steps that there is room for.
    pub fn steps(&self) -> usize {
        self.chunks * self.chunk_steps
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Item>() == 64);
    assert!(size_of::<Chunk>() == 16);
};
