//! One step of a vector, run against the Rust holder. The same function fills in what is expected when the
//! vectors are generated and compares it when they are replayed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tenure_core::{
    Bounds, BrokenTiming, EndReason, FenceName, Generation, Grant, Holder, HolderOptions, Jeopardy, LeaseEnd,
    LeaseState, Mode, Moment, NoPermit, Permit, ReadPermit, RenewalAnswer, RenewalEvents, Revision, Secret,
    SessionId, SessionNumber, Slot, Taken, Timing, TimingNumbers, Token,
};

/// A holder, and the permits that a vector has taken from it.
pub struct Replay {
    holder: Holder,
    permits: BTreeMap<u64, Out>,
}

enum Out {
    Write(Permit),
    Read(ReadPermit),
}

impl Replay {
    /// The holder that the first line of a story or trace describes.
    pub fn begin(head: &Value) -> Replay {
        let numbers = TimingNumbers {
            ttl: nanos(&head["ttl"]),
            renew_every: nanos(&head["renew_every"]),
            rho_ppm: u32::try_from(number(&head["rho_ppm"])).expect("parts per million"),
            net: Duration::from_millis(50),
            sigma: nanos(&head["sigma"]),
        };
        let timing = numbers.checked(&Bounds::default()).expect("the vector's numbers fit together");
        let options = HolderOptions {
            strict: head["strict"].as_bool().unwrap_or(false),
            progress_within: head["progress_within"].as_u64().map(Duration::from_nanos),
            pause_noticed: head["pause_noticed"].as_u64().map(Duration::from_nanos),
        };
        Replay { holder: Holder::new(timing, options), permits: BTreeMap::new() }
    }

    /// Does one step and answers what came of it: `null` for a step that answers nothing.
    pub fn step(&mut self, step: &Value) -> Value {
        let now = moment(&step["at"]);
        let holder = &mut self.holder;
        let token = || token(&step["token"]);
        let mut answer = Value::Null;
        match step["do"].as_str().expect("every step does something") {
            "transmit" => {
                answer =
                    json!(holder.transmit(now, u32::try_from(number(&step["jitter"])).expect("a jitter")))
            }
            "failed" => holder.failed(number(&step["number"]), now),
            "opened" => holder.opened(number(&step["number"]), nanos(&step["ttl"]), now),
            "renewed" => answer = taken(holder.renewed(&renewal(step), now)),
            "unknown_session" => answer = taken(holder.renewed(&RenewalAnswer::UnknownSession, now)),
            "listed" => {
                let held: Vec<Token> = list(&step["held"]).iter().map(self::token).collect();
                holder.listed(&held, moment(&step["asked"]), now);
            }
            "granted" => holder.granted(&grant(step), &fences(&step["named"]), now),
            "permit" => {
                let taken = holder.permit(token(), now, nanos(&step["max_op"]));
                answer = self.taken(step, now, taken.map(Out::Write));
            }
            "read_permit" => {
                let taken = holder.read_permit(token(), now, nanos(&step["max_op"]));
                answer = self.taken(step, now, taken.map(Out::Read));
            }
            "permit_left" => {
                let left = self.permits.get(&number(&step["permit"])).map(|out| out.remaining(now));
                answer = left.map_or(Value::Null, length);
            }
            "permit_done" => drop(self.permits.remove(&number(&step["permit"]))),
            "barrier" => {
                answer = match holder.barrier(token(), now) {
                    Ok((_, token)) => json!({ "token": token.get() }),
                    Err(no) => json!({ "refused": refusal(no) }),
                }
            }
            "armed" => holder.armed(token(), &fence(&step["fence"])),
            "unarmed" => answer = holder.unarmed(token()).map(ToString::to_string).collect(),
            "barrier_refused" => holder.barrier_refused(token(), self::token(&step["seen"])),
            "drain" => holder.drain(token()),
            "resume" => holder.resume(token()),
            "permits_out" => answer = json!(holder.permits_out(token())),
            "give_back" => answer = given_back(holder.give_back(token())),
            "give_back_all" => answer = given_back(holder.give_back_all()),
            "give_back_refused" => holder.give_back_refused(token()),
            "give_back_wait" => answer = length(holder.give_back_wait(token(), moment(&step["asked"]), now)),
            "gave_back" => holder.gave_back(token(), why(&step["why"]).expect("a give-back has a reason")),
            "noticed" => holder.noticed(token(), why(&step["why"]).expect("a notice has a reason")),
            "ended" => holder.ended(token(), why(&step["why"]).expect("a pushed end has a reason"), now),
            "end_session" => holder.end_session(why(&step["why"]), now),
            "give_up" => answer = json!(holder.give_up(now)),
            "progressed" => holder.progressed(now),
            "woke" => answer = holder.woke(now).map_or(Value::Null, length),
            "send_due" => answer = json!(holder.send_due(now)),
            "next_wake" => answer = holder.next_wake(now).map_or(Value::Null, readings),
            "state" => answer = holder.state(token(), now).map_or(Value::Null, state),
            "jeopardy" => answer = holder.jeopardy(now).map_or(Value::Null, jeopardy),
            "notice" => answer = holder.notice(token()).map_or(Value::Null, |why| json!(why.as_str())),
            "lease_remaining" => answer = length(holder.lease_remaining(token(), now)),
            "remaining" => answer = length(holder.remaining(now)),
            "seen" => answer = json!(holder.seen().get()),
            "session_ended" => answer = json!(holder.session_ended()),
            "ended_early" => answer = holder.ended_early().map_or(Value::Null, length),
            "tokens" => answer = holder.tokens().map(Token::get).collect(),
            "forget" => holder.forget(token()),
            other => panic!("no step is called {other:?}"),
        }
        answer
    }

