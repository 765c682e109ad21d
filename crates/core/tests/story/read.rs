//! Reads one line of a story.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::*;

use super::{Step, Story};

type Read<T> = Result<T, String>;

/// The words of a line: plain ones in order, and `name=value` ones.
struct Words<'a> {
    plain: Vec<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let mut words = Words { plain: Vec::new(), named: Vec::new() };
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some(pair) => words.named.push(pair),
                None => words.plain.push(word),
            }
        }
        words
    }

    fn next(&mut self, what: &str) -> Read<&'a str> {
        if self.plain.is_empty() { Err(format!("{what} is missing")) } else { Ok(self.plain.remove(0)) }
    }

    /// Takes the plain word out, if it is there.
    fn has(&mut self, word: &str) -> bool {
        let at = self.plain.iter().position(|plain| *plain == word);
        at.map(|at| self.plain.remove(at)).is_some()
    }

    fn text(&mut self, name: &str) -> Option<&'a str> {
        let at = self.named.iter().position(|(known, _)| *known == name)?;
        Some(self.named.remove(at).1)
    }

    fn parsed<T: FromStr>(&mut self, name: &str) -> Read<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("`{text}` is no {name}"))
    }

    fn needed<T: FromStr>(&mut self, name: &str) -> Read<T> {
        self.parsed(name)?.ok_or_else(|| format!("{name}= is missing"))
    }

    fn length(&mut self, name: &str) -> Read<Option<Duration>> {
        self.text(name).map(length).transpose()
    }

    fn done(self) -> Read<()> {
        match (self.plain.first(), self.named.first()) {
            (None, None) => Ok(()),
            (Some(word), _) => Err(format!("`{word}` is not understood")),
            (_, Some((name, _))) => Err(format!("`{name}=` is not understood")),
        }
    }
}

fn length(text: &str) -> Read<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no length of time"))?;
    match &text[digits.len()..] {
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        unit => Err(format!("`{unit}` is no unit of time")),
    }
}

/// So long after the beginning of 1970.
fn calendar(since: Duration) -> WallTime {
    WallTime::from_unix_millis(since.as_millis() as u64)
}

/// `c1`: the first byte of a credential's id, the others are zero.
fn credential(text: &str) -> Read<CredentialId> {
    format!("{text}{}", "0".repeat(16 - text.len().min(16)))
        .parse()
        .map_err(|_| format!("`{text}` is no credential"))
}

/// `anyone`, `node`, `operator`, an identity's name, or that and `@` and its credential.
pub(super) fn identity(text: &str) -> Read<Identity> {
    Ok(match text {
        "anyone" => Identity::Anyone,
        "node" => Identity::Node,
        "operator" => Identity::Operator,
        named => match named.split_once('@') {
            None => Identity::named(name(named)?),
            Some((named, id)) => Identity::Named { name: name(named)?, credential: Some(credential(id)?) },
        },
    })
}

/// `who=cred/a,cert/* on=pay,shop may=hold,read [holder=self] [leases=3 …]`
fn policy(words: &mut Words) -> Read<Policy> {
    fn list<T: FromStr>(words: &mut Words, what: &str) -> Read<Vec<T>> {
        words.text(what).ok_or_else(|| format!("{what}= is missing"))?.split(',').map(name).collect()
    }
    Ok(Policy {
        who: list(words, "who")?,
        on: list(words, "on")?,
        may: list::<Verb>(words, "may")?.into_iter().collect(),
        holder: words.text("holder").map_or(HolderRule::Any, |_| HolderRule::Own),
        limits: Quotas {
            sessions: words.parsed("sessions")?,
            leases: words.parsed("leases")?,
            waiters: words.parsed("waiters")?,
            registers: words.parsed("registers")?,
            bytes: words.parsed("bytes")?,
            ttl_max: words.length("ttl_max")?,
            priority_max: words.parsed("priority_max")?.unwrap_or(0),
        },
    })
}

/// 128 bits that the story calls by a short word.
fn bits(text: &str) -> [u8; 16] {
    let mut bits = [0; 16];
    bits[..text.len()].copy_from_slice(text.as_bytes());
    bits
}

