//! Bad input at the edges: a clear refusal each, never a panic, and nothing silently ignored.

use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};
use tenure_core::{FormatVersion, RegisterKey, ResourceName, Secret};
use tenure_wire::{ApiError, Code, decode_forwarded, decode_forwarded_reply, grpc, json as body, proto};

fn resource() -> ResourceName {
    "a".parse().unwrap()
}

fn acquire(value: &Value) -> Result<tenure_core::Acquire, ApiError> {
    body::parse::<body::Acquire>(&serde_json::to_vec(value).unwrap())?
        .acquire(Some(resource()), Secret::new([0; 16]))
}

#[test]
fn a_bad_acquire_says_what_is_wrong_with_it() {
    let session = format!("7-{}", "ab".repeat(16));
    for (value, code, word) in [
        (json!({}), Code::InvalidArgument, "holder is missing"),
        (json!({"holder": "a"}), Code::InvalidArgument, "ttl_ms is missing"),
        (json!({"holder": "", "ttl_ms": 1}), Code::InvalidName, "empty"),
        (json!({"holder": "a", "ttl_ms": -5}), Code::InvalidBody, "-5"),
        (json!({"holder": "a", "ttl_ms": "soon"}), Code::InvalidBody, "soon"),
        (json!({"holder": "a", "ttl_ms": 1, "mode": "loud"}), Code::InvalidBody, "loud"),
        (json!({"holder": "a", "ttl_ms": 1, "nonce": "abcd"}), Code::InvalidNonce, "16"),
        (json!({"holder": "a", "ttl_ms": 1, "lockdelay_ms": 5}), Code::InvalidBody, "lockdelay_ms"),
        (json!({"holder": "a", "ttl_ms": 1, "wait_ms": "a while"}), Code::InvalidBody, ""),
        (json!({"holder": "a", "ttl_ms": 1, "resources": ["b"]}), Code::InvalidArgument, "path"),
        (json!({"holder": "a", "ttl_ms": 1, "fences": [""]}), Code::InvalidName, "fence"),
        (json!({"session": "nonsense"}), Code::InvalidSession, "session id"),
        (json!({"session": session, "holder": "a"}), Code::InvalidArgument, "holder"),
        (json!([1, 2]), Code::InvalidBody, "object"),
        (json!("text"), Code::InvalidBody, "object"),
        (json!(null), Code::InvalidBody, "object"),
    ] {
        let error = acquire(&value).unwrap_err();
        assert_eq!(error.code, code, "{value}: {error}");
        assert!(error.message.contains(word), "{value}: {error}");
        assert_eq!(error.code.http_status(), 400);
    }
    acquire(&json!({"holder": "a", "ttl_ms": u64::MAX})).expect("the machine judges the TTL, by its limits");
}

#[test]
fn a_body_that_is_empty_is_an_empty_object() {
    for body in ["", " \n", "{}"] {
        body::parse::<body::RenewSession>(body.as_bytes()).unwrap();
    }
    for body in ["{", "nonsense", "\u{0}", "{\"number\":1}}", &"[".repeat(200_000)] {
        assert_eq!(body::parse::<body::RenewSession>(body.as_bytes()).unwrap_err().code, Code::InvalidBody);
    }
    let deep = format!("{{\"number\":{}", "[".repeat(200_000));
    assert_eq!(body::parse::<body::RenewSession>(deep.as_bytes()).unwrap_err().code, Code::InvalidBody);
}