    fn taken(&mut self, step: &Value, now: Moment, taken: Result<Out, NoPermit>) -> Value {
        match taken {
            Ok(out) => {
                let left = length(out.remaining(now));
                if let Some(name) = step["as"].as_u64() {
                    self.permits.insert(name, out);
                }
                json!({ "remaining": left })
            }
            Err(no) => json!({ "refused": refusal(no) }),
        }
    }
}

impl Out {
    fn remaining(&self, now: Moment) -> Duration {
        match self {
            Out::Write(permit) => permit.remaining(now),
            Out::Read(permit) => permit.remaining(now),
        }
    }
}

/// Replays lines of vectors; an error names the line. Returns how many stories and steps there were.
pub fn replay(text: &str) -> Result<(usize, usize), String> {
    let (mut heads, mut steps) = (0, 0);
    let mut replay: Option<(String, Replay)> = None;
    for (index, line) in text.lines().enumerate() {
        let line: Value =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1))?;
        if line.get("do").is_none() {
            replay = Some((line["name"].to_string(), Replay::begin(&line)));
            heads += 1;
            continue;
        }
        let Some((name, replay)) = &mut replay else { return Err("a step before any story".into()) };
        let came = replay.step(&line);
        let expected = line.get("expect").unwrap_or(&Value::Null);
        if came != *expected {
            return Err(format!(
                "{name}, line {}: {line}\n  expected {expected}\n  but got  {came}",
                index + 1
            ));
        }
        steps += 1;
    }
    Ok((heads, steps))
}

/// Vectors of the timing alone: what follows from the five numbers, and which inequality does not hold.
pub fn timing_lines() -> Vec<Value> {
    let mut lines = Vec::new();
    for ttl_ms in [500, 900, 1_000, 2_000, 3_333, 10_000, 60_000, 3_600_000] {
        let numbers = TimingNumbers::for_ttl(Duration::from_millis(ttl_ms));
        let bounds = Bounds::default();
        let broken: Vec<&str> = numbers.broken(&bounds).iter().map(broken_name).collect();
        let mut line = json!({
            "do": "for_ttl", "ttl": length(numbers.ttl), "renew_every": length(numbers.renew_every),
            "rho_ppm": numbers.rho_ppm, "net": length(numbers.net), "sigma": length(numbers.sigma), "broken": broken,
        });
        if let Ok(timing) = numbers.checked(&bounds) {
            line["derived"] = derived(&timing);
        }
        lines.push(line);
    }
    let numbers = |ttl: u64, renew: u64, rho: u32, net: u64, sigma: u64| TimingNumbers {
        ttl: Duration::from_millis(ttl),
        renew_every: Duration::from_millis(renew),
        rho_ppm: rho,
        net: Duration::from_millis(net),
        sigma: Duration::from_millis(sigma),
    };
    let given = [
        numbers(10_000, 3_000, 0, 50, 200),
        numbers(10_000, 3_000, 10_000, 50, 200),
        numbers(10_000, 3_333, 500, 50, 10_000),
        numbers(10_000, 3_333, 500, 50, 50),
        numbers(400, 100, 500, 50, 100),
        numbers(3_700_000, 1_000_000, 500, 50, 100),
        numbers(1_000, 300, 500, 500, 100),
        numbers(10_000, 0, 500, 50, 200),
        numbers(10_000, 9_000, 500, 50, 200),
        numbers(10_000, 8_000, 999_999, 5_000, 0),
    ];
    for numbers in given {
        let broken: Vec<&str> = numbers.broken(&Bounds::default()).iter().map(broken_name).collect();
        let mut line = json!({
            "do": "numbers", "ttl": length(numbers.ttl), "renew_every": length(numbers.renew_every),
            "rho_ppm": numbers.rho_ppm, "net": length(numbers.net), "sigma": length(numbers.sigma), "broken": broken,
        });
        if let Ok(timing) = numbers.checked(&Bounds::default()) {
            line["derived"] = derived(&timing);
        }
        lines.push(line);
    }
    lines
}

