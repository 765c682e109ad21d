//! What the examples share: how they find the store, and the patterns.

pub mod patterns;

use tenure_client::{Client, InvalidEndpoint};

/// The store at `TENURE_ENDPOINTS`; without it one inside this process, so that every example runs by itself.
pub fn client() -> Result<Client, InvalidEndpoint> {
    match std::env::var("TENURE_ENDPOINTS") {
        Ok(endpoints) => Ok(Client::connect(&endpoints.parse()?)),
        Err(_) => {
            eprintln!(
                "TENURE_ENDPOINTS is not set: the leases live in this process, and nobody contends for them"
            );
            Ok(Client::embedded())
        }
    }
}
