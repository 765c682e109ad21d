//! Prints what happened, and what can be seen, in the words of the stories.

use std::fmt::Write as _;

use tenure_core::*;

use super::{Story, length};

/// Two spaces between the parts of a line, as in a table without rules.
macro_rules! line {
    ($($part:expr),+ $(,)?) => {{
        let parts: Vec<String> = vec![$($part.to_string()),+];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
    }};
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => String::new(),
        Mode::Shared => "shared".into(),
        Mode::Slots(n) => format!("slots={n}"),
    }
}

fn kind(kind: KindSetting) -> String {
    match kind {
        KindSetting::Lock => "lock".into(),
        KindSetting::Semaphore(n) => format!("semaphore of {n}"),
    }
}

fn slot(slot: Option<Slot>) -> String {
    slot.map_or_else(String::new, |slot| format!("slot={slot}"))
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| format!("number={number}"))
}

fn waited(waited: std::time::Duration) -> String {
    if waited.is_zero() { String::new() } else { format!("waited={}", length(waited)) }
}

fn fences(fences: &[FenceName]) -> String {
    let names: Vec<&str> = fences.iter().map(|fence| fence.as_str()).collect();
    if names.is_empty() { String::new() } else { format!("fences={}", names.join(",")) }
}

fn reason(reason: &Option<std::sync::Arc<str>>) -> String {
    reason.as_ref().map_or_else(String::new, |reason| format!("reason={reason}"))
}

fn by(identity: &Option<IdentityName>) -> String {
    identity.as_ref().map_or_else(String::new, |name| format!("by={name}"))
}

fn value(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    if text.len() > 20 { format!("{}… ({} bytes)", &text[..3], text.len()) } else { text.into_owned() }
}

impl Story {
    pub(super) fn event(&self, event: &EventKind) -> String {
        let session = |number: &SessionNumber| format!("session={}", self.name_of(*number));
        match event {
            EventKind::Opened { session: s, .. } => line!("opened", session(s)),
            EventKind::Closed { session: s, why, .. } => line!("closed", session(s), format!("why={why}")),
            EventKind::Lapsed { session: s, .. } => line!("lapsed", session(s)),
            EventKind::Granted {
                resource,
                session: s,
                mode: m,
                slot: n,
                token,
                generation,
                waited: w,
                number: no,
                ..
            } => line!(
                "granted",
                resource,
                session(s),
                format!("token={token}"),
                format!("generation={generation}"),
                mode(*m),
                slot(*n),
                waited(*w),
                number(*no),
            ),
            EventKind::Ended { resource, session: s, slot: n, token, why, late, reason: words, .. } => line!(
                "ended",
                resource,
                session(s),
                format!("token={token}"),
                slot(*n),
                format!("why={why}"),
                if late.is_zero() { String::new() } else { format!("late={}", length(*late)) },
                reason(words),
            ),
            EventKind::Noticed { resource, session: s, token, why, remaining, reason: words } => line!(
                "noticed",
                resource,
                session(s),
                format!("token={token}"),
                format!("why={why}"),
                format!("remaining={}", length(*remaining)),
                reason(words),
            ),
            EventKind::Queued { resource, session: s, number: no, .. } => {
                line!("queued", resource, session(s), number(*no))
            }
            EventKind::Unqueued { resource, session: s, number: no, why, .. } => {
                line!("unqueued", resource, session(s), number(*no), format!("why={why}"))
            }
            EventKind::Put { key, value: v, create_revision, version } => line!(
                "put",
                format!("{key}={}", value(v)),
                format!("created={create_revision}"),
                format!("version={version}")
            ),
            EventKind::Deleted { key } => line!("deleted", key),
            EventKind::Barrier { resource, token } => line!("barrier", resource, format!("token={token}")),
            EventKind::Armed { scope, fence, token } => {
                line!("armed", scope, format!("fence={fence}"), format!("token={token}"))
            }
            EventKind::Refused { scope, fence, presented, seen, count } => line!(
                "refused",
                scope,
                format!("fence={fence}"),
                format!("presented={presented}"),
                format!("seen={seen}"),
                format!("count={count}"),
            ),
            EventKind::Paused { session: s, length: l, .. } => line!("paused", session(s), length(*l)),
            EventKind::BecameLeader { node, term } => {
                line!("became leader", format!("node={node} term={term}"))
            }
            EventKind::Changed { what, how } => line!("changed", what, how),
        }
    }

