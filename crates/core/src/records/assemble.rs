//! Many records into one batch: the rows of one ragged leaf of each, padded to one length or packed end to end.
//!
//! All of it is pure: slices in, slices out, and every byte of the destination is written once. A source that does not fit
//! is an error; nothing is ever cut off. Threads share a large batch.

use crate::error::{Error, Result};
use crate::sys::parallel::{default_threads, for_each_parallel};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Each thread must have this much to write: starting one costs as much as copying a quarter of it.
const THREAD_BYTES: usize = 1 << 20;
/// How many portions of a batch there are for each thread: one that starts late finds less to do.
const PORTIONS: usize = 8;

/// Where the padding of a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// What a batch costs of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// The longest record times how many there are.
    Padded,
    /// The sum of their lengths.
    Packed,
}

/// One array of a batch, and what it is made of: a row of it for each record.
#[derive(Debug)]
pub enum Part<'a> {
    /// The rows, one behind the other.
    Packed { to: &'a mut [u8], rows: Vec<&'a [u8]> },
    /// Each row in `row_bytes`, and `fill` in what is left of it, one item over and over.
    Padded { to: &'a mut [u8], rows: Vec<&'a [u8]>, row_bytes: usize, fill: &'a [u8], side: Side },
    /// For each row of `length` items, 1 where there is data and 0 where there is padding.
    Mask { to: &'a mut [u8], counts: &'a [usize], length: usize, side: Side },
}

/// Writes a batch, record by record: what lies together is read together, and only once.
///
/// ```
/// use rollway_core::records::assemble::{Part, Side, assemble};
/// let (mut batch, mut mask) = ([9; 8], [9; 8]);
/// let rows: Vec<&[u8]> = vec![b"ab", b"xyz"];
/// assemble(vec![
///     Part::Padded { to: &mut batch, rows, row_bytes: 4, fill: b"-", side: Side::Left },
///     Part::Mask { to: &mut mask, counts: &[2, 3], length: 4, side: Side::Left },
/// ])
/// .unwrap();
/// assert_eq!((&batch, mask), (b"--ab-xyz", [0, 0, 1, 1, 0, 1, 1, 1]));
/// ```
pub fn assemble(mut parts: Vec<Part<'_>>) -> Result<()> {
    for part in &parts {
        part.check()?;
    }
    let bytes: usize = parts.iter().map(Part::bytes).sum();
    let threads = default_threads().min(bytes / THREAD_BYTES);
    if threads <= 1 {
        write(&mut parts);
        return Ok(());
    }
    let each = records(&parts).div_ceil(threads * PORTIONS);
    let mut portions = Vec::new();
    while records(&parts) > 0 {
        let portion: Vec<_> = parts.iter_mut().map(|part| part.take(each)).collect();
        portions.push(Mutex::new(portion));
    }
    for_each_parallel(&portions, threads, |portion| {
        write(&mut portion.lock().unwrap_or_else(PoisonError::into_inner)); // Only this thread has it.
    });
    Ok(())
}

