//! `/openapi.json`: the HTTP surface, described for programs. A test compares it with the router and with what the
//! handlers really answer, so that it cannot drift away from them.

mod schemas;

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tenure_wire::Code;

static PAGE: LazyLock<String> = LazyLock::new(|| document().to_string());

pub(super) async fn page() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], PAGE.as_str()).into_response()
}

/// The whole description.
fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Leases with fencing tokens. The verb is what follows the last `:` of a path; a resource's \
                slashes may stay slashes, and a literal colon in the last segment is `%3A`. Bodies are read as JSON \
                whatever their content type. Durations are whole milliseconds; calendar times are for people.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths(),
        "components": {"schemas": schemas::all()},
    })
}

/// Refusals that any call may meet.
const ANY: &[Code] = &[Code::ForeignOrigin, Code::Overloaded, Code::NoLeader, Code::ShuttingDown];
/// Refusals that any call with a body may meet.
const BODY: &[Code] = &[Code::InvalidBody, Code::InvalidArgument, Code::TooLarge];
/// Refusals of commands of a session.
const SESSION: &[Code] = &[
    Code::InvalidSession,
    Code::UnknownSession,
    Code::Lapsed,
    Code::ForgottenNumber,
    Code::Limit,
    Code::UnknownOutcome,
];
/// Refusals of an acquire.
const ACQUIRE: &[Code] = &[
    Code::Held,
    Code::Delayed,
    Code::WrongKind,
    Code::Cancelled,
    Code::Restoring,
    Code::TokensExhausted,
    Code::InvalidTtl,
    Code::InvalidNonce,
    Code::NonceUsed,
];
/// Refusals of a write to registers.
const WRITE: &[Code] =
    &[Code::InvalidToken, Code::StaleToken, Code::LeaseEnded, Code::UnknownToken, Code::WrongGuard];