    fn grant(&self, grant: &Grant) -> String {
        line!(
            grant.resource,
            format!("session={}", self.name_of(grant.session.number)),
            format!("token={}", grant.token),
            mode(grant.mode),
            slot(grant.slot),
            format!("remaining={}", length(grant.remaining)),
            waited(grant.waited),
            fences(&grant.fences),
        )
    }

    fn holding(&self, holding: &Holding) -> String {
        line!(
            format!("session={}", self.name_of(holding.session)),
            format!("token={}", holding.token),
            mode(holding.mode),
            slot(holding.slot),
            format!("remaining={}", length(holding.remaining)),
            holding.notice.map_or_else(String::new, |why| format!("notice={why}")),
            if holding.lapsed { "lapsed" } else { "" },
            by(&holding.identity),
        )
    }

    fn register(&self, register: &Register) -> String {
        line!(
            match &register.value {
                Some(bytes) => format!("{}={}", register.key, value(bytes)),
                None => register.key.to_string(),
            },
            format!("created={}", register.create_revision),
            format!("changed={}", register.mod_revision),
            format!("version={}", register.version),
            register.session.map_or_else(String::new, |s| format!("session={}", self.name_of(s))),
            register.guard.as_ref().map_or_else(String::new, |guard| format!("guard={guard}")),
        )
    }

    pub(super) fn answer(&self, answer: &Answer) -> String {
        match answer {
            Ok(done) => self.done(done),
            Err(refusal) => format!("refused: {}", self.refusal(refusal)),
        }
    }

    fn done(&self, done: &Done) -> String {
        match done {
            Done::Nothing => "done".into(),
            Done::Opened { session, ttl, number, .. } => line!(
                "opened",
                format!("session={}", self.name_of(session.number)),
                format!("ttl={}", length(*ttl)),
                format!("number={number}")
            ),
            Done::Closed { released } => format!("closed, {released} released"),
            Done::Granted { grants, opened } => {
                let grants: Vec<String> = grants.iter().map(|grant| self.grant(grant)).collect();
                let opened = opened.map_or_else(String::new, |number| format!("opened={number}"));
                line!("granted", grants.join("\n            "), opened)
            }
            Done::Queued { session, ahead, .. } => {
                line!("queued", format!("session={}", self.name_of(session.number)), format!("ahead={ahead}"))
            }
            Done::Cancelled { released } => {
                if *released { "cancelled and released" } else { "cancelled" }.into()
            }
            Done::Released { released } => if *released { "released" } else { "nothing to release" }.into(),
            Done::Transferred(grant) => line!("transferred", self.grant(grant)),
            Done::Revoked { holdings, token } => {
                let holdings: Vec<String> = holdings.iter().map(|holding| self.holding(holding)).collect();
                let token = token.map_or_else(String::new, |token| format!("barrier={token}"));
                line!("revoked", holdings.join(" and "), token)
            }
            Done::Written { succeeded, revision, results } => {
                let head = if *succeeded { "written" } else { "otherwise" };
                let mut text = format!("{head}  revision={revision}");
                for register in results {
                    write!(text, "\n     {}", self.register(register)).unwrap();
                }
                text
            }
            Done::BarrierTaken { token } => format!("barrier={token}"),
            Done::Staged { pieces } => format!("staged  pieces={pieces}"),
            Done::Restored { token_floor, grants_in } => {
                format!("restored  token_floor={token_floor}  grants_in={}", length(*grants_in))
            }
        }
    }

