//! One call on a table does what it says; any sequence of them does what a plain model says.
use crate::fixture::{Name, briefly, ends, eventually, row_schema, soon};
use proptest::collection::vec;
use proptest::prelude::*;
use rollway_core::Error;
use rollway_core::policies::IfExists;
use rollway_core::replay::layout::{Control, Lap, RowKind, RowWord, Settled};
use rollway_core::replay::protocol::{Claim, Protocol};
use rollway_core::replay::recovery::recover;
use rollway_core::replay::{Field, Patch, Piece, Sampler, Source, Table, TableSpec};
use rollway_core::segment::Owner;
use rollway_core::sys::sync::{AtomicU64, Ordering};
use rollway_core::sys::wait::Deadline;
use std::sync::Arc;

/// A number, and the same number again, with a gap between them.
const FIELDS: [Field; 2] = [Field { offset: 0, bytes: 8 }, Field { offset: 16, bytes: 8 }];
const ROW: usize = 24;

fn spec(name: Option<&str>, capacity: usize) -> TableSpec<'_> {
    let (auto_named, schema, max_peers) = (false, row_schema([8, 8].into_iter()), 8);
    TableSpec {
        name,
        auto_named,
        schema,
        row_bytes: ROW,
        fields: &FIELDS,
        capacity,
        max_peers,
        huge_pages: None,
    }
}

fn table(capacity: usize) -> Table {
    Table::open(&spec(None, capacity), IfExists::Fail).unwrap()
}

/// Rows of a page, that hold one number all over: long enough to be met half written.
const WIDE: usize = 512;

/// So many of these are filled around the cache.
const LARGE: usize = 16_384;

fn wide_table(capacity: usize) -> Table {
    let fields = [Field { offset: 0, bytes: 8 * WIDE }];
    let schema = row_schema(fields.iter().map(|field| field.bytes));
    let spec = TableSpec { schema, row_bytes: 8 * WIDE, fields: &fields, ..spec(None, capacity) };
    Table::open(&spec, IfExists::Fail).unwrap()
}

fn add_wide(table: &Table, values: impl IntoIterator<Item = u64>) {
    let rows: Vec<[u64; WIDE]> = values.into_iter().map(|value| [value; WIDE]).collect();
    let source = Source { data: rows.as_ptr().cast(), stride: 8 * WIDE as isize, patch: None };
    // SAFETY: the source has as many rows.
    unsafe { table.add(&[source], &mut 0, rows.len(), soon()) }.unwrap();
}

fn sample_wide(table: &Table, sampler: &Sampler, batch: usize) -> Vec<u64> {
    let mut rows = vec![[0u64; WIDE]; batch];
    let (bytes, data) = (8 * WIDE, rows.as_mut_ptr().cast());
    // SAFETY: there is room for `batch` rows.
    unsafe { sampler.sample(table, batch, &[Piece { offset: 0, bytes, data, stride: bytes }]) }.unwrap();
    for row in &rows {
        assert!(row.iter().all(|value| *value == row[0]), "a torn row: {row:?}");
    }
    rows.iter().map(|row| row[0]).collect()
}

fn add(table: &Table, values: &[u64]) {
    let source = Source { data: values.as_ptr().cast(), stride: 8, patch: None };
    let mut done = 0;
    // SAFETY: both sources are `values`, which have as many rows.
    unsafe { table.add(&[source, source], &mut done, values.len(), soon()) }.unwrap();
    assert_eq!(done, values.len());
}

fn try_sample(table: &Table, sampler: &Sampler, batch: usize) -> Result<Vec<u64>, Error> {
    let (mut one, mut two) = (vec![0u64; batch], vec![0u64; batch]);
    let piece = |field: Field, out: &mut Vec<u64>| {
        let Field { offset, bytes } = field;
        Piece { offset, bytes, data: out.as_mut_ptr().cast(), stride: 8 }
    };
    let pieces = [piece(FIELDS[0], &mut one), piece(FIELDS[1], &mut two)];
    // SAFETY: both have room for `batch` numbers.
    unsafe { sampler.sample(table, batch, &pieces) }?;
    assert_eq!(one, two, "a torn row");
    Ok(one)
}

fn sample(table: &Table, seed: u64, batch: usize) -> Vec<u64> {
    try_sample(table, &Sampler::new(Some(seed)), batch).unwrap()
}

fn distinct(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values.dedup();
    values
}

