//! Golden files: the bytes and texts that we have promised to read and to say again.
//!
//! A difference here is a change of format. If it is meant, and no released version has written the old one,
//! `UPDATE_GOLDEN=1 cargo test -p tenure-wire` rewrites the files; otherwise the format needs a new version, and
//! the file of the old version stays and must still be read.

use std::fmt::Write;
use std::path::PathBuf;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorSet};
use serde_json::{Value, json};
use tenure_core::{Event, FormatVersion, RenewalAnswer, RenewalEvents, Revision, SessionNumber};
use tenure_wire::json as body;
use tenure_wire::{
    ApiError, Code, EventFrame, ForwardFailure, Forwarded, ForwardedReply, WireError, command_fits,
    decode_entry, decode_forwarded, decode_forwarded_reply, encode_entry, encode_event, encode_forwarded,
    encode_forwarded_reply, event_file_head, grpc, proto, read_backup, read_event_file_head, read_snapshot,
    state_hash, write_backup, write_snapshot,
};

#[path = "samples/mod.rs"]
mod samples;

/// Compares with the golden file, or rewrites it when asked to.
#[track_caller]
fn golden(file: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, actual).expect("a golden file can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == actual,
        "{file} has changed; is that meant? See the head of this test.\n--- expected\n{expected}\n--- actual\n{actual}"
    );
}

/// Bytes as lines of hexadecimal digits, so that a change of format can be seen in a diff.
fn dump(bytes: &[u8]) -> String {
    bytes.chunks(32).fold(String::new(), |text, line| text + &tenure_wire::words::hex(line) + "\n")
}