fn paths() -> Value {
    let list = &[limit(), after_name(), stale()][..];
    json!({
        "/v1/sessions": {
            "post": call("openSession", "Open a session, or find the live one that the same nonce opened")
                .body("OpenSession").ok("SessionOpened").refused(SESSION)
                .refused(&[Code::InvalidTtl, Code::InvalidName, Code::InvalidNonce, Code::NonceUsed]),
            "get": call("listSessions", "The live sessions, by their public numbers")
                .query(&[limit(), query("after", "Only sessions with higher numbers than this.", number())])
                .ok("Sessions"),
        },
        "/v1/sessions:renew": {
            "post": call("renewSessions", "Renew many sessions; an ended one is an answer among the others")
                .body("RenewSessions").ok("RenewedMany").refused(&[Code::InvalidSession, Code::UnknownOutcome]),
        },
        "/v1/sessions/{session}": {
            "get": call("getSession", "One's own session: what it is and what it holds").path(session())
                .ok("SessionLeases").refused(SESSION),
            "delete": call("closeSession", "End a session and give all of its leases back").path(session())
                .optional_body("CloseSession").ok("Closed").refused(SESSION),
        },
        "/v1/sessions/{session}:renew": {
            "post": call("renewSession", "Renew a session, and with it all of its leases").path(session())
                .optional_body("RenewSession").ok("Renewed").refused(SESSION),
        },
        "/v1/sessions/{session}:seen": {
            "post": call("seen", "The holder has taken in its events up to a revision").path(session())
                .body("Seen").ok("Nothing").refused(SESSION),
        },
        "/v1/sessions/{session}:paused": {
            "post": call("reportPause", "The holder noticed that it had been paused").path(session())
                .body("Paused").ok("Nothing").refused(SESSION),
        },
        "/v1/leases": {
            "get": call("listLeases", "The resources that are held, in the order of their names")
                .query(&[prefix("resources")]).query(list).ok("Leases").refused(&[Code::InvalidName]),
        },
        "/v1/leases:acquire": {
            "post": call("acquireMany", "Take several resources, all or none, now or in turn")
                .body("AcquireMany").ok("GrantedMany").queued().refused(SESSION).refused(ACQUIRE)
                .refused(&[Code::InvalidName]),
        },
        "/v1/leases:cancel": {
            "post": call("cancel", "Undo an acquire by its number or nonce: leave the queue, or release what it was granted")
                .body("Cancel").ok("Cancelled").refused(SESSION).refused(&[Code::InvalidNonce]),
        },
        "/v1/leases/{resource}": {
            "get": call("getLease", "One resource: who holds it, who waits").path(resource())
                .query(&[stale(), query("view", "In whose shape: `kubernetes` for that of coordination.k8s.io/v1.", json!({"type": "string", "enum": ["kubernetes"]}))])
                .ok("LeaseView").refused(&[Code::InvalidName, Code::NotFound]),
        },
        "/v1/leases/{resource}:acquire": {
            "post": call("acquire", "Take a resource, now or in turn").path(resource())
                .query(&[query("sequencer", "Also sign a statement of the grant.", boolean())])
                .body("Acquire").ok("Granted").queued().refused(SESSION).refused(ACQUIRE),
        },
        "/v1/leases/{resource}:release": {
            "post": call("release", "Give a lease back; also the confirmation of a notice").path(resource())
                .body("Release").ok("Released").refused(SESSION).refused(&[Code::InvalidToken]),
        },
        "/v1/leases/{resource}:transfer": {
            "post": call("transfer", "End one's lease and grant the resource to a session that waits for it")
                .path(resource()).body("Transfer").ok("Transferred").refused(SESSION)
                .refused(&[Code::NotHeld, Code::NotReady, Code::UnderNotice, Code::Restoring, Code::TokensExhausted]),
        },
        "/v1/leases/{resource}:revoke": {
            "post": call("revoke", "An administrator ends the leases of a resource: by notice, or at once")
                .path(resource()).optional_body("Revoke").ok("Revoked")
                .refused(&[Code::NotFound, Code::TokensExhausted, Code::UnknownOutcome]),
        },
        "/v1/leases/{resource}:barrier": {
            "post": call("barrier", "Take a token for nobody on a free resource, to be installed in its fences")
                .path(resource()).optional_body("Nothing").ok("TokenTaken")
                .refused(&[Code::InUse, Code::Limit, Code::TokensExhausted, Code::UnknownOutcome]),
        },
        "/v1/leases/{resource}:kind": {
            "post": call("setKind", "An administrator changes the kind of a free resource").path(resource())
                .optional_body("SetKind").ok("Nothing").refused(&[Code::InUse, Code::Limit, Code::NotFound, Code::UnknownOutcome]),
        },
        "/v1/history/{resource}": {
            "get": call("history", "The past leases of a resource, the newest first").path(resource())
                .ok("History").refused(&[Code::InvalidName, Code::NotFound]),
        },
        "/v1/history": {
            "get": call("listHistories", "The past leases of every resource that is remembered; `limit` counts leases, a resource is always whole")
                .query(&[prefix("resources")]).query(list).ok("Histories").refused(&[Code::InvalidName]),
        },
        "/v1/events": {
            "get": call("listEvents", "What happened, as far as it is remembered; a revision is always whole")
                .query(&[
                    prefix("resources and registers"),
                    query("from", "Begin with this revision; without it, with the oldest.", number()),
                    limit(), stale(),
                ])
                .ok("Events").refused(&[Code::TooOld]),
        },
        "/v1/watch": {
            "get": call("watch", "What changes, as server-sent events; `id:` is the revision")
                .query(&[
                    prefix("resources and registers"),
                    query("from", "Begin with this revision; without it, with the next one.", number()),
                    json!({"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"},
                        "description": "Resume after this revision; goes before `from`."}),
                ])
                .stream().refused(&[Code::TooOld, Code::InvalidArgument]),
        },
        "/v1/registers": {
            "get": call("listRegisters", "Registers in the order of their keys")
                .query(&[prefix("registers")]).query(list).ok("Registers").refused(&[Code::InvalidName]),
        },
        "/v1/registers:write": {
            "post": call("writeRegisters", "Several comparisons, reads and writes as one step")
                .optional_body("WriteRegisters").ok("WrittenMany").refused(SESSION).refused(WRITE)
                .refused(&[Code::InvalidName]),
        },
        "/v1/registers/{key}": {
            "get": call("getRegister", "One register").path(key()).query(&[stale()])
                .ok("Register").refused(&[Code::InvalidName, Code::NotFound]),
            "put": call("putRegister", "Write a register, under a guard and conditions where asked for").path(key())
                .query(&[guard()]).body("PutRegister").ok("Written").refused(SESSION).refused(WRITE)
                .refused(&[Code::CompareFailed]),
            "delete": call("deleteRegister", "Remove a register; its guard stays").path(key())
                .query(&[guard()]).optional_body("DeleteRegister").ok("Written").refused(SESSION).refused(WRITE)
                .refused(&[Code::CompareFailed]),
        },
        "/v1/registers/{key}:rebind": {
            "post": call("rebind", "An administrator binds a register to another guard, or to none").path(key())
                .optional_body("Rebind").ok("Nothing").refused(&[Code::NotFound, Code::Limit, Code::UnknownOutcome]),
        },
        "/v1/fences/{resource}": {
            "get": call("getFences", "The fences of a resource and what each has installed").path(resource())
                .query(&[stale()]).ok("Fences").refused(&[Code::InvalidName, Code::NotFound]),
        },
        "/v1/fences/{resource}:arm": {
            "post": call("arm", "A fence has installed a token: accepted only with the live token").path(resource())
                .body("Arm").ok("Nothing").refused(WRITE).refused(&[Code::NotFound, Code::Limit, Code::UnknownOutcome]),
        },
        "/v1/fences/{resource}:refused": {
            "post": call("reportRefused", "A fence refused stale writes").path(resource())
                .body("Refused").ok("Nothing")
                .refused(&[Code::InvalidToken, Code::NotFound, Code::Limit, Code::UnknownOutcome]),
        },
        "/v1/sequencers": {
            "post": call("issueSequencer", "Sign a statement of a live grant, which anybody can check without asking us")
                .body("IssueSequencer").ok("SequencerIssued").refused(SESSION)
                .refused(&[Code::InvalidName, Code::NotHeld]),
        },
        "/v1/sequencers:check": {
            "post": call("checkSequencer", "Whether a sequencer's token is still the newest of its scope")
                .body("CheckSequencer").ok("SequencerChecked"),
        },
        "/v1/sequencers:rotate": {
            "post": call("rotateKey", "Give the node that is asked a new key; what its last one signed can still be checked")
                .optional_body("Nothing").ok("KeyName").refused(&[Code::Limit, Code::NotFound, Code::UnknownOutcome]),
        },
        "/v1/sequencers:withdraw": {
            "post": call("withdrawKey", "Take a public key out of the set: nothing that it signed can be checked any more")
                .body("KeyName").ok("Nothing").refused(&[Code::NotFound, Code::UnknownOutcome]),
        },
        "/.well-known/jwks.json": {
            "get": call("jwks", "The public keys of all nodes (RFC 7517), for checking sequencers; may be stale").ok("KeySet"),
        },
        "/v1/cluster": {
            "get": call("cluster", "Who leads, who is there, how far this node has come; may be stale")
                .query(&[query("state_hash", "Also hash the state of this node.", boolean())]).ok("ClusterStatus"),
        },
        "/metrics": {"get": call("metrics", "What this node counts, as Prometheus reads it").text()},
        "/healthz": {"get": call("healthz", "The process is there and answers").ok("Health")},
        "/readyz": {"get": call("readyz", "A leader is known and serves").ok("Health")},
        "/openapi.json": {"get": call("openapi", "This description").ok("Description")},
    })
}

