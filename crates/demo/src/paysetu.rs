//! `paysetu`: the settlement batch that ran twice. A worker freezes before half of the rows are sent; its
//! successor starts the batch again, and the first one wakes up and continues.
//!
//! A token alone would prevent the double writes, but not the repetition: the successor has to know where to
//! resume. So the cursor is stored with the work, written in the same transaction, and read after the grant.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::narrator::{Narrator, seconds};
use crate::role_process::RoleProcess;
use crate::roles::{Batch, PAYMENTS, Role, millis};
use crate::testbed::Testbed;
use crate::{DemoError, Options, Seen, moment};

/// Rows of the batch, and before which one the worker freezes: 47 % are sent.
const ROWS: usize = 34;
const FREEZES_AT: usize = 16;

pub fn run(options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    let ttl = options.ttl();
    narrator.say("A lease of 30 s, renewed every 10 s; at 11:46:48 the worker freezes for 41.3 s with 47 % of the rows sent.");
    narrator.say(
        "At 11:47:14 another is granted the lease and settles the batch; at 11:47:30 the first one wakes up.",
    );
    narrator.aside(&format!(
        "Here: {ROWS} rows, a TTL of {}, a real process stopped with SIGSTOP.",
        seconds(ttl)
    ));

    narrator.part("As it was: no fence, no cursor");
    let without = half(narrator, ttl, false)?;
    narrator.bad(&format!(
        "{} of {ROWS} rows were paid twice; their ids overlap from {} to {}.",
        without["paid_twice"], without["overlap_from"], without["overlap_to"]
    ));

    narrator.part("With a fence, and a cursor written in the same step as each payment");
    let with = half(narrator, ttl, true)?;
    narrator.good(&format!(
        "Every row was paid once. {} late writes were refused, and the node counted them: {}.",
        with["refused"], with["refused_by_metric"]
    ));
    Ok(json!({"without": without, "with": with}))
}

fn half(narrator: &mut Narrator, ttl: Duration, fenced: bool) -> Result<Value, DemoError> {
    let testbed = Testbed::open(1)?;
    let worker = |name: &str, waits_at| {
        let batch = Batch {
            endpoints: testbed.endpoints(),
            node: testbed.addresses()[0],
            holder: name.to_owned(),
            ttl_ms: millis(ttl),
            rows: ROWS,
            waits_at,
            fenced,
        };
        RoleProcess::start(name, &Role::Batch(batch))
    };
    let mut a = worker("A", Some(FREEZES_AT))?;
    let token = a.wait_for(&["begins"])?.number("token");
    a.wait_for(&["about_to_send"])?;
    a.freeze()?;
    let frozen = moment();
    a.send("go on")?;
    narrator.say(&format!(
        "A (token {token}) has sent {FREEZES_AT} of {ROWS} rows ({} %) and freezes.",
        FREEZES_AT * 100 / ROWS
    ));
    let mut b = worker("B", None)?;
    let began = b.wait_for(&["begins"])?;
    narrator.say(&format!(
        "After {} B is granted the lease (token {}) and begins with row {}.",
        seconds(moment().saturating_sub(frozen)),
        began.number("token"),
        began.number("row")
    ));
    let b_done = b.wait_for(&["done"])?;
    a.wake()?;
    let a_done = a.wait_for(&["done"])?;
    narrator.say(&format!(
        "B sent {}. A wakes up and goes on with its rows: {} accepted in all, {} refused.",
        b_done.number("sent"),
        a_done.number("sent"),
        a_done.number("refused")
    ));
    let mut http = testbed.http();
    let booked = http.ask("GET", &format!("/v1/registers?prefix={PAYMENTS}&limit=1000"), None)?;
    let mut senders: BTreeMap<usize, usize> = BTreeMap::new();
    for register in booked["registers"].as_array().into_iter().flatten() {
        let row = register["key"].as_str().and_then(|key| key.split('/').nth(1)?.parse().ok());
        *senders.entry(row.expect("payments are booked under their row")).or_default() += 1;
    }
    let twice: Vec<&usize> = senders.iter().filter(|(_, many)| **many > 1).map(|(row, _)| row).collect();
    Ok(json!({
        "rows": ROWS,
        "paid": senders.len(),
        "paid_twice": twice.len(),
        "overlap_from": twice.first(),
        "overlap_to": twice.last(),
        "tokens": [token, began.number("token")],
        "resumed_at": began.number("row"),
        "refused": a_done.number("refused"),
        "refused_by_metric": http.metric("tenure_register_refusals_total")? as u64,
    }))
}
