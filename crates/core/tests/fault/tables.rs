//! The kill matrix of replay tables: SIGKILL and SIGSTOP at every named crash point, in a role that reaches it.
//!
//! A *victim* is this test binary run once more. It falls at the n-th reach of a [`Point`]: dead, or stopped. The learner
//! then goes on, unless the victim was stopped with the lock in its hands: then the learner is told so, and goes on when
//! the victim does.
//!
//! Whatever happened, nothing is torn, what is listed is what is there, no chunk is lost, and the queue has given every item
//! that was acknowledged, once.
use crate::fixture::{Name, Process, briefly, eventually, matrix, row_schema, soon, told};
use rollway_core::Error;
use rollway_core::policies::IfExists;
use rollway_core::replay::{Field, Sampler, Source};
use rollway_core::segment::lease::count_alive;
use rollway_core::sys::sync::Point;
use rollway_core::sys::wait::Deadline;
use rollway_core::tables::limiter::Limiter;
use rollway_core::tables::patterns::Pattern;
use rollway_core::tables::sample::Target;
use rollway_core::tables::selectors::Kind;
use rollway_core::tables::writer::Writer;
use rollway_core::tables::{Config, NewItem, Tables, TablesSpec};
use std::io::Write;
use std::sync::Arc;

const FIELDS: [Field; 2] = [Field { offset: 0, bytes: 8 }, Field { offset: 8, bytes: 8 }];
const CHUNKS: usize = 48;
const CHUNK: usize = 4;
const SPAN: u32 = 3;
/// The tables: one that overwrites and is drawn by priority, and a queue.
const REPLAY: usize = 0;
const QUEUE: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Appends steps and inserts items into both tables, until long after the first is full.
    Writes,
    /// Samples both tables, and changes priorities.
    Samples,
    /// Inserts while the learner sleeps.
    Wakes,
    /// The last learner, before it shuts the tables down.
    Leaves,
}

impl matrix::Role for Role {
    const ROLES: &'static [Role] = &[Role::Writes, Role::Samples, Role::Wakes, Role::Leaves];
    const POINTS: &'static [Point] = Point::TABLES;

    fn traps(self) -> &'static [(Point, &'static [usize])] {
        match self {
            Role::Writes => &[
                (Point::TablesLocked, &[3, 20]),
                (Point::TablesChanged, &[3, 20]),
                (Point::ChunkTaken, &[1, 4]),
                (Point::ChunkLetGo, &[1, 3]),
                (Point::StepHalfWritten, &[1, 17]),
                (Point::StepWritten, &[1, 9]),
                (Point::ItemWritten, &[1, 25]),
                (Point::ItemLive, &[1, 25]),
                (Point::ItemDelisted, &[1, 5]),
                (Point::ItemFreed, &[1, 5]),
            ],
            Role::Samples => &[
                (Point::ItemTaken, &[1, 3]),
                (Point::ItemCopied, &[1, 4]),
                (Point::PriorityChanged, &[1, 6]),
                (Point::ItemDelisted, &[2]),
                (Point::ItemFreed, &[2]),
                (Point::TablesLocked, &[5]),
            ],
            Role::Wakes => &[(Point::NotifyCleared, &[1]), (Point::NotifyMoved, &[1])],
            Role::Leaves => &[(Point::SeatLeaving, &[1]), (Point::NameRemoved, &[1])],
        }
    }
}

type Case = matrix::Case<Role>;

/// Points that are reached with the lock held.
fn is_locked_at(point: Point) -> bool {
    !matches!(
        point,
        Point::StepHalfWritten
            | Point::StepWritten
            | Point::ItemCopied
            | Point::NotifyCleared
            | Point::NotifyMoved
            | Point::SeatLeaving
            | Point::NameRemoved
    )
}

#[test]
fn every_point_has_a_role_that_falls_there() {
    matrix::check_points::<Role>();
}

#[test]
fn a_writer_may_die_or_stop_at_every_point() {
    Case::for_each(Role::Writes, falls);
}

#[test]
fn a_sampler_may_die_or_stop_at_every_point() {
    Case::for_each(Role::Samples, falls);
}

#[test]
fn a_writer_may_die_or_stop_in_the_middle_of_a_notification() {
    Case::for_each(Role::Wakes, |case| {
        let name = Name::unique();
        let tables = open(&name, IfExists::Fail);
        let mut victim = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| sample(&tables, QUEUE, 1, soon()));
            assert!(eventually(|| tables.changed(QUEUE).has_waiter()), "{case}");
            let victim = start(case, &name);
            case.falls(&victim);
            assert_eq!(sleeper.join().unwrap().unwrap().len(), 1, "{case} the sleeper never woke");
            victim
        });
        if case.is_kill() {
            victim.kill()
        } else {
            victim.signal(libc::SIGCONT)
        }
        assert!(case.is_kill() || victim.wait(), "{case}");
        check(&tables, case);
        tables.leave().unwrap();
    });
}