/// The bytes of a golden file, as an older build wrote them.
fn stored(file: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    let text = std::fs::read_to_string(path).expect("a golden file can be read");
    let digits: Vec<u8> =
        text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Every version that was ever written. Files of a released version never change.
const VERSIONS: [FormatVersion; 2] = [FormatVersion::V1, FormatVersion::V2];

#[test]
fn entries_are_written_as_before_and_every_version_is_read() {
    let commands = samples::entry(FormatVersion::NEWEST).commands;
    let kinds = commands.iter().map(samples::kind_of).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(kinds.len(), samples::COMMAND_KINDS, "every command has a sample");
    for command in samples::commands() {
        assert!(command_fits(FormatVersion::V1, &command), "{command:?}");
    }
    for command in samples::commands_since_v2() {
        assert!(!command_fits(FormatVersion::V1, &command), "{command:?}");
    }
    for version in VERSIONS {
        let mut bytes = Vec::new();
        encode_entry(version, &samples::entry(version), &mut bytes);
        let file = format!("entry.v{version}.hex");
        golden(&file, &dump(&bytes));
        let read = decode_entry(FormatVersion::NEWEST, &stored(&file)).unwrap();
        assert_eq!(read, samples::entry(version));
        assert_eq!(decode_entry(version, &stored(&file)).unwrap(), read, "an older build reads its own");
    }
}

#[test]
fn snapshots_are_written_as_before_and_every_version_is_read() {
    let mut hashes = String::new();
    for version in VERSIONS {
        let state = samples::state_of(version);
        let mut bytes = Vec::new();
        write_snapshot(&state, &mut bytes).unwrap();
        let file = format!("snapshot.v{version}.hex");
        golden(&file, &dump(&bytes));
        writeln!(hashes, "{:032x}", state_hash(&state)).unwrap();
        let read = read_snapshot(FormatVersion::NEWEST, &mut stored(&file).as_slice()).unwrap();
        assert_eq!((read.format, state_hash(&read)), (version, state_hash(&state)));
    }
    golden("state_hash.txt", &hashes);
}

#[test]
fn backups_are_written_as_before_and_every_version_is_read() {
    for version in VERSIONS {
        let state = samples::state_of(version);
        let mut bytes = Vec::new();
        let head = write_backup(&state, &mut bytes).unwrap();
        let file = format!("backup.v{version}.hex");
        golden(&file, &dump(&bytes));
        let (read_head, read) = read_backup(&mut stored(&file).as_slice()).unwrap();
        assert_eq!(read_head, head);
        assert_eq!(read, state.without_sessions().unwrap());
    }
}

/// Release 0.1.0 wrote sessions into its backups, with their secrets. Such a backup is read as if it had been written
/// without them. The file is that release's own and never written again.
#[test]
fn a_backup_of_release_0_1_0_is_read_without_its_sessions() {
    let file = stored("backup-with-sessions.v1.hex");
    let (head, read) = read_backup(&mut file.as_slice()).unwrap();
    let mut written = Vec::new();
    assert_eq!(write_backup(&samples::state_of(FormatVersion::V1), &mut written).unwrap(), head);
    assert_eq!(read, samples::state_of(FormatVersion::V1).without_sessions().unwrap());
    assert!(read.sessions.is_empty() && read.pulses.is_empty() && read.waiters.is_empty());
    let secret =
        samples::state_of(FormatVersion::V1).sessions.iter().next().expect("it has sessions").1.secret;
    let contains = |bytes: &[u8]| bytes.windows(16).any(|window| window == secret.as_bytes());
    assert!(contains(&file) && !contains(&written), "no secret is in a backup any more");
}

#[test]
fn forwarded_requests_are_written_as_before_and_every_version_is_read() {
    let requests = [
        Forwarded::Renewals(samples::entry(FormatVersion::V1).renewals),
        Forwarded::Command(vec![1, 2, 3]),
        Forwarded::ReadIndex,
        Forwarded::Administer(vec![4, 5]),
    ];
    let replies = [
        ForwardedReply::Answer(Box::new(Ok(samples::dones().remove(3)))),
        ForwardedReply::Answer(Box::new(Err(samples::refusals().remove(0)))),
        ForwardedReply::Renewals(vec![RenewalAnswer::UnknownSession, renewal_answer()]),
        ForwardedReply::ReadIndex(12),
        ForwardedReply::Failed(ForwardFailure::NoLeader),
        ForwardedReply::Failed(ForwardFailure::Overloaded(100)),
        ForwardedReply::Failed(ForwardFailure::Unknown("lost".into())),
        ForwardedReply::Failed(ForwardFailure::Stopping),
    ];
    // Since version 2.
    let many_requests = [Forwarded::Commands(vec![vec![1, 2, 3], vec![6]])];
    let many_replies = [ForwardedReply::Answers(vec![
        Ok(Ok(samples::dones().remove(0))),
        Ok(Err(samples::refusals().remove(0))),
        Err(ForwardFailure::NoLeader),
        Err(ForwardFailure::Overloaded(100)),
        Err(ForwardFailure::Unknown("lost".into())),
        Err(ForwardFailure::Stopping),
    ])];
    for version in VERSIONS {
        let since_2 = usize::from(version >= FormatVersion::V2);
        let requests = requests.iter().chain(&many_requests[..since_2]);
        let replies = replies.iter().chain(&many_replies[..since_2]);
        let mut text = String::new();
        for request in requests {
            let bytes = encode_forwarded(version, request);
            assert_eq!(decode_forwarded(FormatVersion::NEWEST, &bytes).unwrap(), (version, request.clone()));
            writeln!(text, "{}", dump(&bytes)).unwrap();
        }
        for reply in replies {
            let bytes = encode_forwarded_reply(version, reply);
            assert_eq!(&decode_forwarded_reply(FormatVersion::NEWEST, &bytes).unwrap(), reply);
            writeln!(text, "{}", dump(&bytes)).unwrap();
        }
        golden(&format!("forward.v{version}.hex"), &text);
    }
}

#[test]
fn what_a_newer_version_wrote_is_refused_with_the_next_step() {
    // The version stands first in an entry, and behind eight bytes of magic in a snapshot and in a backup.
    let newer = |file: &str, at: usize| {
        let mut bytes = stored(file);
        bytes[at] = 1 + FormatVersion::NEWEST.get();
        bytes
    };
    let shown = [
        decode_entry(FormatVersion::NEWEST, &newer("entry.v1.hex", 0)).unwrap_err(),
        read_snapshot(FormatVersion::NEWEST, &mut newer("snapshot.v1.hex", 8).as_slice()).unwrap_err(),
        read_backup(&mut newer("backup.v1.hex", 8).as_slice()).unwrap_err(),
        decode_forwarded(FormatVersion::NEWEST, &[3, 3]).unwrap_err(),
    ];
    for error in &shown {
        assert!(matches!(error, WireError::Newer { found: 3, known: 2, .. }), "{error}");
    }
    golden("newer.txt", &shown.iter().fold(String::new(), |text, error| format!("{text}{error}\n")));
}

fn renewal_answer() -> RenewalAnswer {
    let (resource, token) = (samples::grant().resource, samples::grant().token);
    let why = tenure_core::EndReason::Revoked;
    RenewalAnswer::Renewed {
        number: 9,
        ttl: samples::grant().ttl,
        last_lease_revision: Revision::new(118),
        events: Some(Box::new(RenewalEvents {
            noticed: vec![(resource.clone(), token, why, samples::grant().remaining)],
            ended: vec![(resource, token, why)],
            incomplete: true,
        })),
    }
}

#[test]
fn the_table_of_codes_and_the_words_of_every_refusal() {
    let mut text = String::new();
    for code in Code::ALL {
        writeln!(
            text,
            "{:<18} {} {:<18} {}",
            code.as_str(),
            code.http_status(),
            format!("{:?}", code.grpc_code()),
            serde_json::to_string(&code.effect()).unwrap()
        )
        .unwrap();
    }
    golden("codes.txt", &text);

    let mut text = String::new();
    let since_v2 = samples::answers_since_v2().into_iter().filter_map(Result::err);
    for refusal in samples::refusals().into_iter().chain(since_v2) {
        let error = ApiError::from(&refusal);
        assert_eq!(ApiError::from(&tonic::Status::from(error.clone())), error);
        let json = serde_json::to_string_pretty(&body::ErrorBody { error: error.clone() }).unwrap();
        let read: body::ErrorBody = serde_json::from_str(&json).unwrap();
        assert_eq!(read.error, error);
        writeln!(text, "{json}").unwrap();
    }
    golden("refusals.txt", &text);
}

/// A body that reads what it writes, under a title.
fn shown<T>(title: &str, value: &T) -> String
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let json = serde_json::to_string_pretty(value).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&json).unwrap(), value, "{title}");
    format!("# {title}\n{json}\n")
}

