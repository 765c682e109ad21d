//! The shapes of bodies and answers, field by field, as `tenure_wire::json` reads and writes them.

use serde_json::{Map, Value, json};
use tenure_core::EndReason;
use tenure_wire::Code;

/// A schema by its name.
pub(super) fn named(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(super) fn resource() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 512, "examples": ["settlement/cron"]})
}

pub(super) fn session() -> Value {
    json!({"type": "string", "pattern": "^[0-9]+-[0-9a-f]{32}$", "examples": ["7-9f86d081884c7d659a2feaa0c55ad015"]})
}

/// One field: its name, whether it is always there, and what it is.
type Field = (&'static str, bool, Value);

fn always(name: &'static str, schema: Value) -> Field {
    (name, true, schema)
}

fn maybe(name: &'static str, schema: Value) -> Field {
    (name, false, schema)
}

fn fields(fields: Vec<Field>) -> Map<String, Value> {
    let required: Vec<&str> =
        fields.iter().filter(|(_, always, _)| *always).map(|(name, ..)| *name).collect();
    let mut object = Map::new();
    object.insert("type".into(), "object".into());
    if !required.is_empty() {
        object.insert("required".into(), required.into());
    }
    let properties: Map<String, Value> =
        fields.into_iter().map(|(name, _, schema)| (name.to_owned(), schema)).collect();
    object.insert("properties".into(), properties.into());
    object
}

/// A body: what it does not know is refused.
fn body(of: Vec<Field>) -> Value {
    let mut object = fields(of);
    object.insert("additionalProperties".into(), false.into());
    object.into()
}

/// An answer: it may grow.
fn answer(of: Vec<Field>) -> Value {
    fields(of).into()
}

fn text() -> Value {
    json!({"type": "string"})
}

fn boolean() -> Value {
    json!({"type": "boolean"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn small() -> Value {
    json!({"type": "integer", "minimum": 0, "maximum": u32::MAX})
}

fn millis() -> Value {
    json!({"type": "integer", "minimum": 0, "description": "Milliseconds."})
}

fn token() -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": (1_u64 << 53) - 1})
}

fn or_null(schema: Value) -> Value {
    json!({"oneOf": [schema, {"type": "null"}]})
}

fn list(of: Value) -> Value {
    json!({"type": "array", "items": of})
}

fn holder() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 256, "examples": ["node-a"]})
}

fn ttl() -> Value {
    json!({"type": "integer", "minimum": 500, "maximum": 3_600_000, "examples": [10_000],
        "description": "Milliseconds. Outside the limits it is refused, never clamped."})
}

fn nonce() -> Value {
    json!({"type": "string", "pattern": "^([0-9a-fA-F]{2}){16,}$",
        "description": "At least 32 hexadecimal digits; lets a repeated open find the session that it made."})
}

fn calendar() -> Value {
    json!({"type": "string", "format": "date-time", "description": "For people."})
}

fn why() -> Value {
    let reasons: Vec<&str> = EndReason::ALL.iter().map(|why| why.as_str()).collect();
    json!({"type": "string", "enum": reasons})
}

fn slot() -> Field {
    maybe("slot", small())
}

/// The place of a command in its session's numbering.
fn numbering() -> Vec<Field> {
    vec![maybe("number", or_null(count())), maybe("lowest_awaited", or_null(count()))]
}

fn with(mut first: Vec<Field>, then: Vec<Field>) -> Vec<Field> {
    first.extend(then);
    first
}

