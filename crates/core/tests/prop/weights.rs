//! Weights against a plain model, for any sequence of calls: whole writes, updates, reads since a version, readers that hold
//! their buffer, two writers that come and go.
use crate::weights_fixture::{Values, create, reader, spec};
use proptest::prelude::*;
use rollway_core::segment::Owner;
use rollway_core::weights::{Reader, WeightsSpec, Writer};

#[derive(Debug, Clone)]
enum Call {
    Write(u64),
    Update {
        leaf: usize,
        value: u64,
    },
    /// A reader that has the version it read last.
    ReadSince,
    /// A pin that stays, on one of the seats of slow readers.
    HeldVersion(usize),
    Release(usize),
    /// Another writer leaves, and one comes in its place.
    NextWriter(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        2 => any::<u64>().prop_map(Call::Write),
        4 => (0..3usize, any::<u64>()).prop_map(|(leaf, value)| Call::Update { leaf, value }),
        4 => Just(Call::ReadSince),
        2 => (0..6usize).prop_map(Call::HeldVersion),
        1 => (0..6usize).prop_map(Call::Release),
        1 => (0..2usize).prop_map(Call::NextWriter),
    ];
    proptest::collection::vec(call, 1..60)
}

fn by_turns(writers: &[Option<Writer>; 2], value: u64) -> &Writer {
    writers[value as usize % 2].as_ref().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn readers_have_what_the_model_has(calls in calls(), max_buffers in 3..7usize, checksum: bool) {
        let first = create(&WeightsSpec { max_buffers, checksum, ..spec(None) });
        let weights = first.weights().clone();
        let protocol = weights.protocol();
        let ours = reader(&first);
        let slow: Vec<Reader> = (0..6).map(|_| reader(&first)).collect();
        let mut held = [None; 6];
        // The first writer has seat 0, our reader seat 1, and the slow ones those after it.
        let mut writers = [Some(first), Some(Writer::attach_to(weights.clone(), 1).unwrap())];
        let (mut model, mut version) = ([0u64; 3], 0);
        let (mut mine, mut mine_version) = (Values::of([0; 3]), 0);
        for call in calls {
            match call {
                Call::Write(value) => {
                    model = [value; 3];
                    version += 1;
                    // SAFETY: the values live here.
                    let made = unsafe { by_turns(&writers, value).write(&Values::of(model).sources()) };
                    prop_assert_eq!(made.unwrap(), version);
                }
                Call::Update { leaf, value } => {
                    let new = Values::of([value; 3]);
                    // SAFETY: as above.
                    let made = unsafe { by_turns(&writers, value).write(&new.sources()[leaf..=leaf]) };
                    if version == 0 {
                        prop_assert!(made.is_err());
                    } else {
                        version += 1;
                        model[leaf] = value;
                        prop_assert_eq!(made.unwrap(), version);
                    }
                }
                Call::ReadSince => {
                    // SAFETY: as above.
                    let reading = unsafe { ours.read(&mine.targets(), mine_version).unwrap() };
                    prop_assert_eq!(reading.map_or(0, |reading| reading.version), version);
                    mine_version = version;
                    prop_assert_eq!(mine.numbers(), model);
                }
                Call::HeldVersion(number) => {
                    let seat = number + 2;
                    held[number] = protocol.pin(&protocol.pins[seat].pins[0], Owner::new(seat, 1)).unwrap();
                }
                Call::Release(number) => {
                    protocol.unpin(&protocol.pins[number + 2].pins[0]);
                    held[number] = None;
                }
                Call::NextWriter(number) => {
                    drop(writers[number].take());
                    let other = weights.protocol().last_writer();
                    prop_assert!(other.is_some_and(|last| !last.is_writing), "the other one is the last writer now");
                    writers[number] = Some(Writer::attach_to(weights.clone(), 1).unwrap());
                }
            }
            let totals = weights.totals();
            if totals.overtaken == 0 {
                prop_assert!(held.iter().flatten().all(|&latest| protocol.is_whole(latest)));
            }
            prop_assert!(totals.buffers <= max_buffers);
        }
        drop(slow);
    }
}
