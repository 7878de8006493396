//! One call on replay tables does what it says; any sequence of them does what a plain model says.
use crate::fixture::{Name, briefly, eventually, row_schema, soon};
use proptest::collection::vec;
use proptest::prelude::*;
use rollway_core::Error;
use rollway_core::policies::IfExists;
use rollway_core::replay::{Field, Sampler, Source};
use rollway_core::sys::wait::Deadline;
use rollway_core::tables::limiter::Limiter;
use rollway_core::tables::patterns::Pattern;
use rollway_core::tables::sample::{Draw, Target};
use rollway_core::tables::selectors::Kind;
use rollway_core::tables::writer::Writer;
use rollway_core::tables::{Chosen, Config, NewItem, Tables, TablesSpec};
use std::sync::Arc;

/// A number, and the same number again, with a gap between them.
const FIELDS: [Field; 2] = [Field { offset: 0, bytes: 8 }, Field { offset: 16, bytes: 8 }];
const ROW: usize = 24;
const CHUNK: usize = 4;
const HISTORY: usize = 6;

fn config(max_items: usize, sampler: Kind, remover: Kind) -> Config {
    Config {
        name: "main".to_owned(),
        max_items,
        sampler,
        remover,
        max_times_sampled: 0,
        limiter: Limiter::min_size(1),
        max_age_ms: 0,
        max_later_items: 0,
        max_staleness: 0,
    }
}

fn queue(max_items: usize) -> Config {
    let limiter = Limiter {
        samples_per_insert: 1.0,
        min_diff: 0.0,
        max_diff: max_items as f64,
        ..Limiter::min_size(1)
    };
    Config { max_times_sampled: 1, limiter, ..config(max_items, Kind::Fifo, Kind::Fifo) }
}

fn open(name: Option<&str>, chunks: usize, tables: &[Config]) -> Arc<Tables> {
    let (schema, fields) = (row_schema([8, 8].into_iter()), &FIELDS);
    let (auto_named, row_bytes, chunk_steps, max_peers, huge_pages) = (false, ROW, CHUNK, 8, None);
    let spec = TablesSpec {
        name,
        auto_named,
        schema,
        row_bytes,
        fields,
        chunks,
        chunk_steps,
        tables,
        max_peers,
        huge_pages,
    };
    Arc::new(Tables::open(&spec, IfExists::Fail).unwrap())
}

fn append(writer: &mut Writer, values: &[u64]) {
    let source = Source { data: values.as_ptr().cast(), stride: 8, patch: None };
    // SAFETY: both sources are `values`, which have as many rows.
    unsafe { writer.append(&[source, source], &mut 0, values.len(), soon()) }.unwrap();
}

fn insert(writer: &Writer, table: usize, span: u32, priority: f64) -> Result<u64, Error> {
    let tables = writer.tables();
    let pattern = tables.pattern_number(&Pattern::whole(["one", "two"].into_iter()))?;
    let first = writer.place(writer.steps() - span as u64);
    let item = NewItem { first, span, pattern, priority, version: 0 };
    let mut keys = Vec::new();
    tables.insert(table, &[item], &mut 0, &mut keys, briefly())?;
    Ok(keys[0])
}

/// The steps of each item that was drawn.
fn sample(
    tables: &Tables,
    table: usize,
    sampler: &Sampler,
    count: usize,
) -> Result<Vec<(Chosen, Vec<u64>)>, Error> {
    let mut draw = tables.draw(table, count, sampler, Deadline::Now)?;
    copy(tables, &mut draw, sampler)
}

