//! `storm`: the renewals of a fleet. Sessions that were opened at the same moment renew at the same moment
//! unless something spreads them, and a store that commits each renewal alone cannot keep up with many of
//! them.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::Timing;

use crate::http::Http;
use crate::narrator::{Narrator, Tone, seconds};
use crate::roles::millis;
use crate::testbed::Testbed;
use crate::{DemoError, Options, Seen, moment};

/// How long a fleet is watched on paper, and how finely.
const WATCHED: Duration = Duration::from_secs(60);
const SLOT: Duration = Duration::from_millis(100);
/// Connections over which the fleet speaks to the node, and renewals in one message: hosts with an agent
/// each.
const HOSTS: usize = 16;
const PER_MESSAGE: usize = 50;
/// Sessions of the fleet live long enough to be opened in peace.
const TTL_MS: u64 = 60_000;

pub fn run(options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    let fleet = options.fleet;
    let timing = Timing::default();
    let needed = fleet as f64 / timing.renew_every().as_secs_f64();
    narrator.say(&format!(
        "{fleet} holders with a TTL of {}, renewed every {}: {needed:.0} renewals a second on average.",
        seconds(timing.ttl()),
        seconds(timing.renew_every())
    ));

    narrator.part("When they arrive: a deployment opened them all at once");
    let in_step = arrivals(fleet, &timing, false);
    let spread = arrivals(fleet, &timing, true);
    let (peak, peak_spread) = (most(&in_step), most(&spread));
    narrator.histogram("in step", &in_step, Tone::Bad);
    narrator.histogram("jitter ±10 %", &spread, Tone::Good);
    narrator
        .aside("the last six seconds of the first minute, in slots of 100 ms; each line on its own scale");
    narrator
        .bad(&format!("In step: {peak} in one tenth of a second, every {}.", seconds(timing.renew_every())));
    narrator
        .good(&format!("With jitter: at most {peak_spread} in a tenth of a second, and fewer every minute."));

    let testbed = Testbed::open(1)?;
    narrator.part("What one lease costs: TTL 1 s, renewed at a third");
    let one = one_lease(narrator, &testbed, options.quick)?;

    narrator.part("What they cost when each is committed alone");
    let sessions = open_all(&testbed, fleet)?;
    let alone = alone(&testbed, &sessions, options.quick)?;
    narrator.bad(&format!(
        "One after the other, this machine commits {alone:.0} renewals a second; the fleet needs {needed:.0}, and {peak} in its worst moment."
    ));

    narrator.part("What they cost in batches: all that arrived while the last entry was synced is one entry");
    let together = together(&testbed, &sessions)?;
    let rate = fleet as f64 / together.took.as_secs_f64();
    narrator.good(&format!(
        "All {fleet} at once: {} entries, {} for all of them ({rate:.0} a second), none lost. The largest entry had {}.",
        together.entries,
        seconds(together.took),
        together.largest
    ));
    Ok(json!({
        "fleet": fleet,
        "without": {"peak_per_100ms": peak, "one_by_one_per_second": alone, "needed_per_second": needed},
        "with": {
            "peak_per_100ms": peak_spread,
            "renewals": fleet - together.lost,
            "lost": together.lost,
            "entries": together.entries,
            "largest_entry": together.largest,
            "took_ms": millis(together.took),
            "per_second": rate,
        },
        "one_lease": one,
    }))
}

/// When the renewals of a fleet arrive that was opened at time zero, drawn from the client's own schedule:
/// how many in each slot of the last six seconds.
fn arrivals(fleet: usize, timing: &Timing, jitter: bool) -> Vec<usize> {
    let shown = Duration::from_secs(6);
    let mut slots = vec![0; (shown.as_millis() / SLOT.as_millis()) as usize];
    let mut dice = 0x2545_f491_u32;
    for _ in 0..fleet {
        let mut at = Duration::ZERO;
        loop {
            // Xorshift: any dice will do, and these fall the same way every time.
            dice ^= dice << 13;
            dice ^= dice >> 17;
            dice ^= dice << 5;
            at += if jitter { timing.renew_after(dice) } else { timing.renew_every() };
            if at >= WATCHED {
                break;
            }
            if let Some(within) = at.checked_sub(WATCHED - shown) {
                slots[(within.as_millis() / SLOT.as_millis()) as usize] += 1;
            }
        }
    }
    slots
}

fn most(slots: &[usize]) -> usize {
    slots.iter().copied().max().unwrap_or(0)
}