    fn refusal(&self, refusal: &Refusal) -> String {
        match refusal {
            Refusal::Held { resource, by, waited: w } => line!(
                "held",
                resource,
                by.as_ref().map_or_else(|| "others are before you".into(), |by| self.holding(by)),
                waited(*w),
            ),
            Refusal::Delayed { resource, remaining } => line!("delayed", resource, length(*remaining)),
            Refusal::UnknownSession => "unknown_session".into(),
            Refusal::Lapsed => "lapsed".into(),
            Refusal::NotReady { resource, session } => {
                line!("not_ready", resource, format!("session={}", self.name_of(*session)))
            }
            Refusal::NotHeld { resource } => line!("not_held", resource),
            Refusal::UnderNotice { resource } => line!("under_notice", resource),
            Refusal::WrongKind { resource, is } => {
                line!("wrong_kind", resource, format!("is a {}", kind(*is)))
            }
            Refusal::StaleToken { presented, seen } => {
                format!("stale_token  presented={presented}  seen={seen}")
            }
            Refusal::LeaseEnded { presented } => format!("lease_ended  presented={presented}"),
            Refusal::UnknownToken { presented } => format!("unknown_token  presented={presented}"),
            Refusal::WrongGuard { key, guard } => line!(
                "wrong_guard",
                key,
                guard.as_ref().map_or_else(String::new, |guard| format!("guard={guard}"))
            ),
            Refusal::ForgottenNumber { number } => format!("forgotten_number  number={number}"),
            Refusal::Cancelled { released: false } => "cancelled".into(),
            Refusal::Cancelled { released: true } => "cancelled, after it was granted".into(),
            Refusal::NonceUsed => "nonce_used".into(),
            Refusal::Limit { limit, max } => format!("limit  {limit}={max}"),
            Refusal::InvalidTtl { ttl, min, max } => {
                format!("invalid_ttl  {} is not within {} .. {}", length(*ttl), length(*min), length(*max))
            }
            Refusal::Invalid(why) => format!("invalid  {why}"),
            Refusal::InUse { resource } => line!("in_use", resource),
            Refusal::NotFound => "not_found".into(),
            Refusal::NotStaged { next: None } => "not_staged".to_owned(),
            Refusal::NotStaged { next: Some(next) } => format!("not_staged  next={next}"),
            Refusal::Restoring { remaining } => format!("restoring  remaining={}", length(*remaining)),
            Refusal::FloorTooLow { floor, issued } => {
                format!("floor_too_low  floor={floor}  issued={issued}")
            }
            Refusal::NotEmpty => "not_empty".into(),
            Refusal::Forbidden(denial) => format!("forbidden  {}  {denial}", denial.why.as_str()),
            Refusal::OverQuota(over) => format!("quota  {over}"),
            Refusal::TokensExhausted => "tokens_exhausted".into(),
        }
    }

    pub(super) fn renewal_answer(&self, answer: &RenewalAnswer) -> String {
        match answer {
            RenewalAnswer::UnknownSession => "unknown_session".into(),
            RenewalAnswer::Renewed { number, ttl, last_lease_revision, events } => {
                let mut text = format!(
                    "renewed  number={number}  ttl={}  last_lease_revision={last_lease_revision}",
                    length(*ttl)
                );
                for (resource, token, why, remaining) in events.iter().flat_map(|events| &events.noticed) {
                    let remaining = length(*remaining);
                    write!(
                        text,
                        "\n     noticed  {resource}  token={token}  why={why}  remaining={remaining}"
                    )
                    .unwrap();
                }
                for (resource, token, why) in events.iter().flat_map(|events| &events.ended) {
                    write!(text, "\n     ended  {resource}  token={token}  why={why}").unwrap();
                }
                if events.as_ref().is_some_and(|events| events.incomplete) {
                    text.push_str("\n     and more than are remembered");
                }
                text
            }
        }
    }