fn copy(tables: &Tables, draw: &mut Draw, sampler: &Sampler) -> Result<Vec<(Chosen, Vec<u64>)>, Error> {
    let (count, steps) = (draw.chosen.len(), HISTORY);
    let (mut one, mut two) = (vec![0u64; count * steps], vec![0u64; count * steps]);
    let target = |out: &mut Vec<u64>| Target { data: out.as_mut_ptr().cast(), stride: 8 * steps, steps };
    // SAFETY: both have room for as many items of so many steps.
    let whole = unsafe { tables.gather(draw, &[target(&mut one), target(&mut two)], sampler) }?;
    assert!(whole);
    assert_eq!(one, two, "torn steps");
    let steps_of = |(place, chosen): (usize, &Chosen)| {
        (*chosen, one[place * steps..place * steps + chosen.span as usize].to_vec())
    };
    Ok(draw.chosen.iter().enumerate().map(steps_of).collect())
}

#[test]
fn overlapping_windows_share_their_steps() {
    let tables = open(None, 8, &[config(20, Kind::Uniform, Kind::Fifo)]);
    let mut writer = Writer::new(tables.clone(), HISTORY);
    append(&mut writer, &[1, 2]);
    for value in 3..=20 {
        append(&mut writer, &[value]);
        insert(&writer, 0, 3, 1.0).unwrap();
    }
    assert_eq!(tables.counts(0).0.size, 18);
    for (_, steps) in sample(&tables, 0, &Sampler::new(Some(1)), 200).unwrap() {
        assert!(steps.len() == 3 && steps[1] == steps[0] + 1 && steps[2] == steps[0] + 2, "{steps:?}");
    }
    assert_eq!(tables.audit().unwrap(), Vec::<String>::new());
    assert_eq!(tables.free_steps(), 3 * CHUNK, "twenty steps are five chunks");
}

#[test]
fn a_queue_gives_each_item_once_in_order_and_holds_its_writers_back() {
    let tables = open(None, 8, &[queue(3)]);
    let mut writer = Writer::new(tables.clone(), 1);
    let sampler = Sampler::new(None);
    for value in 1..=3 {
        append(&mut writer, &[value]);
        insert(&writer, 0, 1, 1.0).unwrap();
    }
    append(&mut writer, &[4]);
    assert!(matches!(insert(&writer, 0, 1, 1.0), Err(Error::Timeout)));
    // All or nothing: what was taken for too large a batch is there again, in order.
    assert!(matches!(sample(&tables, 0, &sampler, 4), Err(Error::Timeout)));
    let values =
        |found: Vec<(Chosen, Vec<u64>)>| found.into_iter().map(|(_, steps)| steps[0]).collect::<Vec<_>>();
    assert_eq!(values(sample(&tables, 0, &sampler, 2).unwrap()), [1, 2]);
    insert(&writer, 0, 1, 1.0).unwrap();
    assert_eq!(values(sample(&tables, 0, &sampler, 2).unwrap()), [3, 4]);
    assert!(matches!(sample(&tables, 0, &sampler, 1), Err(Error::Timeout)));
    assert_eq!(tables.audit().unwrap(), Vec::<String>::new());
}

#[test]
fn an_insert_does_not_remove_from_a_queue_whose_items_are_being_copied() {
    let tables = open(None, 8, &[queue(3)]);
    let mut writer = Writer::new(tables.clone(), 1);
    let sampler = Sampler::new(None);
    for value in 1..=3 {
        append(&mut writer, &[value]);
        insert(&writer, 0, 1, 1.0).unwrap();
    }
    let mut draw = tables.draw(0, 2, &sampler, Deadline::Now).unwrap();
    append(&mut writer, &[4]);
    assert!(matches!(insert(&writer, 0, 1, 1.0), Err(Error::Timeout)));
    assert_eq!(copy(&tables, &mut draw, &sampler).unwrap().len(), 2);
    insert(&writer, 0, 1, 1.0).unwrap();
    let rest = sample(&tables, 0, &sampler, 2).unwrap();
    assert_eq!((&rest[0].1, &rest[1].1), (&vec![3], &vec![4]));
}

