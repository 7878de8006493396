//! The bytes on the wire, for any bytes: what is written is read back, what is not whole is not read, and nothing panics.

use crate::frame_probe::frame_bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use rollway_core::net::wire::frame::{
    self, Content, ENTRY_BYTES, Entry, GoodbyeReason, HEADER_BYTES, Header, Hello, Kind, LearnerStatus,
    MAX_SEQUENCE, MAX_TEXT_BYTES, ORIGIN_BYTES, OriginRun, PREAMBLE_BYTES, Preamble, RECORD_ORIGIN_BYTES,
    RecordLimits, RecordOrigin, Refusal, Welcome,
};

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Proof),
        Just(Kind::Hello),
        Just(Kind::Welcome),
        Just(Kind::Refuse),
        Just(Kind::Data),
        Just(Kind::Records),
        Just(Kind::Stamped),
        Just(Kind::StampedRecords),
        Just(Kind::Ack),
        Just(Kind::Full),
        Just(Kind::Ping),
        Just(Kind::Pong),
        Just(Kind::Goodbye),
        (0x80u8..=0xFF).prop_map(Kind::Extension),
    ]
}

/// A length that the kind allows.
fn length_of(kind: Kind, dice: u64) -> u64 {
    match kind {
        Kind::Proof => 32,
        Kind::Hello => 40 + dice % 1000,
        Kind::Welcome => 24,
        Kind::Refuse => 4 + dice % 1000,
        Kind::Data | Kind::Records => dice,
        Kind::Stamped => dice.max(ORIGIN_BYTES as u64),
        Kind::StampedRecords => dice.max((ENTRY_BYTES + RECORD_ORIGIN_BYTES) as u64),
        Kind::Goodbye => dice % (MAX_TEXT_BYTES as u64 + 1),
        Kind::Extension(_) => dice % (frame::MAX_EXTENSION_BYTES + 1),
        _ => 0,
    }
}

prop_compose! {
    fn headers()(
        kind in kinds(), flags: u8, code: u16, rows: u32, version: u32, credit: u32, sequence: u64, dice: u64,
    ) -> Header {
        Header { kind, flags, code, rows, version, credit, sequence, length: length_of(kind, dice) }
    }
}

prop_compose! {
    fn hellos()(
        content in prop_oneof![Just(Content::Samples), Just(Content::Records), Just(Content::Forwarded)],
        session: [u8; 16],
        producer_id in proptest::option::of(0u32..u32::MAX),
        attempt: u32,
        next in 0..=MAX_SEQUENCE,
        retained: u64,
        schema in vec(any::<u8>(), 0..200),
    ) -> Hello {
        Hello { content, session, producer_id, attempt, next, oldest: next - retained % (next + 1), schema }
    }
}

const LIMITS: RecordLimits = RecordLimits { rows: 20, frame_bytes: 20_000, record_bytes: 1000 };

prop_compose! {
    fn entries()(bytes in 0u64..=1000, version: u32, kind: u32) -> Entry {
        Entry { bytes, version, kind }
    }
}

prop_compose! {
    fn origins()(rows in 1u32..=50, producer_id: u32, version: u32, sequence in 0..=MAX_SEQUENCE) -> OriginRun {
        OriginRun { rows, producer_id, version, sequence }
    }
}