pub(super) fn all() -> Value {
    let mut all = Map::new();
    for group in [common(), sessions(), leases(), registers(), fences(), sequencers(), node()] {
        all.extend(group.into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    }
    all.into()
}

type Group = Vec<(&'static str, Value)>;

fn common() -> Group {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let error = answer(vec![
        always("code", json!({"type": "string", "enum": codes})),
        always("message", text()),
        maybe("hint", text()),
        always("effect", json!({"type": "string", "enum": ["not_applied", "applied", "unknown"]})),
        maybe("retry_after_ms", millis()),
        maybe("resource", text()),
        maybe("holder", text()),
        maybe("remaining_ms", millis()),
        maybe("waited_ms", millis()),
        maybe("token", token()),
        maybe("presented", token()),
        maybe("seen", token()),
        maybe("limit", text()),
        maybe("max", count()),
        maybe("revision", count()),
    ]);
    vec![
        ("Error", answer(vec![always("error", error)])),
        ("Nothing", body(vec![])),
        (
            "Mode",
            json!({"oneOf": [
                {"type": "string", "enum": ["exclusive", "shared"]},
                {"type": "object", "required": ["slots"], "additionalProperties": false,
                    "properties": {"slots": {"type": "integer", "minimum": 1, "maximum": 10_000}}},
            ]}),
        ),
        (
            "Kind",
            json!({"oneOf": [
                {"type": "string", "enum": ["lock"]},
                {"type": "object", "required": ["semaphore"], "additionalProperties": false,
                    "properties": {"semaphore": {"type": "integer", "minimum": 1, "maximum": 10_000}}},
            ]}),
        ),
        (
            "Event",
            json!({"type": "object", "required": ["revision", "at", "kind"], "additionalProperties": true,
            "properties": {"revision": count(), "at": calendar(), "kind": {"type": "string", "enum": [
                "opened", "closed", "lapsed", "granted", "ended", "noticed", "queued", "unqueued", "put", "deleted",
                "barrier", "armed", "refused", "paused", "took_office", "changed",
            ]}}}),
        ),
        (
            "Events",
            answer(vec![
                always("events", list(named("Event"))),
                always("complete_from", count()),
                always("revision", count()),
                always("next", or_null(count())),
            ]),
        ),
    ]
}

fn sessions() -> Group {
    let summary = || {
        vec![
            always("session_number", count()),
            always("holder", text()),
            always("ttl_ms", millis()),
            always("remaining_ms", millis()),
            always("open_ms", millis()),
            always("leases", count()),
            always("waiting", count()),
            always("lapsed", boolean()),
        ]
    };
    let lease_news = answer(vec![
        always("resource", text()),
        always("token", token()),
        always("why", why()),
        maybe("remaining_ms", millis()),
    ]);
    vec![
        (
            "OpenSession",
            body(vec![
                always("holder", holder()),
                always("ttl_ms", ttl()),
                maybe("nonce", or_null(nonce())),
                maybe("number", or_null(count())),
            ]),
        ),
        (
            "SessionOpened",
            answer(vec![
                always("session", session()),
                always("session_number", count()),
                always("holder", text()),
                always("ttl_ms", millis()),
                always("number", count()),
            ]),
        ),
        ("RenewSession", body(vec![maybe("number", or_null(count()))])),
        (
            "RenewSessions",
            body(vec![always(
                "renewals",
                list(body(vec![always("session", session()), maybe("number", or_null(count()))])),
            )]),
        ),
        (
            "Renewed",
            answer(vec![
                always("session", session()),
                maybe("holder", text()),
                always("ttl_ms", millis()),
                always("number", count()),
                always("last_lease_revision", count()),
                maybe("noticed", list(named("LeaseNews"))),
                maybe("ended", list(named("LeaseNews"))),
                maybe("incomplete", boolean()),
            ]),
        ),
        ("LeaseNews", lease_news),
        (
            "RenewedMany",
            answer(vec![always("answers", list(json!({"anyOf": [named("Renewed"), named("Error")]})))]),
        ),
        (
            "CloseSession",
            body(with(
                vec![maybe("died", boolean())],
                vec![maybe("number", or_null(count())), maybe("lowest_awaited", count())],
            )),
        ),
        ("Closed", answer(vec![always("session", session()), always("released", count())])),
        ("SessionSummary", answer(summary())),
        (
            "Sessions",
            answer(vec![always("sessions", list(named("SessionSummary"))), always("next", or_null(count()))]),
        ),
        ("SessionLeases", answer(with(summary(), vec![always("held", list(named("Granted")))]))),
        ("Seen", body(vec![always("revision", count())])),
        ("Paused", body(vec![always("paused_ms", millis())])),
    ]
}

/// What an acquire may ask for, whichever way it names its resources.
fn acquire() -> Vec<Field> {
    vec![
        maybe("session", or_null(session())),
        maybe("holder", or_null(holder())),
        maybe("ttl_ms", or_null(ttl())),
        maybe("nonce", or_null(nonce())),
        maybe("number", or_null(count())),
        maybe("lowest_awaited", or_null(count())),
        maybe(
            "wait_ms",
            json!({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "enum": ["forever"]}, {"type": "null"}],
                "description": "How long to stand in line; without it, not at all."}),
        ),
        maybe(
            "poll_ms",
            json!({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "null"}],
                "description": "How long this request stays open while the acquire is queued; then it is answered 202, and the same request asks again. Needs a number or a nonce."}),
        ),
        maybe("mode", or_null(named("Mode"))),
        maybe("lock_delay_ms", or_null(millis())),
        maybe("max_hold_ms", or_null(millis())),
        maybe("hard_limit_ms", or_null(millis())),
        maybe("priority", or_null(json!({"type": "integer", "minimum": i32::MIN, "maximum": i32::MAX}))),
        maybe("reentrant", boolean()),
        maybe("fences", list(json!({"type": "string", "minLength": 1, "maxLength": 128}))),
    ]
}