#[test]
fn priorities_decide_and_updates_of_replaced_items_do_nothing() {
    let tables = open(None, 64, &[config(4, Kind::Prioritised(1.0), Kind::Fifo)]);
    let mut writer = Writer::new(tables.clone(), 1);
    let keys: Vec<u64> = (0..4u64)
        .map(|value| {
            append(&mut writer, &[value]);
            insert(&writer, 0, 1, value as f64).unwrap()
        })
        .collect();
    let draws = 60_000;
    let mut counts = [0; 4];
    let sampler = Sampler::new(Some(3));
    for (chosen, steps) in sample(&tables, 0, &sampler, draws).unwrap() {
        counts[steps[0] as usize] += 1;
        assert!((chosen.probability - steps[0] as f64 / 6.0).abs() < 1e-12);
    }
    let chi: f64 = (1..4)
        .map(|value| {
            let expected = draws as f64 * value as f64 / 6.0;
            (counts[value] as f64 - expected).powi(2) / expected
        })
        .sum();
    assert!(counts[0] == 0 && chi < 20.0, "{counts:?}");
    append(&mut writer, &[9]);
    let new = insert(&writer, 0, 1, 1.0).unwrap(); // In the place of the first.
    assert_eq!(tables.update_priorities(0, &[keys[0], keys[1], new], &[100.0, 0.0, 0.0]).unwrap(), 2);
    let found = sample(&tables, 0, &sampler, 1000).unwrap();
    assert!(found.iter().all(|(_, steps)| [2, 3].contains(&steps[0])));
    assert_eq!(tables.audit().unwrap(), Vec::<String>::new());
}

#[test]
fn a_writer_without_room_removes_old_items_but_none_of_a_queue() {
    let free = open(None, 3, &[config(100, Kind::Uniform, Kind::Fifo)]);
    let mut writer = Writer::new(free.clone(), 1);
    for value in 0..100 {
        append(&mut writer, &[value]);
        insert(&writer, 0, 1, 1.0).unwrap();
    }
    let left = free.counts(0).0.size;
    assert!((CHUNK as u64..=3 * CHUNK as u64).contains(&left), "{left}");
    assert_eq!(free.audit().unwrap(), Vec::<String>::new());

    let held = open(None, 2, &[queue(100)]);
    let mut writer = Writer::new(held.clone(), 1);
    for value in 0..8 {
        append(&mut writer, &[value]);
        insert(&writer, 0, 1, 1.0).unwrap();
    }
    let source = Source { data: [8u64].as_ptr().cast(), stride: 8, patch: None };
    // SAFETY: both sources have one row.
    let full = unsafe { writer.append(&[source, source], &mut 0, 1, briefly()) };
    assert!(matches!(full, Err(Error::Timeout)), "{full:?}");
    sample(&held, 0, &Sampler::new(None), 4).unwrap();
    append(&mut writer, &[8]);
}

#[test]
fn what_was_sampled_by_one_process_is_seen_by_another_handle() {
    let name = Name::unique();
    let tables = open(Some(&name), 8, &[config(8, Kind::Uniform, Kind::Fifo)]);
    let schema = row_schema([8, 8].into_iter());
    let other = Arc::new(Tables::attach(&name, schema, ROW, &FIELDS).unwrap());
    assert_eq!(other.configs(), tables.configs());
    let mut writer = Writer::new(other.clone(), 4);
    append(&mut writer, &[5, 6]);
    insert(&writer, 0, 2, 1.0).unwrap();
    let found = sample(&tables, 0, &Sampler::new(None), 1).unwrap();
    assert_eq!(found[0].1, [5, 6]);
    tables.leave().unwrap();
    assert!(matches!(insert(&writer, 0, 1, 1.0), Err(Error::Closed)));
}

