//! Requests of the gRPC interface. Every input is read as every message there is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tenure_core::{Command, Secret};
use tenure_fuzz::{acceptable, report, seeds};
use tenure_wire::{ApiError, grpc, proto};

/// Reads the bytes as one kind of message, and makes of it what the server would.
fn read<T: Message + Default>(bytes: &[u8], command: impl FnOnce(T) -> Result<Command, ApiError>) {
    let Ok(message) = T::decode(bytes) else { return };
    match command(message) {
        Ok(command) => acceptable(command),
        Err(error) => report(error),
    }
}

/// Reads the bytes as messages that become no command.
macro_rules! read_only {
    ($bytes:expr, $($message:ident),* $(,)?) => {
        $(let _ = proto::$message::decode($bytes);)*
    };
}

fuzz_target!(init: seeds::write(seeds::messages()), |bytes: &[u8]| {
    let secret = Secret::new([7; 16]);
    read(bytes, |message| grpc::open(message, secret));
    read(bytes, grpc::close);
    read(bytes, |message| grpc::seen(&message));
    read(bytes, |message| grpc::report_pause(&message));
    read(bytes, |message| Ok(Command::Acquire(Box::new(grpc::acquire(message, secret)?))));
    read(bytes, grpc::cancel);
    read(bytes, grpc::release);
    read(bytes, grpc::transfer);
    read(bytes, grpc::revoke);
    read(bytes, grpc::write);
    read(bytes, grpc::arm);
    read(bytes, grpc::report_refused);
    read(bytes, grpc::set_kind);
    read(bytes, grpc::rebind);
    read_only!(
        bytes,
        SessionRenewRequest,
        SessionListRequest,
        SessionGetRequest,
        LeaseGetRequest,
        LeaseListRequest,
        HistoryRequest,
        BarrierRequest,
        RegisterGetRequest,
        RegisterListRequest,
        WatchRequest,
        SequencerIssueRequest,
        SequencerCheckRequest,
        FenceRemoveRequest,
        FenceListRequest,
        ClusterStatusRequest,
        StepDownRequest,
        NodeAddRequest,
        NodeRemoveRequest,
        BackupRequest,
    );
});
