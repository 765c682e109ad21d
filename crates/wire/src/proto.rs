//! The gRPC interface `tenure.v1`, generated from `proto/tenure/v1`.
//!
//! Messages, clients and servers of all services; their comments are those of the `.proto` files.

#![allow(missing_docs, clippy::all, reason = "generated")]

tonic::include_proto!("tenure.v1");

/// The encoded descriptors of all files, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
