//! Generates the gRPC types and services from `proto/`, without `protoc`.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const FILES: [&str; 10] = [
    "tenure/v1/common.proto",
    "tenure/v1/sessions.proto",
    "tenure/v1/leases.proto",
    "tenure/v1/registers.proto",
    "tenure/v1/watch.proto",
    "tenure/v1/fences.proto",
    "tenure/v1/sequencers.proto",
    "tenure/v1/cluster.proto",
    "tenure/v1/stream.proto",
    "tenure/v1/auth.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::messages::Messages")
        .compile_fds(descriptors)?;
    Ok(())
}
