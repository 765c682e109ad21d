//! First inputs: the golden files of the wire formats, cut into what each target reads.
//!
//! A fuzzer that starts from nothing spends its time on finding magic numbers. The seeds are embedded, so a
//! target finds them wherever it runs; `cargo xtask fuzz` names the folder into which they are written.

use std::path::PathBuf;

use prost::Message;
use tenure_core::{Command, Entry, FormatVersion, Machine};
use tenure_wire::{decode_entry, encode_command, proto, write_snapshot};

use crate::history::{Author, encoded};

/// The variable that names the folder for the first inputs.
pub const FOLDER: &str = "TENURE_FUZZ_SEEDS";

/// Writes first inputs into the folder that `cargo xtask fuzz` names; does nothing where none is named.
pub fn write(inputs: impl IntoIterator<Item = Vec<u8>>) {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    for (number, input) in inputs.into_iter().enumerate() {
        let path = folder.join(format!("seed-{number:03}"));
        std::fs::write(&path, input).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// A log entry with one of every command.
pub fn entry() -> Vec<u8> {
    from_hex(include_str!("../../crates/wire/tests/golden/entry.v1.hex"))
}

/// A snapshot with one of every record.
pub fn snapshot() -> Vec<u8> {
    from_hex(include_str!("../../crates/wire/tests/golden/snapshot.v1.hex"))
}

/// Backups of the same state: without sessions, as they are written today, and with them, as release 0.1.0
/// wrote them.
pub fn backups() -> Vec<Vec<u8>> {
    let with_sessions = include_str!("../../crates/wire/tests/golden/backup-with-sessions.v1.hex");
    vec![from_hex(include_str!("../../crates/wire/tests/golden/backup.v2.hex")), from_hex(with_sessions)]
}

/// Forwarded requests, then replies to such.
pub fn forwarded() -> Vec<Vec<u8>> {
    paragraphs(include_str!("../../crates/wire/tests/golden/forward.v1.hex"))
}

/// Bodies of HTTP requests: one of every kind, and more.
pub fn bodies() -> Vec<Vec<u8>> {
    let text = include_str!("../../crates/wire/tests/golden/requests.txt");
    text.lines().filter(|line| line.starts_with('{')).map(|line| line.as_bytes().to_vec()).collect()
}

/// The pieces of a golden file that are parted by empty lines.
fn paragraphs(text: &str) -> Vec<Vec<u8>> {
    text.split("\n\n").map(from_hex).filter(|bytes| !bytes.is_empty()).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Every command of the golden entry, alone.
pub fn commands() -> Vec<Vec<u8>> {
    let entry = decode_entry(FormatVersion::NEWEST, &entry()).expect("the golden entry is read");
    let alone = |command: &Command| {
        let mut bytes = Vec::new();
        encode_command(FormatVersion::NEWEST, command, &mut bytes);
        bytes
    };
    entry.commands.iter().map(alone).collect()
}

/// Random decisions, always the same ones.
pub fn decisions() -> Vec<Vec<u8>> {
    (0..HISTORIES).map(|seed| noise(seed, 600)).collect()
}

/// The logs that come of these decisions.
pub fn logs() -> Vec<Vec<u8>> {
    histories().into_iter().map(|(entries, _)| encoded(&entries)).collect()
}

/// The golden snapshot, and what the machines look like after these logs.
pub fn snapshots() -> Vec<Vec<u8>> {
    let written = |machine: Machine| {
        let mut bytes = Vec::new();
        write_snapshot(&machine.capture(), &mut bytes).expect("memory takes every write");
        bytes
    };
    let after = histories().into_iter().map(|(_, machine)| written(machine));
    std::iter::once(snapshot()).chain(after).collect()
}

/// How many histories the machine's targets start from.
const HISTORIES: u64 = 24;

fn histories() -> Vec<(Vec<Entry>, Machine)> {
    let history = |decisions: Vec<u8>| {
        let (mut machine, mut entries) = (Machine::default(), Vec::new());
        let mut author = Author::new(&decisions);
        while let Some(entry) = author.entry(&machine) {
            entries.push(entry.clone());
            author.learn(&machine.apply(entry));
        }
        (entries, machine)
    };
    decisions().into_iter().map(history).collect()
}

/// Bytes that look random and are the same for the same seed (xorshift).
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Texts that are names, ids, scopes, headers and lengths of time.
pub fn texts() -> Vec<Vec<u8>> {
    let texts = [
        "settlement/cron",
        "ein/schönes/Ding",
        "node-a:4711",
        "postgres:orders",
        "pool#3",
        "settlement/cron=17",
        "pool#3=18",
        "7-9f86d081884c7d659a2feaa0c55ad015",
        "00112233445566778899aabbccddeeff",
        "1h30m2.5s",
        "500ms",
        "stale_token",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Requests of the gRPC interface.
pub fn messages() -> Vec<Vec<u8>> {
    let (resource, session) = ("settlement/cron".to_string(), format!("1-{}", "07".repeat(16)));
    let caller = Some(proto::Caller { session, number: Some(3), lowest_awaited: 2 });
    let nonce = vec![9; 16];
    let opening = proto::Opening { holder: "node-a".into(), ttl_ms: 2_000, nonce: nonce.clone(), number: 1 };
    let (resources, fences) = (vec![resource.clone()], vec!["postgres:orders".to_string()]);
    let policies = proto::Policies {
        lock_delay_ms: Some(1),
        max_hold_ms: Some(2),
        hard_limit_ms: Some(3),
        priority: -4,
        reentrant: true,
    };
    let acquire = |by| proto::AcquireRequest {
        by: Some(by),
        resources: resources.clone(),
        mode: Some(proto::Mode { kind: proto::ModeKind::Slots.into(), slots: 3 }),
        wait: Some(proto::Wait { wait: Some(proto::wait::Wait::AtMostMs(2_500)) }),
        policies: Some(policies),
        fences: fences.clone(),
    };
    let by_caller = proto::acquire_request::By::Caller(caller.clone().expect("just made"));
    vec![
        proto::SessionOpenRequest { holder: "node-a".into(), ttl_ms: 2_000, nonce, number: 1 }
            .encode_to_vec(),
        acquire(proto::acquire_request::By::Opening(opening)).encode_to_vec(),
        acquire(by_caller).encode_to_vec(),
        proto::ReleaseRequest {
            caller: caller.clone(),
            resource: resource.clone(),
            token: Some(17),
            rest_ms: None,
        }
        .encode_to_vec(),
        proto::TransferRequest { caller: caller.clone(), resource: resource.clone(), to: 2 }.encode_to_vec(),
        proto::WriteRequest {
            caller,
            compares: vec![compare()],
            then: vec![put(&resource)],
            otherwise: vec![],
        }
        .encode_to_vec(),
    ]
}

fn compare() -> proto::Compare {
    let field = Some(proto::compare::Field::Version(1));
    proto::Compare { key: b"cursor".to_vec(), op: proto::CompareOp::Greater.into(), field }
}

fn put(resource: &str) -> proto::Operation {
    let scope = Some(proto::Scope { resource: resource.into(), slot: Some(1) });
    let put = proto::Put {
        key: b"cursor".to_vec(),
        value: b"value".to_vec(),
        guard: Some(proto::Guard { scope, token: 17 }),
        ephemeral: true,
    };
    proto::Operation { operation: Some(proto::operation::Operation::Put(put)) }
}

/// Frames of the session stream, in both directions.
pub fn stream() -> Vec<Vec<u8>> {
    use proto::client_frame::Command;
    let frame = |session, command| proto::ClientFrame {
        frame: 5,
        session,
        number: Some(3),
        lowest_awaited: 2,
        command: Some(command),
    };
    let resource = "settlement/cron".to_string();
    let open =
        proto::StreamOpen { holder: "node-a".into(), ttl_ms: 2_000, nonce: vec![9; 16], transmission: 1 };
    let acquire = proto::StreamAcquire { resources: vec![resource.clone()], ..Default::default() };
    let write =
        proto::StreamWrite { compares: vec![compare()], then: vec![put(&resource)], otherwise: vec![] };
    let frames = vec![
        frame(0, Command::Open(open)),
        frame(1, Command::Attach(proto::StreamAttach { secret: vec![7; 16], ..Default::default() })),
        frame(1, Command::Acquire(acquire)),
        frame(1, Command::Cancel(proto::StreamCancel { acquire: 3 })),
        frame(
            1,
            Command::Release(proto::StreamRelease {
                resource: resource.clone(),
                token: Some(17),
                rest_ms: None,
            }),
        ),
        frame(1, Command::Transfer(proto::StreamTransfer { resource, to: 2 })),
        frame(1, Command::Write(write)),
        frame(1, Command::Paused(proto::StreamPaused { paused_ms: 9 })),
        frame(1, Command::Close(proto::StreamClose { died: true })),
    ];
    let attach = vec![proto::RenewalAttach { session: 7, secret: vec![7; 16] }];
    let alike =
        proto::RenewalFrames { batch: 1, steps: vec![7, -2], number: Some(9), numbers: vec![], attach };
    let apart = proto::RenewalFrames { steps: vec![7, -2], numbers: vec![8, 9], ..Default::default() };
    let mut inputs: Vec<_> = frames
        .into_iter()
        .map(|frame| proto::ClientFrames { frames: vec![frame], ..Default::default() }.encode_to_vec())
        .collect();
    inputs.extend([alike.encode_to_vec(), apart.encode_to_vec()]);
    inputs.extend(server_frames());
    inputs
}

/// The answers of the golden file, which stand there one behind the other.
fn server_frames() -> Vec<Vec<u8>> {
    let bytes = from_hex(include_str!("../../crates/wire/tests/golden/stream.proto.hex"));
    let mut rest = bytes.as_slice();
    let frames = std::iter::from_fn(|| proto::ServerFrame::decode_length_delimited(&mut rest).ok());
    frames
        .map(|frame| proto::ServerFrames { frames: vec![frame], ..Default::default() }.encode_to_vec())
        .collect()
}

/// A connection that begins with a handshake, and bodies of calls.
pub fn peer() -> Vec<Vec<u8>> {
    let hello = tenure_replica::fuzzing::peer::sample();
    let vote = [&[9; 17][..], &[1; 17], &[1]].concat();
    let entry = [&[1; 16][..], &[2, 1, 0, 0, 0, b'x']].concat();
    let append = [&[9; 17][..], &[1; 17], &[1; 17], &[1, 0, 0, 0], &entry].concat();
    let framed =
        |kind: u8, body: &[u8]| [&(body.len() as u32).to_le_bytes()[..], &[kind], &[0; 8], body].concat();
    let connection = [&hello[..], &framed(1, &append), &framed(3, &vote)].concat();
    vec![hello, connection, append, vote]
}

/// Records of a log, one of each kind, and a snapshot's file.
pub fn disk() -> Vec<Vec<u8>> {
    let record = |kind: u8, payload: &[u8]| [&[1 + payload.len() as u8, kind], payload].concat();
    let id = |index: u8| [1, 0, 0, 0, 0, 0, 0, 0, index, 0, 0, 0, 0, 0, 0, 0];
    let entries: Vec<u8> = (0..4).flat_map(|index| record(2, &id(index))).collect();
    let rest = [
        record(16, &[1; 17]),
        record(17, &id(1)),
        record(18, &[1, 2, 0, 0, 0, 0, 0, 0, 0]),
        record(19, &id(1)),
        record(20, &[]),
    ];
    vec![[entries, rest.concat()].concat(), tenure_replica::fuzzing::snapshot::sample()]
}