/// One call being described; becomes JSON when it is done.
#[derive(serde::Serialize)]
struct Call {
    #[serde(rename = "operationId")]
    id: &'static str,
    summary: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<Value>,
    #[serde(rename = "requestBody", skip_serializing_if = "Option::is_none")]
    body: Option<Value>,
    responses: Map<String, Value>,
}

fn call(id: &'static str, summary: &'static str) -> Call {
    let call = Call { id, summary, parameters: Vec::new(), body: None, responses: Map::new() };
    call.refused(ANY)
}

impl Call {
    /// With a part of the path.
    fn path(mut self, parameter: Value) -> Call {
        self.parameters.push(parameter);
        self.refused(&[Code::InvalidName, Code::NoSuchCall])
    }

    /// With parameters outside of the path.
    fn query(mut self, parameters: &[Value]) -> Call {
        self.parameters.extend_from_slice(parameters);
        self.refused(&[Code::InvalidArgument])
    }

    fn body(self, schema: &str) -> Call {
        self.with_body(schema, true)
    }

    /// A body that may be left out is read as `{}`.
    fn optional_body(self, schema: &str) -> Call {
        self.with_body(schema, false)
    }

    fn with_body(mut self, schema: &str, required: bool) -> Call {
        self.body = Some(json!({
            "required": required,
            "content": {"application/json": {"schema": schemas::named(schema)}},
        }));
        self.refused(BODY)
    }

    fn ok(self, schema: &str) -> Call {
        self.answers("Done.", "application/json", schemas::named(schema))
    }