fn name<T: FromStr>(text: &str) -> Read<T> {
    text.parse().map_err(|_| format!("`{text}` is no name"))
}

fn token(text: &str) -> Read<Token> {
    let number = text.parse::<u64>().map_err(|_| format!("`{text}` is no token"))?;
    number.try_into().map_err(|error: InvalidToken| error.to_string())
}

/// `resource:token` or `resource#slot:token`.
fn guard(text: &str) -> Read<Guard> {
    let (scope, number) = text.rsplit_once(':').ok_or("a guard is written scope:token")?;
    Ok(Guard { scope: name(scope)?, token: token(number)? })
}

fn kind(words: &mut Words) -> Read<Option<KindSetting>> {
    if let Some(slots) = words.parsed("slots")? {
        return Ok(Some(KindSetting::Semaphore(slots)));
    }
    Ok(words.has("lock").then_some(KindSetting::Lock))
}

impl Story {
    /// One line that is a command, a renewal or a tick; it moves the story's time if it says `at=`.
    pub(super) fn step(&mut self, line: &str) -> Read<Step> {
        if let Some(write) = line.strip_prefix("write ") {
            return self.write(write);
        }
        let mut words = Words::of(line);
        self.times(&mut words)?;
        let identity = words.text("as").map(identity).transpose()?;
        let verb = words.next("a verb")?;
        let step = self.verb(verb, &mut words)?;
        words.done()?;
        self.of_caller(step, identity)
    }

    /// Cluster time, and the calendar, from now on.
    fn times(&mut self, words: &mut Words) -> Read<()> {
        if let Some(at) = words.length("at")? {
            self.now = ClusterTime::ZERO.plus(at);
        }
        if let Some(wall) = words.length("wall")? {
            self.wall = calendar(wall);
        }
        Ok(())
    }

    /// The step, from whoever the line says it is from. A renewal's caller is checked before the log.
    fn of_caller(&self, step: Step, identity: Option<Identity>) -> Read<Step> {
        Ok(match (step, identity) {
            (Step::Command(command, opens), Some(identity)) => {
                Step::Command(Command::As(Box::new(Attributed { identity, command })), opens)
            }
            (Step::Renew(renewal), identity) => {
                let identity = identity.unwrap_or_default();
                let known = self.sessions.values().find(|id| id.number == renewal.session);
                let knows =
                    known.is_none_or(|id| !self.machine.knows(id) || self.machine.knows_as(&identity, id));
                if knows { Step::Renew(renewal) } else { Step::NotRenewed }
            }
            (step, _) => step,
        })
    }