/// A grant as it is told, without the session's id.
fn grant() -> Vec<Field> {
    vec![
        always("resource", text()),
        always("session_number", count()),
        always("holder", text()),
        always("mode", named("Mode")),
        always("slot", or_null(small())),
        always("token", token()),
        always("generation", count()),
        always("remaining_ms", millis()),
        always("ttl_ms", millis()),
        always("waited_ms", millis()),
        maybe("fences", list(text())),
    ]
}

fn leases() -> Group {
    let holders = || always("holders", list(named("Holder")));
    vec![
        ("Acquire", body(acquire())),
        (
            "AcquireMany",
            body(with(
                vec![always(
                    "resources",
                    json!({"type": "array", "items": resource(), "minItems": 1, "maxItems": 64, "uniqueItems": true}),
                )],
                acquire(),
            )),
        ),
        ("Granted", answer(with(vec![always("session", session()), maybe("sequencer", text())], grant()))),
        ("Transferred", answer(grant())),
        (
            "GrantedMany",
            answer(vec![
                always("session", session()),
                always("holder", text()),
                always("ttl_ms", millis()),
                always("waited_ms", millis()),
                always("leases", list(named("Granted"))),
            ]),
        ),
        (
            "Queued",
            answer(vec![
                always("queued", boolean()),
                always("session", session()),
                always("ttl_ms", millis()),
                always("ahead", small()),
            ]),
        ),
        (
            "Cancel",
            body(with(
                vec![
                    maybe("session", or_null(session())),
                    maybe("acquire", or_null(count())),
                    maybe("nonce", or_null(nonce())),
                ],
                numbering(),
            )),
        ),
        ("Cancelled", answer(vec![always("released", boolean())])),
        (
            "Release",
            body(with(vec![always("session", session()), maybe("token", or_null(token()))], numbering())),
        ),
        ("Released", answer(vec![always("resource", text()), always("released", boolean())])),
        ("Transfer", body(with(vec![always("session", session()), always("to", count())], numbering()))),
        (
            "Revoke",
            body(vec![
                maybe("session_number", or_null(count())),
                maybe("now", boolean()),
                maybe("reason", json!({"type": "string", "maxLength": 512})),
            ]),
        ),
        ("Revoked", answer(vec![always("resource", text()), holders(), always("token", or_null(token()))])),
        ("TokenTaken", answer(vec![always("resource", text()), always("token", token())])),
        ("SetKind", body(vec![maybe("kind", or_null(named("Kind")))])),
        (
            "Holder",
            answer(vec![
                always("session_number", count()),
                always("holder", text()),
                always("mode", named("Mode")),
                always("slot", or_null(small())),
                always("token", token()),
                always("generation", count()),
                always("remaining_ms", millis()),
                always("ttl_ms", millis()),
                always("held_ms", millis()),
                maybe("from", calendar()),
                maybe("notice", why()),
                maybe("lapsed", boolean()),
            ]),
        ),
        (
            "Waiter",
            answer(vec![
                always("session_number", count()),
                always("holder", text()),
                always("mode", named("Mode")),
                always("priority", json!({"type": "integer"})),
                always("waited_ms", millis()),
                always("remaining_ms", or_null(millis())),
                maybe("resources", list(text())),
            ]),
        ),
        (
            "Lease",
            answer(vec![
                always("resource", text()),
                always("state", json!({"type": "string", "enum": ["held", "free"]})),
                always("kind", or_null(named("Kind"))),
                holders(),
                always("holder", or_null(text())),
                always("token", or_null(token())),
                always("generation", count()),
                always("remaining_ms", or_null(millis())),
                always("waiters", list(named("Waiter"))),
                always("waiting", count()),
                maybe("delayed_ms", millis()),
                maybe("fences", list(named("Fence"))),
            ]),
        ),
        ("LeaseView", json!({"oneOf": [named("Lease"), named("KubernetesLease")]})),
        (
            "KubernetesLease",
            answer(vec![
                always("apiVersion", json!({"const": "coordination.k8s.io/v1"})),
                always("kind", json!({"const": "Lease"})),
                always(
                    "metadata",
                    answer(vec![
                        always("name", text()),
                        always("annotations", answer(vec![maybe("tenure/token", text())])),
                    ]),
                ),
                always(
                    "spec",
                    answer(vec![
                        always("holderIdentity", or_null(text())),
                        always("leaseDurationSeconds", or_null(count())),
                        always("acquireTime", or_null(calendar())),
                        always("renewTime", or_null(calendar())),
                        always("leaseTransitions", count()),
                    ]),
                ),
            ]),
        ),
        (
            "Leases",
            answer(vec![
                always("leases", list(named("Lease"))),
                always("next", or_null(text())),
                always("revision", count()),
            ]),
        ),
        (
            "Transition",
            answer(vec![
                always("token", token()),
                always("generation", count()),
                always("session_number", count()),
                always("holder", text()),
                always("mode", named("Mode")),
                slot(),
                always("from", calendar()),
                always("to", calendar()),
                always("held_ms", millis()),
                always("why", why()),
                maybe("reason", text()),
            ]),
        ),
        (
            "Histories",
            answer(vec![always("histories", list(named("History"))), always("next", or_null(text()))]),
        ),
        (
            "History",
            answer(vec![
                always("resource", text()),
                holders(),
                always("transitions", list(named("Transition"))),
            ]),
        ),
    ]
}