    /// An acquire that is still queued when its `poll_ms` is over.
    fn queued(mut self) -> Call {
        let schema = schemas::named("Queued");
        let answer = json!({"description": "Still queued after `poll_ms`.", "content": {"application/json": {"schema": schema}}});
        self.responses.insert("202".into(), answer);
        self
    }

    fn text(self) -> Call {
        self.answers("The page.", "text/plain", json!({"type": "string"}))
    }

    fn stream(self) -> Call {
        let message = "Each message is one event: `event:` is its kind, `data:` an Event as JSON. Only the last event of a \
            revision carries `id:`, so that a watcher that was cut off is told the whole of it again. A watcher that falls \
            too far behind gets the event `error` and the stream ends.";
        self.answers(message, "text/event-stream", json!({"type": "string"}))
    }

    fn answers(mut self, description: &str, content: &str, schema: Value) -> Call {
        let answer = json!({"description": description, "content": {content: {"schema": schema}}});
        self.responses.insert("200".into(), answer);
        self
    }

    /// Also refused with these codes, told together where they share a status.
    fn refused(mut self, codes: &[Code]) -> Call {
        for code in codes {
            let answer = self.responses.entry(code.http_status().to_string()).or_insert_with(|| {
                json!({
                    "description": "",
                    "content": {"application/json": {"schema": schemas::named("Error")}},
                })
            });
            let description = answer["description"].as_str().unwrap_or_default();
            let word = format!("`{code}`");
            if !description.contains(&word) {
                answer["description"] =
                    if description.is_empty() { word } else { format!("{description}, {word}") }.into();
            }
        }
        self
    }
}

impl From<Call> for Value {
    fn from(call: Call) -> Value {
        serde_json::to_value(call).expect("a description is made of text")
    }
}

fn number() -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": (1_u64 << 53) - 1})
}

fn boolean() -> Value {
    json!({"type": "boolean"})
}

fn query(name: &str, description: &str, schema: Value) -> Value {
    json!({"name": name, "in": "query", "description": description, "schema": schema})
}

fn limit() -> Value {
    query(
        "limit",
        "At most this many; 1000 are the most that one page has.",
        json!({"type": "integer", "minimum": 1, "default": 100}),
    )
}

fn after_name() -> Value {
    query(
        "after",
        "Only those whose names come after this one: the `next` of the page before. A page may be short, even empty, and yet have a `next`.",
        json!({"type": "string"}),
    )
}

fn stale() -> Value {
    query(
        "stale",
        "Answer from this node's own state, which may be stale.",
        json!({"type": "boolean", "default": false}),
    )
}

fn prefix(what: &str) -> Value {
    query("prefix", &format!("Only {what} whose names begin like this."), json!({"type": "string"}))
}

fn part(name: &str, description: &str, schema: Value) -> Value {
    json!({"name": name, "in": "path", "required": true, "description": description, "schema": schema})
}

fn resource() -> Value {
    part(
        "resource",
        "1 to 512 bytes of UTF-8 without control characters; segments split by `/`, none empty, `.` or `..`.",
        schemas::resource(),
    )
}

fn key() -> Value {
    part("key", "1 to 1024 bytes.", json!({"type": "string", "minLength": 1, "maxLength": 1024}))
}

fn session() -> Value {
    part("session", "The session's whole id, as its opener was told.", schemas::session())
}

fn guard() -> Value {
    json!({"name": "Tenure-Token", "in": "header", "schema": {"type": "string"},
        "description": "The guard instead of `resource` and `token` in the body: `resource=token`, or `resource#slot=token`."})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `$ref` of the document names a schema, and every schema is used.
    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (at, _) in text.match_indices("#/components/schemas/") {
            let name = text[at..].trim_start_matches("#/components/schemas/").split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name} is not described");
        }
        for name in schemas.keys() {
            // The events of a watch are text to a schema.
            let used = text.contains(&format!("#/components/schemas/{name}\"")) || name == "Event";
            assert!(used, "{name} is described and not used");
        }
    }

    #[test]
    fn every_call_has_a_name_of_its_own() {
        let document = document();
        let mut names = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, call) in methods.as_object().unwrap() {
                names.push(call["operationId"].as_str().unwrap().to_owned());
                assert!(call["responses"]["200"].is_object(), "{method} {path}");
                let parts = path.matches('{').count();
                let described = call["parameters"]
                    .as_array()
                    .map_or(0, |all| all.iter().filter(|parameter| parameter["in"] == "path").count());
                assert_eq!(parts, described, "{method} {path}");
            }
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
