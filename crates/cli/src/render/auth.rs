//! Credentials, policies, and what they say, for eyes.

use tenure_wire::json;

use super::paint::Form;
use super::table::Table;

/// The credentials.
pub fn credentials(all: &[json::Credential], form: Form) -> String {
    let mut table = Table::new(&["IDENTITY", "ID", "MADE", "EXPIRES", "STANDING"]);
    for one in all {
        let standing = if one.revoked { "revoked" } else { &one.standing };
        let expires = one.expires.as_deref().map_or("never", minute);
        table.row([&*one.name, &one.id, minute(&one.created), expires, standing].map(str::to_owned));
    }
    table.render(form)
}

/// A calendar time to the minute: nobody plans a credential by seconds.
fn minute(time: &str) -> &str {
    time.get(..16).unwrap_or(time)
}

/// The policies.
pub fn policies(all: &[json::NamedPolicy], form: Form) -> String {
    let mut table = Table::new(&["POLICY", "WHO", "ON", "MAY", "LIMITS"]);
    for named in all {
        let policy = &named.policy;
        let mut limits = limits(&policy.limits);
        if policy.holder.is_some() {
            limits.insert(0, "holder=self".into());
        }
        table.row([
            named.name.clone(),
            policy.who.join(", "),
            policy.on.join(", "),
            policy.may.join(", "),
            limits.join(" "),
        ]);
    }
    table.render(form)
}

fn limits(limits: &json::PolicyLimits) -> Vec<String> {
    let json::PolicyLimits { sessions, leases, waiters, registers, bytes, ttl_max_ms, priority_max } = limits;
    let mut parts = Vec::new();
    for (name, value) in
        [("sessions", sessions), ("leases", leases), ("waiters", waiters), ("registers", registers)]
    {
        parts.extend(value.map(|value| format!("{name}={value}")));
    }
    parts.extend(bytes.map(|bytes| format!("bytes={bytes}")));
    parts.extend(ttl_max_ms.map(|millis| {
        let length = tenure_wire::words::span(std::time::Duration::from_millis(millis));
        format!("ttl_max={}", length.replace(' ', ""))
    }));
    parts.extend(priority_max.map(|priority| format!("priority_max={priority}")));
    parts
}

/// Who one is, and what one may do.
pub fn who_am_i(who: &json::WhoAmI, form: Form) -> String {
    let paint = form.paint();
    let mut text = match (&*who.identity, &who.credential) {
        ("anyone", _) => {
            "You have not said who you are; --credential FILE or TENURE_CREDENTIAL does.\n".into()
        }
        (name, Some(id)) => {
            format!("You are {} by credential {id}, which is {}.\n", paint.strong(name), who.standing)
        }
        (name, None) => format!("You are {}.\n", paint.strong(name)),
    };
    if who.operator {
        text += "You may do everything: you have the cluster's root.\n";
    } else if !who.enforced {
        text += "Policies do not count on this cluster, so everybody may do everything.\n";
    } else if who.policies.is_empty() {
        text += "No policy is for you, so you may do nothing. Whoever may grant can change that: `tenure policy put`.\n";
    }
    let rules = policies(&who.policies, form);
    if !rules.is_empty() {
        text += &format!("\n{rules}");
    }
    text
}

/// Whether somebody may do something, and why.
pub fn explained(explained: &json::Explained, form: Form) -> String {
    let json::Explained { identity, verb, on, allowed, policy, nearest, enforced } = explained;
    let paint = form.paint();
    let mut text = match (allowed, policy, nearest) {
        (true, Some(policy), _) => {
            format!("{} {identity} may {verb} {on}, by policy {policy}.\n", paint.good("yes:"))
        }
        (true, None, _) => format!("{} {identity} may {verb} {on}.\n", paint.good("yes:")),
        (false, _, Some(nearest)) => {
            format!(
                "{} no policy allows {identity} to {verb} {on}; the nearest is {nearest}.\n  \
                 look at it with `tenure policy ls {nearest}`\n",
                paint.bad("no:")
            )
        }
        (false, _, None) => format!(
            "{} no policy allows {identity} to {verb} {on}, and none is near.\n  \
             whoever may grant can store one: `tenure policy put NAME --who {identity} --on {on} --may {verb}`\n",
            paint.bad("no:")
        ),
    };
    if !enforced {
        text +=
            "The policies do not count yet, so everybody may do it; `tenure auth enforce` changes that.\n";
    }
    text
}

