//! Any sequence of records, tombstones, versions, times and pops, under any rules: no record is lost, none is handed over or
//! released twice, and what is held stays within its bounds.
use proptest::prelude::*;
use rollway_core::records::groups::{Assembler, Group, Member, OnIncomplete, OnStale, Rules};
use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

#[derive(Debug, Clone)]
struct Item {
    version: u32,
    /// How often it was released.
    released: Rc<Cell<u32>>,
}

impl Member for Item {
    fn version(&self) -> u32 {
        self.version
    }

    fn release(&self) {
        self.released.set(self.released.get() + 1);
    }

    fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.released, &other.released)
    }
}

#[derive(Debug, Clone)]
enum Call {
    Add { name: u8, repetition: i64, version: u32 },
    Bury { name: u8, repetition: i64 },
    TombstoneGroup { name: u8 },
    GiveUp { name: u8 },
    SetVersion(u32),
    Later(f64),
    Pop,
    PopWithheld,
}

fn calls() -> impl Strategy<Value = Call> {
    let (name, repetition) = (0u8..6, -1i64..4);
    prop_oneof![
        8 => (name.clone(), repetition.clone(), 0u32..6)
            .prop_map(|(name, repetition, version)| Call::Add { name, repetition, version }),
        2 => (name.clone(), repetition).prop_map(|(name, repetition)| Call::Bury { name, repetition }),
        1 => name.clone().prop_map(|name| Call::TombstoneGroup { name }),
        1 => name.prop_map(|name| Call::GiveUp { name }),
        1 => (0u32..8).prop_map(Call::SetVersion),
        1 => (0.0..3.0).prop_map(Call::Later),
        2 => Just(Call::Pop),
        1 => Just(Call::PopWithheld),
    ]
}

prop_compose! {
    fn rules()(
        size in 1usize..4,
        on_incomplete in prop_oneof![Just(OnIncomplete::Wait), Just(OnIncomplete::Drop), Just(OnIncomplete::Partial)],
        deadline_s in prop::option::of(0.0..4.0),
        max_groups in 1usize..4,
        max_staleness in prop::option::of(0u32..4),
        on_stale in prop_oneof![Just(OnStale::Drop), Just(OnStale::Withhold), Just(OnStale::Report)],
        memory in 0usize..8,
    ) -> Rules {
        let deadline_s = deadline_s.filter(|_| on_incomplete != OnIncomplete::Wait);
        Rules { size, on_incomplete, deadline_s, max_groups, max_staleness, on_stale, memory }
    }
}

/// What the test knows: every record that was taken in, and those that were handed over.
#[derive(Default)]
struct Books {
    taken_in: Vec<Item>,
    handed_over: Vec<Item>,
}

impl Books {
    fn receive(&mut self, group: Group<Item>, rules: &Rules) {
        assert!(!group.members.is_empty() || rules.on_incomplete == OnIncomplete::Partial);
        let complete = group.members.len() == rules.size;
        assert!(complete || rules.on_incomplete == OnIncomplete::Partial, "not all of it is there");
        for repetition in 0..rules.size {
            let both = group.members.contains_key(&repetition) && group.tombstones.contains_key(&repetition);
            assert!(!both, "a record and a reason why it will not come");
        }
        assert_eq!(group.missing(rules.size).count(), rules.size - group.members.len());
        self.handed_over.extend(group.members.into_values());
    }

    /// Each record is in one place: held, handed over and untouched, or released once.
    fn check(&self, held: usize) {
        assert!(self.handed_over.iter().all(|item| item.released.get() == 0));
        let handed_over: HashSet<_> =
            self.handed_over.iter().map(|item| Rc::as_ptr(&item.released)).collect();
        assert_eq!(handed_over.len(), self.handed_over.len(), "one was handed over twice");
        assert!(self.taken_in.iter().all(|item| item.released.get() <= 1));
        let released = self.taken_in.iter().filter(|item| item.released.get() == 1).count();
        assert_eq!(held, self.taken_in.len() - released - self.handed_over.len(), "one is lost");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_record_is_lost_and_none_is_given_away_twice(
        rules in rules(), calls in prop::collection::vec(calls(), 1..80)
    ) {
        let mut assembler = Assembler::new(rules.clone());
        let (mut books, mut now_s, mut version) = (Books::default(), 0.0, 0);
        let mut popped: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for call in calls {
            match call {
                Call::Add { name, repetition, version } => {
                    let item = Item { version, released: Rc::default() };
                    if assembler.add(&[name], repetition, item.clone(), || now_s).is_ok() {
                        books.taken_in.push(item);
                    } else {
                        prop_assert!(repetition < 0 || repetition as usize >= rules.size);
                    }
                }
                Call::Bury { name, repetition } => {
                    let told = assembler.add_tombstone(&[name], repetition, "dropped", || now_s);
                    prop_assert_eq!(told.is_ok(), repetition >= 0 && (repetition as usize) < rules.size);
                }
                Call::TombstoneGroup { name } => assembler.tombstone_group(&[name], "dropped"),
                Call::GiveUp { name } => assembler.give_up(&[name], "given up"),
                Call::SetVersion(newest) => {
                    version = newest;
                    assembler.set_version(newest);
                }
                Call::Later(seconds) => now_s += seconds,
                Call::Pop => {
                    if let Some(group) = assembler.pop(|| now_s) {
                        let oldest = group.members.values().map(Member::version).min();
                        prop_assert_eq!(group.staleness, oldest.map_or(0, |oldest| version.saturating_sub(oldest)));
                        let stale = rules.max_staleness.is_some_and(|most| group.staleness > most);
                        prop_assert!(!stale || rules.on_stale == OnStale::Report);
                        *popped.entry(group.name.to_vec()).or_default() += 1;
                        books.receive(group, &rules);
                    }
                }
                Call::PopWithheld => {
                    if let Some(group) = assembler.pop_withheld() {
                        books.receive(group, &rules);
                    }
                }
            }
            prop_assert!(assembler.pending().len() <= rules.max_groups);
            prop_assert_eq!(assembler.members().count(), assembler.held());
            books.check(assembler.held());
        }
        if rules.memory >= 6 {
            prop_assert!(popped.values().all(|&times| times == 1), "a straggler began a group anew");
        }
        assembler.clear();
        books.check(0);
    }
}