proptest! {
    #[test]
    fn origins_are_read_as_they_were_written_and_for_no_other_number_of_rows(
        origins in vec(origins(), 1..20),
        row_bytes in 0u64..100,
        other: u32,
    ) {
        let index: Vec<u8> = origins.iter().flat_map(OriginRun::encoded).collect();
        let rows: u32 = origins.iter().map(|run| run.rows).sum();
        let rows_bytes = u64::from(rows) * row_bytes;
        let header = Header { rows, length: index.len() as u64 + rows_bytes, ..Header::new(Kind::Stamped) };
        prop_assert_eq!(OriginRun::index_bytes(&header, rows_bytes), Ok(index.len()));
        prop_assert_eq!(OriginRun::parse(rows, &index), Ok(origins));
        for wrong in [other, rows + 1, rows - 1, 0, u32::MAX] {
            prop_assert!(wrong == rows || OriginRun::parse(wrong, &index).is_err());
        }
        for length in [header.length + 1, header.length - 1, rows_bytes, 0, u64::MAX] {
            let wrong = Header { length, ..header };
            prop_assert!(OriginRun::index_bytes(&wrong, rows_bytes).is_err());
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written(header in headers()) {
        prop_assert_eq!(Header::parse(&header.bytes()), Ok(Some(header)));
    }

    #[test]
    fn a_header_that_is_not_whole_is_not_read(header in headers(), cut in 0..HEADER_BYTES) {
        prop_assert_eq!(Header::parse(&header.bytes()[..cut]), Ok(None));
    }

    #[test]
    fn what_follows_a_header_does_not_matter(header in headers(), tail in vec(any::<u8>(), 0..100)) {
        prop_assert_eq!(Header::parse(&[&header.bytes()[..], &tail].concat()), Ok(Some(header)));
    }

    #[test]
    fn a_length_that_does_not_fit_its_kind_is_damage(header in headers(), length: u64) {
        let fits = match header.kind {
            Kind::Data | Kind::Records => true,
            Kind::Stamped => length >= ORIGIN_BYTES as u64,
            Kind::StampedRecords => length >= (ENTRY_BYTES + RECORD_ORIGIN_BYTES) as u64,
            Kind::Proof => length == 32,
            Kind::Welcome => length == 24,
            Kind::Hello => (40..=40 + (1 << 20)).contains(&length),
            Kind::Refuse => (4..=4 + 4096 + (1 << 20)).contains(&length),
            Kind::Goodbye => length <= 4096,
            Kind::Extension(_) => length <= 16 << 20,
            _ => length == 0,
        };
        prop_assert_eq!(Header::parse(&Header { length, ..header }.bytes()).is_ok(), fits);
    }

    #[test]
    fn a_preamble_is_read_as_it_was_written(protocol: u16, token: bool, nonce: [u8; 32]) {
        let preamble = Preamble { protocol, token, nonce };
        prop_assert_eq!(Preamble::parse(&preamble.bytes()), Ok(preamble));
    }

    #[test]
    fn a_preamble_without_its_magic_is_damage(bytes in vec(any::<u8>(), PREAMBLE_BYTES)) {
        let bytes: [u8; PREAMBLE_BYTES] = bytes.try_into().unwrap();
        prop_assume!(bytes[..4] != frame::MAGIC);
        prop_assert!(Preamble::parse(&bytes).is_err());
    }

    #[test]
    fn a_hello_is_read_as_it_was_written_and_not_when_it_is_cut(hello in hellos(), cut in 0usize..40) {
        let bytes = hello.frame();
        let header = Header::parse(&bytes).unwrap().unwrap();
        prop_assert_eq!((header.kind, header.length as usize), (Kind::Hello, bytes.len() - HEADER_BYTES));
        prop_assert!(Hello::parse(header.code, &bytes[HEADER_BYTES..HEADER_BYTES + cut]).is_err());
        prop_assert!(Hello::parse(7, &bytes[HEADER_BYTES..]).is_err());
        prop_assert_eq!(Hello::parse(header.code, &bytes[HEADER_BYTES..]), Ok(hello));
    }

    #[test]
    fn a_welcome_is_read_as_it_was_written(
        producer_id: u32, max_rows in 1u32.., max_bytes: u32, credit in 1u32.., next: u64, version: u32,
        waiting: u32,
    ) {
        let status = LearnerStatus { version, waiting };
        let welcome = Welcome { producer_id, max_rows, max_bytes, credit, next, status };
        let bytes = welcome.frame();
        let header = Header::parse(&bytes).unwrap().unwrap();
        prop_assert_eq!(Welcome::parse(&header, &bytes[HEADER_BYTES..]), Ok(welcome));
    }

    #[test]
    fn a_refusal_carries_its_text_and_its_schema(text in ".{0,3000}", schema in vec(any::<u8>(), 0..200)) {
        for &code in Refusal::ALL {
            let bytes = frame::refuse(code, &text, &schema);
            let header = Header::parse(&bytes).unwrap().unwrap();
            prop_assert_eq!(Refusal::from_code(header.code), Some(code));
            let (read, theirs) = frame::parse_refuse(&bytes[HEADER_BYTES..]).unwrap();
            prop_assert!(text.starts_with(&read) && (read.len() == text.len() || read.len() > MAX_TEXT_BYTES - 4));
            prop_assert_eq!(&theirs, &schema);
        }
    }

    #[test]
    fn a_goodbye_fits_into_its_limit(text in ".{0,3000}") {
        for &code in GoodbyeReason::ALL {
            let header = Header::parse(&frame::goodbye(code, &text)).unwrap().unwrap();
            prop_assert_eq!(GoodbyeReason::from_code(header.code), Some(code));
        }
    }

    #[test]
    fn an_index_is_read_as_it_was_written_and_every_other_length_is_damage(
        entries in vec(entries(), 1..20),
        other: u64,
    ) {
        let index: Vec<u8> = entries.iter().flat_map(Entry::encoded).collect();
        let records: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let length = index.len() as u64 + records;
        let header = Header { rows: entries.len() as u32, length, ..Header::new(Kind::Records) };
        prop_assert_eq!(LIMITS.parts(&header), Ok((index.len(), 0, records as usize)));
        prop_assert_eq!(LIMITS.check(&index, records as usize), Ok(()));
        prop_assert_eq!(Entry::all(&index).collect::<Vec<_>>(), entries);
        // Any other length is found, by its header or by its index.
        for wrong in [other, length + 1, length.wrapping_sub(1), index.len() as u64 - 1] {
            let parts = LIMITS.parts(&Header { length: wrong, ..header });
            prop_assert!(wrong == length || parts.and_then(|(_, _, records)| LIMITS.check(&index, records)).is_err());
        }
    }

    #[test]
    fn the_origins_of_forwarded_records_are_read_as_they_were_written(
        origins in vec((any::<u32>(), 0..=MAX_SEQUENCE), 1..20),
        bytes in vec(any::<u8>(), 16..=16),
    ) {
        let origins: Vec<RecordOrigin> =
            origins.into_iter().map(|(producer_id, sequence)| RecordOrigin { producer_id, sequence }).collect();
        let index: Vec<u8> = origins.iter().flat_map(RecordOrigin::encoded).collect();
        prop_assert_eq!(RecordOrigin::parse(&index), Ok(origins.clone()));
        let rows = origins.len();
        let length = (rows * ENTRY_BYTES + index.len()) as u64;
        let header = Header { rows: rows as u32, length, ..Header::new(Kind::StampedRecords) };
        prop_assert_eq!(LIMITS.parts(&header), Ok((rows * ENTRY_BYTES, index.len(), 0)));
        let cut = Header { length: length - 1, ..header };
        prop_assert!(LIMITS.parts(&cut).is_err());
        if let Ok(parsed) = RecordOrigin::parse(&bytes) {
            prop_assert_eq!(parsed[0].encoded().to_vec(), bytes);
        }
    }

    #[test]
    fn a_frame_of_too_many_or_too_large_records_is_damage(rows: u32, length: u64, bytes: u64) {
        let header = Header { rows, length, ..Header::new(Kind::Records) };
        if let Ok((index, 0, records)) = LIMITS.parts(&header) {
            prop_assert!((1..=LIMITS.rows as u32).contains(&rows) && index == rows as usize * ENTRY_BYTES);
            let most = if rows == 1 { LIMITS.record_bytes } else { LIMITS.frame_bytes };
            prop_assert!(records <= most && (index + records) as u64 == length);
        }
        let one = Entry { bytes, version: 0, kind: 0 }.encoded();
        let fits = LIMITS.check(&one, bytes as usize).is_ok();
        prop_assert_eq!(fits, bytes <= LIMITS.record_bytes as u64);
    }

    #[test]
    fn any_index_is_read_without_harm(index in vec(any::<u8>(), 0..200), records: usize) {
        if LIMITS.check(&index, records).is_ok() {
            prop_assert_eq!(Entry::all(&index).map(|entry| entry.bytes).sum::<u64>(), records as u64);
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in vec(any::<u8>(), 0..300)) {
        frame_bytes(&bytes);
    }

    #[test]
    fn frames_with_any_payload_are_read_without_harm(
        frames in vec((headers(), vec(any::<u8>(), 0..100)), 0..4),
        tail in vec(any::<u8>(), 0..40),
    ) {
        let mut bytes: Vec<u8> = frames.into_iter().flat_map(|(header, payload)| header.with(&payload)).collect();
        bytes.extend(tail);
        frame_bytes(&bytes);
    }
}
