//! `lock`: the three ways in which a holder falls silent. It is killed, it is cut off, it stands still; each once with a
//! lock that ends when somebody unlocks it, and once with a lease.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::actor::Actor;
use crate::narrator::{Narrator, Stretch, Tone, seconds};
use crate::part::{Part, millis};
use crate::stage::Stage;
use crate::wire::Wire;
use crate::{DemoError, Options, Seen, moment};

/// How long things are drawn before the holders fall silent, and after the last successor has begun.
const AROUND: Duration = Duration::from_millis(500);

pub fn tell(options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    let ttl = options.ttl();
    narrator.say("Three holders, and somebody who waits behind each. Then, in the same moment, one is killed (SIGKILL),");
    narrator.say("one is cut off from the store, and one stands still (SIGSTOP).");

    narrator.act("A lock: it ends when its holder unlocks it");
    let without = half(narrator, ttl, false)?;
    narrator.bad(&format!(
        "{} later all three still wait: one until somebody removes the lock by hand, one until the wire is mended, one \
         until the holder wakes. From outside they look the same.",
        span(&without["watched_ms"])
    ));

    narrator.act(&format!("A lease with a TTL of {}: it ends by itself", seconds(ttl)));
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
    let stage = Stage::open(1)?;
    let wire = Wire::to(stage.addresses())?;
    let enter = |name: &str, endpoints: String, what: &str| {
        let (holder, what) = (name.to_owned(), what.replace(' ', "-"));
        let part = match lease {
            true => {
                let resource = format!("lock/{what}");
                Part::Acting { endpoints, holder, resource, ttl_ms: millis(ttl), careful: true }
            }
            false => Part::Lock { endpoints, holder, key: format!("lock/{what}") },
        };
        Actor::enter(name, &part)
    };
    let mut pairs = Vec::new();
    for what in ["killed", "cut off", "stopped"] {
        let endpoints = if what == "cut off" { wire.endpoints() } else { stage.endpoints() };
        let mut holder = enter("A", endpoints, what)?;
        holder.cue(&["acted"])?;
        let mut waiter = enter("B", stage.endpoints(), what)?;
        waiter.cue(&["waits"])?;
        // Both are there, and it is the first that acts.
        holder.cue(&["acted"])?;
        pairs.push((what, holder, waiter));
    }
    let silent = moment();
    pairs[0].1.kill();
    wire.cut();
    pairs[2].1.freeze()?;

    let mut granted = Vec::new();
    for (_, _, waiter) in &mut pairs {
        // Together twice as long as any lease would have lasted.
        let patience = (ttl * 2).saturating_sub(moment().saturating_sub(silent));
        granted.push(match lease {
            true => Some(waiter.cue(&["granted"])?.at),
            false => waiter.cue_within(&["granted"], patience)?.map(|cue| cue.at),
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
            holder.said().iter().filter(|cue| cue.said == "acted").map(|cue| cue.at).collect();
        let last = acts.iter().copied().max().unwrap_or(silent);
        let after = granted.map_or(0, |granted| acts.iter().filter(|at| **at > granted).count());
        let mut report = json!({
            "granted_after_ms": granted.map(|at| millis(at.saturating_sub(silent))),
            "acts_after_successor": after,
        });
        if *what == "stopped" {
            let woken = moment();
            holder.wake()?;
            // A lock's holder goes on as if nothing had been; a lease's asks and is told. What it was about to say when it
            // was stopped is older than this.
            let mut woke = holder.cue(&["stopped", "acted"])?;
            while woke.at < woken {
                woke = holder.cue(&["stopped", "acted"])?;
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
