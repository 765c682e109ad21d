//! What each call takes, answers and refuses: by type, and by code.

use serde_json::{Value, json};
use tenure_wire::{Code, json as shapes};

use super::{Document, schemas};

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

const GUARD: (&str, &str) = (
    "Tenure-Token",
    "The guard instead of `resource` and `token` in the body: `resource=token`, or `resource#slot=token`.",
);

/// What a path names.
pub(super) fn path_parameter(name: &str) -> Value {
    let (description, says) = match name {
        "resource" => (
            "1 to 512 bytes of UTF-8 without control characters; segments split by `/`, none empty, `.` or `..`.",
            schemas::resource(),
        ),
        "key" => ("1 to 1024 bytes.", json!({"minLength": 1, "maxLength": 1024})),
        "session" => ("The session's whole id, as returned to its opener.", schemas::session()),
        "policy" => {
            ("1 to 128 letters, digits, `-`, `_` and `.`.", json!({"minLength": 1, "maxLength": 128}))
        }
        "credential" => ("16 hexadecimal digits.", json!({"pattern": "^[0-9a-f]{16}$"})),
        other => unreachable!("no path names a {other}"),
    };
    let mut shape = json!({"type": "string"});
    shape.as_object_mut().expect("an object").extend(says.as_object().expect("an object").clone());
    json!({"name": name, "in": "path", "required": true, "description": description, "schema": shape})
}

/// The header that names the session that a request is from.
pub(super) fn session_header(required: bool) -> Value {
    let description = if required {
        "The session's whole id, as returned to its opener."
    } else {
        "The session's whole id, instead of `session` in the body."
    };
    let mut shape = json!({"type": "string"});
    shape
        .as_object_mut()
        .expect("an object")
        .extend(schemas::session().as_object().expect("an object").clone());
    json!({"name": "Tenure-Session", "in": "header", "required": required, "description": description, "schema": shape})
}

pub(super) fn describe(document: &mut Document) {
    sessions(document);
    leases(document);
    events(document);
    registers(document);
    fences(document);
    sequencers(document);
    auth(document);
    node(document);
}

fn auth(document: &mut Document) {
    let auth = &[Code::InvalidName, Code::UpgradeNeeded, Code::UnknownOutcome];
    document
        .call(
            "POST",
            "/v1/auth/credentials",
            "putCredential",
            "Make a credential known by the hash of its secret",
        )
        .body::<shapes::IssueCredential>()
        .ok::<shapes::Nothing>()
        .refused(auth)
        .refused(&[Code::Limit])
        .add();
    document
        .call("GET", "/v1/auth/credentials", "listCredentials", "The credentials, without their hashes")
        .query::<shapes::CredentialsQuery>()
        .ok::<shapes::Credentials>()
        .refused(&[Code::InvalidName])
        .add();
    document
        .call(
            "DELETE",
            "/v1/auth/credentials/{credential}",
            "revokeCredential",
            "End a credential; its leases get notice",
        )
        .optional_body::<shapes::TakeAway>()
        .ok::<shapes::Nothing>()
        .refused(auth)
        .refused(&[Code::NotFound])
        .add();
    document
        .call(
            "PUT",
            "/v1/auth/policies/{policy}",
            "putPolicy",
            "Add or replace a policy; leases that nothing allows any more get notice",
        )
        .body::<shapes::PutPolicy>()
        .ok::<shapes::Nothing>()
        .refused(auth)
        .refused(&[Code::Limit])
        .add();
    document
        .call("GET", "/v1/auth/policies", "listPolicies", "The policies, and whether they count")
        .ok::<shapes::PolicyList>()
        .add();
    document
        .call(
            "DELETE",
            "/v1/auth/policies/{policy}",
            "removePolicy",
            "Take a policy away; leases that nothing allows any more get notice",
        )
        .optional_body::<shapes::TakeAway>()
        .ok::<shapes::Nothing>()
        .refused(auth)
        .refused(&[Code::NotFound])
        .add();
    document
        .call("POST", "/v1/auth:enforce", "enforcePolicies", "From now on the policies count, or they do not")
        .body::<shapes::Enforce>()
        .ok::<shapes::Nothing>()
        .refused(auth)
        .add();
    document
        .call("GET", "/v1/auth/whoami", "whoAmI", "Who the node takes the caller for, and what it may do")
        .ok::<shapes::WhoAmI>()
        .add();
    document
        .call(
            "POST",
            "/v1/auth:explain",
            "explainAccess",
            "Whether somebody may do something, and by which policy",
        )
        .body::<shapes::ExplainAccess>()
        .ok::<shapes::Explained>()
        .refused(&[Code::InvalidName])
        .add();
}

