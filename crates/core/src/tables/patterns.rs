//! Patterns: which steps of its window an item gives to each of its columns. Many items have the same one, so a pattern is
//! kept once, and an item has its number: where it starts.
//!
//! As words: how many columns; then for each its name (how many bytes, and four to a word), its field, how many slices, and
//! for each slice its first step and how many there are. A column that is a single step, without a dimension of time, has a
//! field with [`SINGLE`]. A length with [`FROM_SPAN`] is the span of the item less the rest of the number.

use super::layout::{PATTERN_WORDS, Store};
use crate::sys::sync::{AtomicU32, Ordering};

/// The column has one step, and no dimension of time.
pub const SINGLE: u32 = 1 << 31;
/// The length is the item's span less this.
pub const FROM_SPAN: u32 = 1 << 31;

/// Steps of a window that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// From the first step of the window on.
    pub start: u32,
    length: u32,
}

impl Slice {
    pub fn new(start: u32, length: u32) -> Slice {
        Slice { start, length }
    }

    /// How many steps it has in a window of so many; none beyond its end.
    #[inline]
    pub fn len(&self, span: u32) -> u32 {
        let left = span.saturating_sub(self.start);
        match self.length & FROM_SPAN {
            0 => self.length.min(left),
            _ => span.saturating_sub(self.length & !FROM_SPAN).min(left),
        }
    }
}

/// What one column takes of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// What it is called in a batch.
    pub name: String,
    pub field: usize,
    pub single: bool,
    pub slices: Vec<Slice>,
}

impl Column {
    /// How many steps it has.
    #[inline]
    pub fn len(&self, span: u32) -> usize {
        self.slices.iter().map(|slice| slice.len(span) as usize).sum()
    }
}

/// What an item takes of its window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pattern {
    pub columns: Vec<Column>,
}

impl Pattern {
    /// Every step of every field, under the names that these have.
    pub fn whole<'a>(names: impl Iterator<Item = &'a str>) -> Pattern {
        let slices = vec![Slice::new(0, FROM_SPAN)];
        let column = |(field, name): (usize, &str)| Column {
            name: name.to_owned(),
            field,
            single: false,
            slices: slices.clone(),
        };
        Pattern { columns: names.enumerate().map(column).collect() }
    }

    fn words(&self) -> Vec<u32> {
        let mut words = vec![self.columns.len() as u32];
        for column in &self.columns {
            words.push(column.name.len() as u32);
            words.extend(column.name.as_bytes().chunks(4).map(|bytes| {
                let mut word = [0; 4];
                word[..bytes.len()].copy_from_slice(bytes);
                u32::from_le_bytes(word)
            }));
            words.push(column.field as u32 | if column.single { SINGLE } else { 0 });
            words.push(column.slices.len() as u32);
            words.extend(column.slices.iter().flat_map(|slice| [slice.start, slice.length]));
        }
        words
    }

    /// Reads a pattern; `None` where there is none, for `fields` fields.
    fn read(mut words: impl Iterator<Item = u32>, fields: usize) -> Option<(Pattern, usize)> {
        let mut read = 0;
        let mut next = || {
            read += 1;
            words.next()
        };
        let count = next()? as usize;
        let mut columns = Vec::new();
        for _ in 0..count {
            let length = next()? as usize;
            let mut name = Vec::new();
            for _ in 0..length.div_ceil(4) {
                name.extend(next()?.to_le_bytes());
            }
            name.truncate(length);
            let name = String::from_utf8(name).ok()?;
            let field = next()?;
            let slices = next()?;
            let slices =
                (0..slices).map(|_| Some(Slice::new(next()?, next()?))).collect::<Option<Vec<_>>>()?;
            let (field, single) = ((field & !SINGLE) as usize, field & SINGLE != 0);
            let column = Column { name, field, single, slices };
            columns.push(Some(column).filter(|column| column.field < fields)?);
        }
        Some((Pattern { columns }, read))
    }
}

/// The patterns of a segment. They are added with the lock held, and read without it.
#[derive(Debug, Clone, Copy)]
pub struct Patterns<'a> {
    pub store: &'a Store,
    pub words: &'a [AtomicU32],
    pub fields: usize,
}

impl Patterns<'_> {
    fn len(&self) -> usize {
        // SYNC tables.patterns: Acquire here, Release in `add`.
        (self.store.pattern_words.load(Ordering::Acquire) as usize).min(self.words.len())
    }

    /// The pattern with this number; `None` if no honest process can have given it.
    pub fn get(&self, number: u32) -> Option<Pattern> {
        self.read_at(number as usize).map(|(pattern, _)| pattern)
    }

    fn read_at(&self, at: usize) -> Option<(Pattern, usize)> {
        let words = self.words.get(at..self.len())?;
        Pattern::read(words.iter().map(|word| word.load(Ordering::Relaxed)), self.fields)
    }

    /// The number of a pattern that is there.
    pub fn find(&self, pattern: &Pattern) -> Option<u32> {
        let mut at = 0;
        while let Some((there, words)) = self.read_at(at) {
            if there == *pattern {
                return Some(at as u32);
            }
            at += words;
        }
        None
    }

    /// Adds a pattern, unless it is there. `None` when there is no room.
    pub fn add(&self, pattern: &Pattern) -> Option<u32> {
        self.find(pattern).or_else(|| {
            let (at, words) = (self.len(), pattern.words());
            let places = self.words.get(at..at + words.len())?;
            for (place, word) in places.iter().zip(&words) {
                place.store(*word, Ordering::Relaxed);
            }
            // SYNC tables.patterns: Release here, Acquire in `len`.
            self.store.pattern_words.store((at + words.len()) as u32, Ordering::Release);
            Some(at as u32)
        })
    }
}

const _: () = assert!(PATTERN_WORDS <= u32::MAX as usize);