#[test]
fn the_bodies_of_answers() {
    let grant = samples::grant();
    let view = samples::lease_view();
    let free = tenure_core::LeaseView {
        holders: Vec::new(),
        waiters: Vec::new(),
        waiting: 0,
        fences: Vec::new(),
        ..view.clone()
    };
    let id = samples::session_id(7);
    let renewed = body::Renewed::new(id, Some(&grant.holder), &renewal_answer());
    let unknown = body::Renewed::new(id, None, &RenewalAnswer::UnknownSession);
    let binary = tenure_core::Register {
        key: tenure_core::RegisterKey::try_from(&b"\xfe\xff"[..]).unwrap(),
        value: Some(std::sync::Arc::from(&b"\x00\xff"[..])),
        ..samples::register()
    };
    let node = body::NodeStatus {
        node: 1,
        peer_address: "10.0.0.1:7401".into(),
        client_address: "10.0.0.1:7400".into(),
        role: "leader".into(),
        reachable: true,
        last_log: Some(412),
        version: "0.1.0".into(),
        identity: "ab".repeat(16),
        format_newest: 2,
    };
    let text = [
        shown("POST /v1/sessions", &body::SessionOpened::new(id, &grant.holder, grant.ttl, 3)),
        shown("POST /v1/sessions/{id}:renew", renewed.as_ref().unwrap()),
        shown(
            "POST /v1/sessions:renew",
            &body::RenewedMany { answers: vec![renewed.into(), unknown.into()] },
        ),
        shown("DELETE /v1/sessions/{id}", &body::Closed { session: id.to_string(), released: 2 }),
        shown(
            "GET /v1/sessions",
            &body::Sessions { sessions: vec![(&samples::session_view()).into()], next: Some(7) },
        ),
        shown(
            "GET /v1/sessions/{id}",
            &body::SessionLeases { summary: (&samples::session_view()).into(), held: vec![(&grant).into()] },
        ),
        shown("POST /v1/leases/{resource}:acquire", &body::Granted::from(&grant)),
        shown("POST /v1/leases:acquire", &body::GrantedMany::new(std::slice::from_ref(&grant)).unwrap()),
        shown("POST /v1/leases:cancel", &body::Cancelled { released: true }),
        shown(
            "POST /v1/leases/{resource}:release",
            &body::Released { resource: "a".into(), released: false },
        ),
        shown("POST /v1/leases/{resource}:transfer", &body::Granted::to_another(&grant)),
        shown(
            "POST /v1/leases/{resource}:revoke",
            &body::Revoked {
                resource: "a".into(),
                holders: vec![(&samples::holding()).into()],
                token: Some(18),
            },
        ),
        shown("POST /v1/leases/{resource}:barrier", &body::TokenTaken { resource: "a".into(), token: 19 }),
        shown("GET /v1/leases/{resource}", &body::Lease::from(&view)),
        shown("GET /v1/leases/{resource}, free", &body::Lease::from(&free)),
        shown(
            "GET /v1/leases",
            &body::Leases { leases: vec![(&free).into()], next: Some("a".into()), revision: 120 },
        ),
        shown(
            "GET /v1/history/{resource}",
            &body::History {
                resource: "a".into(),
                holders: vec![(&samples::holding()).into()],
                transitions: vec![(&tenure_core::PastLease::from(samples::transition())).into()],
                dropped: Some((&samples::dropped()).into()),
            },
        ),
        shown("GET /v1/fences/{resource}", &body::Fences::from(&view)),
        shown("GET /v1/registers/{key}", &body::Register::from(&samples::register())),
        shown("GET /v1/registers/{key}, no text", &body::Register::from(&binary)),
        shown(
            "PUT /v1/registers/{key}",
            &body::Written::new(true, Revision::new(120), &[samples::register()]).unwrap(),
        ),
        shown(
            "PUT /v1/registers/{key}, refused",
            &body::ErrorBody {
                error: body::Written::new(false, Revision::new(120), &[samples::register()]).unwrap_err(),
            },
        ),
        shown(
            "POST /v1/registers:write",
            &body::WrittenMany {
                succeeded: true,
                revision: 120,
                results: vec![(&samples::register()).into()],
            },
        ),
        shown(
            "POST /v1/sequencers:check",
            &body::SequencerChecked { verdict: "stale".into(), presented: Some(1), seen: Some(2) },
        ),
        shown(
            "GET /v1/cluster",
            &body::ClusterStatus {
                cluster: "c1".repeat(16),
                leader: Some(1),
                term: 5,
                nodes: vec![node],
                node: 1,
                applied: 412,
                committed: 412,
                revision: 120,
                last_token: 19,
                cluster_time_us: 12_345_678,
                sessions: 70,
                leases: 66,
                waiters: 4,
                state_hash: Some("00".repeat(16)),
                fault_tolerant: false,
                restoring_ms: Some(1_000),
                staging: Some(body::RestoreStaging {
                    pieces: 3,
                    records: 8_193,
                    bytes: 3 << 20,
                    discarded_in_ms: 600_000,
                }),
                format: 1,
                format_next: Some(2),
                insecure: false,
                plain_sessions: Some(7),
            },
        ),
    ]
    .concat();
    golden("answers.txt", &text);
}

