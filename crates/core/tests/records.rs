//! Records, one call at a time and a few at once: what each of them does, and every error.
#![cfg(not(loom))]

use rollway_core::records::{
    Consumer, IfExists, Label, OnFull, Patience, Producer, ProducerSpec, RecordsSpec,
};
use rollway_core::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);
const SCHEMA: &[u8] = b"bytes";
const ANYONE: ProducerSpec = ProducerSpec { producer_id: None, on_full: None, peer_timeout: None };

fn soon() -> Patience {
    Patience::of(Some(DEADLINE))
}

fn spec(name: Option<&str>) -> RecordsSpec<'_> {
    RecordsSpec {
        name,
        auto_named: false,
        schema: SCHEMA,
        lanes: 4,
        lane_bytes: 64 << 10,
        descriptors: 8,
        max_peers: 16,
        on_full: OnFull::Block,
        preallocate: false,
    }
}

fn private() -> Arc<Consumer> {
    Arc::new(Consumer::open(&spec(None), IfExists::Resume, None).unwrap())
}

fn producer(consumer: &Consumer) -> Producer {
    Producer::on(consumer.records().clone(), ANYONE).unwrap()
}

fn try_send(producer: &Producer, bytes: &[u8], patience: Patience) -> Result<bool> {
    let Some(mut room) = Producer::reserve(producer, bytes.len(), patience)? else { return Ok(false) };
    room.bytes_mut().copy_from_slice(bytes);
    room.commit(bytes.len(), Label::default())?;
    Ok(true)
}

#[test]
fn what_was_sent_is_taken_in_order() {
    let consumer = private();
    let producer = producer(&consumer);
    assert!(Consumer::take(&*consumer, Patience::Never).unwrap().is_none());
    for value in 0..100u8 {
        assert!(try_send(&producer, &vec![value; value as usize], soon()).unwrap());
        let record = Consumer::take(consumer.clone(), soon()).unwrap().unwrap();
        assert_eq!(record.bytes(), vec![value; value as usize]);
        assert_eq!(record.info().stamp.sequence, value as u64);
    }
    let waiting = consumer.clone();
    let taker =
        std::thread::spawn(move || Consumer::take(waiting, soon()).unwrap().unwrap().bytes().to_vec());
    assert!(try_send(&producer, b"woken", soon()).unwrap());
    assert_eq!(taker.join().unwrap(), b"woken");
    assert!(try_send(&producer, b"last", soon()).unwrap());
    consumer.close().unwrap();
    assert!(matches!(try_send(&producer, b"late", soon()), Err(Error::Closed)));
    assert_eq!(Consumer::take(&*consumer, soon()).unwrap().unwrap().bytes(), b"last");
    assert!(matches!(Consumer::take(&*consumer, soon()), Err(Error::Closed)));
}
