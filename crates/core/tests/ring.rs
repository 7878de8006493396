use rollway_core::ring::*;
#[test]
fn quick() {
    let spec = RingSpec {
        name: Some("quickx"),
        auto_named: false,
        schema: b"x",
        leaf_bytes: &[8],
        batch_size: 2,
        num_buffers: 2,
        max_peers: 4,
        on_full: OnFull::Block,
        huge_pages: false,
    };
    let c = Consumer::open(&spec, IfExists::Resume, None);
    println!("{:?}", c.as_ref().err());
    if let Ok(c) = c {
        c.close().unwrap();
    }
}