#[test]
fn event_files_are_written_as_before_and_every_version_is_read() {
    for version in VERSIONS {
        let events: Vec<Event> = (100..)
            .zip(samples::events())
            .map(|(revision, kind)| Event {
                revision: Revision::new(revision),
                wall: samples::wall(0),
                kind,
                identity: samples::identity().name().filter(|_| version >= FormatVersion::V2).cloned(),
            })
            .collect();
        let mut encoded = Vec::new();
        events.iter().for_each(|event| encode_event(version, event, &mut encoded));
        let (first, last) = (events[0].revision, events[events.len() - 1].revision);
        let frame = EventFrame::new(version, first, last, samples::wall(0), &encoded);
        let mut bytes = event_file_head([0xc1; 16]).to_vec();
        bytes.extend_from_slice(&frame.head());
        bytes.extend_from_slice(&encoded);
        let file = format!("event_file.v{version}.hex");
        golden(&file, &dump(&bytes));

        let stored = stored(&file);
        let (head, rest) = stored.split_first_chunk().expect("a head");
        assert_eq!(read_event_file_head(head).unwrap(), [0xc1; 16]);
        let (head, rest) = rest.split_first_chunk().expect("a frame");
        assert_eq!(EventFrame::read_head(head).unwrap().read(rest).unwrap(), events);
    }
}