    fn verb(&mut self, verb: &str, words: &mut Words) -> Read<Step> {
        let mut opens = None;
        let command = match verb {
            "tick" | "entry" => return Ok(Step::Tick),
            "renew" => {
                let session = words.next("a session")?;
                let number = self.transmission(session, words)?;
                return Ok(Step::Renew(Renewal { session: self.id(session)?.number, number }));
            }
            "open" => {
                let session = words.next("a session")?;
                opens = Some(session.to_owned());
                Command::Open(self.opening(session, words)?)
            }
            "close" => {
                let by = self.caller(words)?;
                let why = if words.has("died") { EndReason::Died } else { EndReason::Released };
                Command::Close { by, why }
            }
            "acquire" => {
                let session = *words.plain.first().ok_or("a session is missing")?;
                let acquire = self.acquire(words)?;
                if matches!(acquire.by, AcquireBy::Opening(_)) {
                    opens = Some(session.to_owned());
                }
                Command::Acquire(Box::new(acquire))
            }
            "cancel" => Command::Cancel { acquire: words.needed("acquire")?, by: self.caller(words)? },
            "cancel_nonce" => {
                let nonce = words.text("nonce").ok_or("nonce= is missing")?;
                Command::CancelNonce { nonce: Nonce::new(bits(nonce)) }
            }
            "undo" => {
                let transmission = words.text("transmission").ok_or("transmission= is missing")?;
                let session = match words.plain.is_empty() {
                    true => None,
                    false => Some(self.id(words.next("a session")?)?),
                };
                Command::Undo { session, transmission: TransmissionId::new(bits(transmission)) }
            }
            "release" => Command::Release {
                by: self.caller(words)?,
                resource: name(words.next("a resource")?)?,
                token: words.text("token").map(token).transpose()?,
                rest: words.length("rest")?,
            },
            "transfer" => Command::Transfer {
                by: self.caller(words)?,
                resource: name(words.next("a resource")?)?,
                to: self.number(words.text("to").ok_or("to= is missing")?)?,
            },
            "revoke" => Command::Revoke {
                resource: name(words.next("a resource")?)?,
                session: words.text("session").map(|session| self.number(session)).transpose()?,
                now: words.has("now"),
                reason: words.text("reason").unwrap_or("maintenance").into(),
            },
            "seen" => Command::Seen {
                session: self.id(words.next("a session")?)?,
                revision: words.parsed("revision")?.map_or(self.machine.revision(), Revision::new),
            },
            "put" | "delete" | "get" => {
                let by = self.writer(words)?;
                let operation = operation(verb, words)?;
                Command::Write(Box::new(Write {
                    by,
                    compares: vec![],
                    then: vec![operation],
                    otherwise: vec![],
                }))
            }
            "barrier" => Command::Barrier { resource: name(words.next("a resource")?)? },
            "arm" => Command::Arm {
                scope: name(words.next("a scope")?)?,
                fence: words.needed("fence")?,
                token: token(words.text("token").ok_or("token= is missing")?)?,
            },
            "refused" => Command::Refused {
                scope: name(words.next("a scope")?)?,
                fence: words.needed("fence")?,
                presented: token(words.text("presented").ok_or("presented= is missing")?)?,
                seen: token(words.text("seen").ok_or("seen= is missing")?)?,
                count: words.needed("count")?,
            },
            "paused" => Command::Paused {
                session: self.id(words.next("a session")?)?,
                length: words.length("length")?.ok_or("length= is missing")?,
            },
            "remove_fence" => Command::RemoveFence {
                resource: name(words.next("a resource")?)?,
                fence: words.needed("fence")?,
            },
            "set_kind" => Command::SetKind { resource: name(words.next("a resource")?)?, kind: kind(words)? },
            "rebind" => Command::Rebind {
                key: name(words.next("a key")?)?,
                guard: words.text("guard").map(name).transpose()?,
            },
            "leader" => Command::BecameLeader { node: words.needed("node")?, term: words.needed("term")? },
            "upgrade" => {
                let version = FormatVersion::known(words.needed("to")?);
                Command::Upgrade { to: version.ok_or("this build knows no such version")? }
            }
            "policy" => Command::PutPolicy(Box::new(PutPolicy {
                name: name(words.next("a policy")?)?,
                now: words.has("now"),
                policy: policy(words)?,
            })),
            "remove_policy" => {
                Command::RemovePolicy { name: name(words.next("a policy")?)?, now: words.has("now") }
            }
            "credential" => Command::PutCredential(Box::new(PutCredential {
                id: credential(words.next("a credential")?)?,
                name: words.needed("name")?,
                hash: [7; 32],
                expires: words.length("expires")?.map(calendar),
            })),
            "revoke_credential" => Command::RevokeCredential {
                id: credential(words.next("a credential")?)?,
                now: words.has("now"),
            },
            "enforce" => Command::SetEnforced { enforced: !words.has("off") },
            "limits" => Command::Configure(Box::new(self.settings(words)?)),
            other => return Err(format!("`{other}` is no verb")),
        };
        Ok(Step::Command(command, opens))
    }

    fn id(&self, session: &str) -> Read<SessionId> {
        // `a!` is somebody who knows the public number of `a` and guesses the rest.
        let name = session.trim_end_matches('!');
        let id = *self.sessions.get(name).ok_or_else(|| format!("no session is called {name}"))?;
        Ok(if name == session { id } else { SessionId { secret: Secret::new([0xee; 16]), ..id } })
    }

    fn number(&self, session: &str) -> Read<SessionNumber> {
        Ok(self.id(session)?.number)
    }

    /// The next number in the session's own count of opens and renewals, unless the line gives one.
    fn transmission(&mut self, session: &str, words: &mut Words) -> Read<u64> {
        let last = self.renewals.entry(session.to_owned()).or_default();
        let number = words.parsed("number")?.unwrap_or(*last + 1);
        *last = (*last).max(number);
        Ok(number)
    }