/// Renews one lease of a second at a third, for a while, and looks what the log had to do.
fn one_lease(narrator: &mut Narrator, testbed: &Testbed, quick: bool) -> Result<Value, DemoError> {
    let mut http = testbed.http();
    let opened = http.ask("POST", "/v1/sessions", Some(&json!({"holder": "one", "ttl_ms": 1_000})))?;
    let session = opened["session"].as_str().unwrap_or_default().to_owned();
    let entries = http.metric("tenure_entries_applied_total")?;
    let (begun, many) = (moment(), if quick { 6 } else { 12 });
    for renewal in 1..=many {
        let due = begun + Duration::from_secs(1) / 3 * renewal;
        thread::sleep(due.saturating_sub(moment()));
        http.ask_as(Some(&session), "POST", "/v1/session:renew", None)?;
    }
    let took = moment().saturating_sub(begun);
    let entries = http.metric("tenure_entries_applied_total")? - entries;
    http.ask_as(Some(&session), "DELETE", "/v1/session", None)?;
    let a_minute = f64::from(many) / took.as_secs_f64() * 60.0;
    narrator.say(&format!(
        "{many} renewals in {}: {a_minute:.0} a minute; the log had {entries} entries, ticks among them.",
        seconds(took)
    ));
    Ok(json!({"renewals": many, "took_ms": millis(took), "renewals_a_minute": a_minute, "entries": entries}))
}

/// Opens the fleet, and gives back the ids of its sessions.
fn open_all(testbed: &Testbed, fleet: usize) -> Result<Vec<String>, DemoError> {
    let address = testbed.addresses()[0];
    let hosts: Vec<_> = (0..HOSTS)
        .map(|host| {
            let share = fleet / HOSTS + usize::from(host < fleet % HOSTS);
            thread::spawn(move || open_share(address, host, share))
        })
        .collect();
    let mut sessions = Vec::with_capacity(fleet);
    for host in hosts {
        sessions.extend(host.join().expect("a host does not panic")?);
    }
    Ok(sessions)
}

fn open_share(address: SocketAddr, host: usize, share: usize) -> Result<Vec<String>, DemoError> {
    let mut http = Http::new(address);
    let body = json!({"holder": format!("host-{host}"), "ttl_ms": TTL_MS});
    let mut sessions = Vec::with_capacity(share);
    for _ in 0..share {
        let opened = http.ask("POST", "/v1/sessions", Some(&body))?;
        sessions.push(opened["session"].as_str().unwrap_or_default().to_owned());
    }
    Ok(sessions)
}

/// Renews one session after the other, each when the one before was answered: how many a second.
fn alone(testbed: &Testbed, sessions: &[String], quick: bool) -> Result<f64, DemoError> {
    let mut http = testbed.http();
    let length = Duration::from_millis(if quick { 500 } else { 1_500 });
    let (begun, mut many) = (moment(), 0_u32);
    for session in sessions.iter().cycle() {
        http.ask_as(Some(session), "POST", "/v1/session:renew", None)?;
        many += 1;
        if moment().saturating_sub(begun) >= length {
            break;
        }
    }
    Ok(f64::from(many) / moment().saturating_sub(begun).as_secs_f64())
}

struct Together {
    took: Duration,
    entries: u64,
    largest: u64,
    lost: usize,
}

/// Renews the whole fleet at once.
fn together(testbed: &Testbed, sessions: &[String]) -> Result<Together, DemoError> {
    let address = testbed.addresses()[0];
    let mut http = testbed.http();
    let before = http.metric("tenure_entries_applied_total")?;
    let begun = moment();
    let hosts: Vec<_> = sessions
        .chunks(sessions.len().div_ceil(HOSTS))
        .map(<[String]>::to_vec)
        .map(|share| thread::spawn(move || renew_share(address, &share)))
        .collect();
    let mut lost = 0;
    for host in hosts {
        lost += host.join().expect("a host does not panic")?;
    }
    let took = moment().saturating_sub(begun);
    let entries = http.metric("tenure_entries_applied_total")? - before;
    let largest = http.metric("tenure_entry_largest_commands")?;
    Ok(Together { took, entries: entries as u64, largest: largest as u64, lost })
}

/// Renews a host's share; says how many sessions had ended.
fn renew_share(address: SocketAddr, share: &[String]) -> Result<usize, DemoError> {
    let mut http = Http::new(address);
    let mut lost = 0;
    for message in share.chunks(PER_MESSAGE) {
        let renewals: Vec<Value> = message.iter().map(|session| json!({"session": session})).collect();
        let answers = http.ask("POST", "/v1/sessions:renew", Some(&json!({"renewals": renewals})))?;
        lost += answers["answers"].as_array().map_or(message.len(), |answers| {
            answers.iter().filter(|answer| answer["error"].is_object()).count()
        });
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_spreads_what_would_arrive_in_step() {
        let timing = Timing::default();
        let in_step = arrivals(1_000, &timing, false);
        let spread = arrivals(1_000, &timing, true);
        assert_eq!(most(&in_step), 1_000);
        assert!(most(&spread) < 150, "{spread:?}");
    }
}
