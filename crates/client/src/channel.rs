//! One connection, and what is presented on it with every call.

use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response, header};
use tonic::transport;

use crate::credential::Credential;

/// What one transmission of a [`Transport::call`](crate::Transport::call) goes over: a connection, and the credential
/// that every call on it carries. Clients of the gRPC interface are made of it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Channel {
    connection: transport::Channel,
    credential: Option<Credential>,
}

impl Channel {
    /// The way to an address, for whoever makes connections of its own.
    pub fn from_shared(uri: String) -> Result<transport::Endpoint, transport::Error> {
        transport::Endpoint::from_shared(uri)
    }

    /// Presents this credential, if there is one, with every call over this connection.
    pub fn new(connection: transport::Channel, credential: Option<Credential>) -> Channel {
        Channel { connection, credential }
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = <transport::Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connection.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(credential) = &self.credential {
            request.headers_mut().insert(header::AUTHORIZATION, credential.authorization());
        }
        self.connection.call(request)
    }
}
