//! `lock`: three ways in which a holder stops responding. It is killed, it is cut off, or it is paused; each
//! once with a lock without a timeout, and once with a lease.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::narrator::{Narrator, Stretch, Tone, seconds};
use crate::proxy::CutProxy;
use crate::role_process::RoleProcess;
use crate::roles::{Role, millis};
use crate::testbed::Testbed;
use crate::{DemoError, Options, Seen, moment};

/// How long things are drawn before the holders fall silent, and after the last successor has begun.
const AROUND: Duration = Duration::from_millis(500);

pub fn run(options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    let ttl = options.ttl();
    narrator.say("Three holders, and somebody who waits behind each. Then, in the same moment, one is killed (SIGKILL),");
    narrator.say("one is cut off from the store, and one stands still (SIGSTOP).");

    narrator.part("A lock: it ends when its holder unlocks it");
    let without = half(narrator, ttl, false)?;
    narrator.bad(&format!(
        "{} later all three still wait: one until somebody removes the lock by hand, one until the wire is mended, one \
         until the holder wakes. From outside they look the same.",
        span(&without["watched_ms"])
    ));

    narrator.part(&format!("A lease with a TTL of {}: it ends by itself", seconds(ttl)));
    let with = half(narrator, ttl, true)?;
    narrator.good(&format!(
        "All three waiters were granted it: after {}, {} and {}. Nobody had to know which of the three it was.",
        span(&with["killed"]["granted_after_ms"]),
        span(&with["cut off"]["granted_after_ms"]),
        span(&with["stopped"]["granted_after_ms"])
    ));
    if with["stopped"]["woke_to"] == "stopped" {
        narrator.good("The one that stood still is woken: it asks for a permit, gets none, and stops.");
    }
    narrator.aside("What it had already sent is the fence's business: see `tenure demo pause`.");
    Ok(json!({"without": without, "with": with}))
}

fn span(value: &Value) -> String {
    seconds(Duration::from_millis(value.as_u64().unwrap_or(0)))
}

fn half(narrator: &mut Narrator, ttl: Duration, lease: bool) -> Result<Value, DemoError> {
    let testbed = Testbed::open(1)?;
    let proxy = CutProxy::to(testbed.addresses())?;
    let enter = |name: &str, endpoints: String, what: &str| {
        let (holder, what) = (name.to_owned(), what.replace(' ', "-"));
        let role = match lease {
            true => {
                let resource = format!("lock/{what}");
                Role::Acting { endpoints, holder, resource, ttl_ms: millis(ttl), careful: true }
            }
            false => Role::Lock { endpoints, holder, key: format!("lock/{what}") },
        };
        RoleProcess::start(name, &role)
    };
    let mut pairs = Vec::new();
    for what in ["killed", "cut off", "stopped"] {
        let endpoints = if what == "cut off" { proxy.endpoints() } else { testbed.endpoints() };
        let mut holder = enter("A", endpoints, what)?;
        holder.wait_for(&["acted"])?;
        let mut waiter = enter("B", testbed.endpoints(), what)?;
        waiter.wait_for(&["waits"])?;
        // Both are there, and it is the first that acts.
        holder.wait_for(&["acted"])?;
        pairs.push((what, holder, waiter));
    }
    let silent = moment();
    pairs[0].1.kill();
    proxy.cut();
    pairs[2].1.freeze()?;

    let mut granted = Vec::new();
    for (_, _, waiter) in &mut pairs {
        // Together twice as long as any lease would have lasted.
        let patience = (ttl * 2).saturating_sub(moment().saturating_sub(silent));
        granted.push(match lease {
            true => Some(waiter.wait_for(&["granted"])?.at),
            false => waiter.wait_for_within(&["granted"], patience)?.map(|event| event.at),
        });
    }
    std::thread::sleep(AROUND);
    let end = moment();
    let mut seen = Map::new();
    seen.insert("watched_ms".into(), millis(end.saturating_sub(silent)).into());
    let begin = silent.saturating_sub(AROUND);
    let stretch = |from: Duration, to: Duration, tone| Stretch {
        from: from.saturating_sub(begin),
        to: to.saturating_sub(begin),
        mark: '█',
        tone,
    };
    let mut rows = Vec::new();
    for ((what, holder, _), granted) in pairs.iter_mut().zip(&granted) {
        let acts: Vec<Duration> =
            holder.said().iter().filter(|event| event.said == "acted").map(|event| event.at).collect();
        let last = acts.iter().copied().max().unwrap_or(silent);
        let after = granted.map_or(0, |granted| acts.iter().filter(|at| **at > granted).count());
        let mut report = json!({
            "granted_after_ms": granted.map(|at| millis(at.saturating_sub(silent))),
            "acts_after_successor": after,
        });
        if *what == "stopped" {
            let woken = moment();
            holder.wake()?;
            // A lock's holder goes on as if nothing had been; a lease's holder asks and gets a no. What it was about
            // to say when it was stopped is older than this.
            let mut woke = holder.wait_for(&["stopped", "acted"])?;
            while woke.at < woken {
                woke = holder.wait_for(&["stopped", "acted"])?;
            }
            report["woke_to"] = json!(woke.said);
        }
        seen.insert((*what).into(), report);
        let mut row = vec![stretch(begin, last, Tone::Good)];
        match granted {
            Some(granted) => row.push(stretch(*granted, end, Tone::Plain)),
            None => row.push(Stretch { mark: '·', ..stretch(last.max(silent), end, Tone::Bad) }),
        }
        rows.push((*what, row));
    }
    narrator.timeline(&rows);
    narrator.aside(match lease {
        true => "first A, then, after a gap of at most the TTL, B",
        false => "A, and B who waits (dots); the one that is cut off goes on working",
    });
    Ok(seen.into())
}