#[test]
fn the_last_learner_may_die_or_stop_before_it_shuts_the_tables_down() {
    Case::for_each(Role::Leaves, |case| {
        let name = Name::unique();
        let mut victim = start(case, &name);
        rollway_core::segment::arrival::wait_for(&name, soon()).unwrap();
        let worker = Arc::new(attach(&name));
        let mut writer = Writer::new(worker.clone(), SPAN as usize);
        write(&mut writer, 1 << 40, 4);
        case.falls(&victim);
        assert_eq!(name.path().exists(), case.point == Point::SeatLeaving, "{case}");
        if !case.is_kill() {
            victim.signal(libc::SIGCONT);
            assert!(victim.wait(), "{case} after SIGCONT the victim failed");
        } else if name.path().exists() {
            let next = open(&name, IfExists::Resume);
            assert!(next.resumed() && next.counts(QUEUE).0.size == 4, "{case}");
            check(&next, case);
            next.leave().unwrap();
        }
        assert!(!name.path().exists(), "{case} left its name");
    });
}

fn start(case: Case, name: &Name) -> Process {
    let log = log_of(name);
    Process::start("tables::a_victim", &[("NAME", name), ("ORDERS", &case.orders()), ("LOG", &log)])
}

/// Where the victim notes what was acknowledged.
fn log_of(name: &str) -> String {
    std::env::temp_dir().join(format!("{name}.acknowledged")).to_string_lossy().into_owned()
}

fn falls(case: Case) {
    let name = Name::unique();
    let tables = open(&name, IfExists::Fail);
    let mut writer = Writer::new(tables.clone(), SPAN as usize);
    let log = log_of(&name);
    let mut sent: Vec<u64> = write(&mut writer, 1 << 40, 8);
    let mut victim = start(case, &name);
    case.falls(&victim);
    let is_stopped = !case.is_kill();
    if is_stopped && is_locked_at(case.point) {
        let waited = insert(&writer, QUEUE, briefly());
        assert!(matches!(waited, Err(Error::Timeout)), "{case} {waited:?}");
        victim.signal(libc::SIGCONT);
        assert!(victim.wait(), "{case} after SIGCONT the victim failed");
    } else if !is_stopped {
        assert!(eventually(|| count_alive(tables.segment()).unwrap() == 1), "{case}");
    }
    sent.extend(write(&mut writer, 2 << 40, 40));
    check(&tables, case);
    if is_stopped && !is_locked_at(case.point) {
        victim.signal(libc::SIGCONT);
        assert!(victim.wait(), "{case} after SIGCONT the victim failed");
        check(&tables, case);
    }
    victim.kill();
    tables.sweep().unwrap();
    // Each item of the queue came out once: to the victim, which noted it, or to us now.
    let noted = std::fs::read_to_string(&log).unwrap_or_default();
    std::fs::remove_file(&log).ok();
    let read = |what: &str| -> Vec<u64> {
        noted.lines().filter_map(|line| line.strip_prefix(what)).map(|n| n.parse().unwrap()).collect()
    };
    sent.extend(read("sent "));
    let mut got = read("got ");
    while let Ok(found) = sample(&tables, QUEUE, 1, Deadline::Now) {
        got.extend(found);
    }
    got.sort();
    let twice = got.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    // What a dead sampler had copied and not noted comes again: it was not delivered.
    assert_eq!(twice, None, "{case} came twice");
    let lost: Vec<u64> = sent.iter().copied().filter(|value| got.binary_search(value).is_err()).collect();
    // A sampler that dies between its last call and its note has it: one batch at most.
    let in_hand = if case.is_kill() && case.role == Role::Samples { 1 } else { 0 };
    assert!(lost.len() <= in_hand, "{case} lost {lost:x?}");
    check(&tables, case);
    drop(writer);
    assert_eq!(tables.counts(QUEUE).0.size, 0, "{case} the queue keeps items for ever");
    tables.clear(REPLAY).unwrap();
    assert_eq!(tables.free_steps(), CHUNKS * CHUNK, "{case} lost chunks");
    tables.leave().unwrap();
}

fn check(tables: &Tables, case: Case) {
    assert_eq!(tables.audit().unwrap(), Vec::<String>::new(), "{case}");
    if tables.counts(REPLAY).0.size > 0 {
        sample(tables, REPLAY, 64, Deadline::Now).unwrap();
    }
}

fn schema() -> &'static [u8] {
    row_schema(FIELDS.iter().map(|field| field.bytes))
}