fn derived(timing: &Timing) -> Value {
    let jitters = [0, 1, 0x1234_5678, 0x8000_0000, u32::MAX - 1, u32::MAX];
    let renew_after: Vec<Value> =
        jitters.iter().map(|jitter| json!([jitter, length(timing.renew_after(*jitter))])).collect();
    let usable: Vec<Value> = [1, 100_000_000, 1_234_567_891, 10_000_000_000]
        .map(Duration::from_nanos)
        .map(|ttl| json!([length(ttl), length(timing.usable_of(ttl))]))
        .to_vec();
    let disagreement: Vec<Value> = [0, 1, 999_999_999, 3_000_000_000]
        .map(Duration::from_nanos)
        .map(|passed| json!([length(passed), length(timing.disagreement_max(passed))]))
        .to_vec();
    json!({
        "detect": length(timing.detect()), "usable": length(timing.usable_ttl()),
        "renew_after": renew_after, "usable_of": usable, "disagreement_max": disagreement,
    })
}

fn broken_name(broken: &BrokenTiming) -> &'static str {
    match broken {
        BrokenTiming::NothingUsable { .. } => "nothing_usable",
        BrokenTiming::SlackTooSmall { .. } => "slack_too_small",
        BrokenTiming::OutsideLimits { .. } => "outside_limits",
        BrokenTiming::BelowFloor { .. } => "below_floor",
        BrokenTiming::RenewsWithoutPause => "renews_without_pause",
        BrokenTiming::RenewsTooLate { .. } => "renews_too_late",
        BrokenTiming::WorkTooLong { .. } => "work_too_long",
    }
}

fn renewal(step: &Value) -> RenewalAnswer {
    let resource = || "r".parse().expect("a name");
    let pairs = |key: &str| -> Vec<(Token, EndReason)> {
        let pair = |pair: &Value| (token(&pair[0]), why(&pair[1]).expect("a reason"));
        list(&step[key]).iter().map(pair).collect()
    };
    let events = RenewalEvents {
        noticed: pairs("noticed")
            .into_iter()
            .map(|(token, why)| (resource(), token, why, Duration::ZERO))
            .collect(),
        ended: pairs("ended").into_iter().map(|(token, why)| (resource(), token, why)).collect(),
        incomplete: step["incomplete"].as_bool().unwrap_or(false),
    };
    let events = (events != RenewalEvents::default()).then(|| Box::new(events));
    RenewalAnswer::Renewed {
        number: number(&step["number"]),
        ttl: nanos(&step["ttl"]),
        last_lease_revision: Revision::new(step["revision"].as_u64().unwrap_or(0)),
        events,
    }
}

fn grant(step: &Value) -> Grant {
    let (mode, slot) = match step["mode"].as_str() {
        None | Some("exclusive") => (Mode::Exclusive, None),
        Some("shared") => (Mode::Shared, None),
        Some("slot") => (Mode::Slots(2), Some(Slot::new(0))),
        Some(other) => panic!("no mode is called {other:?}"),
    };
    Grant {
        resource: "r".parse().expect("a name"),
        session: SessionId { number: SessionNumber::new(1), secret: Secret::new([7; 16]) },
        holder: "worker".parse().expect("a name"),
        mode,
        slot,
        token: token(&step["token"]),
        generation: Generation::new(1),
        remaining: Duration::ZERO,
        ttl: Duration::ZERO,
        waited: Duration::ZERO,
        fences: fences(&step["fences"]),
    }
}

