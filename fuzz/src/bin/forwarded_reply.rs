//! Replies of the leader to a follower, and how the follower passes them on to its client.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_core::{FormatVersion, SessionNumber};
use tenure_fuzz::{report, seeds};
use tenure_wire::{ApiError, ForwardedReply, decode_forwarded_reply, encode_forwarded_reply, grpc};

fuzz_target!(init: seeds::write(seeds::forwarded()), |bytes: &[u8]| {
    let Ok(reply) = decode_forwarded_reply(FormatVersion::NEWEST, bytes) else { return };
    let again = decode_forwarded_reply(FormatVersion::NEWEST, &encode_forwarded_reply(FormatVersion::NEWEST, &reply)).expect("what was written is read");
    assert_eq!(again, reply);
    match reply {
        ForwardedReply::Answer(answer) => {
            grpc::answer_content(&answer);
            if let Err(refusal) = *answer {
                report(ApiError::from(&refusal));
            }
        }
        ForwardedReply::Renewals(answers) => {
            for answer in &answers {
                grpc::renewed(SessionNumber::default(), answer);
            }
        }
        _ => {}
    }
});