/// What proposed policies would change.
pub fn tested(
    who: &str,
    verb: &str,
    on: &str,
    before: Option<&str>,
    after: Option<&str>,
    form: Form,
) -> String {
    let paint = form.paint();
    let verdict = match after {
        Some(policy) => format!("{} {who} could {verb} {on}, by policy {policy}", paint.good("yes:")),
        None => format!("{} {who} could not {verb} {on}", paint.bad("no:")),
    };
    let now = match (before, after) {
        (Some(_), Some(_)) | (None, None) => "as it is now".to_owned(),
        (Some(policy), None) => format!("now policy {policy} allows it"),
        (None, Some(_)) => "now nothing allows it".to_owned(),
    };
    format!("{verdict}; {now}.\n")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::Paint;
    use super::*;

    const EYES: Form = Form::Terminal(Paint::new(false));

    fn policy() -> json::NamedPolicy {
        json::NamedPolicy {
            name: "pay-team".into(),
            policy: json::Policy {
                who: vec!["cred/pay-worker".into()],
                on: vec!["pay".into()],
                may: vec!["read".into(), "hold".into()],
                holder: Some("self".into()),
                limits: json::PolicyLimits {
                    leases: Some(100),
                    ttl_max_ms: Some(90_000),
                    ..Default::default()
                },
            },
        }
    }

    #[test]
    fn credentials_are_a_table() {
        let good = json::Credential {
            id: "00010203ffeeddcc".into(),
            name: "cred/pay-worker".into(),
            created: "2026-11-18T15:12:25.678Z".into(),
            expires: Some("2027-02-16T15:12:25.678Z".into()),
            standing: "good".into(),
            revoked: false,
        };
        let gone =
            json::Credential { revoked: true, expires: None, standing: "ended".into(), ..good.clone() };
        expect![[r#"
            IDENTITY         ID                MADE              EXPIRES           STANDING
            cred/pay-worker  00010203ffeeddcc  2026-11-18T15:12  2027-02-16T15:12  good
            cred/pay-worker  00010203ffeeddcc  2026-11-18T15:12  never             revoked
        "#]]
        .assert_eq(&credentials(&[good, gone], EYES));
    }

    #[test]
    fn one_learns_who_one_is_and_what_one_may_do() {
        let who = json::WhoAmI {
            identity: "cred/pay-worker".into(),
            credential: Some("00010203ffeeddcc".into()),
            standing: "good".into(),
            enforced: true,
            operator: false,
            policies: vec![policy()],
            sessions: 0,
            used: vec![],
        };
        expect![[r#"
            You are cred/pay-worker by credential 00010203ffeeddcc, which is good.

            POLICY    WHO              ON   MAY         LIMITS
            pay-team  cred/pay-worker  pay  read, hold  holder=self leases=100 ttl_max=1m30s
        "#]]
        .assert_eq(&who_am_i(&who, EYES));
        let nobody = json::WhoAmI { identity: "anyone".into(), credential: None, policies: vec![], ..who };
        expect![[r#"
            You have not said who you are; --credential FILE or TENURE_CREDENTIAL does.
            No policy is for you, so you may do nothing. Whoever may grant can change that: `tenure policy put`.
        "#]]
        .assert_eq(&who_am_i(&nobody, EYES));
    }

    #[test]
    fn a_no_says_what_to_do_next() {
        let no = json::Explained {
            identity: "cred/a".into(),
            verb: "hold".into(),
            on: "pay/x".into(),
            allowed: false,
            policy: None,
            nearest: None,
            enforced: true,
        };
        let text = explained(&no, EYES);
        assert!(text.contains("tenure policy put NAME --who cred/a --on pay/x --may hold"), "{text}");
        let near = json::Explained { nearest: Some("pay-team".into()), ..no };
        assert!(explained(&near, EYES).contains("tenure policy ls pay-team"));
    }
}