fn taken(taken: Taken) -> Value {
    json!(match taken {
        Taken::All => "all",
        Taken::AskForLeases => "ask_for_leases",
        Taken::SessionEnded => "session_ended",
    })
}

fn given_back(result: Result<(), usize>) -> Value {
    match result {
        Ok(()) => json!("ok"),
        Err(out) => json!({ "out": out }),
    }
}

fn state(state: LeaseState) -> Value {
    match state {
        LeaseState::Held => json!("held"),
        LeaseState::Jeopardy(doubt) => json!({ "jeopardy": jeopardy(doubt) }),
        LeaseState::Ended(how) => json!({ "ended": end(how) }),
    }
}

fn jeopardy(doubt: Jeopardy) -> Value {
    match doubt {
        Jeopardy::NotRenewed => json!("not_renewed"),
        Jeopardy::PastDeadline => json!("past_deadline"),
        Jeopardy::Paused { length: long } => json!({ "paused": length(long) }),
        Jeopardy::ClocksDisagree { by } => json!({ "clocks_disagree": length(by) }),
        Jeopardy::NoProgress => json!("no_progress"),
    }
}

fn end(end: LeaseEnd) -> Value {
    let word = |why: Option<EndReason>| why.map_or(Value::Null, |why| json!(why.as_str()));
    match end {
        LeaseEnd::Released => json!("released"),
        LeaseEnd::Transferred => json!("transferred"),
        LeaseEnd::Expired { why } => json!({ "expired": word(why) }),
        LeaseEnd::Lost { why, suspect } => {
            json!({ "lost": { "why": word(why), "from": readings(suspect.from), "length": length(suspect.length) } })
        }
        LeaseEnd::Fenced { seen } => json!({ "fenced": seen.get() }),
    }
}

fn refusal(no: NoPermit) -> Value {
    match no {
        NoPermit::Unknown => json!("unknown"),
        NoPermit::Ended(how) => json!({ "ended": end(how) }),
        NoPermit::GivingBack => json!("giving_back"),
        NoPermit::Draining => json!("draining"),
        NoPermit::ReadOnly => json!("read_only"),
        NoPermit::NotArmed { missing } => json!({ "not_armed": missing }),
        NoPermit::Jeopardy(doubt) => json!({ "jeopardy": jeopardy(doubt) }),
        NoPermit::TooShort { remaining, max_op } => {
            json!({ "too_short": { "remaining": length(remaining), "max_op": length(max_op) } })
        }
    }
}

pub(crate) fn length(length: Duration) -> Value {
    json!(u64::try_from(length.as_nanos()).expect("vectors use short times"))
}

/// A moment as its two readings. It cannot be taken apart, so it is measured from the origin of both clocks.
fn readings(moment: Moment) -> Value {
    let nanos = |length: Duration| u64::try_from(length.as_nanos()).expect("vectors use short times");
    let far = Duration::from_secs(1 << 32);
    let origin = |boot, raw| moment.longest_since(Moment::from_readings(boot, raw));
    json!([nanos(origin(Duration::ZERO, far)), nanos(origin(far, Duration::ZERO))])
}

fn moment(value: &Value) -> Moment {
    Moment::from_readings(nanos(&value[0]), nanos(&value[1]))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn nanos(value: &Value) -> Duration {
    Duration::from_nanos(number(value))
}

fn token(value: &Value) -> Token {
    Token::try_from(number(value)).expect("a token")
}

fn why(value: &Value) -> Option<EndReason> {
    let word = value.as_str()?;
    Some(
        EndReason::ALL
            .into_iter()
            .find(|why| why.as_str() == word)
            .unwrap_or_else(|| panic!("no reason {word:?}")),
    )
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn fence(value: &Value) -> FenceName {
    value.as_str().and_then(|name| name.parse().ok()).expect("a fence")
}

fn fences(value: &Value) -> Vec<FenceName> {
    list(value).iter().map(fence).collect()
}

/// A step as a line of a vector, with what came of it where it answers something.
pub(crate) fn line(mut step: Map<String, Value>, came: Value) -> Value {
    if !came.is_null() || answers(step["do"].as_str().unwrap_or_default()) {
        step.insert("expect".into(), came);
    }
    Value::Object(step)
}

/// Steps whose answer may be `null`, which is then stated.
fn answers(what: &str) -> bool {
    matches!(what, "woke" | "next_wake" | "state" | "jeopardy" | "notice" | "ended_early" | "permit_left")
}