#[test]
fn a_register_is_written_under_one_guard_and_with_one_value() {
    let key: RegisterKey = "k".parse().unwrap();
    let put = |value: Value, header: Option<&str>| {
        let header = header.map(body::guard_from_header).transpose()?;
        body::parse::<body::PutRegister>(&serde_json::to_vec(&value).unwrap())?.command(key.clone(), header)
    };
    put(json!({"value": "x"}), None).unwrap();
    put(json!({"value": "x"}), Some("a/b=17")).unwrap();
    for (value, header, code) in [
        (json!({}), None, Code::InvalidArgument),
        (json!({"value": "x", "value_base64": "eA=="}), None, Code::InvalidArgument),
        (json!({"value_base64": "***"}), None, Code::InvalidArgument),
        (json!({"value": "x", "resource": "a"}), None, Code::InvalidArgument),
        (json!({"value": "x", "token": 1}), None, Code::InvalidArgument),
        (json!({"value": "x", "slot": 1}), None, Code::InvalidArgument),
        (json!({"value": "x", "resource": "a", "token": 0}), None, Code::InvalidToken),
        (json!({"value": "x", "resource": "a", "token": 1u64 << 53}), None, Code::InvalidToken),
        (json!({"value": "x", "resource": "a", "token": "1"}), None, Code::InvalidBody),
        (json!({"value": "x", "resource": "a", "token": 1}), Some("a=1"), Code::InvalidArgument),
        (json!({"value": "x", "number": 1}), None, Code::InvalidArgument),
        (json!({"value": "x"}), Some("17"), Code::InvalidArgument),
        (json!({"value": "x"}), Some("a=-1"), Code::InvalidArgument),
        (json!({"value": "x"}), Some("a//b=1"), Code::InvalidName),
    ] {
        let error = put(value.clone(), header).unwrap_err();
        assert_eq!(error.code, code, "{value} {header:?}: {error}");
    }
}

#[test]
fn messages_that_lack_something_are_refused() {
    let secret = Secret::new([0; 16]);
    for error in [
        grpc::acquire(proto::AcquireRequest::default(), secret).unwrap_err(),
        grpc::release(proto::ReleaseRequest::default()).unwrap_err(),
        grpc::close(proto::SessionCloseRequest::default()).unwrap_err(),
        grpc::open(proto::SessionOpenRequest::default(), secret).unwrap_err(),
        grpc::arm(proto::ArmRequest::default()).unwrap_err(),
        grpc::rebind(proto::RebindRequest::default()).unwrap_err(),
        grpc::set_kind(proto::SetKindRequest { kind: 77, ..Default::default() }).unwrap_err(),
        grpc::revoke(proto::RevokeRequest {
            resource: "a".into(),
            reason: "x".repeat(513),
            ..Default::default()
        })
        .unwrap_err(),
        grpc::secret(&[0; 15]).unwrap_err(),
    ] {
        assert_eq!(error.code.http_status(), 400, "{error}");
        assert_eq!(error.code.grpc_code(), tonic::Code::InvalidArgument);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// Whatever a client sends, the decoders and what reads their output only ever refuse.
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let secret = Secret::new([0; 16]);
        let _ = decode_forwarded(FormatVersion::NEWEST, &bytes);
        let _ = decode_forwarded_reply(FormatVersion::NEWEST, &bytes);
        let _ = body::parse::<body::Acquire>(&bytes).and_then(|asked| asked.acquire(None, secret));
        let _ = body::parse::<body::WriteRegisters>(&bytes).and_then(body::WriteRegisters::command);
        let _ = proto::AcquireRequest::decode(bytes.as_slice()).map(|asked| grpc::acquire(asked, secret));
        let _ = proto::WriteRequest::decode(bytes.as_slice()).map(grpc::write);
        let _ = proto::RenewalFrames::decode(bytes.as_slice()).map(|frames| grpc::unpack_renewals(&frames));
        if let Ok(frames) = proto::ClientFrames::decode(bytes.as_slice()) {
            for frame in frames.frames {
                let _ = grpc::frame_command(frame, None, || secret);
            }
        }
        let status = tonic::Status::with_details(tonic::Code::Unknown, "", bytes.into());
        let _ = ApiError::from(&status);
    }

    #[test]
    fn random_headers_never_panic(text in "\\PC{0,30}") {
        let _ = body::guard_from_header(&text);
        let _ = tenure_wire::words::nonce_from_hex(&text);
    }
}