/// A value or a key: text, or base64 where it is not.
fn bytes(text_name: &'static str, base64_name: &'static str) -> Vec<Field> {
    let base64 = json!({"type": "string", "contentEncoding": "base64", "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"});
    vec![maybe(text_name, or_null(text())), maybe(base64_name, or_null(base64))]
}

/// The authority under which a register is written.
fn guarded() -> Vec<Field> {
    vec![
        maybe("resource", or_null(resource())),
        maybe("slot", or_null(small())),
        maybe("token", or_null(token())),
    ]
}

fn conditions() -> Vec<Field> {
    vec![
        maybe("if_version", or_null(count())),
        maybe("if_mod_revision", or_null(count())),
        maybe("session", or_null(session())),
    ]
}

fn registers() -> Group {
    let register = || {
        vec![
            maybe("key", text()),
            maybe("key_base64", text()),
            maybe("value", text()),
            maybe("value_base64", text()),
            always("create_revision", count()),
            always("mod_revision", count()),
            always("version", count()),
            maybe("session_number", count()),
            maybe("guard", text()),
        ]
    };
    let put = || with(with(bytes("value", "value_base64"), guarded()), vec![maybe("ephemeral", boolean())]);
    let on = body(with(bytes("key", "key_base64"), put()));
    let one_of = ["put", "delete", "get"].map(|verb| {
        json!({"type": "object", "required": [verb], "additionalProperties": false,
            "properties": {verb: named("OnRegister")}})
    });
    let operation = json!({"oneOf": one_of});
    let compare = body(with(
        bytes("key", "key_base64"),
        with(
            vec![
                maybe("op", json!({"type": "string", "enum": ["=", "!=", ">", "<"]})),
                maybe("create_revision", or_null(count())),
                maybe("mod_revision", or_null(count())),
                maybe("version", or_null(count())),
            ],
            bytes("value", "value_base64"),
        ),
    ));
    vec![
        ("PutRegister", body(with(put(), with(conditions(), numbering())))),
        ("DeleteRegister", body(with(guarded(), with(conditions(), numbering())))),
        (
            "WriteRegisters",
            body(with(
                vec![
                    maybe("session", or_null(session())),
                    maybe("compares", list(named("Compare"))),
                    maybe("then", list(named("Operation"))),
                    maybe("otherwise", list(named("Operation"))),
                ],
                numbering(),
            )),
        ),
        ("Compare", compare),
        ("Operation", operation),
        ("OnRegister", on),
        ("Rebind", body(vec![maybe("resource", or_null(resource())), maybe("slot", or_null(small()))])),
        ("Register", answer(register())),
        ("Written", answer(with(vec![always("revision", count())], register()))),
        (
            "WrittenMany",
            answer(vec![
                always("succeeded", boolean()),
                always("revision", count()),
                always("results", list(named("Register"))),
            ]),
        ),
        (
            "Registers",
            answer(vec![
                always("registers", list(named("Register"))),
                always("next", or_null(text())),
                always("revision", count()),
            ]),
        ),
    ]
}

