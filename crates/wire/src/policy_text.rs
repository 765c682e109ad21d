//! Policies as people write them: a few lines of words, or JSON.
//!
//! ```text
//! # What the pay team's workers may do.
//! policy pay-team
//! who    cred/pay-worker, jwt/k8s/system:serviceaccount:pay:*
//! on     pay/
//! may    hold, read
//! holder self
//! limits leases=100 waiters=1000 ttl_max=60s
//! ```
//!
//! This file decides how that is read and written. What a policy allows is decided by `tenure_core`; whether it may be
//! stored, by the cluster.

use std::str::FromStr;
use std::time::Duration;

use tenure_core::{HolderRule, InvalidName, Policy, PolicyName, Quotas, Verb, Verbs};

/// Bytes of a text with policies.
pub const POLICY_TEXT_BYTES_MAX: usize = 1 << 20;

/// A policy and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenPolicy {
    /// Its name.
    pub name: PolicyName,
    /// What it allows.
    pub policy: Policy,
}

/// Why a text has no policy, or not only policies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct InvalidPolicy {
    /// The line that is wrong, counted from one; none if what is wrong is not there.
    pub line: Option<usize>,
    /// What is wrong, and what to write instead.
    pub why: String,
}

impl InvalidPolicy {
    fn new(line: usize, why: impl Into<String>) -> InvalidPolicy {
        InvalidPolicy { line: Some(line), why: why.into() }
    }
}

/// The lines of one policy that were read so far.
struct Draft {
    line: usize,
    name: PolicyName,
    policy: Policy,
    seen: Vec<&'static str>,
}

/// Reads all policies of a text, in order. Each begins with its `policy` line.
pub fn read_policies(text: &str) -> Result<Vec<WrittenPolicy>, InvalidPolicy> {
    if text.len() > POLICY_TEXT_BYTES_MAX {
        let why = format!("the text has more than {POLICY_TEXT_BYTES_MAX} bytes");
        return Err(InvalidPolicy { line: None, why });
    }
    let mut policies: Vec<WrittenPolicy> = Vec::new();
    let mut draft: Option<Draft> = None;
    for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text)) {
        // A `#` begins a comment where a word could begin.
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        if word == "policy" {
            policies.extend(draft.take().map(Draft::finish).transpose()?);
            let name: PolicyName = rest.parse().map_err(|error: InvalidName| said(line, &error))?;
            if policies.iter().any(|other| other.name == name) {
                return Err(InvalidPolicy::new(line, format!("there is a policy {name} above")));
            }
            draft = Some(Draft { line, name, policy: Policy::default(), seen: Vec::new() });
            continue;
        }
        let draft = draft.as_mut().ok_or_else(|| {
            InvalidPolicy::new(line, "a policy begins with `policy` and its name, such as `policy pay-team`")
        })?;
        draft.read(line, word, rest)?;
    }
    policies.extend(draft.map(Draft::finish).transpose()?);
    match policies.is_empty() {
        true => Err(InvalidPolicy {
            line: None,
            why: "there is no policy in it; one begins with `policy NAME`".into(),
        }),
        false => Ok(policies),
    }
}

