//! The patterns, one by one: `cargo run -p tenure-examples --example patterns -- NAME`, without a name all of
//! them. The code is in `patterns/`, one page each, with a test of what it promises.

use std::time::Duration;

use tenure_client::Client;
use tenure_examples::patterns::{BoxError, deploy, messages, pool, racers, registry, saga, shards};

const NAMES: [&str; 7] = ["racers", "deploy", "registry", "shards", "pool", "saga", "messages"];

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = tenure_examples::client()?;
    let asked: Vec<String> = std::env::args().skip(1).collect();
    for name in asked.iter().map(String::as_str) {
        if !NAMES.contains(&name) {
            return Err(format!("there is no {name}; there are {}", NAMES.join(", ")).into());
        }
    }
    for name in NAMES.into_iter().filter(|name| asked.is_empty() || asked.iter().any(|asked| asked == name)) {
        println!("{name}:");
        match name {
            "racers" => tell_racers(&client).await?,
            "deploy" => tell_deploy(&client).await?,
            "registry" => tell_registry(&client).await?,
            "shards" => tell_shards(&client).await?,
            "pool" => tell_pool(&client).await?,
            "saga" => tell_saga(&client).await?,
            _ => tell_messages(&client).await?,
        }
    }
    Ok(())
}

async fn tell_racers(client: &Client) -> Result<(), BoxError> {
    let open = |name: &'static str| client.session().holder(name).open();
    let sessions = [open("racer-0").await?, open("racer-1").await?];
    let mut wins = [0, 0];
    for _ in 0..20 {
        wins[racers::race(&sessions).await?.winner] += 1;
    }
    println!("  20 races, {} to {}, and never two winners", wins[0], wins[1]);
    Ok(())
}

async fn tell_deploy(client: &Client) -> Result<(), BoxError> {
    let old = deploy::start(client, "v1").await?;
    old.write().await?;
    let straggler = old.straggler()?;
    let (drained, new) = tokio::join!(old.drain(), deploy::start(client, "v2"));
    drained?;
    let new = new?;
    new.write().await?;
    let refused = straggler.wake().await?;
    println!(
        "  v2 has taken over; a thread of v1 that wakes up now is {}",
        if refused { "refused" } else { "accepted" }
    );
    println!("  written last by {}", deploy::written_by(client).await?);
    new.drain().await
}

async fn tell_registry(client: &Client) -> Result<(), BoxError> {
    let listed = registry::list(client, "services/api/1", "10.0.0.7:80").await?;
    println!("  while it lives: {:?}", registry::find(client, "services/api/1").await?);
    listed.leave().await;
    println!("  after its end:  {:?}", registry::find(client, "services/api/1").await?);
    Ok(())
}

async fn tell_shards(client: &Client) -> Result<(), BoxError> {
    let first = client.session().holder("worker-1").open().await?;
    let second = client.session().holder("worker-2").open().await?;
    let one = shards::take_share(&first, 8, 4, Vec::new()).await?;
    let other = shards::take_share(&second, 8, 4, Vec::new()).await?;
    println!("  two workers, 8 shards: {} and {}", one.len(), other.len());
    first.close().await;
    let other = shards::take_share(&second, 8, 8, other).await?;
    println!("  one of them has left:  {}", other.len());
    second.close().await;
    Ok(())
}

async fn tell_pool(client: &Client) -> Result<(), BoxError> {
    let (one, other) = (client.session().open().await?, client.session().open().await?);
    let third = client.session().open().await?;
    let work = |session| pool::job(session, "licences", 2, Duration::from_millis(300));
    let (one, other, third) = tokio::join!(work(&one), work(&other), work(&third));
    println!("  three jobs, two licences: slots {}, {} and, in its turn, {}", one?, other?, third?);
    Ok(())
}

struct Shop;

impl saga::World for Shop {
    fn step(&mut self, key: &str, _step: &str) -> bool {
        println!("  {key}");
        true
    }

    fn undo(&mut self, key: &str, _step: &str) {
        println!("  {key} undone");
    }
}

async fn tell_saga(client: &Client) -> Result<(), BoxError> {
    // A name of its own for every run: the journal of the last one is still there.
    let order = format!("order-{}", std::process::id());
    println!("  {:?}", saga::drive(client, "driver-1", &order, &mut Shop, Some(2)).await?);
    println!("  {:?}", saga::drive(client, "driver-2", &order, &mut Shop, None).await?);
    Ok(())
}

async fn tell_messages(client: &Client) -> Result<(), BoxError> {
    let mut inlet = messages::Inlet::default();
    let session = client.session().holder("one").open().await?;
    let lease = session.acquire("prices/feed").await?;
    let late = messages::stamp(&lease, 90)?;
    lease.release().await?;
    let next = session.acquire("prices/feed").await?;
    let fresh = messages::stamp(&next, 110)?;
    inlet.barrier(&fresh.scope, fresh.token)?;
    for message in [late, fresh] {
        let (token, price) = (message.token, message.body);
        let taken = inlet.take(message, drop);
        println!("  {price} under token {token}: {}", if taken { "taken in" } else { "passed over" });
    }
    next.release().await?;
    Ok(())
}
