//! Any bytes, as another process or host may have written them, are refused or used: nothing panics, reads outside, or
//! goes on for ever. The fuzz targets call the same functions: `fuzz/fuzz_targets`.
use crate::probes::{Edit, KINDS, Kind, inventory_bytes, record_bytes, segment};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Longer than any probe takes on a busy machine; one that reaches it spins.
const LIMIT: Duration = Duration::from_secs(10);

/// Words that mean something at the edges, and any others.
fn values() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0u64..300, Just(1 << 63), any::<u64>()]
}

/// Mostly to the header, the seats and the control words.
fn edits(kind: Kind) -> impl Strategy<Value = Vec<Edit>> {
    let offsets =
        prop_oneof![0usize..192, 4096usize..4700, 8192usize..9400, 0..crate::probes::image_bytes(kind)];
    let edit = (offsets, any::<u8>(), values());
    vec(edit.prop_map(|(offset, how, value)| Edit { offset, how, value }), 1..6)
}

fn segments() -> impl Strategy<Value = (Kind, Vec<Edit>)> {
    (0..KINDS.len()).prop_flat_map(|kind| (Just(KINDS[kind]), edits(KINDS[kind])))
}

/// Runs it in a thread, and fails when it does not come back. The thread of a probe that spins is left behind.
fn in_time(what: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let probe = thread::spawn(move || {
        what();
        let _ = done.send(());
    });
    match ended.recv_timeout(LIMIT) {
        Err(RecvTimeoutError::Timeout) => panic!("no end within {LIMIT:?}"),
        _ => probe.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_segment_of_any_words_is_refused_or_used((kind, edits) in segments()) {
        in_time(move || {
            segment(kind, &edits);
        });
    }

    #[test]
    fn a_record_of_any_leaves_and_bytes_is_refused_or_lies_inside(
        bytes in vec(prop_oneof![Just(0u8), 0u8..8, any::<u8>()], 0..300),
    ) {
        record_bytes(&bytes);
    }

    #[test]
    fn an_inventory_of_any_bytes_is_refused_or_read_as_it_was_written(
        lineage: u64,
        leaves in 0u32..6,
        flags in 0u32..3,
        rest in vec(prop_oneof![Just(0u8), 0u8..4, any::<u8>()], 0..120),
    ) {
        let head = [lineage.to_le_bytes().as_slice(), &leaves.to_le_bytes(), &flags.to_le_bytes()].concat();
        inventory_bytes(&[head, rest.clone()].concat());
        inventory_bytes(&rest);
    }

    #[test]
    fn a_list_of_any_leaves_is_refused_or_read_as_it_was_written(
        of in 0u8..8,
        entries in vec((0u32..9, prop_oneof![9 => Just(0u32), 1 => any::<u32>()], any::<u64>()), 0..6),
    ) {
        let entry = |(leaf, zero, sum): &(u32, u32, u64)| {
            [leaf.to_le_bytes().as_slice(), &zero.to_le_bytes(), &sum.to_le_bytes()].concat()
        };
        let list: Vec<u8> = entries.iter().flat_map(entry).collect();
        inventory_bytes(&[&[of], list.as_slice()].concat());
    }
}

#[test]
fn a_segment_that_nobody_changed_is_used_in_every_role() {
    for (kind, roles) in KINDS.into_iter().zip([2, 2, 3, 2, 2, 1]) {
        in_time(move || assert_eq!(segment(kind, &[]), roles, "{kind:?}"));
    }
}
