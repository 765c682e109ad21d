//! Events as lines: what happened to what, and the rest in words.

use tenure_wire::json::{Event, EventKind};

use super::paint::{Form, Paint};
use super::words::{brief, mode_and_slot, span, tame};

/// One event as one line: revision, time, kind, what it is about, the rest.
pub fn line(event: &Event, form: Form) -> String {
    let EventText { about, rest } = event_text(&event.kind);
    let kind = event.kind.name();
    match form {
        Form::Plain => format!("{}\t{}\t{kind}\t{about}\t{rest}", event.revision, event.at),
        Form::Terminal(paint) => {
            let time = event.at.split_once('T').map_or(event.at.as_str(), |(_, time)| time);
            let head = paint.faint(&format!("{:>6} {time}", event.revision));
            let kind = colored(&event.kind, &format!("{kind:11}"), paint);
            format!("{head}  {kind} {}  {rest}", paint.strong(&about)).trim_end().to_owned()
        }
    }
}

fn colored(kind: &EventKind, text: &str, paint: Paint) -> String {
    match kind {
        EventKind::Granted { .. } | EventKind::BecameLeader { .. } => paint.good(text),
        EventKind::Ended { why, .. } if why == "released" || why == "transferred" => text.to_owned(),
        EventKind::Ended { .. } | EventKind::Refused { .. } => paint.bad(text),
        EventKind::Noticed { .. } | EventKind::Lapsed { .. } | EventKind::Paused { .. } => paint.warn(text),
        _ => text.to_owned(),
    }
}

struct EventText {
    about: String,
    rest: String,
}

fn event_text(kind: &EventKind) -> EventText {
    let about_session = |number: &u64, rest: String| EventText { about: format!("session {number}"), rest };
    match kind {
        EventKind::Opened { session_number, holder } => about_session(session_number, format!("by {holder}")),
        EventKind::Closed { session_number, holder, why } => {
            about_session(session_number, format!("of {holder}: {why}"))
        }
        EventKind::Lapsed { session_number, holder } => {
            about_session(session_number, format!("of {holder}: past its TTL, within its hard limit"))
        }
        EventKind::Paused { session_number, holder, paused_ms } => {
            about_session(session_number, format!("of {holder}: it stood still for {}", span(*paused_ms)))
        }
        EventKind::Granted {
            resource,
            session_number,
            holder,
            mode,
            slot,
            token,
            generation,
            waited_ms,
            ..
        } => {
            let waited = if *waited_ms > 0 {
                format!(", after {} in the queue", span(*waited_ms))
            } else {
                String::new()
            };
            let how = mode_and_slot(*mode, *slot);
            let rest = format!(
                "to {holder} (session {session_number}): token {token}, generation {generation}, {how}{waited}"
            );
            EventText { about: resource.clone(), rest }
        }
        EventKind::Ended { resource, session_number, holder, slot, token, why, held_ms, reason, .. } => {
            let slot = slot.map(|slot| format!(", slot {slot}")).unwrap_or_default();
            let rest = format!(
                "of {holder} (session {session_number}): {why}{} after {}, token {token}{slot}",
                words_of(reason),
                span(*held_ms)
            );
            EventText { about: resource.clone(), rest }
        }
        EventKind::Noticed { resource, session_number, token, why, remaining_ms, reason } => EventText {
            about: resource.clone(),
            rest: format!(
                "to session {session_number}: {why}{}; token {token} ends within {}",
                words_of(reason),
                span(*remaining_ms)
            ),
        },
        EventKind::Queued { resource, session_number, holder, .. } => EventText {
            about: resource.clone(),
            rest: format!("{holder} (session {session_number}) is queued"),
        },
        EventKind::Unqueued { resource, session_number, holder, why, .. } => EventText {
            about: resource.clone(),
            rest: format!("{holder} (session {session_number}) left the queue: {why}"),
        },
        EventKind::Put { key, key_base64, value, value_base64, version, .. } => {
            let value = either(value, value_base64);
            EventText {
                about: either(key, key_base64),
                rest: format!("= {} (version {version})", brief(&value, 60)),
            }
        }
        EventKind::Deleted { key, key_base64 } => {
            EventText { about: either(key, key_base64), rest: String::new() }
        }
        EventKind::Barrier { resource, token } => {
            EventText { about: resource.clone(), rest: format!("token {token} was issued without a holder") }
        }
        EventKind::Armed { scope, fence, token } => {
            EventText { about: scope.clone(), rest: format!("{fence} has installed token {token}") }
        }
        EventKind::Refused { scope, fence, presented, seen, count } => EventText {
            about: scope.clone(),
            rest: format!("{fence} refused {count} stale with token {presented}; it has seen {seen}"),
        },
        EventKind::BecameLeader { node, term } => {
            EventText { about: format!("node {node}"), rest: format!("in term {term}") }
        }
        EventKind::Changed { what, how } => EventText { about: tame(what), rest: tame(how) },
    }
}

fn words_of(reason: &Option<String>) -> String {
    reason.as_deref().map(|reason| format!(" ({})", tame(reason))).unwrap_or_default()
}

/// Text, or what stands for bytes that are none.
fn either(text: &Option<String>, base64: &Option<String>) -> String {
    match (text, base64) {
        (Some(text), _) => tame(text),
        (None, Some(base64)) => format!("base64:{base64}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use tenure_wire::json::Mode;

    fn event(kind: EventKind) -> Event {
        Event { revision: 42, at: "2026-11-15T20:48:49.123Z".into(), kind, identity: None }
    }

    fn both(kind: EventKind) -> String {
        let event = event(kind);
        format!("{}\n{}\n", line(&event, Form::Terminal(Paint::new(false))), line(&event, Form::Plain))
    }

    #[test]
    fn grants_and_ends_say_who_and_why() {
        let granted = EventKind::Granted {
            resource: "settlement/cron".into(),
            session_number: 7,
            holder: "node-a".into(),
            mode: Mode::Exclusive,
            slot: None,
            token: 12,
            generation: 4,
            waited_ms: 3100,
            number: None,
        };
        let ended = EventKind::Ended {
            resource: "settlement/cron".into(),
            session_number: 7,
            holder: "node-a".into(),
            slot: None,
            token: 12,
            why: "revoked".into(),
            held_ms: 61_000,
            late_us: 0,
            reason: Some("runs\u{7} wild".into()),
        };
        expect![[r#"
                42 20:48:49.123Z  granted     settlement/cron  to node-a (session 7): token 12, generation 4, exclusive, after 3.1s in the queue
            42	2026-11-15T20:48:49.123Z	granted	settlement/cron	to node-a (session 7): token 12, generation 4, exclusive, after 3.1s in the queue
                42 20:48:49.123Z  ended       settlement/cron  of node-a (session 7): revoked (runs\u{7} wild) after 1m 1s, token 12
            42	2026-11-15T20:48:49.123Z	ended	settlement/cron	of node-a (session 7): revoked (runs\u{7} wild) after 1m 1s, token 12
        "#]]
        .assert_eq(&(both(granted) + &both(ended)));
    }

    #[test]
    fn registers_are_shown_on_one_line() {
        let put = EventKind::Put {
            key: Some("cursor".into()),
            key_base64: None,
            value: Some("row 17\nrow 18".into()),
            value_base64: None,
            create_revision: 3,
            version: 2,
        };
        expect![[r#"
                42 20:48:49.123Z  put         cursor  = row 17\nrow 18 (version 2)
            42	2026-11-15T20:48:49.123Z	put	cursor	= row 17\nrow 18 (version 2)
        "#]]
        .assert_eq(&both(put));
    }
}