fn sessions(document: &mut Document) {
    document
        .call(
            "POST",
            "/v1/sessions",
            "openSession",
            "Open a session, or find the live one that the same nonce opened",
        )
        .body::<shapes::OpenSession>()
        .ok::<shapes::SessionOpened>()
        .refused(SESSION)
        .refused(&[Code::InvalidTtl, Code::InvalidName, Code::InvalidNonce, Code::NonceUsed])
        .add();
    document
        .call("GET", "/v1/sessions", "listSessions", "The live sessions, by their public numbers")
        .query::<shapes::SessionsQuery>()
        .ok::<shapes::Sessions>()
        .add();
    document
        .call(
            "POST",
            "/v1/sessions:renew",
            "renewSessions",
            "Renew many sessions; an ended one is an answer among the others",
        )
        .body::<shapes::RenewSessions>()
        .ok::<shapes::RenewedMany>()
        .refused(&[Code::InvalidSession, Code::UnknownOutcome])
        .add();
    document
        .call("GET", "/v1/session", "getOwnSession", "The caller's own session: what it is and what it holds")
        .own_session("/v1/sessions/{session}", "getSession")
        .ok::<shapes::SessionLeases>()
        .refused(SESSION)
        .add();
    document
        .call(
            "DELETE",
            "/v1/session",
            "closeOwnSession",
            "End the caller's own session and give all of its leases back",
        )
        .own_session("/v1/sessions/{session}", "closeSession")
        .optional_body::<shapes::CloseSession>()
        .ok::<shapes::Closed>()
        .refused(SESSION)
        .add();
    document
        .call(
            "POST",
            "/v1/session:renew",
            "renewOwnSession",
            "Renew the caller's own session, and with it all of its leases",
        )
        .own_session("/v1/sessions/{session}:renew", "renewSession")
        .optional_body::<shapes::RenewSession>()
        .ok::<shapes::Renewed>()
        .refused(SESSION)
        .add();
    document
        .call(
            "POST",
            "/v1/session:seen",
            "ownSessionSeen",
            "The holder has taken in its events up to a revision",
        )
        .own_session("/v1/sessions/{session}:seen", "seen")
        .body::<shapes::Seen>()
        .ok::<shapes::Nothing>()
        .refused(SESSION)
        .add();
    document
        .call("POST", "/v1/session:paused", "reportOwnPause", "The holder noticed that it had been paused")
        .own_session("/v1/sessions/{session}:paused", "reportPause")
        .body::<shapes::Paused>()
        .ok::<shapes::Nothing>()
        .refused(SESSION)
        .add();
    let hints = "Each message is one event. The first, `session`, says what the session holds (SessionLeases); another \
        follows whenever events were missed. The others are `granted` (after a wait), `unqueued`, `noticed`, `ended`, \
        `lapsed` and `closed`, with an Event as JSON; the stream ends with `closed`. Rely on the answers to renewals, \
        not on these.";
    document
        .call(
            "GET",
            "/v1/sessions:events",
            "sessionEvents",
            "What happens to the caller's own session, as server-sent events: hints only",
        )
        .required_session()
        .answers(200, hints, "text/event-stream", json!({"type": "string"}))
        .refused(SESSION)
        .add();
}