#[test]
fn samplers_writers_and_updaters_in_threads_tear_nothing() {
    let tables = open(None, 64, &[config(64, Kind::Prioritised(0.6), Kind::Uniform)]);
    let mut first = Writer::new(tables.clone(), HISTORY);
    append(&mut first, &[1, 2, 3]);
    insert(&first, 0, 3, 1.0).unwrap();
    std::thread::scope(|scope| {
        for thread in 1..=2u64 {
            let tables = tables.clone();
            scope.spawn(move || {
                let mut writer = Writer::new(tables, HISTORY);
                append(&mut writer, &[thread << 32, (thread << 32) + 1]);
                for value in 2..4000 {
                    append(&mut writer, &[(thread << 32) + value]);
                    insert(&writer, 0, 3, value as f64 % 5.0).unwrap();
                }
            });
        }
        let tables = &tables;
        for _ in 0..2 {
            scope.spawn(|| {
                let sampler = Sampler::new(None);
                for _ in 0..2000 {
                    let found = sample(tables, 0, &sampler, 8).unwrap();
                    for (_, steps) in &found {
                        assert!(steps.windows(2).all(|pair| pair[1] == pair[0] + 1), "{steps:?}");
                    }
                    let keys: Vec<u64> = found.iter().map(|(chosen, _)| chosen.key().0).collect();
                    tables.update_priorities(0, &keys, &[2.0; 8]).unwrap();
                }
            });
        }
    });
    assert_eq!(tables.audit().unwrap(), Vec::<String>::new());
}

#[test]
fn old_items_go() {
    let young = Config { max_later_items: 2, ..config(8, Kind::Fifo, Kind::Fifo) };
    let fresh = Config { max_staleness: 1, ..config(8, Kind::Uniform, Kind::Fifo) };
    let brief = Config { max_age_ms: 30, ..config(8, Kind::Fifo, Kind::Fifo) };
    let tables = open(None, 8, &[young, fresh, brief]);
    let mut writer = Writer::new(tables.clone(), 1);
    for value in 0..5 {
        append(&mut writer, &[value]);
        for table in 0..3 {
            insert(&writer, table, 1, 1.0).unwrap();
        }
    }
    let sampler = Sampler::new(None);
    assert_eq!(sample(&tables, 0, &sampler, 1).unwrap()[0].1, [3]);
    assert_eq!(tables.counts(0).0.size, 2);
    tables.note_version(1);
    sample(&tables, 1, &sampler, 1).unwrap();
    tables.note_version(2);
    assert!(matches!(sample(&tables, 1, &sampler, 1), Err(Error::Timeout)));
    assert!(eventually(|| matches!(sample(&tables, 2, &sampler, 1), Err(Error::Timeout))));
    assert_eq!(tables.audit().unwrap(), Vec::<String>::new());
}

// ── against a model ────────────────────────────────────────────────────────────────────────────────────────────────

#[derive(Debug, Clone)]
enum Op {
    Append(u8),
    Insert { span: u32, priority: u8 },
    Sample(u8),
    Update { which: u8, priority: u8 },
    Delete(u8),
    Clear,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (1..4u8).prop_map(Op::Append),
        6 => (1..5u32, 0..9u8).prop_map(|(span, priority)| Op::Insert { span, priority }),
        3 => (1..4u8).prop_map(Op::Sample),
        2 => (any::<u8>(), 0..9u8).prop_map(|(which, priority)| Op::Update { which, priority }),
        1 => any::<u8>().prop_map(Op::Delete),
        1 => Just(Op::Clear),
    ];
    vec(op, 1..60)
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Fifo),
        Just(Kind::Lifo),
        Just(Kind::Uniform),
        Just(Kind::Prioritised(1.0)),
        Just(Kind::MinHeap),
        Just(Kind::MaxHeap),
    ]
}

#[derive(Debug, Clone)]
struct Known {
    key: u64,
    number: u64,
    priority: f64,
    steps: Vec<u64>,
    sampled: u32,
}

