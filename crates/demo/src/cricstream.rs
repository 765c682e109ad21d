//! `cricstream`: eleven seconds without a leader at every deployment. Nothing crashed: the old leader was
//! stopped without releasing its lease, the new one polled for it, and only then began to warm up.

use std::time::Duration;

use serde_json::{Value, json};

use crate::narrator::{Narrator, Stretch, Tone, seconds};
use crate::role_process::RoleProcess;
use crate::roles::{Role, millis};
use crate::testbed::Testbed;
use crate::{DemoError, Options, Seen, moment};

/// The numbers of the incident.
const STORY_TTL: Duration = Duration::from_secs(10);
const STORY_POLL: Duration = Duration::from_secs(1);
const STORY_WARM_UP: Duration = Duration::from_millis(8_300);

/// How long the old leader is drawn before the gap.
const BEFORE: Duration = Duration::from_millis(600);

pub fn run(options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    let ttl = options.ttl();
    let scale = ttl.as_secs_f64() / STORY_TTL.as_secs_f64();
    narrator.say("A live stream has one leader: TTL 10 s, acquire polled every second, 8.3 s to warm up.");
    narrator.say("A deployment sends SIGTERM. In the incident nobody led for 11.7 s.");
    narrator.aside(
        "(It can be worse: a leader that renewed until SIGTERM leaves most of its TTL to be waited out.)",
    );
    narrator.aside(&format!("Here everything is {scale:.2} times as long."));

    narrator.part("As it was: no release, polling, warm-up after the grant");
    let mut testbed = Testbed::open(1)?;
    let without = naive(narrator, &testbed, ttl, scale)?;
    let gap = Duration::from_millis(without["gap_ms"].as_u64().unwrap_or(0));
    narrator.bad(&format!(
        "Nobody led for {}; on the scale of the incident that is {:.1} s.",
        seconds(gap),
        gap.as_secs_f64() / scale
    ));

    narrator.part("Release on SIGTERM, a queue in the server, warm-up while queued");
    testbed = Testbed::open(1)?;
    let with = drained(narrator, &testbed, ttl, scale)?;
    let gap = Duration::from_millis(with["gap_ms"].as_u64().unwrap_or(0));
    narrator.good(&format!(
        "Nobody led for {}, whatever the TTL is: a release, a commit, a message.",
        seconds(gap)
    ));
    Ok(json!({"without": without, "with": with, "scale": scale}))
}

fn naive(narrator: &mut Narrator, testbed: &Testbed, ttl: Duration, scale: f64) -> Result<Value, DemoError> {
    let leader = |name: &str, warm_up: Duration| {
        let role = Role::NaiveLeader {
            endpoints: testbed.endpoints(),
            holder: name.to_owned(),
            ttl_ms: millis(ttl),
            poll_ms: millis(STORY_POLL.mul_f64(scale)),
            warm_up_ms: millis(warm_up),
        };
        RoleProcess::start(name, &role)
    };
    let mut old = leader("old", Duration::ZERO)?;
    old.wait_for(&["served"])?;
    let mut new = leader("new", STORY_WARM_UP.mul_f64(scale))?;
    new.wait_for(&["opened"])?;
    old.wait_for(&["served"])?;
    old.terminate()?;
    let granted = new.wait_for(&["granted"])?.at;
    let served = new.wait_for(&["served"])?.at;
    let gap = draw(narrator, &mut old, granted, served)?;
    narrator.say(&format!(
        "{} until the TTL had run down and a poll came by, {} to warm up.",
        seconds(gap.saturating_sub(served.saturating_sub(granted))),
        seconds(served.saturating_sub(granted))
    ));
    Ok(json!({"gap_ms": millis(gap), "warm_up_ms": millis(served.saturating_sub(granted))}))
}

fn drained(
    narrator: &mut Narrator,
    testbed: &Testbed,
    ttl: Duration,
    scale: f64,
) -> Result<Value, DemoError> {
    let leader = |name: &str, warm_up: Duration| {
        let role = Role::Leader {
            endpoints: testbed.endpoints(),
            holder: name.to_owned(),
            ttl_ms: millis(ttl),
            warm_up_ms: millis(warm_up),
        };
        RoleProcess::start(name, &role)
    };
    let mut old = leader("old", Duration::ZERO)?;
    old.wait_for(&["served"])?;
    let mut new = leader("new", STORY_WARM_UP.mul_f64(scale))?;
    // A deployment waits for readiness before it takes the old one away.
    new.wait_for(&["warm"])?;
    old.wait_for(&["served"])?;
    old.terminate()?;
    old.wait_for(&["released"])?;
    let granted = new.wait_for(&["granted"])?.at;
    let served = new.wait_for(&["served"])?.at;
    let gap = draw(narrator, &mut old, granted, served)?;
    Ok(json!({"gap_ms": millis(gap)}))
}

/// Draws the gap, and says how long it was: from the last thing that the old leader did to the first of the
/// new one.
fn draw(
    narrator: &mut Narrator,
    old: &mut RoleProcess,
    granted: Duration,
    served: Duration,
) -> Result<Duration, DemoError> {
    let last = old.said().iter().filter(|event| event.said == "served").map(|event| event.at).max();
    let last = last.ok_or_else(|| DemoError::new("the old leader never led"))?;
    let begin = last.saturating_sub(BEFORE);
    let at = |moment: Duration| moment.saturating_sub(begin);
    let stretch = |from, to, mark, tone| Stretch { from: at(from), to: at(to), mark, tone };
    let end = moment().max(served + BEFORE);
    narrator.timeline(&[
        ("old leader", vec![stretch(begin, last, '█', Tone::Good)]),
        (
            "nobody",
            vec![
                stretch(last, granted.max(last), '·', Tone::Bad),
                stretch(granted.max(last), served.max(last), '░', Tone::Bad),
            ],
        ),
        ("new leader", vec![stretch(served, end, '█', Tone::Good)]),
    ]);
    narrator.aside("█ leads   · waits for the lease   ░ warms up");
    Ok(served.saturating_sub(last))
}
