//! The table of calls: whole, without contradictions, and the one place where a call is added.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::http::uri::PathAndQuery;
use axum::http::{Method, Request};
use prost::Message;
use serde_json::{Value, json};
use tenure_core::{Command, Done, FormatVersion, Identity, Verb};
use tenure_wire::{ApiError, Code, Messages, proto};

use super::Node;
use crate::call_table::{BindingKind, Call, Cost};
use crate::context::CallContext;
use crate::front::{Api, FrontLimits};
use crate::http::{HttpRequest, Refused};
use crate::node::Submission;

crate::calls! {
    /// One call more than a node has.
    enum Added {
        Shout = "test.shout", Manage, Command {
            http(POST "/v1/echo/{*resource}:shout" => shout)
            grpc(unary "/test.v1.Echo/Shout" => shout_message)
        }
    }
}

async fn shout(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> Result<Json<Value>, Refused> {
    let body: Value = request.body(&api).await?;
    let _turn = api.turn(context.row.cost)?;
    let resource = request.resource()?.to_string().to_uppercase();
    Ok(Json(json!({"resource": resource, "body": body, "by": context.identity.to_string()})))
}

async fn shout_message(
    api: Arc<Api>,
    context: CallContext,
    request: proto::BarrierRequest,
) -> Result<proto::Scope, ApiError> {
    let _turn = api.turn(context.row.cost)?;
    Ok(proto::Scope { resource: request.resource.to_uppercase(), slot: None })
}

async fn shout_over_grpc(node: &Node, resource: String) -> Result<proto::Scope, ApiError> {
    let mut client = tonic::client::Grpc::new(node.channel());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/test.v1.Echo/Shout");
    let request = tonic::Request::new(proto::BarrierRequest { resource });
    let codec = Messages::<proto::BarrierRequest, proto::Scope>::default();
    let answer = client.unary(request, path, codec).await;
    answer.map(tonic::Response::into_inner).map_err(|status| ApiError::from(&status))
}

/// A row and a function are all that a call needs: the rest is read from the row.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_added_by_one_row_and_its_function() {
    let tables = [Call::rows(), Added::rows()];
    let node = Node::start_with_calls(&tables, FrontLimits::default()).await;
    // It is reached over both surfaces.
    let answer = node.post("/v1/echo/a/b:shout", json!({"x": 1})).await.ok();
    assert_eq!(answer, json!({"resource": "A/B", "body": {"x": 1}, "by": "anyone"}));
    assert_eq!(shout_over_grpc(&node, "a/b".into()).await.unwrap().resource, "A/B");
    // Its path has one method, and no other verb.
    let refused = node.get("/v1/echo/a/b:shout").await;
    refused.refused("method_not_allowed");
    assert_eq!(refused.headers["allow"], "POST");
    node.post("/v1/echo/a/b:whisper", json!({})).await.refused("no_such_call");
    // It has its name in the metrics, its right, and the limits of its cost.
    let metrics = String::from_utf8(node.get("/metrics").await.body).unwrap();
    for surface in ["http", "grpc"] {
        let counted =
            format!("tenure_requests_total{{surface=\"{surface}\",call=\"test.shout\",code=\"ok\"}} 1");
        assert!(metrics.contains(&counted), "{counted} is not in\n{metrics}");
    }
    assert_eq!((Added::Shout.verb(), Added::Shout.cost()), (Verb::Manage, Cost::Command));
    let large = "x".repeat(2 << 20);
    node.post("/v1/echo/a:shout", json!(large)).await.refused("too_large");
    assert_eq!(shout_over_grpc(&node, large).await.unwrap_err().code, Code::TooLarge);

    let none = FrontLimits { calls_max: 0, ..FrontLimits::default() };
    let full = Node::start_with_calls(&tables, none).await;
    full.post("/v1/echo/a:shout", json!({})).await.refused("overloaded");
    assert_eq!(shout_over_grpc(&full, "a".into()).await.unwrap_err().code, Code::Overloaded);
}

#[test]
fn every_row_is_whole_and_no_two_have_one_name() {
    let mut names = BTreeSet::new();
    for row in Call::rows() {
        assert!(names.insert(row.name), "two rows are called {}", row.name);
        assert!(!row.bindings.is_empty(), "{} cannot be reached", row.name);
        // Only what says whether the node is there, and static files, need no right; and what everybody may ask about
        // or do to themselves.
        let own = ["auth.whoami", "auth.explain", "auth.revoke_credential"];
        if row.verb == Verb::Public && !own.contains(&row.name) {
            assert!(matches!(row.cost, Cost::Page | Cost::Check), "{} needs a right", row.name);
        }
        let streams = matches!(row.cost, Cost::Watch | Cost::Stream | Cost::RenewalStream | Cost::Restore);
        assert_eq!(row.streams(), streams || row.name == "cluster.backup", "{}", row.name);
    }
    for (call, row) in Call::ALL.iter().zip(Call::rows()) {
        assert!(std::ptr::eq(call.row(), row), "{call:?} leads to another row");
    }
    assert_eq!(Call::LeasesAcquire.name(), "leases.acquire");
}