/// Which of the items a selector may choose.
fn allowed(kind: Kind, items: &[Known]) -> Vec<usize> {
    let all = 0..items.len();
    let best = |better: fn(&Known, &Known) -> bool| {
        all.clone().reduce(|a, b| if better(&items[b], &items[a]) { b } else { a }).into_iter().collect()
    };
    match kind {
        Kind::Fifo => best(|a, b| a.number < b.number),
        Kind::Lifo => best(|a, b| a.number > b.number),
        Kind::MinHeap => best(|a, b| (a.priority, a.number) < (b.priority, b.number)),
        Kind::MaxHeap => best(|a, b| (-a.priority, a.number) < (-b.priority, b.number)),
        Kind::Uniform => all.collect(),
        Kind::Prioritised(_) => {
            let some = items.iter().any(|item| item.priority > 0.0);
            all.filter(|&item| !some || items[item].priority > 0.0).collect()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_does_what_a_model_says(ops in ops(), sampler in kinds(), remover in kinds(), most in 0..3u32) {
        let config = Config { max_times_sampled: most, ..config(5, sampler, remover) };
        let tables = open(None, 32, &[config]);
        let mut writer = Writer::new(tables.clone(), HISTORY);
        let random = Sampler::new(Some(7));
        let (mut written, mut items, mut number) = (0u64, Vec::<Known>::new(), 0);
        for op in ops {
            match op {
                Op::Append(count) => {
                    append(&mut writer, &(written..written + count as u64).collect::<Vec<_>>());
                    written += count as u64;
                }
                Op::Insert { span, priority } => {
                    if (span as u64) > written - writer.oldest() {
                        continue;
                    }
                    let key = insert(&writer, 0, span, priority as f64).unwrap();
                    if items.len() == 5 {
                        // One went: one that its remover may choose, and whose place the new one may have.
                        let gone: Vec<usize> = allowed(remover, &items)
                            .into_iter()
                            .filter(|&item| items[item].key as u32 == key as u32)
                            .collect();
                        prop_assert_eq!(gone.len(), 1, "the wrong one was removed");
                        items.remove(gone[0]);
                    }
                    let steps = (written - span as u64..written).collect();
                    items.push(Known { key, number, priority: priority as f64, steps, sampled: 0 });
                    number += 1;
                }
                Op::Sample(count) => match sample(&tables, 0, &random, count as usize) {
                    Err(Error::Timeout) => {
                        let left: u32 = items.iter().map(|item| most.saturating_sub(item.sampled)).sum();
                        prop_assert!(items.is_empty() || (most > 0 && left < count as u32));
                    }
                    Err(error) => panic!("{error}"),
                    Ok(found) => for (chosen, steps) in found {
                        let may = allowed(sampler, &items);
                        let Some(&at) = may.iter().find(|&&at| items[at].key == chosen.key().0) else {
                            panic!("{chosen:?} was sampled of {items:?}")
                        };
                        prop_assert_eq!(&items[at].steps, &steps);
                        items[at].sampled += 1;
                        prop_assert_eq!(items[at].sampled, chosen.times_sampled);
                        if items[at].sampled == most {
                            items.remove(at);
                        }
                    },
                },
                Op::Update { which, priority } => {
                    let Some(at) = (which as usize).checked_rem(items.len()) else { continue };
                    items[at].priority = priority as f64;
                    let key = items[at].key;
                    prop_assert_eq!(tables.update_priorities(0, &[key], &[priority as f64]).unwrap(), 1);
                }
                Op::Delete(which) => {
                    let Some(at) = (which as usize).checked_rem(items.len()) else { continue };
                    let key = items.remove(at).key;
                    prop_assert_eq!(tables.delete(0, &[key, key]).unwrap(), 1);
                    prop_assert_eq!(tables.update_priorities(0, &[key], &[1.0]).unwrap(), 0);
                }
                Op::Clear => {
                    tables.clear(0).unwrap();
                    items.clear();
                    number = 0;
                }
            }
            prop_assert_eq!(tables.counts(0).0.size, items.len() as u64);
            let wrong = tables.audit().unwrap();
            prop_assert!(wrong.is_empty(), "{:?}", wrong);
        }
        drop(writer);
        tables.clear(0).unwrap();
        prop_assert_eq!(tables.free_steps(), 32 * CHUNK);
    }
}
