//! Puts the records of a group together, and decides what becomes of those that stay incomplete.
//!
//! It holds records and hands them out again; it reads nothing, waits for nothing and knows no clock. See [`Member`] for what it
//! knows of a record. A group is finished once all its repetitions are settled, by a record or by a reason why there is none.
//! Then the newest weights decide: it is ready, withheld or dropped. Newer weights decide again, until it is popped.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// The bytes that all keys of a group have in common.
pub type Name = Arc<[u8]>;

/// A record, as far as its group is concerned.
pub trait Member {
    /// Of the weights that made it.
    fn version(&self) -> u32;
    /// Gives its room back: it is not needed.
    fn release(&self);
    fn is_same(&self, other: &Self) -> bool;
}

/// What to do with a group that is not complete when its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnIncomplete {
    Wait,
    Drop,
    Partial,
}

/// What to do with what is too old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStale {
    Drop,
    Withhold,
    Report,
}

#[derive(Debug, Clone)]
pub struct Rules {
    /// Records per group.
    pub size: usize,
    pub on_incomplete: OnIncomplete,
    /// Seconds after its first record.
    pub deadline_s: Option<f64>,
    /// Unfinished groups at most, and withheld ones.
    pub max_groups: usize,
    /// Versions behind the newest weights.
    pub max_staleness: Option<u32>,
    pub on_stale: OnStale,
    /// How many finished groups are remembered.
    pub memory: usize,
}

/// What became of the records and groups so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub complete: u64,
    pub partial: u64,
    pub dropped: u64,
    pub dead: u64,
    pub stale: u64,
    pub withheld: u64,
    pub duplicates: u64,
    pub late: u64,
    pub evicted: u64,
}

/// The records of one group, and why the others are not among them.
#[derive(Debug)]
pub struct Group<M> {
    pub name: Name,
    pub members: BTreeMap<usize, M>,
    /// Repetitions that will never come, and why.
    pub tombstones: BTreeMap<usize, Arc<str>>,
    /// How many versions the oldest record is behind the newest weights.
    pub staleness: u32,
}

impl<M: Member> Group<M> {
    fn named(name: Name) -> Group<M> {
        Group { name, members: BTreeMap::new(), tombstones: BTreeMap::new(), staleness: 0 }
    }

    /// Repetitions that are not there.
    pub fn missing(&self, size: usize) -> impl Iterator<Item = usize> {
        (0..size).filter(|repetition| !self.members.contains_key(repetition))
    }

    fn tombstone_rest(&mut self, size: usize, reason: &str) {
        let reason: Arc<str> = reason.into();
        for repetition in 0..size {
            if !self.is_settled(repetition) {
                self.tombstones.insert(repetition, reason.clone());
            }
        }
    }

    fn release(&self) {
        self.members.values().for_each(Member::release);
    }

    fn is_settled(&self, repetition: usize) -> bool {
        self.members.contains_key(&repetition) || self.tombstones.contains_key(&repetition)
    }
}

#[derive(Debug)]
struct Pending<M> {
    /// The count of groups when it began.
    began: u64,
    since_s: f64,
    group: Group<M>,
}

/// A repetition that a group of this size does not have.
#[derive(Debug, PartialEq, Eq)]
pub struct OutsideGroup;

/// Groups in the making.
#[derive(Debug)]
pub struct Assembler<M> {
    rules: Rules,
    counts: Counts,
    version: u32,
    begun: u64,
    pending: HashMap<Name, Pending<M>>,
    /// The pending ones, the oldest first.
    order: BTreeMap<u64, Name>,
    ready: VecDeque<Group<M>>,
    withheld: VecDeque<Group<M>>,
    finished: HashSet<Name>,
    /// The finished ones, the oldest first.
    memory: VecDeque<Name>,
    held: usize,
}