fn fences() -> Group {
    let fence = json!({"type": "string", "minLength": 1, "maxLength": 128});
    vec![
        (
            "Arm",
            body(vec![
                always("fence", fence.clone()),
                maybe("slot", or_null(small())),
                always("token", token()),
            ]),
        ),
        (
            "Refused",
            body(vec![
                always("fence", fence),
                maybe("slot", or_null(small())),
                always("presented", token()),
                always("seen", token()),
                always("count", small()),
            ]),
        ),
        (
            "Fence",
            answer(vec![
                always("fence", text()),
                always("armed", list(answer(vec![slot(), always("token", token())]))),
                always("refused", count()),
                maybe("refused_at", calendar()),
            ]),
        ),
        (
            "Fences",
            answer(vec![
                always("resource", text()),
                always("token", or_null(token())),
                always("fences", list(named("Fence"))),
            ]),
        ),
    ]
}

fn sequencers() -> Group {
    let jws = json!({"type": "string", "description": "A compact JWS (EdDSA)."});
    vec![
        (
            "IssueSequencer",
            body(vec![
                always("session", session()),
                always("resource", resource()),
                maybe("slot", or_null(small())),
            ]),
        ),
        ("SequencerIssued", answer(vec![always("sequencer", jws.clone())])),
        ("CheckSequencer", body(vec![always("sequencer", jws)])),
        (
            "SequencerChecked",
            answer(vec![
                always("verdict", json!({"type": "string", "enum": ["valid", "stale", "unknown"]})),
                maybe("presented", token()),
                maybe("seen", token()),
            ]),
        ),
        ("KeyName", body(vec![always("kid", text())])),
        (
            "KeySet",
            answer(vec![always(
                "keys",
                list(answer(vec![
                    always("kty", text()),
                    always("crv", text()),
                    always("kid", text()),
                    always("x", text()),
                    always("use", text()),
                    always("alg", text()),
                ])),
            )]),
        ),
    ]
}

fn node() -> Group {
    vec![
        (
            "NodeStatus",
            answer(vec![
                always("node", count()),
                always("peer_address", text()),
                always("client_address", text()),
                always(
                    "role",
                    json!({"type": "string", "enum": ["leader", "follower", "candidate", "learner", "stopped"]}),
                ),
                always("reachable", boolean()),
                always("last_log", or_null(count())),
                always("version", text()),
                always("identity", text()),
                always("format_newest", count()),
            ]),
        ),
        (
            "ClusterStatus",
            answer(vec![
                always("cluster", text()),
                always("leader", or_null(count())),
                always("term", count()),
                always("nodes", list(named("NodeStatus"))),
                always("node", count()),
                always("applied", count()),
                always("committed", count()),
                always("revision", count()),
                always("last_token", count()),
                always("cluster_time_us", count()),
                always("sessions", count()),
                always("leases", count()),
                always("waiters", count()),
                maybe("state_hash", text()),
                always("fault_tolerant", boolean()),
                maybe("restoring_ms", millis()),
                always("format", count()),
                maybe("format_next", count()),
            ]),
        ),
        ("Health", answer(vec![always("status", json!({"type": "string", "enum": ["ok", "ready"]}))])),
        ("Description", json!({"type": "object"})),
    ]
}
