//! A file-processing worker on S3: reads what lies under `inbox/`, writes results under `results/`.
//!
//! A result is uploaded under a name of its own and becomes visible with one conditional PUT of a manifest
//! that carries the token: a worker that was paused between the two loses that race for ever.
//!
//! `AWS_BUCKET=files AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… \
//!  cargo run -p tenure-examples --features s3 --example worker`
//!
//! With `AWS_ENDPOINT=http://127.0.0.1:9000 AWS_ALLOW_HTTP=true` it is a server of your own. Without the
//! feature the objects live in this process's memory, with one input file.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tenure_fence::FenceError;
use tenure_fence::object::{Manifest, probe};

const RESOURCE: &str = "files/worker";
const FENCE: &str = "s3:results";
const MAX_OP: Duration = Duration::from_secs(5);

#[cfg(feature = "s3")]
async fn store() -> Result<Arc<dyn ObjectStore>, Box<dyn Error>> {
    Ok(Arc::new(object_store::aws::AmazonS3Builder::from_env().build()?))
}

#[cfg(not(feature = "s3"))]
async fn store() -> Result<Arc<dyn ObjectStore>, Box<dyn Error>> {
    let store = object_store::memory::InMemory::new();
    store.put(&Path::from("inbox/poem.txt"), "roses are red\nviolets are blue\n".into()).await?;
    Ok(Arc::new(store))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = store().await?;
    // Not every server that speaks S3 honours conditions. Better to learn that now.
    probe(&*store, "probe").await?;
    let results = Manifest::new(store.clone(), "results");

    let client = tenure_examples::client()?;
    let session = client.session().open().await?;
    let lease = session.acquire(RESOURCE).fences([FENCE]).wait().await?;
    lease.take_over(&[(FENCE, &results)]).await?;

    let done = results.entries(lease.scope()).await?;
    let inbox = store.list_with_delimiter(Some(&Path::from("inbox"))).await?;
    for file in inbox.objects {
        let name = file.location.filename().unwrap_or_default().to_owned();
        if done.contains_key(&name) {
            continue;
        }
        let text = store.get(&file.location).await?.bytes().await?;
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        // The reading may have taken long; whether we may still write is asked now.
        let permit = lease.permit_for(MAX_OP)?;
        match results.put(&*permit, &name, format!("{lines} lines\n")).await {
            Ok(()) => println!("{name}: {lines} lines, under token {}", permit.token()),
            Err(stale @ FenceError::Stale(_)) => {
                lease.report_refused(&FENCE.parse()?, &stale);
                return Err(stale.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    lease.release().await?;
    Ok(())
}
