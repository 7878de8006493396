//! The kill matrix of the table: SIGKILL and SIGSTOP at every named crash point, in a role that reaches it.
//!
//! A *victim* is this test binary run once more. It falls at the n-th reach of a [`Point`]: dead, or stopped. A *bystander*
//! adds and samples beside it.
//!
//! ```text
//! set up ── victim works ── falls ──▶ killed:  the bystander goes round: every row is its own in the end
//!                             └─────▶ stopped: the bystander goes round: the victim's rows are passed over;
//!                                              SIGCONT ── it finishes ──▶ its rows are whole too
//! ```
use crate::fixture::{Name, Process, eventually, matrix, row_schema, soon, told};
use rollway_core::policies::IfExists;
use rollway_core::replay::{Field, Piece, Sampler, Source, Table, TableSpec};
use rollway_core::segment::arrival;
use rollway_core::segment::lease::count_alive;
use rollway_core::sys::sync::Point;

const CAPACITY: usize = 40;
/// Each number of a row is the same.
const NUMBERS: usize = 5;
const FIELDS: [Field; NUMBERS] = {
    let mut fields = [Field { offset: 0, bytes: 8 }; NUMBERS];
    let mut index = 0;
    while index < NUMBERS {
        fields[index].offset = 8 * index;
        index += 1;
    }
    fields
};
const ROW: usize = 8 * NUMBERS;
const VICTIM: u64 = 1 << 32;
const BYSTANDER: u64 = 2 << 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Adds runs of rows, until long after the table is full.
    Adds,
    /// Adds while the bystander sleeps.
    Wakes,
    /// Takes the seat of a dead adder, and with it back what that one was writing.
    Recovers,
    /// The last learner, before it shuts the table down.
    Leaves,
}

impl matrix::Role for Role {
    const ROLES: &'static [Role] = &[Role::Adds, Role::Wakes, Role::Recovers, Role::Leaves];
    const POINTS: &'static [Point] = Point::REPLAY;

    fn traps(self) -> &'static [(Point, &'static [usize])] {
        match self {
            Role::Adds => &[
                (Point::RowsPromised, &[1, 7]),
                (Point::RowsPartlyClaimed, &[1, 5, 63]),
                (Point::RowHalfWritten, &[1, 8, 333]),
                (Point::RowsWritten, &[1, 7]),
                (Point::RowsPartlyCommitted, &[1, 5, 63]),
                (Point::RowsCommitted, &[1, 7]),
            ],
            Role::Wakes => &[(Point::NotifyCleared, &[1]), (Point::NotifyMoved, &[1])],
            Role::Recovers => &[(Point::RowUnsettled, &[1, 2])],
            Role::Leaves => &[(Point::SeatLeaving, &[1]), (Point::NameRemoved, &[1])],
        }
    }
}

type Case = matrix::Case<Role>;

#[test]
fn every_point_has_a_role_that_falls_there() {
    matrix::check_points::<Role>();
}

#[test]
fn an_adder_may_die_or_stop_at_every_point() {
    Case::for_each(Role::Adds, falls);
}

#[test]
fn an_adder_may_die_or_stop_in_the_middle_of_a_notification() {
    Case::for_each(Role::Wakes, falls);
}

#[test]
fn one_who_recovers_may_die_or_stop_himself() {
    Case::for_each(Role::Recovers, falls);
}

#[test]
fn the_last_learner_may_die_or_stop_before_it_shuts_the_table_down() {
    Case::for_each(Role::Leaves, |case| {
        let name = Name::unique();
        let mut victim = start(case, &name);
        arrival::wait_for(&name, soon()).unwrap();
        let adder = attach(&name);
        add(&adder, BYSTANDER, CAPACITY);
        case.falls(&victim);
        add(&adder, BYSTANDER + 1, CAPACITY); // Nobody has told it to stop.
        assert_eq!(name.path().exists(), case.point == Point::SeatLeaving, "{case}");
        if !case.is_kill() {
            victim.signal(libc::SIGCONT);
            assert!(victim.wait(), "{case} after SIGCONT the victim failed");
        } else if name.path().exists() {
            let next = Table::open(&spec(&name), IfExists::Resume).unwrap();
            assert!(next.resumed(), "{case}");
            assert_eq!(next.rows(), CAPACITY, "{case}");
            check_whole(&next, case);
            next.leave().unwrap();
        }
        let goes_on = case.is_kill() && case.point == Point::NameRemoved;
        assert_eq!(adder.is_closed(), !goes_on, "{case}");
        assert!(!name.path().exists(), "{case} left its name");
    });
}

