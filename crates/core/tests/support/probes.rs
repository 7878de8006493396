//! Any bytes, as another process or host may have written them: read, and used for a while. For the property tests
//! (`prop/bytes.rs`) and for the fuzz targets, which include this file.
//!
//! A probe panics only where the core is wrong. That it ends is for its caller to see to.
#![allow(dead_code)] // No user has all of it.

use rollway_core::inspect::Inspection;
use rollway_core::net::wire::frame::{self, Inventory, LeafList};
use rollway_core::policies::{IfExists, OnFull};
use rollway_core::records::format::{LEAF_ALIGN, LeafShape, Shape};
use rollway_core::replay::{Field, Piece, Sampler, Table, TableSpec};
use rollway_core::ring::producer::ProducerSpec;
use rollway_core::segment::block::Block;
use rollway_core::segment::{self, catalog};
use rollway_core::sys::wait::Deadline;
use rollway_core::vector_env::{Caller, Worker};
use rollway_core::weights::{Reader, Target, Weights, WeightsSpec, Writer};
use rollway_core::{records, replay, ring, weights};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

// ── segments ───────────────────────────────────────────────────────────────────────────────────────────────────────

/// The structures that a segment may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ring,
    Records,
    Weights,
    Table,
    VectorEnv,
    Block,
}

pub const KINDS: [Kind; 6] =
    [Kind::Ring, Kind::Records, Kind::Weights, Kind::Table, Kind::VectorEnv, Kind::Block];

const SAMPLE: &[u8] = br#"[["a","<i8",[3]],["b","<f4",[2,2]]]"#;
const SAMPLE_BYTES: &[usize] = &[24, 16];
const RECORD: &[u8] = br#"[["a","<i8",[3]],["b","<f4",["*"]]]"#;
const TREE: &[u8] =
    br#"{"leaves":[["b","int64",[5]],["w","float32",[16,8]]],"tree":{"dict":[["b",0],["w",1]]}}"#;
const TREE_BYTES: &[usize] = &[40, 512];
const FIELDS: [Field; 2] = [Field { offset: 0, bytes: 24 }, Field { offset: 24, bytes: 16 }];
const ROW_BYTES: usize = 40;
const PEERS: usize = 6;

const ANYONE: ProducerSpec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };

fn ring_spec(name: &str) -> ring::RingSpec<'_> {
    ring::RingSpec {
        name: Some(name),
        auto_named: false,
        schema: SAMPLE,
        leaf_bytes: SAMPLE_BYTES,
        batch_size: 3,
        num_buffers: 2,
        max_peers: PEERS,
        on_full: OnFull::Block,
        huge_pages: Some(false),
    }
}

fn records_spec(name: &str) -> records::RecordsSpec<'_> {
    records::RecordsSpec {
        name: Some(name),
        auto_named: false,
        schema: RECORD,
        lanes: 2,
        lane_bytes: 4096,
        descriptors: 8,
        max_peers: PEERS,
        on_full: OnFull::Block,
        preallocate: false,
    }
}

fn weights_spec(name: &str) -> WeightsSpec<'_> {
    WeightsSpec {
        name: Some(name),
        auto_named: false,
        schema: TREE,
        leaf_bytes: TREE_BYTES,
        max_buffers: 3,
        max_peers: PEERS,
        checksum: true,
    }
}

fn table_spec(name: &str) -> TableSpec<'_> {
    TableSpec {
        name: Some(name),
        auto_named: false,
        schema: SAMPLE,
        row_bytes: ROW_BYTES,
        fields: &FIELDS,
        capacity: 6,
        max_peers: PEERS,
        huge_pages: Some(false),
    }
}

/// A file of shared memory that goes when this does.
struct File(String);

