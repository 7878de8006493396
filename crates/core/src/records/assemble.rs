//! Many records into one batch: the rows of one ragged leaf of each, padded to one length or packed end to end.
//!
//! All of it is pure: slices in, slices out, and every byte of the destination is written once. A source that does not fit
//! is an error; nothing is ever cut off. One thread copies: that several pay was not shown.

use crate::error::{Error, Result};
use std::ops::Range;

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

fn out(what: &'static str, value: usize, range: String) -> Error {
    Error::OutOfRange { what, value: value as u64, range }
}

/// Copies each of `rows` to a row of `row_bytes` in `dst`, and fills what is left of it with `fill`, one item over and over.
///
/// ```
/// use rollway_core::records::assemble::{Side, pad};
/// let mut batch = [9; 8];
/// pad(&mut batch, &[b"ab", b"xyz"], 4, b"-", Side::Left).unwrap();
/// assert_eq!(&batch, b"--ab-xyz");
/// ```
pub fn pad(dst: &mut [u8], rows: &[&[u8]], row_bytes: usize, fill: &[u8], side: Side) -> Result<()> {
    if rows.len().checked_mul(row_bytes) != Some(dst.len()) {
        let range = format!("{} rows of {row_bytes}", rows.len());
        return Err(out("bytes of the batch", dst.len(), range));
    }
    if fill.is_empty() || !row_bytes.is_multiple_of(fill.len()) {
        let range = format!("a divisor of the row's {row_bytes} bytes");
        return Err(out("bytes of the fill value", fill.len(), range));
    }
    for (index, row) in rows.iter().enumerate() {
        if row.len() > row_bytes {
            let range = format!("at most {row_bytes} in this batch; record {index} has more");
            return Err(out("bytes of a row", row.len(), range));
        }
        if !row.len().is_multiple_of(fill.len()) {
            let range = format!("a multiple of {}; record {index} has another length", fill.len());
            return Err(out("bytes of a row", row.len(), range));
        }
    }
    if row_bytes == 0 {
        return Ok(());
    }
    for (room, row) in dst.chunks_exact_mut(row_bytes).zip(rows) {
        let (data, padding) = match side {
            Side::Right => room.split_at_mut(row.len()),
            Side::Left => {
                let (padding, data) = room.split_at_mut(row_bytes - row.len());
                (data, padding)
            }
        };
        data.copy_from_slice(row);
        repeat(padding, fill);
    }
    Ok(())
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

/// Writes 1 where a padded row of `length` items has data, and 0 where it has padding.
pub fn mask(dst: &mut [u8], lens: &[usize], length: usize, side: Side) -> Result<()> {
    if lens.len().checked_mul(length) != Some(dst.len()) {
        return Err(out("bytes of the mask", dst.len(), format!("{} rows of {length}", lens.len())));
    }
    if let Some((index, &len)) = lens.iter().enumerate().find(|&(_, &len)| len > length) {
        let range = format!("at most {length} in this batch; record {index} has more");
        return Err(out("items of a row", len, range));
    }
    if length == 0 {
        return Ok(());
    }
    for (row, &len) in dst.chunks_exact_mut(length).zip(lens) {
        let (left, left_len, right) = match side {
            Side::Right => (1, len, 0),
            Side::Left => (0, length - len, 1),
        };
        row[..left_len].fill(left);
        row[left_len..].fill(right);
    }
    Ok(())
}

/// Copies `rows` to `dst`, one behind the other.
pub fn pack(mut dst: &mut [u8], rows: &[&[u8]]) -> Result<()> {
    let total: usize = rows.iter().map(|row| row.len()).sum();
    if total != dst.len() {
        return Err(out("bytes of the batch", dst.len(), format!("{total}, the sum of its rows")));
    }
    for row in rows {
        let (room, rest) = dst.split_at_mut(row.len());
        room.copy_from_slice(row);
        dst = rest;
    }
    Ok(())
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
            .map_err(|_| out("items of a packed batch", end, "at most 2,147,483,647".to_owned()))?;
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
            return Err(out("length of a record", len, range));
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