impl Draft {
    fn read(&mut self, line: usize, word: &str, rest: &str) -> Result<(), InvalidPolicy> {
        const WORDS: [&str; 5] = ["who", "on", "may", "holder", "limits"];
        let Some(known) = WORDS.into_iter().find(|known| *known == word) else {
            let why = format!(
                "`{word}` is not known; the lines of a policy begin with who, on, may, holder or limits"
            );
            return Err(InvalidPolicy::new(line, why));
        };
        if self.seen.contains(&known) {
            return Err(InvalidPolicy::new(line, format!("this policy has a `{word}` line already")));
        }
        self.seen.push(known);
        match known {
            "who" => self.policy.who = list(line, rest)?,
            "on" => self.policy.on = list(line, rest)?,
            "may" => self.policy.may = verbs(rest).map_err(|why| InvalidPolicy::new(line, why))?,
            "holder" => self.policy.holder = holder(rest).map_err(|why| InvalidPolicy::new(line, why))?,
            _ => {
                for part in rest.split([' ', '\t', ',']).filter(|part| !part.is_empty()) {
                    set_limit(&mut self.policy.limits, part).map_err(|why| InvalidPolicy::new(line, why))?;
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<WrittenPolicy, InvalidPolicy> {
        let Draft { line, name, policy, .. } = self;
        let lacks = |what: &str, example: &str| {
            let why = format!("policy {name} does not say {what}; add a line such as `{example}`");
            Err(InvalidPolicy::new(line, why))
        };
        if policy.who.is_empty() {
            return lacks("whom it is for", "who cred/pay-worker");
        }
        if policy.on.is_empty() {
            return lacks("what it is about", "on pay/");
        }
        if policy.may.is_empty() {
            return lacks("what it allows", "may hold, read");
        }
        Ok(WrittenPolicy { name, policy })
    }
}

/// Texts with commas in between, each of them read.
fn list<T: FromStr<Err = InvalidName>>(line: usize, text: &str) -> Result<Vec<T>, InvalidPolicy> {
    text.split(',').map(|one| one.trim().parse().map_err(|error| said(line, &error))).collect()
}

fn said(line: usize, error: &InvalidName) -> InvalidPolicy {
    InvalidPolicy::new(line, error.to_string())
}

/// Verbs with commas in between.
pub fn verbs(text: &str) -> Result<Verbs, String> {
    let mut all = Vec::new();
    for word in text.split(',').map(str::trim) {
        match word.parse::<Verb>() {
            Ok(Verb::Public) | Err(_) => {
                return Err(format!(
                    "`{word}` is no verb; write some of read, hold, write, manage, observe, operate, grant"
                ));
            }
            Ok(verb) => all.push(verb),
        }
    }
    Ok(all.into_iter().collect())
}

/// Whom holders may be called after.
pub fn holder(text: &str) -> Result<HolderRule, String> {
    match text {
        "any" => Ok(HolderRule::Any),
        "self" => Ok(HolderRule::Own),
        _ => {
            Err(format!("`{text}` is no rule for holders; write `any`, or `self` for the caller's own name"))
        }
    }
}

/// Sets one limit: `leases=100`, `ttl_max=60s`.
pub fn set_limit(limits: &mut Quotas, text: &str) -> Result<(), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`; write `leases=100`"))?;
    fn number<T: FromStr>(name: &str, value: &str) -> Result<Option<T>, String> {
        let bad = |_| format!("`{value}` is no number for {name}");
        match value.bytes().all(|byte| byte.is_ascii_digit()) {
            true => value.parse().map(Some).map_err(bad),
            false => Err(format!("`{value}` is no number for {name}")),
        }
    }
    match name {
        "sessions" => limits.sessions = number(name, value)?,
        "leases" => limits.leases = number(name, value)?,
        "waiters" => limits.waiters = number(name, value)?,
        "registers" => limits.registers = number(name, value)?,
        "bytes" => limits.bytes = number(name, value)?,
        "ttl_max" => {
            limits.ttl_max = Some(length(value).ok_or(format!("`{value}` is no length; write 60s"))?)
        }
        "priority_max" => {
            limits.priority_max = value.parse().map_err(|_| format!("`{value}` is no priority"))?;
        }
        _ => {
            return Err(format!(
                "`{name}` is no limit; there are sessions, leases, waiters, registers, bytes, ttl_max and priority_max"
            ));
        }
    }
    Ok(())
}

/// A length of time: digits and one of ms, s, m, h, d.
fn length(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(millis)?))
}

/// The shortest text for a length that [`length`] reads again.
fn length_text(length: Duration) -> String {
    let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if millis > 0 && millis.is_multiple_of(size) {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{millis}ms")
}

/// The limits of a policy, as they are written; empty if there are none.
pub fn limits_text(limits: &Quotas) -> String {
    let Quotas { sessions, leases, waiters, registers, bytes, ttl_max, priority_max } = limits;
    let mut parts: Vec<String> = Vec::new();
    for (name, value) in
        [("sessions", sessions), ("leases", leases), ("waiters", waiters), ("registers", registers)]
    {
        parts.extend(value.map(|value| format!("{name}={value}")));
    }
    parts.extend(bytes.map(|bytes| format!("bytes={bytes}")));
    parts.extend(ttl_max.map(|length| format!("ttl_max={}", length_text(length))));
    if *priority_max != 0 {
        parts.push(format!("priority_max={priority_max}"));
    }
    parts.join(" ")
}

/// A policy as it is read again.
pub fn policy_text(named: &WrittenPolicy) -> String {
    let WrittenPolicy { name, policy } = named;
    let joined = |items: Vec<String>| items.join(", ");
    let mut text = format!(
        "policy {name}\nwho    {}\non     {}\nmay    {}\n",
        joined(policy.who.iter().map(ToString::to_string).collect()),
        joined(policy.on.iter().map(ToString::to_string).collect()),
        joined(policy.may.iter().map(|verb| verb.to_string()).collect()),
    );
    if policy.holder == HolderRule::Own {
        text += "holder self\n";
    }
    let limits = limits_text(&policy.limits);
    if !limits.is_empty() {
        text += &format!("limits {limits}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# What the pay team's workers may do.
policy pay-team
who    cred/pay-worker, jwt/k8s/system:serviceaccount:pay:*
on     pay, shared/pay
may    read, hold
holder self
limits leases=100 waiters=1000 ttl_max=1m priority_max=-3

policy everybody
who    *
on     *
may    observe
";

    #[test]
    fn what_is_written_is_read_again() {
        let policies = read_policies(TEXT).unwrap();
        assert_eq!(policies.len(), 2);
        let first = &policies[0];
        assert_eq!((first.name.as_str(), first.policy.who.len()), ("pay-team", 2));
        assert_eq!(first.policy.holder, HolderRule::Own);
        assert_eq!(first.policy.limits.ttl_max, Some(Duration::from_secs(60)));
        assert_eq!(first.policy.limits.priority_max, -3);
        let written: Vec<String> = policies.iter().map(policy_text).collect();
        assert_eq!(read_policies(&written.concat()), Ok(policies));
        let (_, after_comment) = TEXT.split_once('\n').unwrap();
        assert_eq!(written.join("\n"), after_comment);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let with = |line: &str| format!("policy a\nwho cred/a\non a\nmay read\n{line}\n");
        for (text, why) in [
            (String::new(), "there is no policy"),
            ("who cred/a".into(), "line 1: a policy begins with"),
            ("policy a b".into(), "line 1"),
            ("policy a\nwho cred/a\non a".into(), "line 1: policy a does not say what it allows"),
            ("policy a\nwho nobody\n".into(), "line 2"),
            ("policy a\non \n".into(), "line 2"),
            (with("may write"), "line 5: this policy has a `may` line"),
            (with("deny all"), "line 5: `deny` is not known"),
            (with("holder me"), "line 5: `me`"),
            (with("limits leases"), "no `=`"),
            (with("limits leases=many"), "no number"),
            (with("limits leases=+5"), "no number"),
            (with("limits leases=99999999999"), "no number"),
            (with("limits ttl_max=60"), "no length"),
            (with("limits ttl_max=99999999999999d"), "no length"),
            (with("limits speed=5"), "no limit"),
            (with("policy a"), "there is a policy a above"),
            ("policy a\nwho cred/a\non a\nmay public".into(), "no verb"),
            ("#".repeat(POLICY_TEXT_BYTES_MAX + 1), "more than"),
        ] {
            let refused = read_policies(&text).expect_err(why).to_string();
            assert!(refused.contains(why), "{why}: {refused}");
        }
    }
}