impl File {
    fn new() -> File {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        File(format!("probe-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    fn path(&self) -> PathBuf {
        segment::directory().join(format!("{}{}", segment::PREFIX, self.0))
    }

    fn write(bytes: &[u8]) -> File {
        let this = File::new();
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(this.path()).unwrap();
        file.write_all(bytes).unwrap();
        this
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path()); // The last one to leave may have done so.
    }
}

/// A segment as processes leave it that are killed in the middle of their work: seats, claims, whole and unfinished data.
fn made(kind: Kind) -> Vec<u8> {
    let file = File::new();
    let name = file.0.as_str();
    let copy = || fs::read(file.path()).unwrap();
    match kind {
        Kind::Ring => {
            let consumer = ring::Consumer::open(&ring_spec(name), IfExists::Fail, None).unwrap();
            let producer = ring::Producer::attach_to(consumer.ring().clone(), ANYONE).unwrap();
            for _ in 0..4 {
                ring::Producer::reserve(&producer, 1, Deadline::Now).unwrap().unwrap().commit(0);
            }
            let _held = ring::Consumer::take(&consumer, Deadline::Now, None).unwrap();
            let _claimed = ring::Producer::reserve(&producer, 1, Deadline::Now).unwrap();
            copy()
        }
        Kind::Records => {
            let consumer = records::Consumer::open(&records_spec(name), IfExists::Fail, None).unwrap();
            let producer = records::Producer::attach_to(consumer.records().clone(), ANYONE).unwrap();
            for rows in 0..4 {
                send_record(&producer, rows).unwrap();
            }
            let _held = records::Consumer::take(&consumer, Deadline::Now).unwrap();
            let _reserved = records::Producer::reserve(&producer, 64, Deadline::Now).unwrap();
            copy()
        }
        Kind::Weights => {
            let writer = Writer::open(&weights_spec(name), IfExists::Fail, 1).unwrap();
            write_weights(&writer).unwrap();
            write_weights(&writer).unwrap();
            copy()
        }
        Kind::Table => {
            let table = Table::open(&table_spec(name), IfExists::Fail).unwrap();
            add_rows(&table, 8).unwrap();
            copy()
        }
        Kind::VectorEnv => {
            let mut caller = Caller::create(name, 2, 4, 4096).unwrap();
            let worker = Worker::attach(name, 0).unwrap();
            caller.ask(0..4, 1, 0).unwrap();
            let bytes = copy();
            drop((worker, caller));
            bytes
        }
        Kind::Block => {
            let block = Block::create(name, 4096).unwrap();
            let bytes = copy();
            block.unlink().unwrap();
            bytes
        }
    }
}

static IMAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| KINDS.map(made).into());

/// How long the bytes are that [`segment`] changes.
pub fn image_bytes(kind: Kind) -> usize {
    IMAGES[kind as usize].len()
}

/// One change to a segment: what is done to the word that begins at `offset`.
#[derive(Debug, Clone, Copy)]
pub struct Edit {
    pub offset: usize,
    pub how: u8,
    pub value: u64,
}

impl Edit {
    fn apply(self, bytes: &mut [u8]) {
        let at = self.offset % bytes.len();
        let aligned = at - at % 8;
        let old = u64::from_le_bytes(bytes[aligned..aligned + 8].try_into().unwrap());
        let new = match self.how % 6 {
            0 => self.value,
            1 => old ^ 1 << (self.value % 64),
            2 => old.wrapping_add(self.value % 16),
            3 => old.wrapping_sub(self.value % 16),
            4 => self.value % 1024,
            _ => {
                bytes[at] = self.value as u8;
                return;
            }
        };
        bytes[aligned..aligned + 8].copy_from_slice(&new.to_le_bytes());
    }

    /// From the bytes of a fuzzer. Half of them go to the header, the seats and the control words, as a whole.
    fn decode(bytes: &[u8]) -> Edit {
        let number = |at: usize| bytes.get(at).copied().unwrap_or_default() as usize;
        let place = number(0) | number(1) << 8;
        let offset = match number(2) >> 6 {
            0 => place % 192,
            1 => 4096 + place % 512,
            2 => 8192 + place % 1024,
            _ => place,
        };
        let value = (0..8).fold(0, |value, i| value << 8 | number(3 + i) as u64);
        Edit { offset, how: number(2) as u8 & 63, value }
    }
}