#[test]
fn what_was_added_is_sampled() {
    let table = table(100);
    add(&table, &(0..70).collect::<Vec<_>>());
    assert_eq!(table.rows(), 70);
    assert_eq!(distinct(sample(&table, 1, 4000)), (0..70).collect::<Vec<_>>());
}

#[test]
fn a_full_table_overwrites_the_oldest() {
    let table = table(100);
    add(&table, &(0..250).collect::<Vec<_>>());
    assert_eq!(table.rows(), 100);
    assert_eq!(distinct(sample(&table, 1, 5000)), (150..250).collect::<Vec<_>>());
    let totals = table.totals();
    assert_eq!((totals.added, totals.overwritten, totals.sampled, totals.redrawn), (250, 150, 5000, 0));
}

#[test]
fn every_row_is_as_likely_as_any_other() {
    let table = table(64);
    add(&table, &(0..64).collect::<Vec<_>>());
    let mut counts = [0f64; 64];
    sample(&table, 5, 64_000).into_iter().for_each(|value| counts[value as usize] += 1.0);
    let chi: f64 = counts.iter().map(|n| (n - 1000.0).powi(2) / 1000.0).sum();
    assert!(chi < 110.0, "chi² of 63 degrees of freedom is {chi}");
}

#[test]
fn the_same_seed_draws_the_same_rows_on_any_number_of_threads() {
    let table = table(1000);
    add(&table, &(0..1000).collect::<Vec<_>>());
    assert_eq!(sample(&table, 3, 500), sample(&table, 3, 500));
    assert_ne!(sample(&table, 3, 500), sample(&table, 4, 500));
    // So many rows that threads share them: the beginning is the same.
    let many = sample(&table, 3, 200_000);
    assert_eq!(many[..500], sample(&table, 3, 500));
    let sampler = Sampler::new(Some(3));
    let one = try_sample(&table, &sampler, 500).unwrap();
    assert_ne!(one, try_sample(&table, &sampler, 500).unwrap(), "the next batch is another");
}

#[test]
fn an_empty_table_has_nothing_to_sample() {
    let table = table(10);
    let sampler = Sampler::new(None);
    assert!(matches!(try_sample(&table, &sampler, 3), Err(Error::Empty { .. })));
    // Promised, and not written yet: nor now.
    let protocol = table.protocol();
    let claim = protocol.claim(Owner::new(0, 1), protocol.promise(4), |_| false).unwrap();
    assert!(matches!(try_sample(&table, &sampler, 3), Err(Error::Empty { .. })));
    assert_eq!(table.rows(), 0);
    protocol.abort(claim);
    assert_eq!(table.census().empty, 10);
}

#[test]
fn holes_are_never_sampled() {
    let table = table(1000);
    add(&table, &[1, 2, 3]);
    table.protocol().promise(900); // Somebody died before it claimed any of these.
    assert_eq!((table.rows(), distinct(sample(&table, 1, 200))), (3, vec![1, 2, 3]));
}

#[test]
fn patches_replace_what_the_mask_says() {
    let table = table(10);
    let (values, others, mask) = ([1u64, 2, 3, 4], [11u64, 12, 13, 14], [0u8, 1, 0, 1]);
    let (mask, data) = (mask.as_ptr(), others.as_ptr().cast());
    let patch = Some(Patch { mask, mask_stride: 1, data, stride: 8 });
    let source = Source { data: values.as_ptr().cast(), stride: 8, patch };
    let mut done = 0;
    // SAFETY: values, mask and patch have four rows.
    unsafe { table.add(&[source, source], &mut done, 4, soon()) }.unwrap();
    assert_eq!(distinct(sample(&table, 1, 100)), [1, 3, 12, 14]);
}

#[test]
fn a_named_table_is_shared_and_goes_with_its_last_learner() {
    let name = Name::unique();
    let learner = Table::open(&spec(Some(&name), 100), IfExists::Fail).unwrap();
    let worker = Table::attach(&name, row_schema([8, 8].into_iter()), ROW, &FIELDS).unwrap();
    assert!(matches!(Table::attach(&name, b"other", ROW, &FIELDS), Err(Error::Schema { .. })));
    assert!(matches!(
        Table::open(&spec(Some(&name), 99), IfExists::Resume),
        Err(Error::Geometry { what: "capacity", theirs: 100, ours: 99, .. })
    ));
    add(&worker, &[1, 2]);
    let second = Table::open(&spec(Some(&name), 100), IfExists::Resume).unwrap();
    assert!(second.resumed() && second.rows() == 2);
    learner.leave().unwrap();
    add(&worker, &[3]);
    second.leave().unwrap();
    assert!(!name.path().exists());
    let source = Source { data: [0u64].as_ptr().cast(), stride: 8, patch: None };
    // SAFETY: one row each.
    let refused = unsafe { worker.add(&[source, source], &mut 0, 1, soon()) };
    assert!(matches!(refused, Err(Error::Closed)));
    assert!(matches!(worker.wait_for_rows(4, soon()), Err(Error::Closed)));
}