/// How many records there are.
fn records(parts: &[Part<'_>]) -> usize {
    parts.iter().map(Part::records).max().unwrap_or(0)
}

/// Writes all of it. Everything fits.
fn write(parts: &mut [Part<'_>]) {
    for record in 0..records(parts) {
        for part in parts.iter_mut().filter(|part| record < part.records()) {
            part.write(record);
        }
    }
}

impl<'a> Part<'a> {
    fn bytes(&self) -> usize {
        match self {
            Part::Packed { to, .. } | Part::Padded { to, .. } | Part::Mask { to, .. } => to.len(),
        }
    }

    /// Takes the first records off, as a part of their own. Everything fits.
    fn take(&mut self, count: usize) -> Part<'a> {
        let count = count.min(self.records());
        match self {
            Part::Packed { to, rows } => {
                let rows = first(rows, count);
                Part::Packed { to: cut(to, rows.iter().map(|row| row.len()).sum()), rows }
            }
            Part::Padded { to, rows, row_bytes, fill, side } => {
                let (rows, to) = (first(rows, count), cut(to, count * *row_bytes));
                Part::Padded { to, rows, row_bytes: *row_bytes, fill, side: *side }
            }
            Part::Mask { to, counts, length, side } => {
                let (mine, rest) = counts.split_at(count);
                *counts = rest;
                Part::Mask { to: cut(to, count * *length), counts: mine, length: *length, side: *side }
            }
        }
    }

    fn records(&self) -> usize {
        match self {
            Part::Packed { rows, .. } | Part::Padded { rows, .. } => rows.len(),
            Part::Mask { counts, .. } => counts.len(),
        }
    }

    /// Whether everything fits.
    fn check(&self) -> Result<()> {
        match self {
            Part::Packed { to, rows } => {
                let total: usize = rows.iter().map(|row| row.len()).sum();
                if total != to.len() {
                    return Err(Error::out_of_range(
                        "bytes of the batch",
                        to.len(),
                        format!("{total}, the sum of its rows"),
                    ));
                }
            }
            Part::Padded { to, rows, row_bytes, fill, .. } => {
                if rows.len().checked_mul(*row_bytes) != Some(to.len()) {
                    let range = format!("{} rows of {row_bytes}", rows.len());
                    return Err(Error::out_of_range("bytes of the batch", to.len(), range));
                }
                if fill.is_empty() || !row_bytes.is_multiple_of(fill.len()) {
                    let range = format!("a divisor of the row's {row_bytes} bytes");
                    return Err(Error::out_of_range("bytes of the fill value", fill.len(), range));
                }
                for (index, row) in rows.iter().enumerate() {
                    if row.len() > *row_bytes {
                        let range = format!("at most {row_bytes} in this batch; record {index} has more");
                        return Err(Error::out_of_range("bytes of a row", row.len(), range));
                    }
                    if !row.len().is_multiple_of(fill.len()) {
                        let range =
                            format!("a multiple of {}; record {index} has another length", fill.len());
                        return Err(Error::out_of_range("bytes of a row", row.len(), range));
                    }
                }
            }
            Part::Mask { to, counts, length, .. } => {
                if counts.len().checked_mul(*length) != Some(to.len()) {
                    let range = format!("{} rows of {length}", counts.len());
                    return Err(Error::out_of_range("bytes of the mask", to.len(), range));
                }
                if let Some((index, &count)) = counts.iter().enumerate().find(|&(_, count)| count > length) {
                    let range = format!("at most {length} in this batch; record {index} has more");
                    return Err(Error::out_of_range("items of a row", count, range));
                }
            }
        }
        Ok(())
    }

    /// Writes one record's row. They are written in order.
    #[inline]
    fn write(&mut self, record: usize) {
        match self {
            Part::Packed { to, rows } => {
                let row = rows[record];
                cut(to, row.len()).copy_from_slice(row);
            }
            Part::Padded { to, rows, row_bytes, fill, side } => {
                let (row, room) = (rows[record], &mut to[record * *row_bytes..][..*row_bytes]);
                let (data, padding) = side.split(room, row.len());
                data.copy_from_slice(row);
                repeat(padding, fill);
            }
            Part::Mask { to, counts, length, side } => {
                let (data, padding) = side.split(&mut to[record * *length..][..*length], counts[record]);
                data.fill(1);
                padding.fill(0);
            }
        }
    }
}

impl Side {
    /// The data and the padding of a row.
    #[inline]
    fn split(self, row: &mut [u8], data: usize) -> (&mut [u8], &mut [u8]) {
        match self {
            Side::Right => row.split_at_mut(data),
            Side::Left => {
                let (padding, data) = row.split_at_mut(row.len() - data);
                (data, padding)
            }
        }
    }
}

/// Takes the first bytes off.
#[inline]
fn cut<'a>(from: &mut &'a mut [u8], bytes: usize) -> &'a mut [u8] {
    let (head, rest) = std::mem::take(from).split_at_mut(bytes);
    *from = rest;
    head
}

