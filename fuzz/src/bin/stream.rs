//! The session stream: frames of commands and of renewals as the server reads them, and what a client reads
//! back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tenure_core::{Secret, SessionId, SessionNumber};
use tenure_fuzz::{acceptable, report, seeds};
use tenure_wire::{ApiError, grpc, proto};

fn commands(frames: proto::ClientFrames) {
    let drawn = Secret::new([7; 16]);
    for frame in frames.frames {
        if let Some(proto::client_frame::Command::Attach(attach)) = &frame.command {
            let _ = grpc::secret(&attach.secret);
        }
        // Every other session is attached, so both ways are walked.
        let id = SessionId { number: SessionNumber::new(frame.session), secret: drawn };
        let attached = (!frame.session.is_multiple_of(2)).then_some(id);
        match grpc::frame_command(frame, attached, drawn) {
            Ok(Some(command)) => acceptable(command),
            Ok(None) => {}
            Err(error) => report(error),
        }
    }
}

fn renewals(frames: &proto::RenewalFrames) {
    for attach in &frames.attach {
        let _ = grpc::secret(&attach.secret);
    }
    match grpc::unpack_renewals(frames) {
        Ok(renewals) => {
            let packed = grpc::pack_renewals(frames.batch, &renewals);
            assert_eq!(grpc::unpack_renewals(&packed).expect("what was packed is unpacked"), renewals);
        }
        Err(error) => report(error),
    }
}

fn answers(frames: proto::ServerFrames) {
    for frame in frames.frames {
        if let Some(proto::server_frame::Content::Error(error)) = frame.content {
            report(ApiError::from(error));
        }
    }
}

fuzz_target!(init: seeds::write(seeds::stream()), |bytes: &[u8]| {
    if let Ok(frames) = proto::ClientFrames::decode(bytes) {
        commands(frames);
    }
    if let Ok(frames) = proto::RenewalFrames::decode(bytes) {
        renewals(&frames);
    }
    if let Ok(frames) = proto::ServerFrames::decode(bytes) {
        answers(frames);
    }
    let _ = proto::RenewalAnswers::decode(bytes);
    let _ = proto::WatchResponse::decode(bytes);
});
