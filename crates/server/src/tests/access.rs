//! Who may do what, over the surfaces of a node whose policies count: every call of the table by every kind of caller,
//! and the attacks on what one may not.

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use prost::Message;
use serde_json::{Value, json};
use tenure_core::{Attributed, Command, FormatVersion, Identity, Machine, Policy, PutPolicy, Verb, Verbs};
use tenure_wire::proto;

use super::Node;
use crate::call_table::Call;
use crate::node::Submission;

fn identity(name: &str) -> Identity {
    match name {
        "anyone" => Identity::Anyone,
        "operator" => Identity::Operator,
        name => Identity::named(format!("cred/{name}").parse().unwrap()),
    }
}

fn policy(who: &str, on: &str, may: Verbs) -> Command {
    let name = format!("{who}-{}", on.replace(['/', '*'], "_"));
    let policy = Policy {
        who: vec![format!("cred/{who}").parse().unwrap()],
        on: vec![on.parse().unwrap()],
        may,
        ..Policy::default()
    };
    Command::PutPolicy(Box::new(PutPolicy { name: name.parse().unwrap(), policy, now: false }))
}

impl Node {
    /// A node whose policies count: `reader` reads under `pay`, `other` may do everything under `shop`, `right` may do
    /// everything.
    async fn enforced() -> Node {
        let node = Node::configured(|config| config.enforced = true).await;
        assert!(node.front.api().node.glance(Machine::enforced), "from its formation on");
        node.command(policy("reader", "pay", [Verb::Read].into_iter().collect())).await;
        node.command(policy("other", "shop", Verbs::ALL)).await;
        node.command(policy("right", "*", Verbs::ALL)).await;
        node
    }

    /// An operator's command, done.
    async fn command(&self, command: Command) {
        let node = &self.front.api().node;
        node.submit(&Identity::Operator, command).await.unwrap().unwrap();
    }

    async fn ask(&self, who: &str, method: &str, path: &str, body: Value) -> Response<Body> {
        self.ask_in_session(who, "", method, path, body).await
    }

    async fn ask_in_session(
        &self,
        who: &str,
        session: &str,
        method: &str,
        path: &str,
        body: Value,
    ) -> Response<Body> {
        let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:7400");
        let request = if session.is_empty() { request } else { request.header("tenure-session", session) };
        let body = if body.is_null() { Body::empty() } else { body.to_string().into() };
        let mut request = request.body(body).unwrap();
        request.extensions_mut().insert(identity(who));
        self.send(request).await
    }

    async fn ask_grpc(&self, who: &str, path: &str, message: &impl Message) -> Response<Body> {
        let message = message.encode_to_vec();
        let mut framed = vec![0];
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(&message);
        let request = Request::builder().method("POST").uri(format!("http://127.0.0.1:7400{path}"));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let mut request = request.body(Body::from(framed)).unwrap();
        request.extensions_mut().insert(identity(who));
        self.send(request).await
    }
}

/// What a caller got: the word of the refusal, or what it was told.
async fn outcome(response: Response<Body>) -> Result<String, String> {
    let (head, body) = response.into_parts();
    let header =
        |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match (header("grpc-status"), header("content-type")) {
        ("7", _) => return Err("forbidden".into()),
        (status, "application/grpc") if !status.is_empty() => return Err(format!("grpc {status}")),
        // Streams have no end; that one was begun says enough.
        (_, "application/grpc" | "text/event-stream") => return Ok(String::new()),
        _ => {}
    }
    let body = String::from_utf8_lossy(&body.collect().await.unwrap().to_bytes()).into_owned();
    match serde_json::from_str::<Value>(&body)
        .ok()
        .and_then(|body| Some(body["error"]["code"].as_str()?.to_owned()))
    {
        Some(code) => Err(code),
        None => Ok(body),
    }
}

async fn code(response: Response<Body>) -> String {
    outcome(response).await.err().unwrap_or_else(|| "ok".into())
}

