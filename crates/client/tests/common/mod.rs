//! What several of these test programs need.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// Polls a future so often and then drops it; `None` if it was not done by then.
pub async fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}
