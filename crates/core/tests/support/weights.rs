//! What the tests of weights share: three leaves, each filled with one number, so that a torn one shows.
#![allow(dead_code)] // No test uses all of it.

use rollway_core::weights::{IfExists, Reader, Source, Target, WeightsSpec, Writer};

pub const SCHEMA: &[u8] =
    br#"{"leaves":[["a","uint64",[200]],["b","uint64",[5000]],["c","uint64",[]]],"tree":{"list":[0,1,2]}}"#;
/// One in a piece of a page, one a little longer than a page, one of a number alone.
pub const LEAVES: &[usize] = &[1600, 5000 * 8, 8];

pub fn spec(name: Option<&str>) -> WeightsSpec<'_> {
    WeightsSpec {
        name,
        auto_named: false,
        schema: SCHEMA,
        leaf_bytes: LEAVES,
        max_buffers: 8,
        max_peers: 16,
        checksum: false,
    }
}

pub fn create(spec: &WeightsSpec<'_>) -> Writer {
    Writer::open(spec, IfExists::Resume, 1).unwrap()
}

pub fn reader(writer: &Writer) -> Reader {
    Reader::attach_to(writer.weights().clone(), 1).unwrap()
}

/// Memory for all leaves.
pub struct Values(Vec<Vec<u64>>);

impl Values {
    /// Each leaf filled with its number.
    pub fn of(numbers: [u64; 3]) -> Values {
        Values(LEAVES.iter().zip(numbers).map(|(&bytes, number)| vec![number; bytes / 8]).collect())
    }

    pub fn sources(&self) -> Vec<Source> {
        let source = |(leaf, values): (usize, &Vec<u64>)| Source { leaf, from: values.as_ptr().cast() };
        self.0.iter().enumerate().map(source).collect()
    }

    pub fn targets(&mut self) -> Vec<Target> {
        let target = |(leaf, values): (usize, &mut Vec<u64>)| Target { leaf, to: values.as_mut_ptr().cast() };
        self.0.iter_mut().enumerate().map(target).collect()
    }

    /// The number that fills each leaf.
    pub fn numbers(&self) -> [u64; 3] {
        std::array::from_fn(|leaf| {
            let values = &self.0[leaf];
            assert!(values.iter().all(|&value| value == values[0]), "leaf {leaf} is torn");
            values[0]
        })
    }
}

/// Fills every leaf with `value`, and publishes.
pub fn write(writer: &Writer, value: u64) -> u64 {
    // SAFETY: the values live here, and are as large as the leaves.
    unsafe { writer.write(&Values::of([value; 3]).sources()).unwrap() }
}

/// Fills one leaf with `value`, and publishes.
pub fn update(writer: &Writer, leaf: usize, value: u64) -> u64 {
    // SAFETY: as above.
    unsafe { writer.write(&Values::of([value; 3]).sources()[leaf..leaf + 1]).unwrap() }
}

/// The version, and the number in each leaf.
pub fn read(reader: &Reader) -> Option<(u64, [u64; 3])> {
    let mut values = Values::of([u64::MAX; 3]);
    // SAFETY: as above.
    let reading = unsafe { reader.read(&values.targets(), 0).unwrap() }?;
    Some((reading.version, values.numbers()))
}

/// The version, and which leaves were copied.
pub fn read_since(reader: &Reader, since: u64) -> Option<(u64, Vec<usize>)> {
    let mut values = Values::of([u64::MAX; 3]);
    // SAFETY: as above.
    let reading = unsafe { reader.read(&values.targets(), since).unwrap() }?;
    Some((reading.version, reading.copied))
}