fn leases(document: &mut Document) {
    document
        .call("GET", "/v1/leases", "listLeases", "The resources that are held, in the order of their names")
        .query::<shapes::ListQuery>()
        .ok::<shapes::Leases>()
        .refused(&[Code::InvalidName])
        .add();
    document
        .call(
            "POST",
            "/v1/leases:acquire",
            "acquireMany",
            "Take several resources, all or none, now or in turn",
        )
        .session_by_header()
        .body_with::<shapes::Acquire>("resources")
        .ok::<shapes::GrantedMany>()
        .queued()
        .refused(SESSION)
        .refused(ACQUIRE)
        .refused(&[Code::InvalidName])
        .add();
    document
        .call(
            "POST",
            "/v1/leases:cancel",
            "cancel",
            "Undo an acquire by its number or nonce: leave the queue, or release what it was granted",
        )
        .session_by_header()
        .body::<shapes::Cancel>()
        .ok::<shapes::Cancelled>()
        .refused(SESSION)
        .refused(&[Code::InvalidNonce])
        .add();
    document
        .call("GET", "/v1/leases/{resource}", "getLease", "One resource: who holds it, who waits")
        .query::<shapes::LeaseQuery>()
        .ok_either::<shapes::Lease, shapes::KubernetesLease>()
        .refused(&[Code::NotFound])
        .add();
    document
        .call("POST", "/v1/leases/{resource}:acquire", "acquire", "Take a resource, now or in turn")
        .query::<shapes::AcquireQuery>()
        .session_by_header()
        .body::<shapes::Acquire>()
        .ok::<shapes::GrantedSigned>()
        .queued()
        .refused(SESSION)
        .refused(ACQUIRE)
        .add();
    document
        .call(
            "POST",
            "/v1/leases/{resource}:release",
            "release",
            "Give a lease back; also the confirmation of a notice",
        )
        .session_by_header()
        .body::<shapes::Release>()
        .ok::<shapes::Released>()
        .refused(SESSION)
        .refused(&[Code::InvalidToken])
        .add();
    document
        .call(
            "POST",
            "/v1/leases/{resource}:transfer",
            "transfer",
            "End one's lease and grant the resource to a session that waits for it",
        )
        .session_by_header()
        .body::<shapes::Transfer>()
        .ok::<shapes::Granted>()
        .refused(SESSION)
        .refused(&[Code::NotHeld, Code::NotReady, Code::UnderNotice, Code::Restoring, Code::TokensExhausted])
        .add();
    document
        .call(
            "POST",
            "/v1/leases/{resource}:revoke",
            "revoke",
            "An administrator ends the leases of a resource: by notice, or at once",
        )
        .optional_body::<shapes::Revoke>()
        .ok::<shapes::Revoked>()
        .refused(&[Code::NotFound, Code::TokensExhausted, Code::UnknownOutcome])
        .add();
    document
        .call(
            "POST",
            "/v1/leases/{resource}:barrier",
            "barrier",
            "Take a token without a holder on a free resource, to be installed in its fences",
        )
        .optional_body::<shapes::Nothing>()
        .ok::<shapes::TokenTaken>()
        .refused(&[Code::InUse, Code::Limit, Code::TokensExhausted, Code::UnknownOutcome])
        .add();
    document
        .call(
            "POST",
            "/v1/leases/{resource}:kind",
            "setKind",
            "An administrator changes the kind of a free resource",
        )
        .optional_body::<shapes::SetKind>()
        .ok::<shapes::Nothing>()
        .refused(&[Code::InUse, Code::Limit, Code::NotFound, Code::UnknownOutcome])
        .add();
    document
        .call("GET", "/v1/history/{resource}", "history", "The past leases of a resource, the newest first")
        .ok::<shapes::History>()
        .refused(&[Code::NotFound])
        .add();
    document
        .call(
            "GET",
            "/v1/history",
            "listHistories",
            "The past leases of every resource that is remembered; `limit` counts leases, a resource is always whole",
        )
        .query::<shapes::ListQuery>()
        .ok::<shapes::Histories>()
        .refused(&[Code::InvalidName])
        .add();
}

fn events(document: &mut Document) {
    document
        .call(
            "GET",
            "/v1/events",
            "listEvents",
            "What happened, as far as it is remembered; a revision is always whole",
        )
        .query::<shapes::EventsQuery>()
        .ok::<shapes::Events>()
        .refused(&[Code::TooOld])
        .add();
    let message = "Each message is one event: `event:` is its kind, `data:` an Event as JSON. Only the last event of a \
        revision carries `id:`, so that a watcher that was cut off gets the whole of it again. A watcher that falls \
        too far behind gets the event `error` and the stream ends.";
    document
        .call("GET", "/v1/watch", "watch", "What changes, as server-sent events; `id:` is the revision")
        .query::<shapes::WatchQuery>()
        .header("Last-Event-ID", "Resume after this revision; goes before `from`.")
        .answers(200, message, "text/event-stream", json!({"type": "string"}))
        .refused(&[Code::TooOld, Code::InvalidArgument])
        .add();
}

