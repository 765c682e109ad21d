//! Who leads, as text.

use super::leases::{columns, holder_line};
use super::paint::Form;
use super::words::{brief, count, span, tame};
use crate::shapes::Leadership;

/// An election, line by line.
pub fn leader(shape: &Leadership, form: Form) -> String {
    let paint = form.paint();
    let mut lines: Vec<(&str, String)> = vec![("election", paint.strong(&shape.election))];
    let state = if shape.leader.is_some() { paint.good("led") } else { paint.bad("no leader") };
    lines.push(("state", state));
    if let Some(leader) = &shape.leader {
        lines.push(("leader", holder_line(leader)));
        lines.push(("since", format!("{} ago", span(leader.held_ms))));
        lines.push(("remaining", format!("{} unless renewed", span(leader.remaining_ms))));
    }
    if let Some(value) = value_of(shape) {
        lines.push(("value", value));
    }
    if let Some(delayed) = shape.delayed_ms {
        lines.push(("delayed", format!("{} (lock-delay after an unclean end)", span(delayed))));
    }
    lines.push(("candidates", shape.candidates.to_string()));
    columns(&lines, form)
}

/// That nobody leads, and what to do about it.
pub fn nobody(shape: &Leadership) -> String {
    let name = &shape.election;
    match (shape.candidates, shape.delayed_ms) {
        (0, _) => {
            format!(
                "nobody leads {name}, and there is no candidate; start a candidate with `tenure elect {name} -- COMMAND`"
            )
        }
        (candidates, Some(delayed)) => format!(
            "nobody leads {name}: {} may be elected in {}, after the lock-delay",
            count(candidates, "candidate", "candidates"),
            span(delayed)
        ),
        (candidates, None) => {
            format!("nobody leads {name}; {} queued", count(candidates, "candidate is", "candidates are"))
        }
    }
}

/// One change as one line.
pub fn line(shape: &Leadership, form: Form) -> String {
    let value = value_of(shape);
    match (form, &shape.leader) {
        (Form::Plain, None) => format!("{}\tno leader", shape.election),
        (Form::Plain, Some(leader)) => format!(
            "{}\tled\t{}\t{}\t{}\t{}",
            shape.election,
            leader.holder,
            leader.session_number,
            leader.token,
            value.unwrap_or_default()
        ),
        (Form::Terminal(paint), None) => {
            format!("{}  {}", paint.strong(&shape.election), paint.bad("no leader"))
        }
        (Form::Terminal(paint), Some(leader)) => {
            let value = value.map(|value| format!(": {value}")).unwrap_or_default();
            let name = paint.strong(&shape.election);
            format!("{name}  {} by {}{value}", paint.good("led"), holder_line(leader))
        }
    }
}

/// What the leader has published, on one line.
fn value_of(shape: &Leadership) -> Option<String> {
    match (&shape.value, &shape.value_base64) {
        (Some(text), _) => Some(tame(text)),
        (None, Some(base64)) => Some(format!("base64:{}", brief(base64, usize::MAX))),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use tenure_client::proto;

    use super::*;
    use crate::render::Paint;
    use crate::shapes;

    const EYES: Form = Form::Terminal(Paint::new(false));

    fn led(session_of_value: u64) -> Leadership {
        let holding = proto::Holding {
            session_number: 7,
            holder: "node-a".into(),
            token: 12,
            generation: 4,
            remaining_ms: 7_250,
            ttl_ms: 10_000,
            held_ms: 252_000,
            ..Default::default()
        };
        let lease =
            proto::Lease { holders: vec![holding], token: Some(12), waiting: 2, ..Default::default() };
        let register = proto::Register {
            key: b"payments/leader/leader".to_vec(),
            value: Some(b"10.0.0.7:9000\x1b[2J".to_vec()),
            session_number: Some(session_of_value),
            ..Default::default()
        };
        shapes::leadership("payments/leader", &lease, &register)
    }

    fn nobody_leads(waiting: u32, delayed_ms: Option<u64>) -> Leadership {
        let lease = proto::Lease { waiting, delayed_ms, ..Default::default() };
        shapes::leadership("payments/leader", &lease, &proto::Register::default())
    }

    #[test]
    fn a_leader_is_shown_with_what_it_published() {
        expect![[r#"
            election    payments/leader
            state       led
            leader      node-a (session 7, token 12, exclusive)
            since       4m 12s ago
            remaining   7.2s unless renewed
            value       10.0.0.7:9000\u{1b}[2J
            candidates  2
        "#]]
        .assert_eq(&leader(&led(7), EYES));
        expect!["payments/leader\tled\tnode-a\t7\t12\t10.0.0.7:9000\\u{1b}[2J"]
            .assert_eq(&line(&led(7), Form::Plain));
        expect!["payments/leader  led by node-a (session 7, token 12, exclusive): 10.0.0.7:9000\\u{1b}[2J"]
            .assert_eq(&line(&led(7), EYES));
    }

    #[test]
    fn the_last_leaders_value_is_not_this_ones() {
        let shape = led(6);
        assert_eq!((&shape.value, &shape.value_base64), (&None, &None));
        assert_ne!(shape.identity(), led(7).identity(), "and another value is a change");
    }

    #[test]
    fn no_leader_is_said_as_clearly() {
        expect![[r#"
            election	payments/leader
            state	no leader
            candidates	0
        "#]]
        .assert_eq(&leader(&nobody_leads(0, None), Form::Plain));
        expect!["payments/leader\tno leader"].assert_eq(&line(&nobody_leads(0, None), Form::Plain));
        expect!["nobody leads payments/leader, and there is no candidate; start a candidate with `tenure elect payments/leader -- COMMAND`"]
            .assert_eq(&nobody(&nobody_leads(0, None)));
        expect!["nobody leads payments/leader: 1 candidate may be elected in 1.5s, after the lock-delay"]
            .assert_eq(&nobody(&nobody_leads(1, Some(1_500))));
        assert_eq!(
            shapes::value(&nobody_leads(0, None)).to_string(),
            r#"{"candidates":0,"delayed_ms":null,"election":"payments/leader","leader":null,"value":null,"value_base64":null}"#
        );
    }
}