    /// Lines that look at the machine or prepare it, and go into no log; `None` if this is not one.
    pub(super) fn look(&mut self, line: &str, out: &mut String) -> Option<Result<(), String>> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(match words.as_slice() {
            ["state", resource] => resource.parse().map_err(|e: InvalidName| e.to_string()).map(|name| {
                self.state(&name, out);
            }),
            ["history", resource] => resource.parse().map_err(|e: InvalidName| e.to_string()).map(|name| {
                let Some(history) = self.machine.history(&name) else { return };
                if let Some(dropped) = history.dropped {
                    let newest = dropped.newest.map_or_else(String::new, |newest| {
                        format!(
                            "limit={}:{}  up to token={}",
                            newest.limit.as_str(),
                            newest.max,
                            newest.token
                        )
                    });
                    writeln!(out, "{}", line!(format!("dropped={}", dropped.leases), newest)).unwrap();
                }
                for past in history.past {
                    let from = length(past.from.since(ClusterTime::ZERO));
                    let to = length(past.to.since(ClusterTime::ZERO));
                    let (token, generation, why) = (past.token, past.generation, past.why);
                    let words = reason(&past.reason);
                    let session = self.name_of(past.session);
                    let from_to = format!("from={from}  to={to}");
                    let text = format!("generation={generation}  token={token}  session={session}");
                    writeln!(
                        out,
                        "{}",
                        line!(text, from_to, format!("why={why}"), words, by(&past.identity))
                    )
                    .unwrap();
                }
            }),
            ["may", who, verb, on] => super::read::identity(who).and_then(|who| {
                let verb = verb.parse::<Verb>().map_err(|e| e.to_string())?;
                let text = match self.machine.permits(&who, verb, on) {
                    Verdict::Allowed { by: Some(by) } => format!("yes, by {by}"),
                    Verdict::Allowed { by: None } => "yes".into(),
                    Verdict::Denied { nearest: Some(nearest) } => format!("no, the nearest is {nearest}"),
                    Verdict::Denied { nearest: None } => "no".into(),
                };
                writeln!(out, "{text}").unwrap();
                Ok(())
            }),
            ["sessions"] => {
                for view in self.machine.sessions(None, usize::MAX).0 {
                    writeln!(
                        out,
                        "{}",
                        line!(
                            format!("session={}", self.name_of(view.session)),
                            format!("remaining={}", length(view.remaining)),
                            format!("leases={}", view.leases),
                            format!("waiters={}", view.waiters),
                            if view.lapsed { "lapsed" } else { "" },
                        )
                    )
                    .unwrap();
                }
                Ok(())
            }
            ["leases", session] => {
                let id = self.sessions.get(*session);
                match id.and_then(|id| self.machine.leases_of(id)) {
                    Some(grants) => {
                        grants.iter().for_each(|grant| writeln!(out, "{}", self.grant(grant)).unwrap());
                    }
                    None => out.push_str("unknown_session\n"),
                }
                Ok(())
            }
            ["registers"] => {
                for register in self.machine.registers(b"", None, usize::MAX).0 {
                    writeln!(out, "{}", self.register(&register)).unwrap();
                }
                Ok(())
            }
            ["events", after] => {
                let after = after.strip_prefix("after=").and_then(|after| after.parse().ok());
                let after = after.map(Revision::new);
                match after.map(|after| self.machine.events_after(after)) {
                    None => return Some(Err("events is written events after=3".into())),
                    Some(Err(restart)) => writeln!(out, "too old, start again after {restart}").unwrap(),
                    Some(Ok(events)) => {
                        for event in events {
                            writeln!(out, "r{}  {}", event.revision, self.event(&event.kind)).unwrap();
                        }
                    }
                }
                Ok(())
            }
            ["clearing"] => {
                let text =
                    if self.machine.clearing() { "records wait to be cleared away" } else { "all clear" };
                writeln!(out, "{text}").unwrap();
                Ok(())
            }
            ["show", "revisions"] => {
                self.show_revisions = true;
                Ok(())
            }
            ["restart"] => {
                self.machine =
                    Machine::from_state(self.machine.capture()).expect("what it wrote it can read");
                Ok(())
            }
            ["given", given @ ..] => self.given(given),
            _ => return None,
        })
    }

    /// What a restore writes into a state before any entry is applied to it.
    fn given(&mut self, given: &[&str]) -> Result<(), String> {
        let mut state = self.machine.capture();
        for word in given {
            let number = |text: &str| text.parse::<u64>().map_err(|_| format!("`{text}` is no number"));
            match word.split_once('=') {
                Some(("last_token", text)) => state.last_token = number(text)?,
                Some(("grants_from", text)) => {
                    state.grants_from =
                        ClusterTime::from_micros(number(text.trim_end_matches('s'))? * 1_000_000);
                }
                _ => return Err(format!("`{word}` cannot be given")),
            }
        }
        self.machine = Machine::from_state(state).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn state(&self, name: &ResourceName, out: &mut String) {
        let Some(view) = self.machine.lease(name) else {
            writeln!(out, "{name}  never seen").unwrap();
            return;
        };
        let token = view.token.map_or_else(|| "none".into(), |token| token.to_string());
        let free = if view.holders.is_empty() { "free" } else { "" };
        let delayed =
            view.delayed.map_or_else(String::new, |delayed| format!("delayed for {}", length(delayed)));
        let generation = format!("generation={}", view.generation);
        writeln!(out, "{}", line!(name, free, format!("token={token}"), generation, delayed)).unwrap();
        for holding in &view.holders {
            writeln!(out, "   held by  {}", self.holding(holding)).unwrap();
        }
        for waiter in &view.waiters {
            let remaining = waiter.remaining.map_or_else(|| "ever".into(), length);
            let priority =
                if waiter.priority == 0 { String::new() } else { format!("priority={}", waiter.priority) };
            let session = format!("session={}", self.name_of(waiter.session));
            let text = line!(session, mode(waiter.mode), priority, format!("waits for {remaining}"));
            writeln!(out, "   queued   {text}").unwrap();
        }
        for FenceView { fence, armed, refused, .. } in &view.fences {
            let armed: Vec<String> = armed
                .iter()
                .map(|ArmedView { slot, token, .. }| {
                    slot.map_or_else(|| format!("armed={token}"), |slot| format!("armed#{slot}={token}"))
                })
                .collect();
            let refused = if *refused == 0 { String::new() } else { format!("refused={refused}") };
            writeln!(out, "   fence  {}", line!(fence, armed.join("  "), refused)).unwrap();
        }
    }
}
