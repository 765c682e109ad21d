//! `partition`: the holder is cut off from all three nodes. No message reaches it; it has to stop by itself,
//! and the cluster must not grant the lease to another holder before that.

use std::time::Duration;

use serde_json::{Value, json};

use crate::narrator::{Narrator, Stretch, Tone, seconds};
use crate::proxy::CutProxy;
use crate::role_process::RoleProcess;
use crate::roles::{RESOURCE, Role, millis};
use crate::testbed::Testbed;
use crate::{DemoError, Options, Seen, moment};

/// How long things are watched after the successor has begun.
const AFTER: Duration = Duration::from_millis(600);

pub fn run(options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    let ttl = options.ttl();
    narrator.say(&format!(
        "Three nodes. A holds the lease (TTL {}) over a wire that is then cut; B is queued.",
        seconds(ttl)
    ));

    narrator.part("A believes until somebody tells it otherwise");
    let without = half(narrator, ttl, false)?;
    narrator.bad(&format!("Both acted at once for {}, until we ended it.", span(&without["overlap_ms"])));

    narrator.part("A counts by itself, from before it sent its last answered renewal");
    let with = half(narrator, ttl, true)?;
    narrator.good(&format!(
        "A had stopped {} before B began. No clock was compared with another, and no message was needed.",
        span(&with["margin_ms"])
    ));
    narrator
        .aside("A write of A's that was already under way is the fence's business: see `tenure demo pause`.");
    Ok(json!({"without": without, "with": with}))
}

fn span(value: &Value) -> String {
    seconds(Duration::from_millis(value.as_u64().unwrap_or(0)))
}

fn half(narrator: &mut Narrator, ttl: Duration, careful: bool) -> Result<Value, DemoError> {
    let testbed = Testbed::open(3)?;
    let proxy = CutProxy::to(testbed.addresses())?;
    let acting = |name: &str, endpoints: String, careful| {
        let (holder, resource) = (name.to_owned(), RESOURCE.to_owned());
        RoleProcess::start(name, &Role::Acting { endpoints, holder, resource, ttl_ms: millis(ttl), careful })
    };
    let mut a = acting("A", proxy.endpoints(), careful)?;
    a.wait_for(&["acted"])?;
    let mut b = acting("B", testbed.endpoints(), true)?;
    b.wait_for(&["opened"])?;
    a.wait_for(&["acted"])?;
    let cut = moment();
    proxy.cut();
    let granted = b.wait_for(&["granted"])?.at;
    let b_first = b.wait_for(&["acted"])?.at;
    std::thread::sleep(AFTER);
    let end = moment();
    let acts = |role_process: &mut RoleProcess| -> Vec<Duration> {
        role_process.said().iter().filter(|event| event.said == "acted").map(|event| event.at).collect()
    };
    let a_acts = acts(&mut a);
    let a_last = a_acts.iter().copied().max().unwrap_or(cut);
    let begin = cut.saturating_sub(AFTER);
    let stretch = |from: Duration, to: Duration, mark, tone| Stretch {
        from: from.saturating_sub(begin),
        to: to.saturating_sub(begin),
        mark,
        tone,
    };
    let mut a_row = vec![stretch(begin, a_last.min(b_first), '█', Tone::Good)];
    if a_last > b_first {
        a_row.push(stretch(b_first, a_last, '█', Tone::Bad));
    }
    narrator.timeline(&[
        ("wire of A", vec![stretch(begin, cut, '─', Tone::Plain), stretch(cut, end, '╳', Tone::Bad)]),
        ("A acts", a_row),
        ("B acts", vec![stretch(b_first, end, '█', Tone::Good)]),
    ]);
    let gap = |from: Duration, to: Duration| millis(to.saturating_sub(from));
    Ok(json!({
        "granted_after_ms": gap(cut, granted),
        "overlap_ms": gap(b_first, a_last),
        "acts_after_successor": a_acts.iter().filter(|at| **at > granted).count(),
        "margin_ms": gap(a_last, granted),
    }))
}