/// Reads `bytes` as changes to a segment, and uses it; see [`segment`].
pub fn segment_bytes(bytes: &[u8]) {
    let Some((&kind, edits)) = bytes.split_first() else { return };
    let edits: Vec<Edit> = edits.chunks(11).take(16).map(Edit::decode).collect();
    segment(KINDS[kind as usize % KINDS.len()], &edits);
}

/// Opens a segment that was changed so, in every role there is, and uses it. Everything may be refused: gives how many roles
/// were let in.
pub fn segment(kind: Kind, edits: &[Edit]) -> usize {
    let mut bytes = IMAGES[kind as usize].clone();
    edits.iter().for_each(|edit| edit.apply(&mut bytes));
    let file = File::write(&bytes);
    let name = file.0.as_str();
    look_at(name);
    let let_in = match kind {
        Kind::Ring => use_ring(name),
        Kind::Records => use_records(name),
        Kind::Weights => use_weights(name),
        Kind::Table => use_table(name),
        Kind::VectorEnv => use_vector_env(name),
        Kind::Block => use_block(name),
    };
    look_at(name);
    let _ = catalog::collect(name);
    let_in
}

/// Looks from outside, before and after others have used it.
fn look_at(name: &str) {
    if let Ok(inspection) = Inspection::open(name) {
        std::hint::black_box((inspection.look().is_ok(), inspection.newest(3).is_ok()));
    }
}

/// As short a wait as is one.
fn briefly() -> Deadline {
    Deadline::after(Some(Duration::from_micros(200)))
}

/// Reads every byte: outside the mapping, this is a signal.
fn touch(from: *const u8, bytes: usize) {
    // SAFETY: the core says that these bytes are there. Whether they are is what is probed.
    let all = (0..bytes).fold(0u8, |sum, i| sum ^ unsafe { from.add(i).read_volatile() });
    std::hint::black_box(all);
}

fn use_block(name: &str) -> usize {
    let Ok(block) = Block::attach(name) else { return 0 };
    let (data, bytes) = block.data();
    touch(data.as_ptr(), bytes);
    1
}

fn use_ring(name: &str) -> usize {
    let producer = ring::Producer::attach(name, SAMPLE, SAMPLE_BYTES, ANYONE);
    let consumer = ring::Consumer::open(&ring_spec(name), IfExists::Resume, Some(Duration::ZERO));
    if let Ok(producer) = &producer {
        for _ in 0..4 {
            if let Ok(Some(slot)) = ring::Producer::reserve(producer, 2, briefly()) {
                for (leaf, &bytes) in SAMPLE_BYTES.iter().enumerate() {
                    // SAFETY: as for `touch`: the slot is as many rows long as it says.
                    unsafe { slot.leaf(leaf).write_bytes(7, bytes * slot.len()) };
                }
                slot.commit(1);
            }
        }
        let _ = producer.flush();
    }
    if let Ok(consumer) = &consumer {
        for at_least in [None, Some(1), None] {
            let Ok(Some(batch)) = ring::Consumer::take(consumer, briefly(), at_least) else { continue };
            let runs = batch.runs();
            for &(first, len) in &runs {
                for (leaf, &bytes) in SAMPLE_BYTES.iter().enumerate() {
                    touch(batch.leaf(leaf, first), bytes * len);
                }
            }
            batch.stamps(&runs);
        }
        let ring = consumer.ring();
        std::hint::black_box((ring.census(), ring.totals(), ring.writers(), consumer.producers()));
    }
    producer.is_ok() as usize + consumer.is_ok() as usize
}

fn send_record(producer: &records::Producer, rows: usize) -> rollway_core::Result<()> {
    let shape = record_shape();
    let placed = shape.place(&[rows])?;
    let Some(mut room) = records::Producer::reserve(producer, placed.bytes, briefly())? else {
        return Ok(());
    };
    room.bytes_mut().fill(7);
    shape.write_counts(&placed.counts, room.bytes_mut());
    room.commit(placed.bytes, records::Label::default())
}

fn record_shape() -> Shape {
    Shape::new(vec![LeafShape { row_bytes: 8, rows: Some(3) }, LeafShape { row_bytes: 4, rows: None }])
}