fn start(case: Case, name: &str) -> Process {
    Process::start("replay::a_victim", &[("NAME", name), ("ORDERS", &case.orders())])
}

fn falls(case: Case) {
    let name = Name::unique();
    let table = Table::open(&spec(&name), IfExists::Fail).unwrap();
    let dead = (case.role == Role::Recovers).then(|| {
        // One more who is killed in the middle of his rows, and whom the victim will bury.
        let case = Case { role: Role::Adds, point: Point::RowsWritten, nth: 2, signal: libc::SIGKILL };
        let dead = start(case, &name);
        // Its lease too: a process shows as ended when its first thread has, and the last one lets go of it.
        assert!(eventually(|| dead.state() == 'Z' && count_alive(table.segment()).unwrap() == 1), "{case}");
        dead
    });
    let sleeper = std::thread::scope(|scope| {
        let sleeper =
            (case.role == Role::Wakes).then(|| scope.spawn(|| table.wait_for_rows(1, soon()).unwrap()));
        assert!(sleeper.is_none() || eventually(|| table.protocol().control.changed.has_waiter()), "{case}");
        let victim = start(case, &name);
        case.falls(&victim);
        assert!(sleeper.is_none_or(|sleeper| sleeper.join().unwrap()), "{case} the sleeper never woke");
        victim
    });
    let mut victim = sleeper;
    check_whole(&table, case);
    // As above: the last thread lets go of the lease.
    let let_go = !case.is_kill() || eventually(|| table.census().writing == 0);
    assert!(let_go, "{case} the dead still hold rows");
    let held = table.census().writing;
    // Round and round: what the victim holds is passed over while it lives.
    for round in 0..4 {
        add(&table, BYSTANDER + round, CAPACITY);
        check_whole(&table, case);
    }
    let census = table.census();
    assert_eq!((census.writing, census.ready), (held, CAPACITY - held), "{case}");
    assert_eq!(
        table.rows() - table.census().ready,
        if held > 0 { table.rows() - (CAPACITY - held) } else { 0 }
    );
    if case.is_kill() {
        victim.kill();
    } else {
        victim.signal(libc::SIGCONT);
        assert!(victim.wait(), "{case} after SIGCONT the victim failed");
        check_whole(&table, case);
    }
    assert_eq!(table.census().ready, CAPACITY, "{case}");
    assert_eq!(table.rows(), CAPACITY, "{case}");
    drop(dead);
    table.leave().unwrap();
}

fn schema() -> &'static [u8] {
    row_schema(FIELDS.iter().map(|field| field.bytes))
}

fn spec(name: &str) -> TableSpec<'_> {
    let (auto_named, schema, max_peers) = (false, schema(), 4);
    let (name, capacity) = (Some(name), CAPACITY);
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

fn attach(name: &str) -> Table {
    Table::attach(name, schema(), ROW, &FIELDS).unwrap()
}

fn add(table: &Table, value: u64, count: usize) {
    let values = vec![value; count];
    let source = Source { data: values.as_ptr().cast(), stride: 8, patch: None };
    // SAFETY: each source has `count` rows.
    unsafe { table.add(&[source; NUMBERS], &mut 0, count, soon()) }.unwrap();
}

/// Every row that can be sampled holds one number.
fn check_whole(table: &Table, case: Case) {
    if table.census().ready == 0 {
        return;
    }
    let batch = 8 * CAPACITY;
    let mut rows = vec![[0u64; NUMBERS]; batch];
    let piece = Piece { offset: 0, bytes: ROW, data: rows.as_mut_ptr().cast(), stride: ROW };
    // SAFETY: there is room for `batch` rows.
    unsafe { Sampler::new(None).sample(table, batch, &[piece]) }.unwrap();
    assert!(
        rows.iter().all(|row| row.iter().all(|number| *number == row[0] && row[0] != 0)),
        "{case} a torn row"
    );
}

#[test]
#[ignore = "a process of other tests: does as it was told, and falls"]
fn a_victim() {
    let case = Case::told();
    case.set_trap(|_, _| {});
    if case.role == Role::Leaves {
        let table = Table::open(&spec(&told("NAME")), IfExists::Fail).unwrap();
        assert!(table.wait_for_rows(CAPACITY, soon()).unwrap());
        return table.leave().unwrap();
    }
    // Whoever sits down where somebody died puts his rows right first.
    let table = attach(&told("NAME"));
    if case.role != Role::Recovers {
        (0..12).for_each(|n| add(&table, VICTIM + n, 9));
    }
}