#[test]
fn a_table_that_the_living_hold_whole_is_an_error_in_the_end_and_not_a_spin() {
    let name = Name::unique();
    let learner = Table::open(&spec(Some(&name), 2), IfExists::Fail).unwrap();
    let worker = Table::attach(&name, row_schema([8, 8].into_iter()), ROW, &FIELDS).unwrap();
    let protocol = worker.protocol();
    let claim = protocol.claim(Owner::new(1, 1), protocol.promise(2), |_| false).unwrap();
    let values = [5u64];
    let source = Source { data: values.as_ptr().cast(), stride: 8, patch: None };
    // SAFETY: one row each.
    let refused = unsafe { learner.add(&[source, source], &mut 0, 1, briefly()) };
    assert!(matches!(refused, Err(Error::Timeout)));
    assert_eq!(learner.writers(), [(std::process::id(), 2)]);
    // And whoever waits goes on as soon as there is room.
    let learner = Arc::new(learner);
    let adder = std::thread::spawn({
        let learner = learner.clone();
        move || add(&learner, &[6])
    });
    assert!(eventually(|| protocol.control.changed.has_waiter()));
    protocol.abort(claim);
    adder.join().unwrap();
    assert_eq!((learner.rows(), sample(&learner, 0, 4)), (1, vec![6; 4]));
    learner.leave().unwrap();
}

#[test]
fn waiting_for_rows_ends_with_them_or_with_the_time() {
    let table = Arc::new(table(10));
    assert!(!table.wait_for_rows(1, briefly()).unwrap());
    let waiter = std::thread::spawn({
        let table = table.clone();
        move || table.wait_for_rows(3, soon()).unwrap()
    });
    add(&table, &[1, 2]);
    add(&table, &[3]);
    assert!(waiter.join().unwrap());
}

#[test]
fn adders_and_samplers_at_once_lose_and_tear_nothing() {
    for capacity in [65, LARGE] {
        let table = Arc::new(wide_table(capacity));
        let adders: Vec<_> = (0..3u64)
            .map(|n| {
                let table = table.clone();
                std::thread::spawn(move || {
                    for first in (0..20_000u64).step_by(40) {
                        add_wide(&table, (first..first + 40).map(|k| n << 32 | k));
                    }
                })
            })
            .collect();
        assert!(table.wait_for_rows(1, soon()).unwrap());
        while !adders.iter().all(|adder| adder.is_finished()) {
            sample_wide(&table, &Sampler::new(None), 300);
        }
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        let totals = table.totals();
        assert_eq!((totals.added, table.census().ready, table.rows()), (60_000, capacity, capacity));
        // What remains is young: each adder's last rows, up to a lap and what was passed over.
        let found = distinct(sample_wide(&table, &Sampler::new(Some(1)), 5000));
        let oldest = found.into_iter().map(|value| value & 0xffff_ffff).min().unwrap();
        assert!(
            capacity == LARGE || oldest > 10_000 || totals.skipped > 0,
            "row {oldest} should have been overwritten"
        );
    }
}

#[test]
fn a_table_filled_around_the_cache_holds_what_was_added() {
    let table = wide_table(LARGE);
    // Long runs, runs that are too short to go around, and one that goes round the end.
    let mut next = 0..;
    for len in [1000, 7, 1, 64, 8, LARGE] {
        add_wide(&table, next.by_ref().take(len));
    }
    let (last, mut found) = (next.start, Vec::new());
    let sampler = Sampler::new(Some(3));
    (0..20).for_each(|_| found.extend(sample_wide(&table, &sampler, LARGE)));
    let found = distinct(found);
    assert!(found.iter().all(|value| (last - LARGE as u64..last).contains(value)), "an old row");
    assert!(found.len() > LARGE - 10, "of {LARGE} rows {} were found", found.len());
}

