//! Whether an answer has left: what undoes a plain acquire whose caller hung up in the last moment.
//!
//! A handler attaches the guard to its response; the front moves it into the response's body, where it is disarmed
//! when the connection has taken the last of it. A response that is dropped before that undoes the acquire.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

use crate::acquire::HangUp;

/// The guard of a response, on its way to the body.
#[derive(Clone)]
pub(crate) struct Delivery(Arc<Mutex<Option<HangUp>>>);

impl Delivery {
    pub fn new(hang_up: Option<HangUp>) -> Delivery {
        Delivery(Arc::new(Mutex::new(hang_up)))
    }
}

/// Attaches the guard to a response.
pub(crate) fn undone_unless_delivered<B>(mut response: Response<B>, hang_up: Option<HangUp>) -> Response<B> {
    response.extensions_mut().insert(Delivery::new(hang_up));
    response
}

/// Moves the guard of a response, if it has one, into its body.
pub(crate) fn guarded(mut response: Response<Body>) -> Response<Body> {
    let Some(Delivery(guard)) = response.extensions_mut().remove::<Delivery>() else { return response };
    match guard.lock().take() {
        None => response,
        Some(hang_up) => response.map(|body| Body::new(Guarded { body, hang_up })),
    }
}

struct Guarded {
    body: Body,
    hang_up: HangUp,
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        // The connection may not ask again once it knows that nothing follows.
        let over = match &frame {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(frame))) => frame.is_trailers() || self.body.is_end_stream(),
            _ => false,
        };
        if over {
            self.hang_up.disarm();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
