//! Entry points for the fuzz targets: everything that a peer, or somebody who pretends to be one, can make us
//! read.

use super::frame::{Frame, FrameReader};
use super::handshake::{Hello, Purpose, Versions};
use super::message::{self, kind};
use crate::data_dir::Identity;
use bytes::Bytes;
use futures_util::FutureExt;
use std::io;

/// Reads a connection's bytes as the listening side does: a handshake, then calls and their answers.
pub fn connection(bytes: &[u8]) {
    let mut reader = FrameReader::new(bytes);
    if let Ok(hello) = ready(Hello::receive(&mut reader)) {
        hello_is_judged(&hello);
        let mut written = Vec::new();
        ready(hello.send(&mut written)).expect("memory takes every write");
        let mut again = FrameReader::new(written.as_slice());
        // A text that was no UTF-8 has been mended, and may have grown beyond what a stranger may send.
        again.trust();
        assert_eq!(ready(Hello::receive(&mut again)).expect("what was sent is received"), hello);
        reader.trust();
    }
    while let Ok(frame) = ready(reader.next()) {
        body(&frame);
    }
}

/// Reads one body as every call there is.
pub fn bodies(bytes: &[u8]) {
    let body_of = |kind| Frame { kind, call: 0, body: Bytes::copy_from_slice(bytes) };
    (kind::APPEND..=kind::KNOWS).for_each(|kind| body(&body_of(kind)));
    body(&body_of(kind::ANSWER));
}

/// A handshake, to start from.
pub fn sample() -> Vec<u8> {
    let from = Identity { node: 2, identity: 20, cluster: Some(7) };
    let mut hello = Hello::new(Purpose::Consensus, from, 1, Versions::default());
    hello.remembered = Some(10);
    let mut bytes = Vec::new();
    ready(hello.send(&mut bytes)).expect("memory takes every write");
    bytes
}

fn hello_is_judged(hello: &Hello) {
    let ours = Identity { node: 1, identity: 10, cluster: Some(7) };
    for remembered in [None, Some(20)] {
        let _ = hello.objection(ours, Versions::default(), remembered);
    }
}

fn body(frame: &Frame) {
    let body = frame.body.clone();
    match frame.kind {
        kind::APPEND | kind::HEARTBEAT => {
            if let Ok(request) = message::decode_append(body) {
                let written = message::encode_append(request);
                message::decode_append(written).expect("what was written is read");
            }
        }
        kind::VOTE | kind::PRE_VOTE => same(body, message::decode_vote, message::encode_vote),
        kind::TRANSFER => same(body, message::decode_transfer, message::encode_transfer),
        kind::SNAPSHOT_BEGIN | kind::SNAPSHOT_END => {
            same(body, message::decode_bare_vote, message::encode_bare_vote);
        }
        kind::KNOWS => same(body, message::decode_knows, |(node, identity, key)| {
            message::encode_knows(*node, *identity, *key)
        }),
        kind::SNAPSHOT_PIECE => drop(message::decode_piece(body)),
        // The asking side knows which answer it waits for; here it could be any.
        kind::ANSWER => {
            same(body.clone(), message::decode_appended, message::encode_appended);
            same(body, message::decode_voted, message::encode_voted);
        }
        _ => {}
    }
}

/// What decodes is written so that it reads back the same.
fn same<T: std::fmt::Debug>(
    body: Bytes,
    decode: impl Fn(Bytes) -> io::Result<T>,
    encode: impl Fn(&T) -> Bytes,
) {
    let Ok(read) = decode(body) else { return };
    let again = decode(encode(&read)).expect("what was written is read");
    assert_eq!(format!("{again:?}"), format!("{read:?}"));
}

/// The outcome of what never waits, because its stream is in memory.
fn ready<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory is always ready")
}
