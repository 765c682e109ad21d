//! The connections of a run: a fixed number, spread over the endpoints in turn, opened when first needed and
//! again when broken.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;

use super::Result;
use crate::error::BenchError;

/// How long one endpoint may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Something that can break.
pub trait Breaks {
    /// Whether it has.
    fn broken(&self) -> bool;
}

/// The connections of a run.
pub struct Connections<C> {
    endpoints: Vec<String>,
    slots: Vec<Slot<C>>,
}

struct Slot<C> {
    connection: Mutex<Option<Arc<C>>>,
    /// Grows with every failure, so that the next endpoint is tried.
    turn: AtomicUsize,
}

impl<C: Breaks> Connections<C> {
    pub fn new(endpoints: &[String], connections: usize) -> Connections<C> {
        let slot = |turn| Slot { connection: Mutex::new(None), turn: AtomicUsize::new(turn) };
        Connections { endpoints: endpoints.to_vec(), slots: (0..connections.max(1)).map(slot).collect() }
    }

    /// The connection with this number.
    pub async fn get<F>(&self, way: usize, connect: impl Fn(String) -> F) -> Result<Arc<C>>
    where
        F: Future<Output = Result<C>>,
    {
        let slot = &self.slots[way % self.slots.len()];
        let mut held = slot.connection.lock().await;
        if let Some(connection) = held.as_ref().filter(|connection| !connection.broken()) {
            return Ok(connection.clone());
        }
        if held.take().is_some() {
            slot.turn.fetch_add(1, Ordering::Relaxed);
        }
        let endpoint = &self.endpoints[slot.turn.load(Ordering::Relaxed) % self.endpoints.len()];
        match tokio::time::timeout(CONNECT_WITHIN, connect(endpoint.clone())).await {
            Ok(Ok(connection)) => Ok(held.insert(Arc::new(connection)).clone()),
            other => {
                slot.turn.fetch_add(1, Ordering::Relaxed);
                let why = match other {
                    Ok(Err(error)) => error.to_string(),
                    _ => format!("no connection within {CONNECT_WITHIN:?}"),
                };
                Err(BenchError::unreachable(format!("{endpoint} cannot be reached: {why}")))
            }
        }
    }
}