    fn opening(&mut self, session: &str, words: &mut Words) -> Read<Open> {
        self.drawn += 1;
        Ok(Open {
            holder: name(words.text("holder").unwrap_or(session))?,
            ttl: words.length("ttl")?.unwrap_or(Duration::from_secs(10)),
            nonce: words.text("nonce").map(|text| Nonce::new(bits(text))),
            secret: Secret::new([self.drawn; 16]),
            number: self.transmission(session, words)?,
        })
    }

    fn caller(&mut self, words: &mut Words) -> Read<Caller> {
        let session = words.next("a session")?;
        self.caller_named(session, words)
    }

    fn caller_named(&self, session: &str, words: &mut Words) -> Read<Caller> {
        Ok(Caller {
            session: self.id(session)?,
            number: words.parsed("number")?,
            lowest_awaited: words.parsed("lowest")?.unwrap_or(0),
        })
    }

    /// The session of a write, if it names one.
    fn writer(&self, words: &mut Words) -> Read<Option<Caller>> {
        words.text("by").map(|session| self.caller_named(session, words)).transpose()
    }

    fn acquire(&mut self, words: &mut Words) -> Read<Acquire> {
        let session = words.next("a session")?;
        let by = if words.has("opening") {
            AcquireBy::Opening(self.opening(session, words)?)
        } else {
            AcquireBy::Session(self.caller_named(session, words)?)
        };
        let mode = match (words.has("shared"), words.parsed("slots")?) {
            (true, _) => Mode::Shared,
            (false, Some(slots)) => Mode::Slots(slots),
            (false, None) => Mode::Exclusive,
        };
        let wait = match (words.has("wait"), words.length("wait")?) {
            (true, _) => Wait::Forever,
            (false, Some(length)) => Wait::For(length),
            (false, None) => Wait::No,
        };
        let policies = Policies {
            lock_delay: words.length("lock_delay")?,
            max_hold: words.length("max_hold")?,
            hard_limit: words.length("hard_limit")?,
            priority: words.parsed("priority")?.unwrap_or(0),
            reentrant: words.has("reentrant"),
        };
        let mut fences = Vec::new();
        while let Some(fence) = words.parsed("fence")? {
            fences.push(fence);
        }
        let transmission = words.text("transmission").map(|text| TransmissionId::new(bits(text)));
        let resources = words.plain.drain(..).map(name).collect::<Read<Vec<_>>>()?;
        Ok(Acquire { by, resources, mode, wait, policies, fences, transmission })
    }

    fn settings(&self, words: &mut Words) -> Read<Settings> {
        let mut settings = self.machine.settings().clone();
        let limits = &mut settings.limits;
        for (limit, value) in words.named.drain(..) {
            let count = || value.parse::<u32>().map_err(|_| format!("`{value}` is no {limit}"));
            match limit {
                "ttl_min" => limits.ttl_min = length(value)?,
                "ttl_max" => limits.ttl_max = length(value)?,
                "sessions_max" => limits.sessions_max = count()?,
                "leases_per_session_max" => limits.leases_per_session_max = count()?,
                "waiters_max" => limits.waiters_max = count()?,
                "waiters_per_session_max" => limits.waiters_per_session_max = count()?,
                "resources_per_acquire_max" => limits.resources_per_acquire_max = count()?,
                "sharers_max" => limits.sharers_max = count()?,
                "slots_max" => limits.slots_max = count()?,
                "answers_per_session_max" => limits.answers_per_session_max = count()?,
                "answer_bytes_total_max" => limits.answer_bytes_total_max = count()?.into(),
                "registers_max" => limits.registers_max = count()?,
                "value_bytes_max" => limits.value_bytes_max = count()?,
                "value_bytes_total_max" => limits.value_bytes_total_max = count()?.into(),
                "operations_per_write_max" => limits.operations_per_write_max = count()?,
                "ephemerals_per_session_max" => limits.ephemerals_per_session_max = count()?,
                "free_resources_max" => limits.free_resources_max = count()?,
                "pinned_resources_max" => limits.pinned_resources_max = count()?,
                "history_per_resource_max" => limits.history_per_resource_max = count()?,
                "history_bytes_total_max" => limits.history_bytes_total_max = count()?.into(),
                "history_age_max" => limits.history_age_max = length(value)?,
                "fences_per_resource_max" => limits.fences_per_resource_max = count()?,
                "ended_per_session_max" => limits.ended_per_session_max = count()?,
                "events_max" => limits.events_max = count()?,
                "cleared_per_entry_max" => limits.cleared_per_entry_max = count()?,
                other => return Err(format!("`{other}` is no limit")),
            }
        }
        Ok(settings)
    }