/// A method that the proto files describe and the table does not have would be answered UNIMPLEMENTED.
#[test]
fn every_method_of_the_interface_has_a_row() {
    let described = prost_types::FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut methods = BTreeSet::new();
    for file in &described.file {
        for service in &file.service {
            let path = |method| format!("/{}.{}/{method}", file.package(), service.name());
            methods.extend(service.method.iter().map(|method| path(method.name())));
        }
    }
    let bindings = Call::rows().iter().flat_map(|row| row.bindings);
    let served: BTreeSet<String> = bindings
        .filter_map(|binding| match &binding.0 {
            BindingKind::Grpc(binding) => Some(binding.path.to_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(served, methods);
}

/// Every command comes in by one function. From another node it takes what clients may ask for, and refuses what only a
/// leader gives by itself, whatever that node believes.
#[tokio::test(flavor = "multi_thread")]
async fn what_only_a_leader_gives_is_not_taken_from_another_node() {
    let node = Node::start().await;
    let inner = node.front.api().node.clone();
    let settings = inner.glance(|machine| machine.settings().clone());
    let forwarded = async |command: Command| {
        let (version, mut encoded) = (FormatVersion::NEWEST, Vec::new());
        tenure_wire::encode_command(version, &command, &mut encoded);
        inner.answer_to(&Identity::Anyone, Submission::Forwarded { version, encoded }).await
    };
    for internal in [
        Command::BecameLeader { node: 9, term: u64::MAX },
        Command::Configure(Box::new(settings)),
        Command::Upgrade { to: FormatVersion::NEWEST },
    ] {
        assert_eq!(Call::of(&internal), None);
        let refused = forwarded(internal).await.unwrap_err();
        assert!(refused.to_string().contains("only a leader gives"), "{refused}");
    }
    let barrier = Command::Barrier { resource: "a".parse().unwrap() };
    assert_eq!(Call::of(&barrier).map(Call::verb), Some(Verb::Manage));
    let answered = forwarded(barrier.clone()).await.unwrap();
    assert!(matches!(answered, Ok(Done::BarrierTaken { .. })), "{answered:?}");
    let answered = inner.submit(&Identity::Anyone, barrier).await.unwrap();
    assert!(matches!(answered, Ok(Done::BarrierTaken { .. })), "{answered:?}");
}

/// Session ids are secrets: whoever finds one in a log could end the session.
#[tokio::test]
async fn no_session_id_is_ever_logged() {
    let captured = capture::Captured::default();
    // With a single subscriber, what another test's thread logs first would count as wanted by nobody.
    let _another = tracing::Dispatch::new(captured.clone());
    let _guard = tracing::subscriber::set_default(captured.clone());
    let node = Node::start().await;
    let id = node.open("a").await["session"].as_str().unwrap().to_owned();
    let other = "1-00112233445566778899aabbccddeeff";
    for path in [
        format!("/v1/sessions/{other}"),
        format!("/v1/sessions/{other}/nothing"),
        format!("/v1/sessions/{id}:shout"),
        format!("/v1/session/{id}"),
        format!("/v1/session?session={id}"),
        format!("/{id}"),
    ] {
        assert_ne!(node.get(&path).await.status, 200, "{path}");
        assert_ne!(node.post(&path, json!({"session": id})).await.status, 200, "{path}");
    }
    node.call_as(other, Method::GET, "/v1/session", Body::empty()).await.refused("unknown_session");
    node.call_as(&format!("{id}x"), Method::GET, "/v1/session", Body::empty())
        .await
        .refused("invalid_session");
    node.post("/v1/leases/a:release", json!({"session": other})).await.refused("unknown_session");
    // A number that was used by another command is logged with what that one was answered.
    node.post("/v1/leases/a:acquire", json!({"session": id, "number": 1})).await.ok();
    node.post("/v1/leases/a:release", json!({"session": id, "number": 1})).await.refused("invalid_argument");
    let request = Request::builder().method("POST").uri(format!("/tenure.v1.Sessions/{id}"));
    let request = request.header("content-type", "application/grpc").body(Body::empty()).unwrap();
    node.reply(request).await;
    let log = captured.text();
    assert!(log.contains("request refused"), "nothing was captured: {log}");
    assert!(log.contains("/v1/leases/{*resource}:release"), "the route is logged: {log}");
    for id in [id.as_str(), other] {
        let secret = id.split_once('-').unwrap().1;
        assert!(!log.contains(secret), "{log}");
    }
}

/// Everything that is logged on this thread, as text.
mod capture {
    use std::fmt::{Debug, Write};
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    #[derive(Clone, Default)]
    pub struct Captured(Arc<Mutex<String>>);

    impl Captured {
        pub fn text(&self) -> String {
            self.0.lock().clone()
        }
    }

    impl Visit for Captured {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = writeln!(self.0.lock(), "{}={value:?}", field.name());
        }
    }

    impl Subscriber for Captured {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            span.record(&mut self.clone());
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, values: &Record<'_>) {
            values.record(&mut self.clone());
        }

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }
}