#[test]
fn words_survive_packing() {
    let word = RowWord::new(Lap::new((1 << 40) - 1), RowKind::Writing, Owner::new(1023, 4095));
    assert_eq!(RowWord::unpack(word.pack()), word);
    assert!(Lap::new((1 << 40) - 1).is_before(Lap::new((1 << 40) - 1).next()), "laps go round");
    let settled = Settled { repairs: (1 << 24) - 1, rows: (1 << 32) - 1 };
    assert_eq!(Settled::unpack(settled.pack()), settled);
    assert_eq!(
        Settled::unpack(Settled { repairs: 1 << 24, rows: 5 }.pack()),
        Settled { repairs: 0, rows: 5 }
    );
}

// ── any sequence of calls ──────────────────────────────────────────────────────────────────────────────────────────

#[derive(Debug, Clone)]
enum Call {
    Promise {
        who: usize,
        want: usize,
    },
    /// Claims what was promised, as far as it can be had.
    Claim {
        who: usize,
    },
    Commit {
        who: usize,
    },
    Abort {
        who: usize,
    },
    Die {
        who: usize,
    },
    Recover,
    Count,
}

fn call() -> impl Strategy<Value = Call> {
    let who = 0..3usize;
    prop_oneof![
        3 => (who.clone(), 1..5usize).prop_map(|(who, want)| Call::Promise { who, want }),
        4 => who.clone().prop_map(|who| Call::Claim { who }),
        4 => who.clone().prop_map(|who| Call::Commit { who }),
        1 => who.clone().prop_map(|who| Call::Abort { who }),
        1 => who.prop_map(|who| Call::Die { who }),
        1 => Just(Call::Recover),
        2 => Just(Call::Count),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell {
    Empty { lap: u64 },
    Writing { lap: u64, owner: Owner },
    Ready { lap: u64 },
}

impl Cell {
    fn lap(self) -> u64 {
        match self {
            Cell::Empty { lap } | Cell::Writing { lap, .. } | Cell::Ready { lap } => lap,
        }
    }
}

proptest! {
    #[test]
    fn any_sequence_of_calls_does_what_the_model_says(capacity in 1..6usize, calls in vec(call(), 1..120)) {
        let (control, words) = (Control::default(), (0..capacity).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        let table = Protocol { control: &control, words: &words };
        let mut model = vec![Cell::Empty { lap: 0 }; capacity];
        let mut lives = [1u32; 3];
        let mut promised = [const { None::<std::ops::Range<u64>> }; 3];
        let mut claims = [const { None::<Claim> }; 3];
        let mut head = 0u64;
        for call in calls {
            let alive = |owner: Owner| owner == Owner::new(owner.seat(), lives[owner.seat()]);
            match call {
                Call::Promise { who, want } if promised[who].is_none() && claims[who].is_none() => {
                    let positions = table.promise(want);
                    prop_assert_eq!(positions.clone(), head..head + want as u64);
                    head += want as u64;
                    promised[who] = Some(positions);
                }
                Call::Claim { who } if claims[who].is_none() => {
                    let Some(positions) = promised[who].take() else { continue };
                    let owner = Owner::new(who, lives[who]);
                    let free = |position: u64| {
                        let lap = position / capacity as u64 + 1;
                        let cell = model[(position % capacity as u64) as usize];
                        cell.lap() < lap && !matches!(cell, Cell::Writing { owner, .. } if alive(owner))
                    };
                    // The first run that can be had, up to the end of the table. Rows claimed on the way are not free
                    // for its own later laps.
                    let first = positions.clone().find(|&position| free(position));
                    let run = first.map(|first| {
                        let end = (first / capacity as u64 + 1) * capacity as u64;
                        let behind = (first..positions.end.min(end)).find(|&position| !free(position));
                        first..behind.unwrap_or(positions.end.min(end))
                    });
                    let claim = table.claim(owner, positions.clone(), |other| !alive(other));
                    let got = claim.as_ref().map(|claim| claim.positions());
                    prop_assert_eq!(got, run.clone());
                    for position in run.clone().unwrap_or(0..0) {
                        let lap = position / capacity as u64 + 1;
                        model[(position % capacity as u64) as usize] = Cell::Writing { lap, owner };
                    }
                    let rest = run.map_or(0..0, |run| run.end..positions.end);
                    promised[who] = (!rest.is_empty()).then_some(rest);
                    claims[who] = claim;
                }
                Call::Commit { who } => if let Some(claim) = claims[who].take() {
                    claim.rows().for_each(|row| model[row] = Cell::Ready { lap: claim.lap.value() });
                    table.commit(claim);
                },
                Call::Abort { who } => if let Some(claim) = claims[who].take() {
                    claim.rows().for_each(|row| model[row] = Cell::Empty { lap: claim.lap.value() });
                    table.abort(claim);
                },
                Call::Die { who } => {
                    lives[who] += 1;
                    (claims[who], promised[who]) = (None, None);
                }
                Call::Recover => {
                    let dead = |cell: &Cell| matches!(cell, Cell::Writing { owner, .. } if !alive(*owner));
                    let lost = model.iter().filter(|cell| dead(cell)).count();
                    prop_assert_eq!(recover(&table, |owner| !alive(owner)), lost);
                    for cell in model.iter_mut() {
                        if dead(cell) {
                            *cell = Cell::Empty { lap: cell.lap() };
                        }
                    }
                }
                Call::Count => {
                    let ready = model.iter().filter(|cell| matches!(cell, Cell::Ready { .. })).count();
                    let replaced = model.iter().filter(|cell| matches!(cell, Cell::Writing { lap, .. } if *lap > 1)).count();
                    prop_assert!((ready..=ready + replaced).contains(&table.count()));
                }
                _ => {}
            }
            for (word, cell) in words.iter().zip(&model) {
                let RowWord { lap, kind, owner } = RowWord::unpack(word.load(Ordering::Relaxed));
                let there = match kind {
                    RowKind::Empty => Cell::Empty { lap: lap.value() },
                    RowKind::Writing => Cell::Writing { lap: lap.value(), owner },
                    RowKind::Ready => Cell::Ready { lap: lap.value() },
                };
                prop_assert_eq!(there, *cell);
            }
        }
        recover(&table, |_| true);
        let ready = model.iter().filter(|cell| matches!(cell, Cell::Ready { .. })).count();
        prop_assert_eq!(table.count(), ready);
    }
}

/// The calls that never wait say so with this.
#[test]
fn patience_is_not_needed_where_there_is_room() {
    let table = table(4);
    let values = [1u64, 2];
    let source = Source { data: values.as_ptr().cast(), stride: 8, patch: None };
    let mut done = 0;
    // SAFETY: two rows each.
    unsafe { table.add(&[source, source], &mut done, 2, Deadline::Now) }.unwrap();
    assert_eq!((done, table.rows()), (2, 2));
}

/// Adds one row, in a thread of its own.
fn add_one(table: &Arc<Table>) -> Result<(), Error> {
    let table = table.clone();
    ends(move || {
        let value = 7u64;
        let source = Source { data: (&raw const value).cast(), stride: 8, patch: None };
        // SAFETY: both sources are `value`, one row.
        unsafe { table.add(&[source, source], &mut 0, 1, soon()) }
    })
}

#[test]
fn a_head_that_promises_rows_of_the_past_is_damage_and_no_endless_add() {
    let table = Arc::new(table(100));
    add(&table, &(0..250).collect::<Vec<_>>());
    let head = &table.protocol().control.write.head;
    // Laps that are over; those that no adder can have reached; the end of the numbers.
    for wrong in [0, 50, ((1 << 39) + 10) * 100, u64::MAX] {
        head.store(wrong, Ordering::Relaxed);
        let result = add_one(&table);
        assert!(matches!(result, Err(Error::Corrupt { .. })), "{wrong}: {result:?}");
    }
    head.store(250, Ordering::Relaxed);
    add_one(&table).unwrap();
}

#[test]
fn a_table_of_rows_that_nobody_finishes_is_looked_through_a_bounded_number_of_times() {
    let table = Arc::new(table(1 << 20));
    add(&table, &[1]);
    let protocol = table.protocol();
    protocol.control.write.head.store(1 << 30, Ordering::Relaxed);
    let alive = RowWord::unpack(protocol.words[0].load(Ordering::Relaxed)).owner;
    let writing = RowWord::new(Lap::new(3), RowKind::Writing, alive).pack();
    protocol.words.iter().for_each(|word| word.store(writing, Ordering::Relaxed));
    let result = ends({
        let table = table.clone();
        move || try_sample(&table, &Sampler::new(Some(1)), 4)
    });
    assert!(matches!(result, Err(Error::Overrun { .. })), "{result:?}");
}