    /// `[by=a number=4] [if version(k)=0 …] then put k=v, get k [else get k]`
    fn write(&mut self, line: &str) -> Read<Step> {
        let (head, rest) = line.split_once("then ").ok_or("`then` is missing")?;
        let (then, otherwise) = rest.split_once("else ").map_or((rest, None), |(a, b)| (a, Some(b)));
        let (head, compares) = head.split_once("if ").map_or((head, None), |(a, b)| (a, Some(b)));
        let mut words = Words::of(head);
        self.times(&mut words)?;
        let identity = words.text("as").map(identity).transpose()?;
        let by = self.writer(&mut words)?;
        words.done()?;
        let compares = compares.into_iter().flat_map(str::split_whitespace).map(compare).collect::<Read<_>>();
        let step = Step::Command(
            Command::Write(Box::new(Write {
                by,
                compares: compares?,
                then: operations(then)?,
                otherwise: otherwise.map_or(Ok(Vec::new()), operations)?,
            })),
            None,
        );
        self.of_caller(step, identity)
    }
}

fn operations(text: &str) -> Read<Vec<Operation>> {
    let one = |text: &str| {
        let mut words = Words::of(text);
        let verb = words.next("an operation")?;
        let operation = operation(verb, &mut words)?;
        words.done()?;
        Ok(operation)
    };
    text.split(',').map(one).collect()
}

fn operation(verb: &str, words: &mut Words) -> Read<Operation> {
    let guard = words.text("guard").map(guard).transpose()?;
    match verb {
        "put" => {
            let ephemeral = words.has("ephemeral");
            let (key, value) = words.named.pop().ok_or("put is written put key=value")?;
            // `x*3` stands for `xxx`, to write long values shortly.
            let value: Arc<[u8]> = match value.split_once('*') {
                Some((text, times)) => {
                    let times = times.parse().map_err(|_| format!("`{times}` is no count"))?;
                    text.repeat(times).into_bytes().into()
                }
                None => value.as_bytes().into(),
            };
            Ok(Operation::Put { key: name(key)?, value, guard, ephemeral })
        }
        "delete" => Ok(Operation::Delete { key: name(words.next("a key")?)?, guard }),
        "get" => Ok(Operation::Get { key: name(words.next("a key")?)? }),
        other => Err(format!("`{other}` is no operation")),
    }
}

/// `version(k)=0`, `mod(k)>3`, `create(k)<9`, `value(k)!x`
fn compare(text: &str) -> Read<Compare> {
    let (field, rest) = text.split_once('(').ok_or("a comparison is written field(key)=operand")?;
    let (key, rest) = rest.split_once(')').ok_or("a comparison is written field(key)=operand")?;
    let operand = rest.get(1..).ok_or("the operand is missing")?;
    let op = match &rest[..1] {
        "=" => CompareOp::Equal,
        "!" => CompareOp::NotEqual,
        ">" => CompareOp::Greater,
        "<" => CompareOp::Less,
        other => return Err(format!("`{other}` compares nothing")),
    };
    let count = || operand.parse::<u64>().map_err(|_| format!("`{operand}` is no number"));
    let field = match field {
        "create" => CompareField::CreateRevision(count()?),
        "mod" => CompareField::ModRevision(count()?),
        "version" => CompareField::Version(count()?),
        "value" => CompareField::Value(operand.as_bytes().into()),
        other => return Err(format!("`{other}` is no field of a register")),
    };
    Ok(Compare { key: name(key)?, field, op })
}
