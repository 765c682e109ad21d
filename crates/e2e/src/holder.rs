//! The application's side of the client library, as tests use it.

use std::future::Future;
use std::time::{Duration, Instant};

use tenure_client::{Client, Endpoints, Lease};

use crate::wait::until;

/// For what happens soon: only how long a broken build takes to say so.
pub const SOON: Duration = Duration::from_secs(60);

/// Runs a future on a runtime of its own, as an application with one thread would.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// A client of the nodes at these endpoints.
pub fn client(endpoints: &str) -> Client {
    Client::connect(&endpoints.parse::<Endpoints>().expect("endpoints"))
}

/// Waits until the lease has been renewed after this call, and gives its token.
#[track_caller]
pub fn renewed(lease: &Lease, ttl: Duration) -> u64 {
    let asked = Instant::now();
    let mut token = 0;
    until("the lease is renewed", SOON, || {
        let Ok(permit) = lease.permit() else { return false };
        token = permit.token().get();
        // More is left than there can be of a renewal that was sent before.
        permit.time_left() + asked.elapsed() > ttl
    });
    token
}