#[test]
fn the_bodies_of_events() {
    let text = samples::events().into_iter().fold(String::new(), |text, kind| {
        let identity = samples::identity().name().cloned();
        let event = Event { revision: Revision::new(120), wall: samples::wall(0), kind, identity };
        let body = body::Event::from(&event);
        assert_eq!(serde_json::to_value(&body).unwrap()["kind"], body.kind.name());
        text + &shown(body.kind.name(), &body)
    });
    golden("events.txt", &text);
}

#[test]
fn the_messages_of_events_are_distinguished() {
    let events: Vec<_> = samples::events()
        .into_iter()
        .map(|kind| Event {
            revision: Revision::new(120),
            wall: samples::wall(0),
            kind,
            identity: samples::identity().name().cloned(),
        })
        .collect();
    let message = grpc::events_of(&events.iter().collect::<Vec<_>>()).unwrap();
    golden("events.proto.hex", &dump(&message.encode_to_vec()));
    let read = proto::WatchResponse::decode(stored("events.proto.hex").as_slice()).unwrap();
    assert_eq!(read, message);
    assert!(read.events.iter().all(|event| event.kind.is_some()));
    assert_eq!(grpc::events_of(&[]), None);
}

#[test]
fn an_answer_of_the_stream_is_sent_in_full() {
    let mut bytes = Vec::new();
    for answer in samples::dones()
        .into_iter()
        .map(Ok)
        .chain(samples::refusals().into_iter().map(Err))
        .chain(samples::answers_since_v2())
    {
        let frame =
            proto::ServerFrame { frame: Some(5), session: 7, content: Some(grpc::answer_content(&answer)) };
        frame.encode_length_delimited(&mut bytes).unwrap();
    }
    let renewed = grpc::renewed(SessionNumber::new(7), &renewal_answer()).unwrap();
    renewed.encode_length_delimited(&mut bytes).unwrap();
    golden("stream.proto.hex", &dump(&bytes));
}

/// Every message, field, enum value and call of the interface with its number and type: what must not change.
#[test]
fn the_interface_keeps_its_numbers() {
    let files = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut text = String::new();
    for file in &files.file {
        writeln!(text, "# {}", file.name()).unwrap();
        for service in &file.service {
            for method in &service.method {
                let stream = |yes: bool| if yes { "stream " } else { "" };
                writeln!(
                    text,
                    "rpc {}.{}({}{}) -> {}{}",
                    service.name(),
                    method.name(),
                    stream(method.client_streaming()),
                    method.input_type(),
                    stream(method.server_streaming()),
                    method.output_type()
                )
                .unwrap();
            }
        }
        for message in &file.message_type {
            describe(message, &mut text);
        }
        for values in &file.enum_type {
            for value in &values.value {
                writeln!(text, "{} = {}", value.name(), value.number()).unwrap();
            }
        }
    }
    golden("interface.txt", &text);
}

fn describe(message: &DescriptorProto, text: &mut String) {
    for field in &message.field {
        let label = match (field.label(), field.proto3_optional()) {
            (Label::Repeated, _) => "repeated ",
            (_, true) => "optional ",
            _ => "",
        };
        let kind = match field.r#type() {
            Type::Message | Type::Enum => field.type_name().to_owned(),
            plain => format!("{plain:?}").to_lowercase(),
        };
        writeln!(text, "{}.{} = {} {label}{kind}", message.name(), field.name(), field.number()).unwrap();
    }
}