/// Takes the first rows off.
fn first<'a>(rows: &mut Vec<&'a [u8]>, count: usize) -> Vec<&'a [u8]> {
    let rest = rows.split_off(count);
    std::mem::replace(rows, rest)
}

/// Fills `room` with one item, over and over.
fn repeat(room: &mut [u8], item: &[u8]) {
    if item.iter().all(|byte| *byte == item[0]) {
        room.fill(item[0]);
        return;
    }
    if room.is_empty() {
        return;
    }
    let mut done = item.len();
    room[..done].copy_from_slice(item);
    while done < room.len() {
        let (ready, rest) = room.split_at_mut(done);
        let more = done.min(rest.len());
        rest[..more].copy_from_slice(&ready[..more]);
        done += more;
    }
}

/// Where each record starts in a packed batch, and where the last one ends.
///
/// ```
/// # use rollway_core::records::assemble::cu_seqlens;
/// assert_eq!(cu_seqlens(&[3, 0, 2]).unwrap(), [0, 3, 3, 5]);
/// ```
pub fn cu_seqlens(lens: &[usize]) -> Result<Vec<i32>> {
    let mut ends = Vec::with_capacity(lens.len() + 1);
    let mut end = 0usize;
    ends.push(0);
    for &len in lens {
        end = end.saturating_add(len);
        let short = i32::try_from(end)
            .map_err(|_| Error::out_of_range("items of a packed batch", end, "at most 2,147,483,647"))?;
        ends.push(short);
    }
    Ok(ends)
}

