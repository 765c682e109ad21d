//! A client of the HTTP interface without the client library, in its own process. An audit found a bug that
//! the library's own care had hidden: a node that cleaned up after a broken connection took back a lease that
//! another node had granted.

use std::time::Duration;

use tenure_e2e::{Acquired, Dice, GivenBack, PlainCaller};

use crate::emit::{begin, end, number, tell};
use crate::holder::{RESOURCES, TTL, runtime};
use crate::time::now;

/// Works until it is killed.
pub fn run(process: u32, endpoints: &str) -> Result<(), String> {
    let parse = |node: &str| node.parse().map_err(|_| format!("{node} is no address"));
    let nodes = endpoints.split(',').map(parse).collect::<Result<_, String>>()?;
    let dice = Dice::seeded(u64::from(process) * 104_729);
    let mut caller = PlainCaller::new(format!("caller-{process}"), nodes, TTL, dice);
    runtime()?.block_on(async move {
        loop {
            round(&mut caller).await;
        }
    })
}

/// Acquires, holds for a moment, releases.
async fn round(caller: &mut PlainCaller) {
    let resource = RESOURCES[caller.between(0, RESOURCES.len() as u64) as usize];
    let Some(by) = caller.draw(now) else { return };
    let asked = begin(&format!("acquire {resource}"));
    let (token, session) = match caller.acquire(resource, &by).await {
        Acquired::Granted(token, session) => {
            end(asked, &format!("granted {token}"));
            (token, session)
        }
        Acquired::Held => return end(asked, "held"),
        Acquired::Failed => return end(asked, "failed"),
        Acquired::Unknown => return,
    };
    let deadline = caller.renew(&session, now);
    let (numbered, from) = (number(), now());
    if let Some(deadline) = deadline.filter(|deadline| from < *deadline) {
        tell(&format!("permit {numbered} {from} {deadline} {resource} {token}"));
        tokio::time::sleep(Duration::from_millis(caller.between(5, 150))).await;
        tell(&format!("permitend {numbered} {}", now()));
    }
    let released = begin(&format!("release {resource} {token}"));
    match caller.release(resource, token, &session, &by) {
        GivenBack::Unknown => {}
        given_back => {
            // What was acknowledged must still be there before its deadline: nobody else may end it.
            if given_back == GivenBack::Gone && deadline.is_some_and(|deadline| now() < deadline) {
                tell(&format!("takenback {} {resource} {token}", now()));
            }
            end(released, "over");
        }
    }
}