/// What clients may send, and the command that it becomes.
#[test]
fn the_bodies_of_requests() {
    let session = samples::session_id(7).to_string();
    let secret = tenure_core::Secret::new([0x5e; 16]);
    let resource = || samples::grant().resource;
    let key = || samples::register().key;
    fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
        body::parse(&serde_json::to_vec(value).unwrap()).unwrap()
    }
    let mut text = String::new();
    let mut tell = |title: &str, value: &Value, command: String| {
        writeln!(text, "# {title}\n{value}\n{command}\n").unwrap();
    };

    let open = json!({"holder": "node-a", "ttl_ms": 2000, "nonce": "00".repeat(16), "number": 3});
    let command = read::<body::OpenSession>(&open).command(secret).unwrap();
    tell("POST /v1/sessions", &open, format!("{command:?}"));

    let close = json!({"died": true, "number": 4, "lowest_awaited": 2});
    let command = read::<body::CloseSession>(&close).command(samples::session_id(7));
    tell("DELETE /v1/sessions/{id}", &close, format!("{command:?}"));

    let opening = json!({"holder": "node-a", "ttl_ms": 2000});
    let command = read::<body::Acquire>(&opening).acquire(Some(resource()), secret).unwrap();
    tell("POST /v1/leases/{resource}:acquire", &opening, format!("{command:?}"));

    for (mode, wait) in [
        (json!("exclusive"), json!(0)),
        (json!("shared"), json!(2500)),
        (json!({"slots": 3}), json!("forever")),
    ] {
        let asked = json!({
            "session": session, "number": 5, "lowest_awaited": 4, "resources": ["a", "b"], "mode": mode,
            "wait_ms": wait, "lock_delay_ms": 1, "max_hold_ms": 2, "hard_limit_ms": 3, "priority": -4,
            "reentrant": true, "fences": ["postgres:orders"],
        });
        let command = read::<body::Acquire>(&asked).acquire(None, secret).unwrap();
        tell("POST /v1/leases:acquire", &asked, format!("{command:?}"));
    }

    let cancel = json!({"session": session, "acquire": 5, "number": 6});
    tell(
        "POST /v1/leases:cancel",
        &cancel,
        format!("{:?}", read::<body::Cancel>(&cancel).command().unwrap()),
    );
    let release = json!({"session": session, "token": 17});
    let command = read::<body::Release>(&release).command(resource()).unwrap();
    tell("POST /v1/leases/{resource}:release", &release, format!("{command:?}"));
    let transfer = json!({"session": session, "to": 8});
    let command = read::<body::Transfer>(&transfer).command(resource()).unwrap();
    tell("POST /v1/leases/{resource}:transfer", &transfer, format!("{command:?}"));
    let revoke = json!({"now": true, "reason": "maintenance", "session_number": 8});
    let command = read::<body::Revoke>(&revoke).command(resource()).unwrap();
    tell("POST /v1/leases/{resource}:revoke", &revoke, format!("{command:?}"));

    let put = json!({
        "value": "row 17", "resource": "settlement/cron", "slot": 2, "token": 17, "ephemeral": true,
        "if_version": 0, "if_mod_revision": 0, "session": session, "number": 7, "lowest_awaited": 7,
    });
    let command = read::<body::PutRegister>(&put).command(key(), None).unwrap();
    tell("PUT /v1/registers/{key}", &put, format!("{command:?}"));
    let put = json!({"value_base64": "AP8="});
    let header = body::guard_from_header("settlement/cron#2=17").unwrap();
    let command = read::<body::PutRegister>(&put).command(key(), Some(header)).unwrap();
    tell("PUT /v1/registers/{key}, Tenure-Token: settlement/cron#2=17", &put, format!("{command:?}"));
    let delete = json!({"resource": "settlement/cron", "token": 17});
    let command = read::<body::DeleteRegister>(&delete).command(key(), None).unwrap();
    tell("DELETE /v1/registers/{key}", &delete, format!("{command:?}"));
    let write = json!({
        "compares": [{"key": "a", "version": 1}, {"key_base64": "/v8=", "op": "!=", "value": "x"}],
        "then": [{"put": {"key": "a", "value": "1"}}, {"delete": {"key": "b"}}],
        "otherwise": [{"get": {"key": "a"}}],
    });
    let command = read::<body::WriteRegisters>(&write).command().unwrap();
    tell("POST /v1/registers:write", &write, format!("{command:?}"));

    let kind = json!({"kind": {"semaphore": 4}});
    let command = read::<body::SetKind>(&kind).command(resource());
    tell("POST /v1/leases/{resource}:kind", &kind, format!("{command:?}"));
    let arm = json!({"fence": "postgres:orders", "token": 17});
    let command = read::<body::Arm>(&arm).command(resource()).unwrap();
    tell("POST /v1/fences/{resource}:arm", &arm, format!("{command:?}"));
    golden("requests.txt", &text);
}
