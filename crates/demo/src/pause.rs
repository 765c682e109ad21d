//! `pause`: the whole argument for fencing. A holder checks its lease, is stopped for longer than the TTL,
//! and writes when it wakes up. Another holder has the lease by then, although the check was right when it
//! was made.

use std::time::Duration;

use serde_json::{Value, json};

use crate::narrator::{Narrator, seconds};
use crate::role_process::RoleProcess;
use crate::roles::{RESOURCE, Role, millis};
use crate::testbed::Testbed;
use crate::{DemoError, Options, Seen, moment};

const KEY: &str = "ledger/balance";

pub fn run(options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    let ttl = options.ttl();
    let first = options.first_token.max(2);
    narrator
        .say(&format!("Two processes, one lease with a TTL of {}, one value in a storage.", seconds(ttl)));

    narrator.part("Without a fence: the storage takes every write");
    let without = half(narrator, ttl, first, false)?;
    if without["late_write"] == "wrote" {
        narrator.bad("B's write is gone. The lease service did nothing wrong; nobody asked it.");
    }

    narrator.part("With a fence: the storage compares the token with the highest it has seen");
    let with = half(narrator, ttl, first, true)?;
    if with["late_write"] == "refused" {
        narrator.good("B's write stands.");
    }

    narrator.part("With a longer TTL: the same pause, and nothing to refuse");
    let long = longer(narrator, ttl)?;
    narrator.aside(
        "Once there is a fence the TTL decides how long others wait, and no longer whether data is safe.",
    );
    Ok(json!({"without": without, "with": with, "longer_ttl": long}))
}

fn writer(testbed: &Testbed, holder: &str, ttl: Duration, fenced: bool) -> Result<RoleProcess, DemoError> {
    let role = Role::Writer {
        endpoints: testbed.endpoints(),
        holder: holder.to_owned(),
        ttl_ms: millis(ttl),
        resource: RESOURCE.to_owned(),
        key: KEY.to_owned(),
        fenced,
    };
    RoleProcess::start(holder, &role)
}

pub fn half(narrator: &mut Narrator, ttl: Duration, first: u64, fenced: bool) -> Result<Value, DemoError> {
    let testbed = Testbed::open(1)?;
    testbed.next_token(first)?;
    let mut a = writer(&testbed, "A", ttl, fenced)?;
    let granted = a.wait_for(&["granted"])?.number("token");
    narrator.say(&format!("A is granted {RESOURCE} under token {granted}."));
    a.send("check")?;
    let left = a.wait_for(&["checked"])?.number("left_ms");
    a.freeze()?;
    let frozen = moment();
    a.send("write 90, says A")?;
    narrator
        .say(&format!("A checks its lease: {left} ms are left. It is about to write, and stops (SIGSTOP)."));

    let mut b = writer(&testbed, "B", ttl, fenced)?;
    let next = b.wait_for(&["granted"])?.number("token");
    narrator.say(&format!(
        "{} later A's lease is over, and B, who was queued, is granted it under token {next}.",
        seconds(moment().saturating_sub(frozen))
    ));
    b.send("check")?;
    b.send("write 250, says B")?;
    b.wait_for(&["wrote"])?;
    narrator.say("B writes: 250.");

    // Longer than the TTL in any case, whatever was left of it when A stopped.
    std::thread::sleep((ttl * 6 / 5).saturating_sub(moment().saturating_sub(frozen)));
    a.wake()?;
    let paused = moment().saturating_sub(frozen);
    let late = a.wait_for(&["wrote", "refused"])?;
    match late.said.as_str() {
        "wrote" => narrator.say("A wakes up and finishes its write: 90. Accepted."),
        _ => narrator.say(&format!(
            "A wakes up and finishes its write: refused, {}: it carries token {}, and {} has been seen.",
            late.text("code"),
            late.number("presented"),
            late.number("seen")
        )),
    }
    let value = testbed.http().ask("GET", &format!("/v1/registers/{KEY}"), None)?["value"].clone();
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
    let testbed = Testbed::open(1)?;
    let mut a = writer(&testbed, "A", ttl * 6, true)?;
    a.wait_for(&["granted"])?;
    a.send("check")?;
    a.wait_for(&["checked"])?;
    a.freeze()?;
    a.send("write 90, says A")?;
    std::thread::sleep(ttl);
    a.wake()?;
    let late = a.wait_for(&["wrote", "refused"])?;
    let label = format!("TTL {}, pause {}: A is still the holder", seconds(ttl * 6), seconds(ttl));
    match late.said.as_str() {
        "wrote" => narrator.good(&format!("{label}, its write is accepted.")),
        _ => narrator.bad(&format!("{label}, and yet it was refused.")),
    }
    Ok(json!({"late_write": late.said}))
}