fn use_records(name: &str) -> usize {
    let producer = records::Producer::attach(name, RECORD, ANYONE);
    let consumer = records::Consumer::open(&records_spec(name), IfExists::Resume, Some(Duration::ZERO));
    let let_in = producer.is_ok() as usize + consumer.is_ok() as usize;
    if let Ok(producer) = &producer {
        for rows in [0, 5, 500, 900] {
            let _ = send_record(producer, rows);
        }
    }
    if let Ok(consumer) = consumer.map(Arc::new) {
        let mut held = Vec::new();
        for _ in 0..8 {
            let Ok(Some(record)) = records::Consumer::take(consumer.clone(), briefly()) else { continue };
            touch(record.as_ptr(), record.len());
            check_places(&record_shape(), record.bytes());
            std::hint::black_box(record.info());
            held.push(record);
        }
        let _ = held.pop().map(records::Record::give_back);
        let records = consumer.records();
        std::hint::black_box((records.census(), records.totals()));
    }
    let_in
}

fn write_weights(writer: &Writer) -> rollway_core::Result<u64> {
    let leaves: Vec<Vec<u8>> = writer.weights().geometry().leaf_bytes.iter().map(|&n| vec![7; n]).collect();
    let source = |(leaf, bytes): (usize, &Vec<u8>)| weights::Source { leaf, from: bytes.as_ptr() };
    // SAFETY: the sources are as large as the leaves.
    unsafe { writer.write(&leaves.iter().enumerate().map(source).collect::<Vec<_>>()) }
}

fn use_weights(name: &str) -> usize {
    let mut let_in = 0;
    if let Ok(weights) = Weights::open(name, None).map(Arc::new) {
        let sizes = weights.geometry().leaf_bytes.clone();
        let mut leaves: Vec<Vec<u8>> = sizes.iter().map(|&bytes| vec![0; bytes]).collect();
        std::hint::black_box((weights.segment().schema(), weights.totals(), weights.writer_pid()));
        if let Ok(reader) = Reader::attach_to(weights.clone(), 1) {
            let_in += 1;
            let target = |(leaf, bytes): (usize, &mut Vec<u8>)| Target { leaf, to: bytes.as_mut_ptr() };
            let targets: Vec<Target> = leaves.iter_mut().enumerate().map(target).collect();
            for since in [0, 1] {
                // SAFETY: the targets are as large as the leaves.
                let _ = unsafe { reader.read(&targets, since) };
            }
            let _ = reader.wait_for(3, briefly(), Some(Duration::ZERO));
        }
        if let Ok(writer) = Writer::attach_to(weights, 1) {
            let_in += 1;
            let _ = write_weights(&writer);
        }
    }
    if let Ok(writer) = Writer::open(&weights_spec(name), IfExists::Resume, 1) {
        let_in += 1;
        let _ = write_weights(&writer);
    }
    let_in
}

fn add_rows(table: &Table, rows: usize) -> rollway_core::Result<()> {
    let columns: Vec<Vec<u8>> = table.geometry().fields.iter().map(|f| vec![7; f.bytes * rows]).collect();
    let stride = |i: usize| table.geometry().fields[i].bytes as isize;
    let source =
        |(i, c): (usize, &Vec<u8>)| replay::Source { data: c.as_ptr(), stride: stride(i), patch: None };
    let sources: Vec<replay::Source> = columns.iter().enumerate().map(source).collect();
    // SAFETY: there is a source for each field, with as many rows.
    unsafe { table.add(&sources, &mut 0, rows, briefly()) }
}

