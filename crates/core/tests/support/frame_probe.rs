//! Any bytes, read as the frames of a connection: what is understood is written back as it was read. For the property tests
//! (`net/frame.rs`) and the fuzzer. Panics only where the core is wrong.

use rollway_core::net::wire::frame::{
    Entry, HEADER_BYTES, Header, Hello, Inventory, Kind, LeafList, OriginRun, PREAMBLE_BYTES, Preamble,
    RecordLimits, RecordOrigin, Refusal, Welcome, parse_refuse, refuse,
};

/// Reads `bytes` as everything that may come over a wire.
pub fn frame_bytes(bytes: &[u8]) {
    if let Some(preamble) = bytes.first_chunk::<PREAMBLE_BYTES>()
        && let Ok(read) = Preamble::parse(preamble)
    {
        assert_eq!(Preamble::parse(&read.bytes()), Ok(read));
    }
    let mut rest = bytes;
    while let Ok(Some(header)) = Header::parse(rest) {
        assert_eq!(header.bytes(), rest[..HEADER_BYTES]);
        let Some(payload) =
            usize::try_from(header.length).ok().and_then(|length| rest[HEADER_BYTES..].get(..length))
        else {
            break;
        };
        probe_payload(&header, payload);
        rest = &rest[HEADER_BYTES + payload.len()..];
    }
    for kind in [Kind::Hello, Kind::Welcome, Kind::Refuse, Kind::Inventory] {
        probe_payload(&Header::new(kind), bytes);
    }
    // As a frame of as many records as the first byte says.
    let rows = bytes.first().map_or(0, |&rows| rows as u32);
    probe_payload(&Header { rows, length: bytes.len() as u64, ..Header::new(Kind::Records) }, bytes);
    probe_payload(&Header { rows, length: bytes.len() as u64, ..Header::new(Kind::StampedRecords) }, bytes);
    probe_payload(&Header { rows, ..Header::new(Kind::Version) }, bytes);
    probe_payload(&Header { rows, length: bytes.len() as u64, ..Header::new(Kind::Stamped) }, bytes);
}

fn probe_payload(header: &Header, payload: &[u8]) {
    match header.kind {
        Kind::Hello => {
            if let Ok(hello) = Hello::parse(header.code, payload) {
                let code = hello.content as u16;
                assert_eq!(Hello::parse(code, &hello.frame()[HEADER_BYTES..]), Ok(hello));
            }
        }
        Kind::Welcome => {
            if let Ok(welcome) = Welcome::parse(header, payload) {
                assert_eq!(Welcome::parse(header, &welcome.frame()[HEADER_BYTES..]), Ok(welcome));
            }
        }
        Kind::Records | Kind::StampedRecords => {
            let limits = RecordLimits { rows: 64, frame_bytes: 1 << 16, record_bytes: 1 << 12 };
            let Ok((index, origins, records)) = limits.parts(header) else { return };
            assert_eq!(index + origins + records, payload.len());
            let origins = &payload[index..index + origins];
            if let Ok(parsed) = RecordOrigin::parse(origins) {
                assert_eq!(parsed.iter().flat_map(RecordOrigin::encoded).collect::<Vec<_>>(), origins);
            }
            if limits.check(&payload[..index], records).is_ok() {
                assert_eq!(Entry::all(&payload[..index]).count(), header.rows as usize);
                assert_eq!(
                    Entry::all(&payload[..index]).map(|entry| entry.bytes).sum::<u64>(),
                    records as u64
                );
                let again: Vec<u8> =
                    Entry::all(&payload[..index]).flat_map(|entry| entry.encoded()).collect();
                assert_eq!(again, payload[..index]);
            }
        }
        Kind::Stamped => {
            // As samples of two bytes.
            let Ok(index) = OriginRun::index_bytes(header, 2 * u64::from(header.rows)) else { return };
            if let Ok(origins) = OriginRun::parse(header.rows, &payload[..index]) {
                let again: Vec<u8> = origins.iter().flat_map(OriginRun::encoded).collect();
                assert_eq!(again, payload[..index]);
                let rows = origins.iter().map(|run| u64::from(run.rows)).sum::<u64>();
                assert_eq!(rows, u64::from(header.rows));
            }
        }
        Kind::Inventory => {
            if let Ok(inventory) = Inventory::parse(payload) {
                assert_eq!(Inventory::parse(&inventory.frame()[HEADER_BYTES..]), Ok(inventory));
            }
        }
        Kind::Version => {
            if let Ok(list) = LeafList::parse(header.rows, 64, payload) {
                assert_eq!(list.frame(header.sequence)[HEADER_BYTES..], *payload);
            }
        }
        Kind::Refuse => {
            if let Ok((text, schema)) = parse_refuse(payload) {
                let again = refuse(Refusal::Busy, &text, &schema);
                let (clipped, again) = parse_refuse(&again[HEADER_BYTES..]).unwrap();
                assert!(text.starts_with(&clipped) && again == schema);
            }
        }
        _ => {}
    }
}