fn open(name: &str, if_exists: IfExists) -> Arc<Tables> {
    let replay = Config {
        name: "replay".to_owned(),
        max_items: 12,
        sampler: Kind::Prioritised(1.0),
        remover: Kind::Fifo,
        max_times_sampled: 0,
        limiter: Limiter::min_size(1),
        max_age_ms: 0,
        max_later_items: 0,
        max_staleness: 0,
    };
    let queue = Config {
        name: "queue".to_owned(),
        max_items: 128,
        sampler: Kind::Fifo,
        max_times_sampled: 1,
        limiter: Limiter { samples_per_insert: 1.0, min_diff: 0.0, max_diff: 128.0, ..Limiter::min_size(1) },
        ..replay.clone()
    };
    let (name, auto_named, schema, row_bytes, fields) = (Some(name), false, schema(), 16, &FIELDS[..]);
    let (chunks, chunk_steps, tables, max_peers, huge_pages) = (CHUNKS, CHUNK, &[replay, queue][..], 4, None);
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
    Arc::new(Tables::open(&spec, if_exists).unwrap())
}

fn attach(name: &str) -> Tables {
    Tables::attach(name, schema(), 16, &FIELDS).unwrap()
}

fn append(writer: &mut Writer, values: &[u64]) {
    let source = Source { data: values.as_ptr().cast(), stride: 8, patch: None };
    // SAFETY: both sources are `values`, which have as many rows.
    unsafe { writer.append(&[source, source], &mut 0, values.len(), soon()) }.unwrap();
}

fn insert(writer: &Writer, table: usize, deadline: Deadline) -> Result<(), Error> {
    let tables = writer.tables();
    let pattern = tables.pattern_number(&Pattern::whole(["one", "two"].into_iter()))?;
    let first = writer.place(writer.steps() - SPAN as u64);
    let item = NewItem { first, span: SPAN, pattern, priority: 1.0, version: 0 };
    tables.insert(table, &[item], &mut 0, &mut Vec::new(), deadline)
}

/// Appends steps that count up from `base`, and makes items of the last three. Gives the last step of each.
fn write(writer: &mut Writer, base: u64, count: u64) -> Vec<u64> {
    append(writer, &[base, base + 1]);
    let one = |value| {
        append(writer, &[value]);
        insert(writer, REPLAY, soon()).unwrap();
        insert(writer, QUEUE, soon()).unwrap();
        value
    };
    (base + 2..base + 2 + count).map(one).collect()
}

/// The last step of each item that was sampled; all three count up.
fn sample(tables: &Tables, table: usize, count: usize, deadline: Deadline) -> Result<Vec<u64>, Error> {
    let sampler = Sampler::new(None);
    let mut draw = tables.draw(table, count, &sampler, deadline)?;
    let steps = SPAN as usize;
    let (mut one, mut two) = (vec![0u64; count * steps], vec![0u64; count * steps]);
    let target = |out: &mut Vec<u64>| Target { data: out.as_mut_ptr().cast(), stride: 8 * steps, steps };
    // SAFETY: both have room for as many items of so many steps.
    let whole = unsafe { tables.gather(&mut draw, &[target(&mut one), target(&mut two)], &sampler) }?;
    assert!(whole);
    assert_eq!(one, two, "torn");
    for steps in one.chunks(steps) {
        assert!(steps.windows(2).all(|pair| pair[1] == pair[0] + 1), "torn: {steps:x?}");
    }
    if table == REPLAY {
        let keys: Vec<u64> = draw.chosen.iter().map(|chosen| chosen.key().0).collect();
        tables.update_priorities(REPLAY, &keys, &vec![2.0; keys.len()])?;
    }
    Ok(one.chunks(steps).map(|steps| steps[2]).collect())
}

#[test]
#[ignore = "a process of other tests: does as it was told, and falls"]
fn a_victim() {
    let case = Case::told();
    let name = told("NAME");
    if case.role == Role::Leaves {
        let tables = open(&name, IfExists::Fail);
        assert!(eventually(|| tables.counts(QUEUE).0.size == 4));
        case.set_trap(|_, _| {});
        return tables.leave().unwrap();
    }
    let mut log = std::fs::File::create(told("LOG")).unwrap();
    let mut note = |what: &str, value: u64| writeln!(log, "{what} {value}").unwrap();
    let tables = Arc::new(attach(&name));
    case.set_trap(|_, _| {});
    if case.role == Role::Samples {
        for _ in 0..5 {
            sample(&tables, REPLAY, 4, soon()).unwrap();
            sample(&tables, QUEUE, 1, soon()).unwrap().into_iter().for_each(|value| note("got", value));
        }
        return;
    }
    let mut writer = Writer::new(tables, SPAN as usize);
    append(&mut writer, &[3 << 40, (3 << 40) + 1]);
    for value in (3 << 40) + 2..(3 << 40) + 20 {
        append(&mut writer, &[value]);
        insert(&writer, REPLAY, soon()).unwrap();
        insert(&writer, QUEUE, soon()).unwrap();
        note("sent", value);
    }
}