fn use_table(name: &str) -> usize {
    let mut let_in = 0;
    let _ = Table::schema_of(name);
    if let Ok(table) = Table::attach(name, SAMPLE, ROW_BYTES, &FIELDS) {
        let_in += 1;
        let _ = add_rows(&table, 9);
        let mut rows = vec![0u8; ROW_BYTES * 5];
        let data = rows.as_mut_ptr();
        let piece = Piece { offset: 0, bytes: ROW_BYTES, data, stride: ROW_BYTES };
        // SAFETY: there is room for five rows.
        let _ = unsafe { Sampler::new(Some(1)).sample(&table, 5, &[piece]) };
        let _ = table.wait_for_rows(6, briefly());
        std::hint::black_box((
            table.rows(),
            table.recover(),
            table.census(),
            table.totals(),
            table.writers(),
        ));
    }
    if let Ok(table) = Table::open(&table_spec(name), IfExists::Resume) {
        let_in += 1;
        let _ = add_rows(&table, 1);
        let _ = table.leave();
    }
    let_in
}

fn use_vector_env(name: &str) -> usize {
    let mut let_in = 0;
    for index in [0, 1, usize::MAX] {
        let Ok(worker) = Worker::attach(name, index) else { continue };
        let_in += 1;
        worker.caller_lives();
        let (data, bytes) = worker.vector_env().data();
        touch(data.as_ptr(), bytes);
        let protocol = worker.vector_env().protocol();
        let tasks: Vec<_> = protocol.tasks(index).collect();
        assert!(tasks.iter().all(|task| worker.env_range().contains(&task.env)), "a task of another worker");
        worker.answer(&tasks, &vec![0; tasks.len()]);
        if protocol.is_closed() {
            let _ = worker.wait(); // Never sleeps now: there is something to be told.
        }
    }
    let_in
}

// ── records ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Reads `bytes` as the leaves of a record, and then as one record with these leaves.
pub fn record_bytes(bytes: &[u8]) {
    let Some((&count, rest)) = bytes.split_first() else { return };
    let count = (count as usize % 12).min(rest.len() / 3);
    let (leaves, record) = rest.split_at(3 * count);
    let leaf = |leaf: &[u8]| {
        let row_bytes = (leaf[0] as usize) << (leaf[1] & 63); // from nothing to more than there is
        LeafShape { row_bytes, rows: (leaf[2] & 1 == 0).then_some(leaf[2] as usize) }
    };
    check_places(&Shape::new(leaves.chunks_exact(3).map(leaf).collect()), record);
}

/// Where the leaves of a record lie is inside it, in order and aligned; and writing it down again gives its counts.
pub fn check_places(shape: &Shape, bytes: &[u8]) {
    let Ok(placement) = shape.parse(bytes) else { return };
    let mut end = 0;
    for (leaf, (&start, &rows)) in shape.leaves.iter().zip(placement.offsets.iter().zip(&placement.counts)) {
        assert!(start >= end && start.is_multiple_of(LEAF_ALIGN), "a leaf in another");
        assert!(leaf.rows.is_none_or(|fixed| fixed == rows), "a leaf of another length");
        end = start + rows * leaf.row_bytes;
    }
    assert!(end <= bytes.len(), "a leaf outside its record");
    let mut again = bytes.to_vec();
    shape.write_counts(&placement.counts, &mut again);
    assert_eq!(again, bytes);
}

// ── inventories ────────────────────────────────────────────────────────────────────────────────────────────────────

/// Reads `bytes` as an inventory, and as the list of leaves of a version of `bytes[0]` leaves; what is understood is
/// written down again as it was.
pub fn inventory_bytes(bytes: &[u8]) {
    if let Ok(inventory) = Inventory::parse(bytes) {
        assert!(!inventory.leaf_bytes.is_empty() && inventory.leaf_bytes.len() <= frame::MAX_LEAVES);
        assert_eq!(inventory.frame()[frame::HEADER_BYTES..], *bytes);
    }
    let Some((&of, list)) = bytes.split_first() else { return };
    for rows in [list.len() / frame::LEAF_BYTES, of as usize] {
        let Ok(leaves) = LeafList::parse(rows as u32, of as usize, list) else { continue };
        assert!(leaves.leaves.is_sorted() && leaves.leaves.iter().all(|&leaf| leaf < of as usize));
        assert_eq!(leaves.leaves.len(), leaves.checksums.len());
        assert_eq!(leaves.frame(1)[frame::HEADER_BYTES..], *list);
    }
}