/// How each call is tried. A call that is added does not compile here until it has a cell.
async fn try_call(node: &Node, call: Call, who: &str, session: &str) -> Response<Body> {
    let of_session = async |method, path, body| node.ask_in_session(who, session, method, path, body).await;
    let resource = "pay/x".to_owned();
    match call {
        Call::SessionsOpen => {
            node.ask(who, "POST", "/v1/sessions", json!({"holder": "h", "ttl_ms": 60_000})).await
        }
        Call::SessionsRenew => of_session("POST", "/v1/session:renew", json!({})).await,
        Call::SessionsClose => of_session("DELETE", "/v1/session", json!({})).await,
        Call::SessionsGet => of_session("GET", "/v1/session", Value::Null).await,
        Call::SessionsList => node.ask(who, "GET", "/v1/sessions", Value::Null).await,
        Call::SessionsSeen => of_session("POST", "/v1/session:seen", json!({"revision": 1})).await,
        Call::SessionsReportPause => of_session("POST", "/v1/session:paused", json!({"paused_ms": 5})).await,
        Call::SessionsEvents => of_session("GET", "/v1/sessions:events", Value::Null).await,
        Call::StreamCommands => {
            node.ask_grpc(who, "/tenure.v1.Stream/Commands", &proto::ClientFrames::default()).await
        }
        Call::StreamRenewals => {
            node.ask_grpc(who, "/tenure.v1.Stream/Renewals", &proto::RenewalFrames::default()).await
        }
        Call::LeasesAcquire => of_session("POST", "/v1/leases/pay/y:acquire", json!({})).await,
        Call::LeasesCancel => of_session("POST", "/v1/leases:cancel", json!({"acquire": 1})).await,
        Call::LeasesRelease => of_session("POST", "/v1/leases/pay/x:release", json!({})).await,
        Call::LeasesTransfer => of_session("POST", "/v1/leases/pay/x:transfer", json!({"to": 1})).await,
        Call::LeasesRevoke => node.ask(who, "POST", "/v1/leases/pay/x:revoke", json!({})).await,
        Call::LeasesBarrier => node.ask(who, "POST", "/v1/leases/pay/z:barrier", json!({})).await,
        Call::LeasesGet => node.ask(who, "GET", "/v1/leases/pay/x", Value::Null).await,
        Call::LeasesList => node.ask(who, "GET", "/v1/leases", Value::Null).await,
        Call::LeasesHistory => node.ask(who, "GET", "/v1/history", Value::Null).await,
        Call::WatchWatch => node.ask(who, "GET", "/v1/watch", Value::Null).await,
        Call::WatchEvents => node.ask(who, "GET", "/v1/events", Value::Null).await,
        Call::RegistersWrite => node.ask(who, "PUT", "/v1/registers/pay/k", json!({"value": "1"})).await,
        Call::RegistersGet => node.ask(who, "GET", "/v1/registers/pay/k", Value::Null).await,
        Call::RegistersList => node.ask(who, "GET", "/v1/registers", Value::Null).await,
        Call::FencesArm => {
            node.ask(who, "POST", "/v1/fences/pay/x:arm", json!({"fence": "pg", "token": 1})).await
        }
        Call::FencesReportRefused => {
            let report = json!({"fence": "pg", "presented": 1, "seen": 1, "count": 1});
            node.ask(who, "POST", "/v1/fences/pay/x:refused", report).await
        }
        Call::FencesRemove => {
            let request = proto::FenceRemoveRequest { resource, fence: "none".into() };
            node.ask_grpc(who, "/tenure.v1.Fences/Remove", &request).await
        }
        Call::FencesList => node.ask(who, "GET", "/v1/fences/pay/x", Value::Null).await,
        Call::SequencersIssue => of_session("POST", "/v1/sequencers", json!({"resource": "pay/x"})).await,
        Call::SequencersCheck => {
            node.ask(who, "POST", "/v1/sequencers:check", json!({"sequencer": "none"})).await
        }
        Call::SequencersRotate => node.ask(who, "POST", "/v1/sequencers:rotate", json!({})).await,
        Call::SequencersWithdraw => {
            node.ask(who, "POST", "/v1/sequencers:withdraw", json!({"kid": "none"})).await
        }
        Call::SequencersKeys => node.ask(who, "GET", "/.well-known/jwks.json", Value::Null).await,
        Call::ClusterStatus => node.ask(who, "GET", "/v1/cluster", Value::Null).await,
        Call::ClusterSetKind => node.ask(who, "POST", "/v1/leases/pay/z:kind", json!({"kind": "lock"})).await,
        Call::ClusterRebind => node.ask(who, "POST", "/v1/registers/pay/k:rebind", json!({})).await,
        Call::ClusterStepDown => {
            node.ask_grpc(who, "/tenure.v1.Cluster/StepDown", &proto::StepDownRequest::default()).await
        }
        Call::ClusterAdd => {
            node.ask_grpc(who, "/tenure.v1.Cluster/Add", &proto::NodeAddRequest::default()).await
        }
        Call::ClusterRemove => {
            node.ask_grpc(who, "/tenure.v1.Cluster/Remove", &proto::NodeRemoveRequest::default()).await
        }
        Call::ClusterUpgrade => {
            node.ask_grpc(who, "/tenure.v1.Cluster/Upgrade", &proto::UpgradeRequest::default()).await
        }
        Call::ClusterBackup => {
            node.ask_grpc(who, "/tenure.v1.Cluster/Backup", &proto::BackupRequest::default()).await
        }
        Call::ClusterRestore => {
            node.ask_grpc(who, "/tenure.v1.Cluster/Restore", &proto::RestoreRequest::default()).await
        }
        Call::AuthPutCredential => {
            let body = json!({"id": "00000000000000aa", "name": "cred/x", "hash": "ab".repeat(32)});
            node.ask(who, "POST", "/v1/auth/credentials", body).await
        }
        Call::AuthRevokeCredential => {
            node.ask(who, "DELETE", "/v1/auth/credentials/00000000000000ab", json!({})).await
        }
        Call::AuthCredentials => node.ask(who, "GET", "/v1/auth/credentials", Value::Null).await,
        Call::AuthPutPolicy => {
            let policy = json!({"policy": {"who": ["cred/x"], "on": ["pay"], "may": ["read"]}});
            node.ask(who, "PUT", "/v1/auth/policies/new", policy).await
        }
        Call::AuthRemovePolicy => node.ask(who, "DELETE", "/v1/auth/policies/reader-pay", json!({})).await,
        Call::AuthPolicies => node.ask(who, "GET", "/v1/auth/policies", Value::Null).await,
        Call::AuthEnforce => node.ask(who, "POST", "/v1/auth:enforce", json!({"enforced": true})).await,
        Call::AuthWhoAmI => node.ask(who, "GET", "/v1/auth/whoami", Value::Null).await,
        Call::AuthExplain => {
            node.ask(who, "POST", "/v1/auth:explain", json!({"verb": "hold", "on": "pay/x"})).await
        }
        Call::Probe => node.ask(who, "POST", "/v1/probe/0", json!({})).await,
        Call::Health => {
            node.ask_grpc(who, "/grpc.health.v1.Health/Check", &proto::UpgradeRequest::default()).await
        }
        Call::Reflection => {
            let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
            node.ask_grpc(who, path, &proto::UpgradeRequest::default()).await
        }
        Call::PageMetrics => node.ask(who, "GET", "/metrics", Value::Null).await,
        Call::PageHealth => node.ask(who, "GET", "/healthz", Value::Null).await,
        Call::PageOpenApi => node.ask(who, "GET", "/openapi.json", Value::Null).await,
        Call::PageDashboard => node.ask(who, "GET", "/", Value::Null).await,
    }
}

