//! gRPC `tenure.v1`: the surface that client libraries use, with health checks and reflection.
//!
//! Handlers turn messages into commands with `tenure_wire::grpc`, ask [`Api`], and turn answers into messages. They
//! hold no rule of their own. Which handler serves which method is in the table of calls; this file carries messages
//! between the two.

pub(crate) mod auth;
pub(crate) mod cluster;
mod error;
pub(crate) mod fences;
mod health;
pub(crate) mod leases;
pub(crate) mod registers;
pub(crate) mod sequencers;
pub(crate) mod sessions;
pub(crate) mod stream;
pub(crate) mod watch;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::{Stream, StreamExt};
use prost::Message;
use tenure_wire::{ApiError, Messages, proto};
use tonic::server::Grpc;
use tonic::service::Routes;
use tonic::{Status, Streaming};
use tonic_health::pb::health_server::HealthServer;
use tower::service_fn;

use crate::delivery::Delivery;
use crate::front::Api;

pub(crate) use error::status;

/// A stream of answers.
pub(crate) type Answers<A> = Pin<Box<dyn Stream<Item = Result<A, ApiError>> + Send>>;

/// What a call with one answer gives: the message alone, or with the guard of a delivery.
pub(crate) trait Reply {
    type Message: Message + Send + 'static;

    fn into_response(self) -> tonic::Response<Self::Message>;
}

impl<M: Message + Send + 'static> Reply for M {
    type Message = M;

    fn into_response(self) -> tonic::Response<M> {
        tonic::Response::new(self)
    }
}

/// A message whose caller must receive it, or what it says is undone.
pub(crate) struct Delivered<M>(pub M, pub Delivery);

impl<M: Message + Send + 'static> Reply for Delivered<M> {
    type Message = M;

    fn into_response(self) -> tonic::Response<M> {
        let mut response = tonic::Response::new(self.0);
        response.extensions_mut().insert(self.1);
        response
    }
}

/// One message in, one out.
pub(crate) async fn unary<Q, A, F>(request: Request<Body>, call: impl FnOnce(Q) -> F + Send) -> Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Reply,
    F: Future<Output = Result<A, ApiError>> + Send,
{
    let mut call = Some(call);
    let service = service_fn(move |request: tonic::Request<Q>| {
        let answer = call.take().map(|call| call(request.into_inner()));
        async move { answer.expect("called once").await.map(Reply::into_response).map_err(status) }
    });
    Grpc::new(Messages::<A::Message, Q>::default()).unary(service, request).await.map(Body::new)
}

/// One message in, a stream of them out.
pub(crate) async fn server_streaming<Q, A, F>(
    request: Request<Body>,
    call: impl FnOnce(Q) -> F + Send,
) -> Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Send + 'static,
    F: Future<Output = Result<Answers<A>, ApiError>> + Send,
{
    let mut call = Some(call);
    let service = service_fn(move |request: tonic::Request<Q>| {
        let answers = call.take().map(|call| call(request.into_inner()));
        async move { answers.expect("called once").await.map(streamed).map_err(status) }
    });
    Grpc::new(Messages::<A, Q>::default()).server_streaming(service, request).await.map(Body::new)
}

/// A stream of messages in, one out.
pub(crate) async fn client_streaming<Q, A, F>(
    request: Request<Body>,
    call: impl FnOnce(Streaming<Q>) -> F + Send,
) -> Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Send + 'static,
    F: Future<Output = Result<A, ApiError>> + Send,
{
    let mut call = Some(call);
    let service = service_fn(move |request: tonic::Request<Streaming<Q>>| {
        let answer = call.take().map(|call| call(request.into_inner()));
        async move { answer.expect("called once").await.map(tonic::Response::new).map_err(status) }
    });
    Grpc::new(Messages::<A, Q>::default()).client_streaming(service, request).await.map(Body::new)
}

/// A stream of messages in, another one out.
pub(crate) async fn bidi<Q, A, F>(
    request: Request<Body>,
    call: impl FnOnce(Streaming<Q>) -> F + Send,
) -> Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Send + 'static,
    F: Future<Output = Result<Answers<A>, ApiError>> + Send,
{
    let mut call = Some(call);
    let service = service_fn(move |request: tonic::Request<Streaming<Q>>| {
        let answers = call.take().map(|call| call(request.into_inner()));
        async move { answers.expect("called once").await.map(streamed).map_err(status) }
    });
    Grpc::new(Messages::<A, Q>::default()).streaming(service, request).await.map(Body::new)
}

type Statuses<A> = Pin<Box<dyn Stream<Item = Result<A, Status>> + Send>>;

fn streamed<A: 'static>(answers: Answers<A>) -> tonic::Response<Statuses<A>> {
    tonic::Response::new(Box::pin(answers.map(|answer| answer.map_err(status))))
}

/// The services that are not ours: health checks and reflection.
pub(crate) fn services(api: Arc<Api>) -> Router {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let described = "the descriptors were made by the build that made the services";
    Routes::new(HealthServer::new(health::NodeHealth(api)))
        .add_service(reflection().build_v1().expect(described))
        .add_service(reflection().build_v1alpha().expect(described))
        .into_axum_router()
}