impl<M: Member> Assembler<M> {
    pub fn new(rules: Rules) -> Self {
        Assembler {
            rules,
            counts: Counts::default(),
            version: 0,
            begun: 0,
            pending: HashMap::new(),
            order: BTreeMap::new(),
            ready: VecDeque::new(),
            withheld: VecDeque::new(),
            finished: HashSet::new(),
            memory: VecDeque::new(),
            held: 0,
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Unfinished groups, the oldest first.
    pub fn pending(&self) -> impl ExactSizeIterator<Item = &Group<M>> {
        self.order.values().map(|name| &self.pending[name].group)
    }

    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Records in its hands.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Those records.
    pub fn members(&self) -> impl Iterator<Item = &M> {
        let finished = self.ready.iter().chain(&self.withheld);
        self.pending().chain(finished).flat_map(|group| group.members.values())
    }

    /// Which weights are the newest. What is ready is judged anew.
    pub fn set_version(&mut self, version: u32) {
        if version != self.version {
            self.version = version;
            for group in std::mem::take(&mut self.ready) {
                self.sort_by_staleness(group);
            }
        }
    }

    /// Takes one record. It is released here if it is not needed.
    pub fn add(
        &mut self,
        name: &[u8],
        repetition: i64,
        member: M,
        now_s: impl FnOnce() -> f64,
    ) -> Result<(), OutsideGroup> {
        let repetition = self.place(repetition)?;
        if self.is_late(name) {
            member.release();
            return Ok(());
        }
        let name = self.begin(name, now_s);
        let pending = self.pending.get_mut(&name).expect("it has begun");
        let stale = self.rules.on_stale == OnStale::Drop
            && self.rules.max_staleness.is_some_and(|most| staleness(self.version, &member) > most);
        if pending.group.is_settled(repetition) {
            self.counts.duplicates += 1;
            if !pending.group.members.get(&repetition).is_some_and(|there| there.is_same(&member)) {
                member.release(); // Otherwise the very same is held here.
            }
        } else if stale {
            let reason = stale_reason(staleness(self.version, &member));
            self.counts.stale += 1;
            member.release();
            pending.group.tombstones.insert(repetition, reason);
        } else {
            pending.group.members.insert(repetition, member);
            self.held += 1;
        }
        self.finish_if_settled(&name);
        Ok(())
    }

    /// One repetition will never come.
    pub fn add_tombstone(
        &mut self,
        name: &[u8],
        repetition: i64,
        reason: &str,
        now_s: impl FnOnce() -> f64,
    ) -> Result<(), OutsideGroup> {
        let repetition = self.place(repetition)?;
        if self.is_late(name) {
            return Ok(());
        }
        let name = self.begin(name, now_s);
        let group = &mut self.pending.get_mut(&name).expect("it has begun").group;
        if group.is_settled(repetition) {
            self.counts.duplicates += 1;
        } else {
            group.tombstones.insert(repetition, reason.into());
        }
        self.finish_if_settled(&name);
        Ok(())
    }

    /// The rest of a group will never come, whether any of it has or not.
    pub fn tombstone_group(&mut self, name: &[u8], reason: &str) {
        if self.is_late(name) {
            return;
        }
        if !self.pending.contains_key(name) {
            // It is over at once: it needs no room among the unfinished.
            let mut group = Group::named(name.into());
            self.remember(&group.name);
            group.tombstone_rest(self.rules.size, reason);
            self.sort_by_staleness(group);
            return;
        }
        self.give_up(name, reason);
    }

    /// Treats a group as if the rest of it were tombstones. Does nothing for one that is unknown or finished.
    pub fn give_up(&mut self, name: &[u8], reason: &str) {
        if let Some(mut group) = self.end(name) {
            group.tombstone_rest(self.rules.size, reason);
            self.sort_by_staleness(group);
        }
    }

    /// The next group that is ready. Looks at the deadlines first.
    pub fn pop(&mut self, now_s: impl FnOnce() -> f64) -> Option<Group<M>> {
        self.expire(now_s);
        let group = self.ready.pop_front()?;
        self.held -= group.members.len();
        let counter = match group.members.len() {
            all if all == self.rules.size => &mut self.counts.complete,
            0 => &mut self.counts.dead,
            _ => &mut self.counts.partial,
        };
        *counter += 1;
        Some(group)
    }

    /// The next group that was withheld because it is stale.
    pub fn pop_withheld(&mut self) -> Option<Group<M>> {
        let mut group = self.withheld.pop_front()?;
        self.held -= group.members.len();
        group.staleness = self.staleness(&group);
        Some(group)
    }

    /// Seconds until an unfinished group's deadline is over.
    pub fn next_deadline_s(&self, now_s: impl FnOnce() -> f64) -> Option<f64> {
        let deadline = self.rules.deadline_s?;
        let (_, oldest) = self.order.first_key_value()?;
        Some((self.pending[oldest].since_s + deadline - now_s()).max(0.0))
    }

    /// Releases everything that is held.
    pub fn clear(&mut self) {
        for (_, pending) in self.pending.drain() {
            pending.group.release();
        }
        for group in self.ready.drain(..).chain(self.withheld.drain(..)) {
            group.release();
        }
        self.order.clear();
        self.held = 0;
    }

    fn place(&self, repetition: i64) -> Result<usize, OutsideGroup> {
        usize::try_from(repetition).ok().filter(|&at| at < self.rules.size).ok_or(OutsideGroup)
    }

    /// Whether its group is finished: it comes too late.
    fn is_late(&mut self, name: &[u8]) -> bool {
        let late = self.finished.contains(name);
        self.counts.late += u64::from(late);
        late
    }

    /// Makes sure that the group has begun.
    fn begin(&mut self, name: &[u8], now_s: impl FnOnce() -> f64) -> Name {
        if let Some((name, _)) = self.pending.get_key_value(name) {
            return name.clone();
        }
        if self.pending.len() >= self.rules.max_groups
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.counts.evicted += 1;
            let oldest = oldest.clone();
            self.finish(&oldest);
        }
        let name: Name = name.into();
        let group = Group::named(name.clone());
        self.pending.insert(name.clone(), Pending { began: self.begun, since_s: now_s(), group });
        self.order.insert(self.begun, name.clone());
        self.begun += 1;
        name
    }

    fn finish_if_settled(&mut self, name: &[u8]) {
        let group = &self.pending[name].group;
        if group.members.len() + group.tombstones.len() == self.rules.size {
            self.finish(name);
        }
    }

    fn finish(&mut self, name: &[u8]) {
        if let Some(group) = self.end(name) {
            self.sort_by_staleness(group);
        }
    }

    /// Takes a group out of the pending ones, and remembers it.
    fn end(&mut self, name: &[u8]) -> Option<Group<M>> {
        let Pending { began, group, .. } = self.pending.remove(name)?;
        self.order.remove(&began);
        self.remember(&group.name);
        Some(group)
    }

    /// So that a straggler does not begin it anew.
    fn remember(&mut self, name: &Name) {
        self.finished.insert(name.clone());
        self.memory.push_back(name.clone());
        if self.memory.len() > self.rules.memory
            && let Some(forgotten) = self.memory.pop_front()
        {
            self.finished.remove(&forgotten);
        }
    }

    fn expire(&mut self, now_s: impl FnOnce() -> f64) {
        let Some(deadline) = self.rules.deadline_s else { return };
        if self.pending.is_empty() {
            return;
        }
        let over = now_s() - deadline;
        while let Some((_, oldest)) = self.order.first_key_value() {
            if self.pending[oldest].since_s > over {
                return;
            }
            let oldest = oldest.clone();
            self.finish(&oldest);
        }
    }

    /// Puts a group where it belongs by the newest weights: to those that are ready, or withheld, or nowhere.
    fn sort_by_staleness(&mut self, mut group: Group<M>) {
        group.staleness = self.staleness(&group);
        let is_stale = self.rules.max_staleness.is_some_and(|most| group.staleness > most);
        if is_stale && self.rules.on_stale == OnStale::Drop {
            self.tombstone_stale(&mut group);
        }
        if group.members.len() < self.rules.size && self.rules.on_incomplete != OnIncomplete::Partial {
            let counter =
                if group.members.is_empty() { &mut self.counts.dead } else { &mut self.counts.dropped };
            *counter += 1;
            self.drop_group(&group);
        } else if is_stale && self.rules.on_stale == OnStale::Withhold {
            self.counts.withheld += 1;
            self.withheld.push_back(group);
            if self.withheld.len() > self.rules.max_groups
                && let Some(oldest) = self.withheld.pop_front()
            {
                self.counts.evicted += 1;
                self.drop_group(&oldest);
            }
        } else {
            self.ready.push_back(group);
        }
    }

    fn drop_group(&mut self, group: &Group<M>) {
        self.held -= group.members.len();
        group.release();
    }

    /// Makes tombstones of its stale records.
    fn tombstone_stale(&mut self, group: &mut Group<M>) {
        let (version, most) = (self.version, self.rules.max_staleness.unwrap_or(u32::MAX));
        let (kept, stale): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut group.members)
            .into_iter()
            .partition(|(_, member)| staleness(version, member) <= most);
        group.members = kept;
        self.held -= stale.len();
        self.counts.stale += stale.len() as u64;
        for (repetition, member) in stale {
            member.release();
            group.tombstones.insert(repetition, stale_reason(staleness(version, &member)));
        }
        group.staleness = self.staleness(group);
    }

    /// How old the oldest is.
    fn staleness(&self, group: &Group<M>) -> u32 {
        group.members.values().map(|member| staleness(self.version, member)).max().unwrap_or(0)
    }
}

/// How old a record is. It may be newer than the newest weights that we were told of.
fn staleness(version: u32, member: &impl Member) -> u32 {
    version.saturating_sub(member.version())
}

fn stale_reason(behind: u32) -> Arc<str> {
    format!("stale: {behind} versions behind").into()
}