/// What one's own session is asked for is answered to others as if it were not there.
fn is_denied(outcome: &Result<String, String>) -> bool {
    matches!(outcome, Err(code) if code == "forbidden" || code == "unknown_session")
}

/// Lists: everybody who may read anything gets the part that it may read.
const LISTS: [Call; 7] = [
    Call::SessionsList,
    Call::LeasesList,
    Call::LeasesHistory,
    Call::WatchWatch,
    Call::WatchEvents,
    Call::RegistersList,
    Call::SequencersCheck,
];

/// Every call, by every kind of caller: what is not allowed is refused, or shows nothing of what one may not read.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_judged_for_every_caller() {
    let node = Node::enforced().await;
    let opened =
        node.ask("right", "POST", "/v1/sessions", json!({"holder": "right", "ttl_ms": 60_000})).await;
    let opened: Value = serde_json::from_str(&outcome(opened).await.unwrap()).unwrap();
    let session = opened["session"].as_str().unwrap().to_owned();
    let acquire = json!({"fences": ["pg"]});
    let held = node.ask_in_session("right", &session, "POST", "/v1/leases/pay/x:acquire", acquire).await;
    outcome(held).await.unwrap();
    let put = node.ask("right", "PUT", "/v1/registers/pay/k", json!({"value": "1"})).await;
    outcome(put).await.unwrap();

    let mut wrong = Vec::new();
    for who in ["anyone", "reader", "other"] {
        for call in Call::ALL.iter().copied() {
            let got = outcome(try_call(&node, call, who, &session).await).await;
            let cell = format!("{} by {who}: {got:?}", call.name());
            let allowed = match (call, call.verb(), who) {
                // Revoking another's credential is refused when it is applied, unless one may grant all that it may.
                (Call::AuthRevokeCredential, _, who) => who == "other",
                (_, Verb::Public, _) => true,
                (_, Verb::Read, "reader") => true,
                (_, Verb::Observe, "other") => true,
                // It may hold something, so it may have sessions and streams of its own.
                (Call::SessionsOpen | Call::StreamCommands | Call::StreamRenewals, _, "other") => true,
                // It may give what it has, so it may see what was given.
                (Call::AuthPolicies | Call::AuthCredentials, _, "other") => true,
                // So may it make a credential whose bearer has no right that it has not.
                (Call::AuthPutCredential, _, "other") => true,
                (call, Verb::Read, "other") if LISTS.contains(&call) => true,
                _ => false,
            };
            if is_denied(&got) == allowed {
                wrong.push(cell.clone());
            }
            if let (Ok(body), "other" | "anyone") = (&got, who) {
                let own = matches!(call.verb(), Verb::Grant | Verb::Public);
                if !own && body.contains("pay") {
                    wrong.push(cell);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // What ends the session, the node's term or the policies comes last.
    let last = |call: &Call| matches!(call, Call::SessionsClose | Call::ClusterStepDown | Call::AuthEnforce);
    for call in Call::ALL.iter().copied().filter(|call| !last(call)) {
        let got = outcome(try_call(&node, call, "right", &session).await).await;
        assert!(!is_denied(&got), "{} by right: {got:?}", call.name());
    }
    for call in Call::ALL.iter().copied().filter(last) {
        let got = outcome(try_call(&node, call, "right", &session).await).await;
        assert!(!is_denied(&got), "{} by right: {got:?}", call.name());
    }
}

// The attacks on what one may not do, each by its name.

#[tokio::test(flavor = "multi_thread")]
async fn attack_encoded_slash_or_colon() {
    let node = Node::enforced().await;
    let body = || json!({"holder": "h", "ttl_ms": 60_000});
    for path in [
        "/v1/leases/shop%2F..%2Fpay/x:acquire",
        "/v1/leases/shop/%2e%2e/pay:acquire",
        "/v1/leases/pay%2Fx:acquire",
        "/v1/leases/%70ay/x:acquire",
        "/v1/leases/pay/shop%3Aacquire:acquire",
    ] {
        let got = code(node.ask("other", "POST", path, body()).await).await;
        assert!(got == "forbidden" || got == "invalid_name", "{path}: {got}");
    }
    // A verb in the name stays a part of the name: it is judged as `shop/x:revoke`, and revokes nothing.
    let got = code(node.ask("other", "POST", "/v1/leases/shop/x%3Arevoke:acquire", body()).await).await;
    assert_eq!(got, "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_lists_history_and_labels_of_others() {
    let node = Node::enforced().await;
    node.command(policy("both", "pay", Verbs::ALL)).await;
    for (who, resource) in [("right", "pay/secret"), ("right", "shop/open"), ("right", "shop/till/1")] {
        // Twice, so that there is a past lease as well.
        for again in [true, false] {
            let acquire = json!({"holder": "h", "ttl_ms": 60_000, "fences": ["pg"]});
            let granted = node.ask(who, "POST", &format!("/v1/leases/{resource}:acquire"), acquire).await;
            let granted: Value = serde_json::from_str(&outcome(granted).await.unwrap()).unwrap();
            if again {
                let (session, path) = (&granted["session"], format!("/v1/leases/{resource}:release"));
                let session = session.as_str().unwrap();
                outcome(node.ask_in_session(who, session, "POST", &path, json!({})).await).await.unwrap();
            }
        }
        let put = node.ask(who, "PUT", &format!("/v1/registers/{resource}"), json!({"value": "v"})).await;
        outcome(put).await.unwrap();
    }
    for path in
        ["/v1/leases", "/v1/history", "/v1/events", "/v1/registers", "/metrics", "/v1/leases?prefix=pay"]
    {
        let got = outcome(node.ask("other", "GET", path, Value::Null).await).await.unwrap();
        assert!(!got.contains("pay/secret"), "{path}: {got}");
        assert!(path.contains('?') || got.contains("shop/open"), "{path}: {got}");
    }
    for path in ["/v1/leases/pay/secret", "/v1/history/pay/secret", "/v1/registers/pay/secret"] {
        assert_eq!(code(node.ask("other", "GET", path, Value::Null).await).await, "forbidden", "{path}");
    }
    // Nor whether it is there at all.
    let absent = code(node.ask("other", "GET", "/v1/leases/pay/absent", Value::Null).await).await;
    assert_eq!(absent, "forbidden");
}

/// A watch of everything shows what the caller may read, by the policies of the moment.
#[tokio::test(flavor = "multi_thread")]
async fn attack_wider_watch_and_watch_after_removal() {
    let node = Node::enforced().await;
    let api = node.front.api().clone();
    let watch = async |from: u64| {
        let path = format!("/v1/events?from={from}");
        let body = outcome(node.ask("other", "GET", &path, Value::Null).await).await;
        body.map(|body| serde_json::from_str::<Value>(&body).unwrap())
    };
    let barrier = async |name: &str| {
        node.command(Command::Barrier { resource: name.parse().unwrap() }).await;
    };
    barrier("pay/a").await;
    barrier("shop/a").await;
    let seen = watch(1).await.unwrap().to_string();
    assert!(seen.contains("shop/a") && !seen.contains("pay/a"), "{seen}");
    // The same watcher, after its right was taken away.
    let from = api.node.glance(Machine::revision).get() + 1;
    node.command(policy("other", "shop", [Verb::Hold].into_iter().collect())).await;
    node.command(policy("other", "elsewhere", [Verb::Read].into_iter().collect())).await;
    barrier("shop/b").await;
    let seen = watch(from).await.unwrap().to_string();
    assert!(!seen.contains("shop/b"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_a_member_forwards_what_only_members_do() {
    let node = Node::enforced().await;
    let inner = node.front.api().node.clone();
    let forwarded = async |identity: Identity, command: Command| {
        let mut encoded = Vec::new();
        let attributed = Command::As(Box::new(Attributed { identity, command }));
        tenure_wire::encode_command(FormatVersion::NEWEST, &attributed, &mut encoded);
        let version = FormatVersion::NEWEST;
        inner.answer_to(&Identity::Anyone, Submission::Forwarded { version, encoded }).await
    };
    let barrier = || Command::Barrier { resource: "pay/x".parse().unwrap() };
    let refused = forwarded(Identity::Node, barrier()).await.unwrap_err();
    assert!(refused.to_string().contains("only a leader gives"), "{refused}");
    let publish = Command::PublishKey { node: 2, kid: "2-1".into(), key: [7; 32] };
    forwarded(Identity::Node, publish).await.unwrap().unwrap();
    // The caller that the other node names is the one that is judged.
    let denied = forwarded(identity("other"), barrier()).await.unwrap().unwrap_err();
    assert!(
        matches!(&denied, tenure_core::Refusal::Forbidden(denial) if denial.identity == identity("other"))
    );
    forwarded(identity("right"), barrier()).await.unwrap().unwrap();
}

/// A refusal says who, what and where, and which policy comes nearest.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_identity_verb_name_and_the_nearest_policy() {
    let node = Node::enforced().await;
    let response = node.ask("reader", "PUT", "/v1/registers/pay/k", json!({"value": "1"})).await;
    assert_eq!(response.status(), 403);
    let response = node.ask("reader", "GET", "/v1/registers/shop/k", Value::Null).await;
    let body: Value =
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let error = &body["error"];
    assert_eq!((&error["identity"], &error["verb"]), (&json!("cred/reader"), &json!("read")));
    assert_eq!((&error["resource"], &error["policy"]), (&json!("shop/k"), &json!("reader-pay")));
}
