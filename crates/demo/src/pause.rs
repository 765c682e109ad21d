//! `pause`: the whole argument for fencing. A holder checks its lease, is stopped for longer than the TTL, and writes
//! when it wakes. Its lease is long another's; its own check was right when it was made.

use std::time::Duration;

use serde_json::{Value, json};

use crate::actor::Actor;
use crate::narrator::{Narrator, seconds};
use crate::part::{Part, RESOURCE, millis};
use crate::stage::Stage;
use crate::{DemoError, Options, Seen, moment};

const KEY: &str = "ledger/balance";

pub fn tell(options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    let ttl = options.ttl();
    let first = options.first_token.max(2);
    narrator
        .say(&format!("Two processes, one lease with a TTL of {}, one value in a storage.", seconds(ttl)));

    narrator.act("Without a fence: the storage takes every write");
    let without = half(narrator, ttl, first, false)?;
    if without["late_write"] == "wrote" {
        narrator.bad("B's write is gone. The lease service did nothing wrong; nobody asked it.");
    }

    narrator.act("With a fence: the storage compares the token with the highest it has seen");
    let with = half(narrator, ttl, first, true)?;
    if with["late_write"] == "refused" {
        narrator.good("B's write stands.");
    }

    narrator.act("With a longer TTL: the same pause, and nothing to refuse");
    let long = longer(narrator, ttl)?;
    narrator.aside(
        "Once there is a fence the TTL decides how long others wait, and no longer whether data is safe.",
    );
    Ok(json!({"without": without, "with": with, "longer_ttl": long}))
}

fn writer(stage: &Stage, holder: &str, ttl: Duration, fenced: bool) -> Result<Actor, DemoError> {
    let part = Part::Writer {
        endpoints: stage.endpoints(),
        holder: holder.to_owned(),
        ttl_ms: millis(ttl),
        resource: RESOURCE.to_owned(),
        key: KEY.to_owned(),
        fenced,
    };
    Actor::enter(holder, &part)
}

pub fn half(narrator: &mut Narrator, ttl: Duration, first: u64, fenced: bool) -> Result<Value, DemoError> {
    let stage = Stage::open(1)?;
    stage.next_token(first)?;
    let mut a = writer(&stage, "A", ttl, fenced)?;
    let granted = a.cue(&["granted"])?.number("token");
    narrator.say(&format!("A is granted {RESOURCE} under token {granted}."));
    a.tell("check")?;
    let left = a.cue(&["checked"])?.number("left_ms");
    a.freeze()?;
    let frozen = moment();
    a.tell("write 90, says A")?;
    narrator
        .say(&format!("A checks its lease: {left} ms are left. It is about to write, and stops (SIGSTOP)."));

    let mut b = writer(&stage, "B", ttl, fenced)?;
    let next = b.cue(&["granted"])?.number("token");
    narrator.say(&format!(
        "{} later A's lease is over, and B, who stood in line, is granted it under token {next}.",
        seconds(moment().saturating_sub(frozen))
    ));
    b.tell("check")?;
    b.tell("write 250, says B")?;
    b.cue(&["wrote"])?;
    narrator.say("B writes: 250.");

    // Longer than the TTL in any case, whatever was left of it when A stopped.
    std::thread::sleep((ttl * 6 / 5).saturating_sub(moment().saturating_sub(frozen)));
    a.wake()?;
    let paused = moment().saturating_sub(frozen);
    let late = a.cue(&["wrote", "refused"])?;
    match late.said.as_str() {
        "wrote" => narrator.say("A wakes up and finishes its write: 90. Accepted."),
        _ => narrator.say(&format!(
            "A wakes up and finishes its write: refused, {}: it carries token {}, and {} has been seen.",
            late.text("code"),
            late.number("presented"),
            late.number("seen")
        )),
    }
    let value = stage.http().ask("GET", &format!("/v1/registers/{KEY}"), None)?["value"].clone();
    narrator.say(&format!("In the storage: {value}"));
    Ok(json!({
        "tokens": [granted, next],
        "ttl_ms": millis(ttl),
        "paused_ms": millis(paused),
        "late_write": late.said,
        "code": late.body["code"],
        "presented": late.body["presented"],
        "seen": late.body["seen"],
        "value": value,
    }))
}

/// The same pause under a TTL that is longer than it: A is still the holder, and its write is right.
fn longer(narrator: &mut Narrator, ttl: Duration) -> Result<Value, DemoError> {
    let stage = Stage::open(1)?;
    let mut a = writer(&stage, "A", ttl * 6, true)?;
    a.cue(&["granted"])?;
    a.tell("check")?;
    a.cue(&["checked"])?;
    a.freeze()?;
    a.tell("write 90, says A")?;
    std::thread::sleep(ttl);
    a.wake()?;
    let late = a.cue(&["wrote", "refused"])?;
    let label = format!("TTL {}, pause {}: A is still the holder", seconds(ttl * 6), seconds(ttl));
    match late.said.as_str() {
        "wrote" => narrator.good(&format!("{label}, its write is accepted.")),
        _ => narrator.bad(&format!("{label}, and yet it was refused.")),
    }
    Ok(json!({"late_write": late.said}))
}