fn registers(document: &mut Document) {
    document
        .call("GET", "/v1/registers", "listRegisters", "Registers in the order of their keys")
        .query::<shapes::ListQuery>()
        .ok::<shapes::Registers>()
        .refused(&[Code::InvalidName])
        .add();
    document
        .call(
            "POST",
            "/v1/registers:write",
            "writeRegisters",
            "Several comparisons, reads and writes as one step",
        )
        .session_by_header()
        .optional_body::<shapes::WriteRegisters>()
        .ok::<shapes::WrittenMany>()
        .refused(SESSION)
        .refused(WRITE)
        .refused(&[Code::InvalidName])
        .add();
    document
        .call("GET", "/v1/registers/{key}", "getRegister", "One register")
        .query::<shapes::ReadQuery>()
        .ok::<shapes::Register>()
        .refused(&[Code::NotFound])
        .add();
    document
        .call(
            "PUT",
            "/v1/registers/{key}",
            "putRegister",
            "Write a register, under a guard and conditions where asked for",
        )
        .header(GUARD.0, GUARD.1)
        .session_by_header()
        .body::<shapes::PutRegister>()
        .ok::<shapes::Written>()
        .refused(SESSION)
        .refused(WRITE)
        .refused(&[Code::CompareFailed])
        .add();
    document
        .call("DELETE", "/v1/registers/{key}", "deleteRegister", "Remove a register; its guard stays")
        .header(GUARD.0, GUARD.1)
        .session_by_header()
        .optional_body::<shapes::DeleteRegister>()
        .ok::<shapes::Written>()
        .refused(SESSION)
        .refused(WRITE)
        .refused(&[Code::CompareFailed])
        .add();
    document
        .call(
            "POST",
            "/v1/registers/{key}:rebind",
            "rebind",
            "An administrator binds a register to another guard, or to none",
        )
        .optional_body::<shapes::Rebind>()
        .ok::<shapes::Nothing>()
        .refused(&[Code::NotFound, Code::Limit, Code::UnknownOutcome])
        .add();
}

fn fences(document: &mut Document) {
    document
        .call(
            "GET",
            "/v1/fences/{resource}",
            "getFences",
            "The fences of a resource and what each has installed",
        )
        .query::<shapes::ReadQuery>()
        .ok::<shapes::Fences>()
        .refused(&[Code::NotFound])
        .add();
    document
        .call(
            "POST",
            "/v1/fences/{resource}:arm",
            "arm",
            "A fence has installed a token: accepted only with the live token",
        )
        .body::<shapes::Arm>()
        .ok::<shapes::Nothing>()
        .refused(WRITE)
        .refused(&[Code::NotFound, Code::Limit, Code::UnknownOutcome])
        .add();
    document
        .call("POST", "/v1/fences/{resource}:refused", "reportRefused", "A fence refused stale writes")
        .body::<shapes::Refused>()
        .ok::<shapes::Nothing>()
        .refused(&[Code::InvalidToken, Code::NotFound, Code::Limit, Code::UnknownOutcome])
        .add();
}

fn sequencers(document: &mut Document) {
    document
        .call(
            "POST",
            "/v1/sequencers",
            "issueSequencer",
            "Sign a statement of a live grant, which anybody can check without asking us",
        )
        .session_by_header()
        .body::<shapes::IssueSequencer>()
        .ok::<shapes::SequencerIssued>()
        .refused(SESSION)
        .refused(&[Code::InvalidName, Code::NotHeld])
        .add();
    document
        .call(
            "POST",
            "/v1/sequencers:check",
            "checkSequencer",
            "Whether a sequencer's token is still the newest of its scope",
        )
        .body::<shapes::CheckSequencer>()
        .ok::<shapes::SequencerChecked>()
        .add();
    document
        .call(
            "POST",
            "/v1/sequencers:rotate",
            "rotateKey",
            "Give the node that is asked a new key; what its last one signed can still be checked",
        )
        .optional_body::<shapes::Nothing>()
        .ok::<shapes::KeyName>()
        .refused(&[Code::Limit, Code::NotFound, Code::UnknownOutcome])
        .add();
    document
        .call(
            "POST",
            "/v1/sequencers:withdraw",
            "withdrawKey",
            "Take a public key out of the set: nothing that it signed can be checked any more",
        )
        .body::<shapes::KeyName>()
        .ok::<shapes::Nothing>()
        .refused(&[Code::NotFound, Code::UnknownOutcome])
        .add();
    document
        .call(
            "GET",
            "/.well-known/jwks.json",
            "jwks",
            "The public keys of all nodes (RFC 7517), for checking sequencers; may be stale",
        )
        .ok::<shapes::KeySet>()
        .add();
}

fn node(document: &mut Document) {
    document
        .call(
            "GET",
            "/v1/cluster",
            "cluster",
            "Who leads, who is there, how far this node has come; may be stale",
        )
        .query::<shapes::StatusQuery>()
        .ok::<shapes::ClusterStatus>()
        .add();
    document
        .call("GET", "/metrics", "metrics", "What this node counts, as Prometheus reads it")
        .answers(200, "The page.", "text/plain", json!({"type": "string"}))
        .add();
    document
        .call("GET", "/healthz", "healthz", "The process is there and answers")
        .ok::<shapes::Health>()
        .add();
    document.call("GET", "/readyz", "readyz", "A leader is known and serves").ok::<shapes::Health>().add();
    document
        .call("GET", "/openapi.json", "openapi", "This description")
        .answers(200, "Done.", "application/json", json!({"type": "object"}))
        .add();
}