/// Splits records, in the order given, into batches that cost no more than `budget` each. A record that alone costs more is
/// an error that names it.
pub fn plan_budget(lens: &[usize], budget: usize, cost: Cost) -> Result<Vec<Range<usize>>> {
    let mut batches = Vec::new();
    let (mut first, mut longest, mut sum) = (0, 0usize, 0usize);
    for (index, &len) in lens.iter().enumerate() {
        if len > budget {
            let range = format!("at most the budget of {budget}; record {index} is longer");
            return Err(Error::out_of_range("length of a record", len, range));
        }
        longest = longest.max(len);
        sum = sum.saturating_add(len);
        let costs = match cost {
            Cost::Padded => longest.saturating_mul(index + 1 - first),
            Cost::Packed => sum,
        };
        if costs > budget {
            batches.push(first..index);
            (first, longest, sum) = (index, len, len);
        }
    }
    if first < lens.len() {
        batches.push(first..lens.len());
    }
    Ok(batches)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn pad(to: &mut [u8], rows: &[&[u8]], row_bytes: usize, fill: &[u8], side: Side) -> Result<()> {
        assemble(vec![Part::Padded { to, rows: rows.to_vec(), row_bytes, fill, side }])
    }

    fn mask(to: &mut [u8], counts: &[usize], length: usize, side: Side) -> Result<()> {
        assemble(vec![Part::Mask { to, counts, length, side }])
    }

    fn pack(to: &mut [u8], rows: &[&[u8]]) -> Result<()> {
        assemble(vec![Part::Packed { to, rows: rows.to_vec() }])
    }

    proptest! {
        /// Against the plain way to do it, with items of any size.
        #[test]
        fn a_padded_batch_is_its_rows_and_the_fill(
            items in vec(vec(any::<[u8; 3]>(), 0..9), 0..6), length in 8usize..12, fill: [u8; 3], left: bool,
        ) {
            let side = if left { Side::Left } else { Side::Right };
            let rows: Vec<Vec<u8>> = items.iter().map(|row| row.concat()).collect();
            let refs: Vec<&[u8]> = rows.iter().map(|row| &row[..]).collect();
            let (mut dst, mut ones) = (vec![7; rows.len() * length * 3], vec![7; rows.len() * length]);
            pad(&mut dst, &refs, length * 3, &fill, side).unwrap();
            let lens: Vec<usize> = items.iter().map(Vec::len).collect();
            mask(&mut ones, &lens, length, side).unwrap();
            for (index, row) in items.iter().enumerate() {
                let mut expected = row.clone();
                let padding = vec![fill; length - row.len()];
                if left { expected.splice(..0, padding) } else { expected.splice(row.len().., padding) };
                prop_assert_eq!(&dst[index * length * 3..(index + 1) * length * 3], expected.concat());
                let marks = &ones[index * length..(index + 1) * length];
                prop_assert_eq!(marks.iter().filter(|one| **one == 1).count(), row.len());
                let sorted = marks.is_sorted_by(|a, b| if left { a <= b } else { a >= b });
                prop_assert!(sorted && marks.iter().all(|one| *one < 2));
            }
        }

        #[test]
        fn a_plan_keeps_the_order_and_the_budget(lens in vec(0usize..40, 0..30), padded: bool) {
            let cost = if padded { Cost::Padded } else { Cost::Packed };
            let batches = plan_budget(&lens, 64, cost).unwrap();
            let all: Vec<usize> = batches.iter().cloned().flatten().collect();
            prop_assert_eq!(all, (0..lens.len()).collect::<Vec<_>>());
            let costs = |range: Range<usize>| match cost {
                Cost::Padded => lens[range.clone()].iter().max().unwrap_or(&0) * range.len(),
                Cost::Packed => lens[range].iter().sum(),
            };
            for (batch, next) in batches.iter().zip(batches.iter().skip(1).map(Some).chain([None])) {
                prop_assert!(!batch.is_empty() && costs(batch.clone()) <= 64);
                if let Some(next) = next {
                    prop_assert!(costs(batch.start..next.start + 1) > 64, "another one would have fitted");
                }
            }
        }
    }

    #[test]
    fn a_large_batch_is_whole() {
        let rows: Vec<Vec<u8>> = (0..97).map(|n| vec![n as u8; 1 + n * 1031]).collect();
        let refs: Vec<&[u8]> = rows.iter().map(|row| &row[..]).collect();
        let mut packed = vec![0; rows.iter().map(Vec::len).sum()];
        pack(&mut packed, &refs).unwrap();
        assert!(packed == rows.concat());
        let width = rows.iter().map(Vec::len).max().unwrap();
        let mut padded = vec![1; rows.len() * width];
        pad(&mut padded, &refs, width, &[255], Side::Right).unwrap();
        for (row, room) in rows.iter().zip(padded.chunks(width)) {
            assert!(room.starts_with(row) && room[row.len()..].iter().all(|byte| *byte == 255));
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error_that_names_it() {
        let text = |result: Result<()>| result.unwrap_err().to_string();
        assert!(text(pad(&mut [0; 4], &[b"ab", b"xyz"], 2, &[0], Side::Right)).contains("record 1"));
        assert!(text(pad(&mut [0; 4], &[b"ab", b"xy"], 3, &[0], Side::Right)).contains("bytes of the batch"));
        assert!(text(pad(&mut [0; 3], &[b"ab"], 3, &[0, 0], Side::Right)).contains("fill"));
        assert!(text(pad(&mut [0; 4], &[b"a"], 4, &[0, 0], Side::Right)).contains("record 0"));
        assert!(text(mask(&mut [0; 4], &[1, 3], 2, Side::Left)).contains("record 1"));
        assert!(text(pack(&mut [0; 3], &[b"ab"])).contains("the sum"));
        assert!(text(plan_budget(&[1, 9], 8, Cost::Packed).map(drop)).contains("record 1"));
        assert!(cu_seqlens(&[i32::MAX as usize, 1]).is_err());
        assert!(cu_seqlens(&[usize::MAX, usize::MAX]).is_err());
        assert_eq!(plan_budget(&[], 8, Cost::Packed).unwrap(), []);
        pad(&mut [], &[], 4, &[0], Side::Left).unwrap();
        pad(&mut [], &[b"", b""], 0, &[0], Side::Left).unwrap();
    }
}
